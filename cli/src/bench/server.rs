//! `kivu serve` as a child process, and a minimal HTTP client for it.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use super::timing::{ms, throughput};
use crate::program;
use kivu::{
    Error, Result,
    config::{Config, EngineChoice, memory_of},
    names::{named, names},
    onnx::library,
    repository::Manifest,
};

/// A server on a free local port; dropping it ends the process.
pub struct Server {
    process: Child,
    address: String,
}

/// A request's bytes.
pub struct Request(Vec<u8>);

impl Request {
    /// A request to `/models/NAME` with a JSON body.
    pub fn json(manifest: &Manifest, body: &str) -> Self {
        let (name, length) = (&manifest.name, body.len());
        let head = format!(
            "POST /models/{name} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}"
        );
        Self(format!("{head}\r\n\r\n{body}").into_bytes())
    }
}

/// A kept-alive connection with negligible client overhead.
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Sends a request and reads the response; returns the time for both in milliseconds.
    ///
    /// # Errors
    /// If the connection fails, or the status is not 200.
    pub fn send(&mut self, request: &Request) -> Result<f64> {
        let failed = || Error::io("cannot read the server's response");
        let started = Instant::now();
        self.0.get_mut().write_all(&request.0).map_err(failed())?;
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let start = head.len();
            if self.0.read_line(&mut head).map_err(failed())? == 0 {
                return Err(Error::config(format!(
                    "expected a response, but found only `{head}`"
                )));
            }
            if let Some(value) = head[start..].strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).map_err(failed())?;
        let time = ms(started.elapsed());
        if !head.starts_with("HTTP/1.1 200") {
            let (status, body) = (
                head.lines().next().unwrap_or_default(),
                String::from_utf8_lossy(&body),
            );
            return Err(Error::config(format!(
                "expected status 200, but found `{status}` with `{body}`"
            )));
        }
        Ok(time)
    }
}

impl Server {
    /// Starts a server with one bundle and waits until it listens.
    ///
    /// From the configuration it gets only the paths to the bundle and ONNX Runtime: a prefix, limits or keys would
    /// change what is measured.
    pub fn start(bundle: &Path, config: &Config) -> Result<Self> {
        let absolute = |path: &Path| {
            path.canonicalize()
                .map_err(Error::cannot("find", path.display()))
        };
        let library = library::locate(config.onnxruntime.as_deref(), &config.home)?;
        let bundle = absolute(bundle)?;
        let mut command = program::command()?;
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KIVU_"))
        {
            command.env_remove(name);
        }
        let mut process = command
            .args(["serve", "--listen", "127.0.0.1:0", "--until-stdin-closes"])
            .arg(&bundle)
            .args(
                config
                    .instructions
                    .map(|set| format!("--instructions={}", set.name())),
            )
            .args(
                names::<EngineChoice>()
                    .iter()
                    .filter(|name| named(name) == Some(config.engine))
                    .map(|name| format!("--engine={name}")),
            )
            // A bundle's folder has no kivu.toml.
            .current_dir(&bundle)
            .env("KIVU_ONNXRUNTIME", absolute(&library)?)
            .env("RUST_LOG", "error")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Error::io("cannot start `kivu serve`"))?;
        let mut line = String::new();
        if let Some(output) = process.stdout.take() {
            BufReader::new(output)
                .read_line(&mut line)
                .map_err(Error::io("cannot read from `kivu serve`"))?;
        }
        let address = line
            .split("http://")
            .nth(1)
            .map(|address| address.trim().to_owned());
        let server = Self {
            process,
            address: address.unwrap_or_default(),
        };
        if server.address.is_empty() {
            let found = line.trim();
            return Err(Error::config(format!(
                "expected the address of `kivu serve`, but found `{found}`"
            )));
        }
        Ok(server)
    }

    pub fn connect(&self) -> Result<Connection> {
        let failed = || Error::io(format!("cannot connect to `{}`", self.address));
        let stream = TcpStream::connect(&self.address).map_err(failed())?;
        stream.set_nodelay(true).map_err(failed())?;
        Ok(Connection(BufReader::new(stream)))
    }

    /// Requests per second from several clients, each of which sends one request after another.
    pub fn throughput(&self, requests: &[Request], clients: usize, time: Duration) -> Result<f64> {
        let started = Instant::now();
        throughput(clients, |client| {
            let (mut connection, mut sent) = (self.connect()?, 0);
            // Each client starts at a different row, so that short and long requests are in flight together.
            for request in requests
                .iter()
                .cycle()
                .skip(client * requests.len() / clients)
            {
                if started.elapsed() >= time {
                    break;
                }
                connection.send(request)?;
                sent += 1;
            }
            Ok(sent)
        })
    }

    /// The server process's resident memory in MB (10^6 bytes).
    pub fn resident_mb(&self) -> Result<f64> {
        Ok(memory_of(self.process.id(), "VmRSS")? as f64 / 1e6)
    }

    /// Peak [`Self::resident_mb`] so far.
    pub fn peak_mb(&self) -> Result<f64> {
        Ok(memory_of(self.process.id(), "VmHWM")? as f64 / 1e6)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    #[test]
    fn an_error_response_is_reported_with_status_and_body() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
            stream
                .write_all(
                    b"HTTP/1.1 422 Unprocessable Entity\r\nx-request-id: 7\r\ncontent-length: 2\r\n\r\nno",
                )
                .unwrap();
        });
        let mut connection = Connection(BufReader::new(TcpStream::connect(address).unwrap()));
        let error = connection
            .send(&Request(b"POST / HTTP/1.1\r\n\r\n".to_vec()))
            .unwrap_err();
        insta::assert_snapshot!(error, @"expected status 200, but found `HTTP/1.1 422 Unprocessable Entity` with `no`");
        server.join().unwrap();
    }
}
