//! The S3 server in `tests/s3`, for tests in Rust.

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Output, Stdio},
};

use serde::{Deserialize, de::DeserializeOwned};

use crate::{models::library_path, skips::missing, tools::ROOT};

/// A server that ends when this value is dropped.
pub(crate) struct Storage {
    process: Child,
    output: BufReader<ChildStdout>,
    place: Place,
}

/// Server addresses.
#[derive(Deserialize)]
struct Place {
    bucket: String,
    calm: String,
    busy: String,
}

/// Server behaviour.
#[derive(Clone, Copy)]
pub(crate) enum Mood {
    /// All requests succeed.
    Calm,
    /// Two requests out of three fail with `SlowDown`.
    Busy,
}

impl Storage {
    /// `None` without an S3 server.
    pub(crate) fn start() -> Option<Self> {
        let Some(python) = env::var_os("TEST_S3_PYTHON") else {
            missing("TEST_S3_PYTHON");
            return None;
        };
        let script = Path::new(ROOT).join("tests/s3/serve.py");
        let mut process = Command::new(python)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let place = next_line(&mut output);
        Some(Self {
            process,
            output,
            place,
        })
    }

    /// An object's URL.
    pub(crate) fn url(&self, key: &str) -> String {
        format!("s3://{}/{key}", self.place.bucket)
    }

    /// The program with this server.
    pub(crate) fn kivu(&self, mood: Mood) -> Command {
        let endpoint = match mood {
            Mood::Calm => &self.place.calm,
            Mood::Busy => &self.place.busy,
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
        command
            .env("AWS_ENDPOINT_URL", endpoint)
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("KIVU_ONNXRUNTIME", library_path().unwrap_or_default())
            .stdin(Stdio::null());
        command
    }

    /// The text objects with a prefix.
    #[allow(dead_code, reason = "only `http` looks at what a job leaves")]
    pub(crate) fn read(&mut self, prefix: &str) -> BTreeMap<String, String> {
        writeln!(self.process.stdin.as_mut().unwrap(), "{prefix}").unwrap();
        next_line(&mut self.output)
    }
}

/// The script's next line.
fn next_line<T: DeserializeOwned>(output: &mut BufReader<ChildStdout>) -> T {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    serde_json::from_str(&line).expect("a line of JSON")
}

impl Drop for Storage {
    fn drop(&mut self) {
        // The script and its servers end with its standard input.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Runs a command that must succeed, and returns its output.
pub(crate) fn done(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    assert!(
        status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&stderr)
    );
    String::from_utf8(stdout).unwrap()
}
