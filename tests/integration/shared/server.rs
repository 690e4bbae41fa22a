//! `kivu serve` as a process.

#![allow(dead_code, reason = "only `http` ends servers in every way")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::models::{build_request, fixtures, library_path, request, runtime};

/// A server that is killed when this value is dropped.
pub(crate) struct Server {
    pub(crate) process: Child,
    /// Host and port.
    pub(crate) address: String,
}

impl Server {
    /// Waits until a started server prints its address.
    pub(crate) fn wait(mut process: Child) -> Self {
        let mut line = String::new();
        let output = process.stdout.take().expect("standard output is piped");
        BufReader::new(output).read_line(&mut line).unwrap();
        let address = line
            .split("http://")
            .nth(1)
            .map(|address| address.trim().to_owned());
        let Some(address) = address else {
            let _ = process.kill();
            panic!("the server did not start: {line:?}");
        };
        Self { process, address }
    }

    /// Sends bytes unchanged, and reads until the server closes the connection or the response is complete.
    pub(crate) fn exchange(&self, request: &[u8]) -> String {
        let mut connection = TcpStream::connect(&self.address).unwrap();
        connection
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        // The server may close the connection before it has read everything.
        let _ = connection.write_all(request);
        let mut answer = Vec::new();
        let _ = connection.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Posts JSON; returns the response with its status line and headers.
    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n"
        );
        self.exchange(format!("{head}{body}").as_bytes())
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends SIGTERM and waits; returns the exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        let asked = Command::new("kill")
            .arg(self.process.id().to_string())
            .status()
            .unwrap();
        assert!(asked.success());
        self.process.wait().unwrap().code()
    }

    /// Sends SIGABRT, like a crash, and waits.
    pub(crate) fn crash(&mut self) -> ExitStatus {
        let asked = Command::new("kill")
            .args(["-s", "ABRT", &self.process.id().to_string()])
            .status()
            .unwrap();
        assert!(asked.success());
        self.process.wait().unwrap()
    }

    /// Waits until it exits; returns the exit code and the log.
    pub(crate) fn ended(&mut self) -> (Option<i32>, String) {
        let mut log = String::new();
        self.process
            .stderr
            .take()
            .expect("standard error is piped")
            .read_to_string(&mut log)
            .unwrap();
        (self.process.wait().unwrap().code(), log)
    }

    /// Kills it; returns the log.
    pub(crate) fn end(&mut self) -> String {
        self.process.kill().unwrap();
        let mut log = String::new();
        self.process
            .stderr
            .take()
            .expect("standard error is piped")
            .read_to_string(&mut log)
            .unwrap();
        log
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Lock for tests that start servers: two at once would slow each other down on two CPUs.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program that cargo built for these tests, on a free port.
pub(crate) fn kivu(bundle: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
    command
        .arg("serve")
        .arg(bundle)
        .args(["--listen", "127.0.0.1:0"])
        .env("KIVU_ONNXRUNTIME", library_path().unwrap_or_default())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A `tiny-bert` bundle in a temporary folder.
pub(crate) fn bundle() -> Option<(tempfile::TempDir, PathBuf)> {
    let runtime = runtime()?;
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("tiny-bert");
    build_request(
        &request(fixtures().join("models/tiny-bert"), out.clone(), None),
        runtime,
    )
    .unwrap();
    Some((folder, out))
}
