//! `kivu serve`: the router on a port of this machine.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::Args;
use rustix::process::getppid;
use tokio::{net::TcpListener, runtime::Builder, signal};

use super::{connections, say};
use crate::{
    api::{App, BindScope, Guard, below, router},
    backend::onnx::MappedFiles,
    config::Config,
    error::{Error, Result},
    model::Model,
    pipeline::{
        Task,
        translation::{Directions, Pair, RequestedLanguages},
    },
    repository::Manifest,
    telemetry::Prometheus,
};

/// How often what was timed is put into its buckets, so that it takes no room.
const TIDY: Duration = Duration::from_secs(5);

/// How often the files of models are looked at.
const LOOK: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "\
Examples:
  kivu serve my-model                           one bundle, on http://127.0.0.1:8080
  kivu serve bundles --listen 127.0.0.1:9000    all bundles of a folder, on another port
  kivu serve minilm                             a bundle that was built without --out, by its name
  kivu serve                                    those that kivu.toml names, or all that were built without --out";

/// Serve models over HTTP
///
/// Each MODEL is a bundle that `kivu build` made, a folder of bundles, or s3://BUCKET/PREFIX/NAME[/DIGEST], where
/// `kivu push` put one, or the name of a bundle that was built without `--out`. Without any, the models of kivu.toml are
/// served, or else all bundles that were built without `--out`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// A bundle, a folder of bundles, or the URL of a bundle
    #[arg(value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// The address to listen on [default: kivu.toml's, or 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// End when the process of this number ends, which has to have started this one
    #[arg(long, value_name = "PID", hide = true)]
    parent: Option<u32>,
}

pub(super) fn run(arguments: Arguments, mut config: Config) -> Result<ExitCode> {
    if let Some(parent) = arguments.parent {
        end_with(parent)?;
    }
    if !arguments.models.is_empty() {
        let models = arguments.models.into_iter();
        config.models = models.map(|model| super::bundle(model, &config).into()).collect();
    }
    if config.models.is_empty() && config.bundles().is_dir() {
        config.models = vec![config.bundles().into()];
    }
    if let Some(listen) = arguments.listen {
        config.listen = listen;
    }
    // What runs off the threads of connections is tokenising, which wants a CPU, not to wait for something.
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(config.threads().get())
        .build()
        .map_err(Error::io("cannot start the server's threads"))?;
    runtime.block_on(serve(config))?;
    Ok(ExitCode::SUCCESS)
}

/// Lets the system kill this process when its parent ends, however that ends: a server that was started to be measured
/// must not go on alone. Systems other than Linux have no such signal.
fn end_with(parent: u32) -> Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| Error::io("cannot follow the parent process")(error.into()))?;
    // A parent that ended before sends no signal.
    let is_there = getppid().is_some_and(|found| u32::try_from(found.as_raw_nonzero().get()) == Ok(parent));
    if is_there { Ok(()) } else { Err(Error::config("the process that started this server has ended")) }
}

async fn serve(config: Config) -> Result<()> {
    let guard = Guard::new(&config.auth, BindScope::Address(config.listen))?;
    // Bound first: an occupied port is told at once, and early callers wait instead of being refused.
    let listener = TcpListener::bind(config.listen).await.map_err(|source| Error::Io {
        action: format!("cannot listen on `{}`; choose another address with `--listen`", config.listen),
        source,
    })?;
    let address = listener.local_addr().map_err(Error::io("cannot tell the address listened on"))?;
    let prometheus = Prometheus::install()?;
    let tidied = prometheus.clone();
    tokio::spawn(async move {
        let mut every = tokio::time::interval(TIDY);
        loop {
            every.tick().await;
            tidied.tidy();
        }
    });
    guard.prepare().await?;
    let models = tokio::task::block_in_place(|| Model::open_all(&config))?;
    // Nobody may be reading; that is no reason not to serve.
    let _ = announce(address, &models, config.page);
    let files: Vec<_> = models.iter().map(|model| Arc::clone(&model.files)).collect();
    let stop = async {
        tokio::select! {
            () = asked_to_stop() => Ok(()),
            path = changed(&files) => Err(Error::model(format!(
                "expected `{}` to stay as it was when it was loaded, but it was written to; put bundles in place as a \
                 whole (`kivu build`, `kivu pull`, or a new folder and a rename), and start the server again",
                path.display()
            ))),
        }
    };
    let patience = config.limits.timeout();
    let app = App::new(models, config.limits).with_guard(guard).with_metrics(prometheus);
    let router = router(app.with_page(config.page));
    connections::serve(listener, below(config.prefix.as_deref(), router), patience, stop).await
}

/// Waits until a file that weights are mapped from was written to; its path.
async fn changed(files: &[Arc<MappedFiles>]) -> &Path {
    let mut every = tokio::time::interval(LOOK);
    loop {
        every.tick().await;
        if let Some(path) = files.iter().find_map(|files| files.changed()) {
            return path;
        }
    }
}

fn announce(address: SocketAddr, models: &[Model], has_page: bool) -> Result<()> {
    for model in models {
        say(&format!("serving `{}` ({}) on http://{address}", model.name, model.manifest.task))?;
    }
    let Some(first) = models.first() else { return Ok(()) };
    say(&match has_page {
        true => format!("try it: open http://{address}/ in a browser, or"),
        false => "try it:".to_owned(),
    })?;
    let body = example(&first.manifest);
    say(&format!(
        "  curl http://{address}/models/{} -H 'content-type: application/json' -d '{body}'",
        first.name
    ))
}

/// A request that the model answers.
pub(super) fn example(manifest: &Manifest) -> String {
    let body = match manifest.task {
        Task::FeatureExtraction => r#"{"inputs": "What is deep learning?"}"#,
        Task::TextClassification => r#"{"inputs": "I like it"}"#,
        Task::ZeroShotClassification => {
            r#"{"inputs": "The striker scored twice", "parameters": {"candidate_labels": ["sport", "cooking"]}}"#
        }
        Task::TextRanking => r#"{"inputs": {"query": "egg", "texts": ["hen", "car"]}}"#,
        Task::Translation => return example_translation(manifest),
    };
    body.to_owned()
}

/// A translation, with its languages where the model has several.
fn example_translation(manifest: &Manifest) -> String {
    let inputs = "Where is the station?";
    let directions = manifest.translation.as_ref().map(|settings| Directions::new(&settings.languages));
    match directions.filter(|directions| directions.find(RequestedLanguages::default()).is_err()) {
        Some(directions) => {
            let Pair { source, target } = directions.example_pair();
            let parameters = format!(r#"{{"src_lang": "{source}", "tgt_lang": "{target}"}}"#);
            format!(r#"{{"inputs": "{inputs}", "parameters": {parameters}}}"#)
        }
        None => format!(r#"{{"inputs": "{inputs}"}}"#),
    }
}

/// Waits until the process is asked to end; requests under way are finished then.
async fn asked_to_stop() {
    let interrupted = signal::ctrl_c();
    let Ok(mut terminated) = signal::unix::signal(signal::unix::SignalKind::terminate()) else {
        // Without that signal there is still the other.
        let _ = interrupted.await;
        return;
    };
    tokio::select! {
        _ = interrupted => {}
        _ = terminated.recv() => {}
    }
}
