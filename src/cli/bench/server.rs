//! `kivu serve` as a process of its own, and clients for it.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use axum::body::Bytes;
use futures::future::try_join_all;
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::json;
use tokio::runtime::Runtime;

use super::{Program, ms};
use crate::{
    backend::onnx::library,
    config::Config,
    error::{Error, Result},
};

/// A server on a free port of this machine; it ends with this value.
pub(super) struct Server {
    process: Child,
    address: String,
    url: String,
    client: Client<HttpConnector, Full<Bytes>>,
    runtime: Runtime,
}

/// A request as it goes over the wire.
pub(super) struct Message(Vec<u8>);

impl Message {
    /// A request with a JSON body.
    pub(super) fn json(path: &str, body: &str) -> Self {
        Self::new(path, "content-type: application/json", body.as_bytes())
    }

    /// A request of KServe v2 for one text of these token ids, with tensors and answer as bytes.
    pub(super) fn tensors(model: &str, ids: &[u32]) -> Self {
        let input = |name: &str| {
            let parameters = json!({ "binary_data_size": ids.len() * size_of::<i64>() });
            json!({ "name": name, "shape": [1, ids.len()], "datatype": "INT64", "parameters": parameters })
        };
        let parameters = json!({ "binary_data_output": true });
        let inputs = [input("input_ids"), input("attention_mask")];
        let json = json!({ "inputs": inputs, "parameters": parameters }).to_string();
        let mut body = json.clone().into_bytes();
        body.extend(ids.iter().flat_map(|id| i64::from(*id).to_le_bytes()));
        body.extend(ids.iter().flat_map(|_| 1_i64.to_le_bytes()));
        let header = format!("inference-header-content-length: {}", json.len());
        Self::new(&format!("/v2/models/{model}/infer"), &header, &body)
    }

    fn new(path: &str, header: &str, body: &[u8]) -> Self {
        let length = body.len();
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: kivu\r\n{header}\r\ncontent-length: {length}\r\n\r\n");
        Self([head.as_bytes(), body].concat())
    }
}

/// A connection that is kept: the thinnest client there is, so that latencies are the server's.
pub(super) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Sends one request and tells the milliseconds until its whole answer was there.
    pub(super) fn ask(&mut self, message: &Message) -> Result<f64> {
        let failed = || Error::io("the server did not answer");
        let started = Instant::now();
        self.stream.get_mut().write_all(&message.0).map_err(failed())?;
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let start = head.len();
            if self.stream.read_line(&mut head).map_err(failed())? == 0 {
                return Err(Error::config(format!("expected an answer, but found only `{head}`")));
            }
            if let Some(value) = head[start..].strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer).map_err(failed())?;
        let took = ms(started.elapsed());
        if !head.starts_with("HTTP/1.1 200") {
            let (status, answer) =
                (head.lines().next().unwrap_or_default(), String::from_utf8_lossy(&answer));
            return Err(Error::config(format!("expected status 200, but found `{status}` with `{answer}`")));
        }
        Ok(took)
    }
}

/// The body that asks for the vectors of `texts`.
pub(super) fn body<T: AsRef<str>>(texts: &[T]) -> String {
    let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
    json!({ "inputs": texts }).to_string()
}

impl Server {
    /// Starts a server of bundles and waits until it says where it listens.
    pub(super) fn start<P: AsRef<Path>>(program: &Program, bundles: &[Option<P>]) -> Result<Self> {
        Self::spawn(program.command(), bundles)
    }

