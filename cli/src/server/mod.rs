//! `kivu serve`: the HTTP server.

pub mod connections;
pub mod key;
pub mod ps;
pub mod unread_body;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{self, ExitCode},
    sync::Arc,
    thread,
    time::Duration,
};

use clap::Args;
use tokio::{
    net::TcpListener,
    runtime::{Builder, Handle},
};

use super::{
    choices::choice,
    interrupt::{Ended, Signals, until_signal},
    library::{
        fetcher::Fetcher,
        resolve::{BuildArguments, resolve_all},
    },
    server::connections::Timeouts,
    terminal::{print, print_aside},
};
use crate::examples::examples;
use kivu::{
    Error, Result,
    backend::MappedFiles,
    cloud::Cloud,
    config::{Config, Load, ModelConfig, OtlpConfig, parse_address, parse_bytes},
    model::Catalog,
    repository::manifest::check_name,
    telemetry::{Otlp, Prometheus},
};
use kivu_compiler::{
    abandon,
    library::{model_library::Options, resolve},
};
use kivu_http::{App, BindScope, Guard, below, cors, example, router};

/// Interval for sorting recorded durations into buckets, which bounds their memory.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// Interval for checking mapped files for changes.
const FILE_CHECK: Duration = Duration::from_millis(500);

/// Serve models over HTTP
///
/// Each MODEL is a Hugging Face Hub repository, as ORG/NAME or ORG/NAME@REVISION, a built-in recipe, a folder with
/// weights, a bundle from `kivu build` or its name, a folder of bundles, or a bundle's S3 URL, as
/// s3://BUCKET/PREFIX/NAME[/DIGEST]. Models that are not bundles are built at the first start and kept. The default is
/// the models in kivu.toml, or else all bundles that were built without `--out`.
#[derive(Debug, Default, Args)]
#[command(after_help = examples("serve"))]
pub struct Arguments {
    /// A hub repository, a recipe, a bundle, a folder of bundles, or a bundle's URL; also as NAME=MODEL, with the name in
    /// requests
    #[arg(value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// The address to listen on [default: as in kivu.toml, or 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    listen: Option<SocketAddr>,
    /// The port to listen on, at kivu.toml's address
    #[arg(long, conflicts_with = "listen")]
    port: Option<u16>,
    /// When models are loaded: all at start, or each by its first request [default: as in kivu.toml, or start]
    #[arg(long, value_parser = choice::<Load>())]
    load: Option<Load>,
    /// Memory for models that are loaded on demand, such as 2GB [default: as in kivu.toml, or half of what the process
    /// may use]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    max_memory: Option<u64>,
    /// Open the page in a browser, once models are served
    #[arg(long)]
    open: bool,
    /// Exit when standard input is closed, as it is when the parent process ends
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
    #[command(flatten)]
    pub build: BuildArguments,
}

impl Arguments {
    /// Serves one model, and opens its page.
    pub fn of(model: &str) -> Self {
        Self {
            models: vec![model.into()],
            open: true,
            ..Self::default()
        }
    }
}

pub fn run(arguments: Arguments, mut config: Config, cloud: Cloud) -> Result<ExitCode> {
    if arguments.until_stdin_closes {
        thread::spawn(|| {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            process::exit(0)
        });
    }
    if !arguments.models.is_empty() {
        config.models = arguments.models.into_iter().map(named).collect();
    }
    if config.models.is_empty() && config.bundles().is_dir() {
        config.models = vec![config.bundles().into()];
    }
    let options = arguments.build.options(&config);
    config.engine = options.engine;
    if let Some(listen) = arguments.listen {
        config.listen = listen;
    }
    if let Some(port) = arguments.port {
        config.listen.set_port(port);
    }
    config.load = arguments.load.unwrap_or(config.load);
    config.max_memory = arguments.max_memory.or(config.max_memory);
    config.check_load()?;
    // Blocking tasks only tokenize, so one thread per CPU is enough; none waits for I/O.
    let blocking_threads = config.threads().get();
    let runtime = || {
        Builder::new_multi_thread()
            .enable_all()
            .max_blocking_threads(blocking_threads)
            .build()
            .map_err(Error::io("cannot start the server's threads"))
    };
    // Connections stay responsive beside requests that take long to read or to answer.
    let (connections, long_requests) = (runtime()?, runtime()?);
    let ready = match arguments.open && config.page {
        true => open_page,
        false => |_: &str| {},
    };
    let served = connections.block_on(serve(
        config,
        cloud,
        options,
        long_requests.handle().clone(),
        ready,
    ));
    long_requests.shutdown_background();
    served
}

/// Opens a page in the user's browser, if there is one.
fn open_page(url: &str) {
    if let Err(error) = open::that_detached(url) {
        print_aside(&format!("note: cannot open a browser: {error}"));
    }
}

/// A model, or `NAME=MODEL`. An existing path with `=` has no name.
fn named(model: PathBuf) -> ModelConfig {
    let text = model.to_str().filter(|_| !model.exists());
    let named = text.and_then(|text| text.split_once('='));
    match named.filter(|(name, _)| check_name(name).is_ok()) {
        Some((name, path)) => ModelConfig {
            name: Some(name.to_owned()),
            path: path.into(),
            ..ModelConfig::default()
        },
        None => model.into(),
    }
}

