//! The `kivu` command as a program.

use std::process::ExitCode;

use kivu::config::Config;
use kivu_cli::Services;

fn main() -> ExitCode {
    kivu_cli::main(std::env::args_os(), services)
}

#[cfg(feature = "services")]
fn services(config: &Config) -> Services {
    Services {
        cloud: kivu_aws::cloud(config),
        sinks: kivu_sinks::sinks(),
        parquet: kivu_parquet::parquet(),
        search: Some(kivu_search::search),
    }
}

#[cfg(not(feature = "services"))]
fn services(_: &Config) -> Services {
    Services::default()
}
