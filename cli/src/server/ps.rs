//! `kivu ps`: the models of a running server.

use std::{process::ExitCode, time::Duration};

use axum::body::Body;
use clap::Args;
use futures::StreamExt;
use http::{Request, StatusCode, Uri, header::AUTHORIZATION};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde::{Deserialize, Serialize};

use crate::{examples::examples, library::models::age, terminal::Format};
use kivu::{
    Error, Result,
    address::{shown, without_user},
    clock,
    config::Config,
};

/// How long the server may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// List a running server's models: state, memory and last use
#[derive(Debug, Args)]
#[command(after_help = examples("ps"))]
pub struct Arguments {
    /// The server's URL [default: kivu.toml's address and prefix]
    #[arg(long)]
    url: Option<String>,
    /// An API key, if the server requires one
    #[arg(long, env = "API_KEY", hide_env_values = true)]
    key: Option<String>,
    #[command(flatten)]
    format: Format,
}

/// The response of `GET /models`.
#[derive(Debug, Deserialize)]
struct Response {
    models: Vec<Row>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Row {
    name: String,
    task: String,
    state: String,
    /// In bytes, if the model is loaded.
    memory: Option<u64>,
    /// In seconds since 1970.
    last_use: Option<f64>,
}

impl Row {
    fn line(&self, width: usize, now: f64) -> String {
        let Self {
            name,
            task,
            state,
            memory,
            last_use,
        } = self;
        let memory = memory.map_or_else(
            || "-".to_owned(),
            |bytes| format!("{:.1} MB", bytes as f64 / 1e6),
        );
        let used = last_use.map_or_else(
            || "never".to_owned(),
            |used| format!("{} ago", age((now - used).max(0.0) as u64)),
        );
        format!("{name:width$}  {task:24}  {state:9}  {memory:>10}  {used}")
    }
}

pub fn run(arguments: &Arguments, config: &Config) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(Error::io("cannot start a thread for the request"))?;
    let own = || {
        format!(
            "http://{}{}",
            config.listen,
            config.prefix.as_deref().unwrap_or_default()
        )
    };
    let url = arguments.url.clone().unwrap_or_else(own);
    let rows = runtime.block_on(ask(url.trim_end_matches('/'), arguments.key.as_deref()))?;
    arguments.format.print(&rows, |rows| lines(rows))
}

fn lines(rows: &[Row]) -> Vec<String> {
    let width = rows
        .iter()
        .map(|row| row.name.len())
        .max()
        .unwrap_or_default()
        .max(4);
    let head = format!(
        "{:width$}  {:24}  {:9}  {:>10}  LAST USE",
        "NAME", "TASK", "STATE", "MEMORY"
    );
    let now = clock::since_1970().as_secs_f64();
    let rows = rows.iter().map(|row| row.line(width, now));
    [head].into_iter().chain(rows).collect()
}

async fn ask(url: &str, key: Option<&str>) -> Result<Vec<Row>> {
    let uri: Option<Uri> = format!("{}/models", without_user(url)).parse().ok();
    let url = shown(url);
    let uri = uri
        .filter(|uri| uri.scheme_str() == Some("http"))
        .ok_or_else(|| {
            Error::config(format!(
                "expected a URL such as `http://127.0.0.1:8080`, but found `{url}`"
            ))
        })?;
    let mut request = Request::get(uri);
    if let Some(key) = key {
        request = request.header(AUTHORIZATION, format!("Bearer {key}"));
    }
    let request = request.body(Body::empty());
    let request = request.map_err(|error| {
        Error::config_because("the key has a character that headers cannot have", error)
    })?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let unreachable = |error: Box<dyn std::error::Error + Send + Sync>| {
        Error::config_because(
            format!("expected a server at `{url}`, but found none"),
            error,
        )
        .with_hint("`kivu serve` starts one, `--url` selects another")
    };
    let answer = async {
        let response = client
            .request(request)
            .await
            .map_err(|error| unreachable(error.into()))?;
        let (status, mut chunks) = (
            response.status(),
            Body::new(response.into_body()).into_data_stream(),
        );
        let mut bytes = Vec::new();
        while let Some(chunk) = chunks.next().await {
            bytes.extend_from_slice(&chunk.map_err(|error| unreachable(error.into()))?);
        }
        Ok((status, bytes))
    };
    let late = |_| Err(unreachable("it did not respond".into()));
    let (status, bytes) = tokio::time::timeout(TIMEOUT, answer)
        .await
        .unwrap_or_else(late)?;
    match status {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED => {
            return Err(Error::config(format!(
                "expected a key for `{url}`, but found none that it accepts"
            ))
            .with_hint("use `--key`"));
        }
        _ => {
            return Err(Error::config(format!(
                "expected status 200 from `{url}/models`, but found {status}"
            )));
        }
    }
    let response: Response = serde_json::from_slice(&bytes).map_err(|error| {
        Error::config_because(
            format!("`{url}/models` did not answer with Kivu's list of models"),
            error,
        )
    })?;
    Ok(response.models)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_state_memory_and_last_use() {
        let row = |memory: Option<u64>, last_use| Row {
            name: "minilm".into(),
            task: "feature-extraction".into(),
            state: if memory.is_none() {
                "available".into()
            } else {
                "loaded".into()
            },
            memory,
            last_use,
        };
        insta::assert_snapshot!(row(Some(24_760_849), Some(1000.0)).line(8, 1090.0), @"minilm    feature-extraction        loaded        24.8 MB  1 min ago");
        insta::assert_snapshot!(row(None, None).line(6, 0.0), @"minilm  feature-extraction        available           -  never");
    }
}
