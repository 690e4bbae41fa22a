//! `kivu serve`: the HTTP server.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    sync::Arc,
    thread,
    time::Duration,
};

use clap::Args;
use tokio::{net::TcpListener, runtime::Builder};

use super::{connections, example, interrupt::Signals, terminal::print};
use crate::{
    api::{App, BindScope, Guard, below, router},
    backend::MappedFiles,
    config::{Config, EngineChoice},
    error::{Error, Result},
    model::Model,
    telemetry::Prometheus,
};

/// The interval at which recorded durations are sorted into buckets, which bounds their memory.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// The interval at which mapped files are checked for changes.
const FILE_CHECK: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "\
Examples:
  kivu serve my-model                           one bundle, on http://127.0.0.1:8080
  kivu serve bundles --listen 127.0.0.1:9000    all bundles of a folder, on another port
  kivu serve minilm                             a bundle that was built without --out, by its name
  kivu serve                                    the models of kivu.toml, or all that were built without --out";

/// Serve models over HTTP
///
/// Each MODEL is a bundle made by `kivu build`, a folder of bundles, the name of a bundle that was built without
/// `--out`, or the URL of a bundle in S3, as s3://BUCKET/PREFIX/NAME[/DIGEST]. The default is the models of kivu.toml,
/// or else all bundles that were built without `--out`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// A bundle, a folder of bundles, or the URL of a bundle
    #[arg(value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// The address to listen on [default: that of kivu.toml, or 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// The engine of local models [default: that of kivu.toml, or auto: the one that each bundle was built for]
    #[arg(long)]
    engine: Option<EngineChoice>,
    /// Exit when standard input is closed, as it is when the parent process ends
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
}

pub(super) fn run(arguments: Arguments, mut config: Config) -> Result<ExitCode> {
    if arguments.until_stdin_closes {
        thread::spawn(|| {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            process::exit(0)
        });
    }
    if !arguments.models.is_empty() {
        let models = arguments.models.into_iter();
        config.models = models.map(|model| config.find_bundle(model).into()).collect();
    }
    if config.models.is_empty() && config.bundles().is_dir() {
        config.models = vec![config.bundles().into()];
    }
    config.engine = arguments.engine.unwrap_or(config.engine);
    if let Some(listen) = arguments.listen {
        config.listen = listen;
    }
    // Blocking tasks tokenize, which needs a CPU each; none waits for input or output.
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(config.threads().get())
        .build()
        .map_err(Error::io("cannot start the server's threads"))?;
    runtime.block_on(serve(config))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(config: Config) -> Result<()> {
    let guard = Guard::new(&config.auth, BindScope::Address(config.listen))?;
    // Bound before models are loaded: an occupied port is reported at once, and early requests wait.
    let listener = TcpListener::bind(config.listen).await.map_err(|source| Error::Io {
        action: format!("cannot listen on `{}`; choose another address with `--listen`", config.listen),
        source,
    })?;
    let address = listener.local_addr().map_err(Error::io("cannot read the address of the listener"))?;
    let prometheus = Prometheus::install()?;
    tokio::spawn(upkeep(prometheus.clone()));
    guard.prepare().await?;
    let models = tokio::task::block_in_place(|| Model::open_all(&config))?;
    let mut signals = Signals::new()?;
    // A closed standard output does not keep the server from serving.
    let _ = announce(address, &models, config.page);
    let files: Vec<_> = models.iter().map(|model| Arc::clone(&model.files)).collect();
    let stop = async {
        tokio::select! {
            _ = signals.next() => Ok(()),
            path = changed(&files) => Err(Error::model(format!(
                "expected `{}` to be unchanged since it was loaded, but it was written to; replace bundles as a whole \
                 (`kivu build`, `kivu pull`, or a new folder and a rename), and start the server again",
                path.display()
            ))),
        }
    };
    let timeout = config.limits.timeout();
    let app = App::new(models, config.limits).with_guard(guard).with_metrics(prometheus);
    let router = router(app.with_page(config.page));
    connections::serve(listener, below(config.prefix.as_deref(), router), timeout, stop).await
}

async fn upkeep(prometheus: Prometheus) {
    let mut interval = tokio::time::interval(METRICS_UPKEEP);
    loop {
        interval.tick().await;
        prometheus.upkeep();
    }
}

/// Waits until a mapped weight file is written to; the file's path.
async fn changed(files: &[Arc<MappedFiles>]) -> &Path {
    let mut interval = tokio::time::interval(FILE_CHECK);
    loop {
        interval.tick().await;
        if let Some(path) = files.iter().find_map(|files| files.changed()) {
            return path;
        }
    }
}

fn announce(address: SocketAddr, models: &[Model], has_page: bool) -> Result<()> {
    for model in models {
        print(&format!("serving `{}` ({}) on http://{address}", model.name, model.manifest.task))?;
    }
    let Some(first) = models.first() else { return Ok(()) };
    print(&match has_page {
        true => format!("try it: open http://{address}/ in a browser, or"),
        false => "try it:".to_owned(),
    })?;
    let (name, body) = (&first.name, example::body(&first.manifest));
    print(&format!("  curl http://{address}/models/{name} -H 'content-type: application/json' -d '{body}'"))
}
