//! `kivu init`: a configuration file with comments.

use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use crate::{examples::examples, library::resolve::require_local, terminal::print};
use kivu::{Error, Result, config};

const TEMPLATE: &str = include_str!("kivu.toml");
/// The line with `models` in the template.
const MODELS: &str = "#MODELS#";

/// Write a configuration file with every key, its default and its meaning
#[derive(Debug, Args)]
#[command(after_help = examples("init"))]
pub struct Arguments {
    /// Models to serve, named as in `kivu serve`
    #[arg(value_name = "MODEL")]
    models: Vec<String>,
    /// A new file, or - for standard output
    #[arg(long, value_name = "FILE", default_value = config::FILE)]
    out: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.out == Path::new("-") {
        print(text(&arguments.models).trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    require_local(&arguments.out)?;
    let out = arguments.out.display();
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&arguments.out)
        .map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Error::config(format!("`{out}` exists already"))
                .with_hint("remove it, or choose another with `--out`"),
            _ => Error::io(format!("cannot write `{out}`"))(error),
        })?;
    file.write_all(text(&arguments.models).as_bytes())
        .map_err(|error| {
            let _ = fs::remove_file(&arguments.out);
            Error::io(format!("cannot write `{out}`"))(error)
        })?;
    print(&format!("wrote {out}"))?;
    Ok(ExitCode::SUCCESS)
}

fn text(models: &[String]) -> String {
    let line = match models {
        [] => "# models = [\"minilm\"]".to_owned(),
        _ => format!("models = {}", serde_json::json!(models)),
    };
    TEMPLATE.replace(MODELS, &line)
}