async fn serve(
    mut config: Config,
    cloud: Cloud,
    options: Options,
    long_requests: Handle,
    ready: fn(&str),
) -> Result<ExitCode> {
    let guard = Guard::new(&config.auth, BindScope::Address(config.listen), &cloud)?
        .with_pages(config.cors_origins.clone());
    // Bound before models are loaded: an occupied port is reported at once, and early requests wait.
    let listener = TcpListener::bind(config.listen).await.map_err(|error| {
        Error::io(format!("cannot listen on `{}`", config.listen))(error)
            .with_hint("choose another port with `--port`")
    })?;
    let address = listener
        .local_addr()
        .map_err(Error::io("cannot read the listener's address"))?;
    let otlp = OtlpConfig::new(&Config::variables()?)
        .map(|config| Otlp::start(&config, "kivu"))
        .transpose()?;
    let prometheus = Prometheus::install(otlp.as_ref())?;
    tokio::spawn(upkeep(prometheus.clone()));
    guard.prepare().await?;
    let fetcher = Fetcher {
        config: config.clone(),
        options: options.clone(),
    };
    let mut early_signals = None;
    if !resolve::find_all(&mut config, &options)? {
        let mut signals = Signals::new()?;
        config = match until_signal(&mut signals, move || build_all(config, &options)).await? {
            Ended::Done(config) => config,
            Ended::Signalled(code) => {
                abandon();
                return Ok(code);
            }
        };
        early_signals = Some(signals);
    }
    let catalog = Arc::new(tokio::task::block_in_place(|| {
        Catalog::open(&config, &cloud)
    })?);
    let mut signals = early_signals.map_or_else(Signals::new, Ok)?;
    // A closed standard output does not keep the server from serving.
    let url = |address: SocketAddr| {
        format!(
            "http://{address}{}",
            config.prefix.as_deref().unwrap_or_default()
        )
    };
    let _ = announce(
        [&url(address), &url(reachable(address))],
        &catalog,
        &config,
        &guard,
    );
    ready(&url(reachable(address)));
    let files = catalog.mapped_files();
    let stop = async {
        tokio::select! {
            _ = signals.next() => Ok(()),
            path = changed(&files, &catalog) => Err(Error::model(format!(
                "`{}` was written to after it was loaded",
                path.display()
            ))
            .with_hint(
                "replace bundles as a whole (`kivu build`, `kivu pull`, or a new folder and a \
                 rename), and start the server again",
            )),
        }
    };
    let timeouts = Timeouts {
        request: config.limits.timeout(),
        idle: Duration::from_millis(config.limits.idle_ms),
    };
    // Anybody could fill the disk of an open server.
    let has_known_callers = address.ip().is_loopback() || guard.requires_key();
    let fetcher = (has_known_callers && !fetcher.config.hub.offline).then_some(fetcher);
    let app = App {
        guard,
        prometheus: Some(prometheus),
        has_page: config.page,
        slow_request: config.slow_request(),
        fetcher: fetcher.map(|fetcher| Arc::new(fetcher) as _),
        long_requests: Some(long_requests),
        ..App::of_catalog(Arc::clone(&catalog), config.limits)
    };
    if let Some(otlp) = &otlp {
        app.export(otlp);
    }
    let router = router(app);
    let served = connections::serve(
        listener,
        cors(below(config.prefix.as_deref(), router), config.cors_origins),
        timeouts,
        stop,
    )
    .await;
    if let Some(otlp) = otlp {
        otlp.stop().await;
    }
    served?;
    Ok(ExitCode::SUCCESS)
}

/// Builds all models that are not bundles.
fn build_all(mut config: Config, options: &Options) -> Result<Config> {
    resolve_all(&mut config, options)?;
    Ok(config)
}

async fn upkeep(prometheus: Prometheus) {
    let mut interval = tokio::time::interval(METRICS_UPKEEP);
    loop {
        interval.tick().await;
        prometheus.upkeep();
    }
}

/// Waits until a weight file of a model that stays loaded is modified; returns its path. Tends the other models.
async fn changed<'a>(files: &'a [Arc<dyn MappedFiles>], catalog: &Catalog) -> &'a Path {
    let mut interval = tokio::time::interval(FILE_CHECK);
    loop {
        interval.tick().await;
        if let Some(path) = files.iter().find_map(|files| files.changed()) {
            return path;
        }
        catalog.tend();
    }
}

/// An address for clients on this machine, if the server listens on all of its addresses.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// Prints the models with the server's URL, and a request to its URL for this machine.
fn announce(
    [url, local]: [&str; 2],
    catalog: &Catalog,
    config: &Config,
    guard: &Guard,
) -> Result<()> {
    let models = catalog.entries();
    if let Some((memory, _)) = catalog.budget() {
        let memory = match memory {
            ..1_000_000 => format!("{memory} bytes"),
            _ => format!("{} MB", memory / 1_000_000),
        };
        print(&format!(
            "serving {} models on demand, within {memory}, on {url}",
            models.len()
        ))?;
    } else {
        for model in models.iter() {
            print(&format!(
                "serving `{}` ({}) on {url}",
                model.name, model.manifest.task
            ))?;
        }
    }
    let Some(first) = models.first() else {
        return Ok(());
    };
    print(&match config.page {
        true => format!("try it: open {local}/ in a browser, or"),
        false => "try it:".to_owned(),
    })?;
    let (name, body) = (&first.name, example::body(&first.manifest));
    let key = if guard.requires_key() {
        " -H 'authorization: Bearer KEY'"
    } else {
        ""
    };
    print(&format!(
        "  curl {local}/models/{name}{key} -H 'content-type: application/json' -d '{body}'"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_get_an_address_that_they_can_open() {
        let shown = |address: &str| reachable(address.parse().unwrap()).to_string();
        assert_eq!(shown("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(shown("[::]:80"), "[::1]:80");
        assert_eq!(shown("10.0.0.1:80"), "10.0.0.1:80");
    }
}