    fn spawn<P: AsRef<Path>>(mut command: Command, bundles: &[Option<P>]) -> Result<Self> {
        let mut process = command
            .arg("serve")
            .args(bundles.iter().flatten().map(AsRef::as_ref))
            .args(["--listen", "127.0.0.1:0", "--parent", &std::process::id().to_string()])
            .env("RUST_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Error::io("cannot start the server"))?;
        let mut line = String::new();
        if let Some(output) = process.stdout.take() {
            BufReader::new(output)
                .read_line(&mut line)
                .map_err(Error::io("cannot read the server's words"))?;
        }
        let address = line.split("http://").nth(1).map(str::trim).filter(|address| !address.is_empty());
        let Some(address) = address else {
            // It has ended already, or is of no use.
            let _ = process.kill();
            let _ = process.wait();
            return Err(Error::config(format!("expected the server's address, but found `{}`", line.trim())));
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::io("cannot start the clients"))?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let (address, url) = (address.to_owned(), format!("http://{address}/embed"));
        Ok(Self { process, address, url, client, runtime })
    }

    /// Starts a server of one bundle that heeds nothing but what it needs of a configuration.
    pub(super) fn start_alone(program: &Program, bundle: &Path, config: &Config) -> Result<Self> {
        let mut command = program.command();
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("KIVU_") {
                command.env_remove(name);
            }
        }
        let absolute =
            |path: &Path| path.canonicalize().map_err(Error::io(format!("cannot find `{}`", path.display())));
        let library = library::locate(config.onnxruntime.as_deref(), &config.home)?;
        let bundle = absolute(bundle)?;
        // No configuration lies in a bundle.
        command.env("KIVU_ONNXRUNTIME", absolute(&library)?).current_dir(&bundle);
        Self::spawn(command, &[Some(bundle)])
    }

    /// Opens a connection for one request after the other.
    pub(super) fn connect(&self) -> Result<Connection> {
        let failed = || Error::io(format!("cannot connect to `{}`", self.address));
        let stream = TcpStream::connect(&self.address).map_err(failed())?;
        stream.set_nodelay(true).map_err(failed())?;
        Ok(Connection { stream: BufReader::new(stream) })
    }

    /// Requests a second, from so many clients that each wait for their answer before they ask again.
    pub(super) fn throughput(&self, bodies: &[String], clients: usize, time: Duration) -> Result<f64> {
        let (next, done, started) = (AtomicUsize::new(0), AtomicUsize::new(0), Instant::now());
        let client = || async {
            while started.elapsed() < time {
                let place = next.fetch_add(1, Ordering::Relaxed) % bodies.len();
                self.send(&bodies[place]).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, Error>(())
        };
        self.runtime.block_on(try_join_all((0..clients).map(|_| client())))?;
        Ok(done.into_inner() as f64 / started.elapsed().as_secs_f64())
    }

    async fn send(&self, body: &str) -> Result<()> {
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
            Error::inference("the server did not answer", error)
        };
        let request = http::Request::post(&self.url)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
            .map_err(|error| failed(error.into()))?;
        let response = self.client.request(request).await.map_err(|error| failed(error.into()))?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| failed(error.into()))?;
        if !status.is_success() {
            let answer = String::from_utf8_lossy(&body.to_bytes()).into_owned();
            return Err(Error::Inference {
                message: format!("the server answered {status}: {answer}"),
                source: None,
            });
        }
        Ok(())
    }

    /// The memory of the server's process that is in RAM now, in MB (of a million bytes).
    pub(super) fn resident_mb(&self) -> Result<f64> {
        let path = format!("/proc/{}/status", self.process.id());
        let status = fs::read_to_string(&path).map_err(Error::io(format!("cannot read `{path}`")))?;
        let kilobytes = status.lines().find_map(|line| {
            line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()
        });
        kilobytes
            .map(|kilobytes| kilobytes * 1024.0 / 1e6)
            .ok_or_else(|| Error::config(format!("expected `VmRSS` in `{path}`, but found none")))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing left to do.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read, net::TcpListener};

    use super::*;

    #[test]
    fn a_refusal_is_named_without_its_headers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
            stream
                .write_all(
                    b"HTTP/1.1 422 Unprocessable Entity\r\nx-request-id: 7\r\ncontent-length: 2\r\n\r\nno",
                )
                .unwrap();
        });
        let mut connection = Connection { stream: BufReader::new(TcpStream::connect(address).unwrap()) };
        let error = connection.ask(&Message(b"POST / HTTP/1.1\r\n\r\n".to_vec())).unwrap_err();
        insta::assert_snapshot!(error, @"expected status 200, but found `HTTP/1.1 422 Unprocessable Entity` with `no`");
        server.join().unwrap();
    }
}
