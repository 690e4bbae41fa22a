//! A server with the Hugging Face Hub's HTTP API, and faults on request. `huggingface_hub` downloads from it in
//! `mod.rs`, which shows that it behaves like the hub.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// A fault in the next response for a file.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The connection is closed after this many bytes.
    Cut(usize),
    /// A byte every 50 ms.
    Drip,
    /// One byte is changed.
    Corrupt,
    /// A range is ignored.
    Whole,
    /// This status, with headers.
    Status(u16, &'static [(&'static str, &'static str)]),
}

/// A request for a file or a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) range: Option<String>,
    pub(crate) has_token: bool,
}

#[derive(Default)]
struct State {
    /// Files by path, by repository and commit.
    repositories: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    renamed: BTreeMap<String, String>,
    /// Faults by URL suffix.
    faults: Vec<(String, Fault)>,
    seen: Vec<Seen>,
    /// The address that serves large files.
    content: String,
}

pub(crate) struct HubServer {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
    stopped: Arc<AtomicBool>,
}

/// Commit for all repositories.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Token for a user who may read the private repository `tests/private`.
pub(crate) const TOKEN: &str = "hf_test";

impl HubServer {
    pub(crate) fn start() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let stopped = Arc::new(AtomicBool::new(false));
        // Large files are on another host, as they are on the hub.
        let [address, content] = [false, true].map(|is_content| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let (state, stopped) = (Arc::clone(&state), Arc::clone(&stopped));
            thread::spawn(move || accept(&listener, &state, &stopped, is_content));
            address
        });
        state.lock().unwrap().content = format!("http://{content}");
        Self {
            url: format!("http://{address}"),
            state,
            stopped,
        }
    }

    /// Serves a folder's files.
    pub(crate) fn add(&self, id: &str, folder: &Path) -> &Self {
        self.add_files(id, read_folder(folder))
    }

    pub(crate) fn add_files(&self, id: &str, files: BTreeMap<String, Vec<u8>>) -> &Self {
        self.state
            .lock()
            .unwrap()
            .repositories
            .insert(id.into(), files);
        self
    }

    pub(crate) fn rename(&self, old: &str, new: &str) {
        self.state
            .lock()
            .unwrap()
            .renamed
            .insert(old.into(), new.into());
    }

    /// Applies a fault to the next request whose path has this end.
    pub(crate) fn fail(&self, path: &str, fault: Fault) {
        self.state.lock().unwrap().faults.push((path.into(), fault));
    }

    /// The requests since the last call.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.lock().unwrap().seen)
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        let content = self.state.lock().unwrap().content.clone();
        for url in [&self.url, &content] {
            let _ = TcpStream::connect(url.trim_start_matches("http://"));
        }
    }
}

/// The files in a folder, by their paths.
pub(crate) fn read_folder(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut files, mut pending) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(inner) = pending.pop() {
        for entry in fs::read_dir(inner).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else {
                let name = path
                    .strip_prefix(folder)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    files
}

/// Whether a file is stored by its SHA-256, as large ones are.
fn is_large(path: &str) -> bool {
    [".safetensors", ".bin", ".onnx", "tokenizer.json"]
        .iter()
        .any(|end| path.ends_with(end))
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn git_hash(bytes: &[u8]) -> String {
    hex(&Sha1::new()
        .chain_update(format!("blob {}\0", bytes.len()))
        .chain_update(bytes)
        .finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn accept(
    listener: &TcpListener,
    state: &Arc<Mutex<State>>,
    stopped: &AtomicBool,
    is_content: bool,
) {
    for connection in listener.incoming() {
        if stopped.load(Ordering::Relaxed) {
            return;
        }
        let (Ok(connection), state) = (connection, Arc::clone(state)) else {
            continue;
        };
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let mut reader = BufReader::new(connection);
            while respond(&mut reader, &state, address, is_content).is_some() {}
        });
    }
}

struct Request {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader
            .read_line(&mut line)
            .ok()
            .filter(|read| *read > 2)
            .map_or_else(|| line.clear(), drop);
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    Some(Request {
        method,
        path,
        headers,
    })
}

/// Answers a request; Returns `None` if the connection is closed.
fn respond(
    reader: &mut BufReader<TcpStream>,
    state: &Mutex<State>,
    address: SocketAddr,
    is_content: bool,
) -> Option<()> {
    let request = read(reader)?;
    let stream = reader.get_mut();
    let path = request.path.split('?').next()?.to_owned();
    let token = request.headers.get("authorization").cloned();
    let fault = {
        let mut state = state.lock().unwrap();
        if request.method == "GET" {
            let range = request.headers.get("range").cloned();
            state.seen.push(Seen {
                path: path.clone(),
                range,
                has_token: token.is_some(),
            });
        }
        // For large files, the other host injects all faults except a status.
        let is_redirect = !is_content && is_large(&path);
        let index = state.faults.iter().position(|(end, fault)| {
            request.method == "GET"
                && path.ends_with(end)
                && (!is_redirect || matches!(fault, Fault::Status(..)))
        });
        index.map(|index| state.faults.remove(index).1)
    };
    if let Some(Fault::Status(status, headers)) = &fault {
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect();
        return send(stream, &request, *status, &headers, b"");
    }
    if is_content {
        // `/REPOSITORY/PATH` on the host for large files, which must not receive tokens.
        assert!(token.is_none(), "a token was sent to another host");
        let (id, file) = split(path.strip_prefix('/')?)?;
        let bytes = state.lock().unwrap().repositories[&id][&file].clone();
        return send_file(stream, &request, &[], &bytes, fault.as_ref());
    }
    let (id, kind, rest) = route(&path)?;
    let (files, content, renamed) = {
        let state = state.lock().unwrap();
        (
            state.repositories.get(&id).cloned(),
            state.content.clone(),
            state.renamed.get(&id).cloned(),
        )
    };
    if let Some(new) = renamed {
        let location = request.path.replacen(&id, &new, 1);
        return send(stream, &request, 307, &[("location", location)], b"");
    }
    let is_known = |files: &BTreeMap<_, _>| !files.is_empty();
    let allowed = token == Some(format!("Bearer {TOKEN}"));
    if id == "tests/gated" && !allowed {
        return refuse(
            stream,
            &request,
            401,
            "GatedRepo",
            "Access to model tests/gated is restricted.",
        );
    }
    let Some(files) = files.filter(|files| is_known(files) && (id != "tests/private" || allowed))
    else {
        let status = if token.is_some() { 404 } else { 401 };
        return refuse(
            stream,
            &request,
            status,
            "RepoNotFound",
            "Repository not found",
        );
    };
    let revision = if kind == "revision" {
        rest.clone()
    } else {
        rest.split('/').next()?.to_owned()
    };
    if !["main", "v1.0", "refs/pr/1", COMMIT].contains(&revision.replace("%2F", "/").as_str()) {
        return refuse(stream, &request, 404, "RevisionNotFound", "Invalid rev id");
    }
    match kind.as_str() {
        "revision" => {
            let siblings: Vec<Value> = files
                .iter()
                .map(|(path, bytes)| describe(path, bytes))
                .collect();
            let body = json!({
                "_id": "1", "id": id, "modelId": id, "sha": COMMIT, "private": false, "gated": false,
                "disabled": false, "tags": [], "downloads": 0, "siblings": siblings,
            });
            send(
                stream,
                &request,
                200,
                &[("content-type", "application/json".into())],
                body.to_string().as_bytes(),
            )
        }
        _ => {
            let file = rest.split_once('/')?.1;
            let Some(bytes) = files.get(file) else {
                return refuse(stream, &request, 404, "EntryNotFound", "Entry not found");
            };
            let commit = ("x-repo-commit", COMMIT.to_owned());
            if is_large(file) {
                let headers = [
                    commit,
                    ("x-linked-size", bytes.len().to_string()),
                    ("x-linked-etag", format!("\"{}\"", sha256(bytes))),
                    ("location", format!("{content}/{id}/{file}")),
                ];
                return send(
                    stream,
                    &request,
                    302,
                    &headers,
                    format!("from {address}").as_bytes(),
                );
            }
            let headers = [commit, ("etag", format!("\"{}\"", git_hash(bytes)))];
            send_file(stream, &request, &headers, bytes, fault.as_ref())
        }
    }
}

/// A file in a repository's list.
fn describe(path: &str, bytes: &[u8]) -> Value {
    let mut file = json!({ "rfilename": path, "size": bytes.len(), "blobId": git_hash(bytes) });
    if is_large(path) {
        file["lfs"] = json!({ "sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 134 });
    }
    file
}

/// `ORG/NAME/REST`.
fn split(path: &str) -> Option<(String, String)> {
    let (org, rest) = path.split_once('/')?;
    let (name, rest) = rest.split_once('/')?;
    Some((format!("{org}/{name}"), rest.to_owned()))
}

/// Splits an API path into the repository, the request kind and the rest.
fn route(path: &str) -> Option<(String, String, String)> {
    let path = path
        .strip_prefix("/api/models/")
        .or_else(|| path.strip_prefix('/'))?;
    let (id, rest) = split(path)?;
    let (kind, rest) = rest.split_once('/')?;
    Some((id, kind.to_owned(), rest.to_owned()))
}

fn refuse(
    stream: &mut TcpStream,
    request: &Request,
    status: u16,
    code: &str,
    message: &str,
) -> Option<()> {
    let headers = [
        ("x-error-code", code.to_owned()),
        ("x-error-message", message.to_owned()),
    ];
    send(
        stream,
        request,
        status,
        &headers,
        json!({ "error": message }).to_string().as_bytes(),
    )
}

fn head(status: u16, headers: &[(&str, String)], length: usize) -> String {
    let headers: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    format!("HTTP/1.1 {status} Status\r\n{headers}content-length: {length}\r\n\r\n")
}

fn send(
    stream: &mut TcpStream,
    request: &Request,
    status: u16,
    headers: &[(&str, String)],
    body: &[u8],
) -> Option<()> {
    let body = if request.method == "HEAD" { b"" } else { body };
    stream
        .write_all(head(status, headers, body.len()).as_bytes())
        .ok()?;
    stream.write_all(body).ok()
}

fn send_file(
    stream: &mut TcpStream,
    request: &Request,
    headers: &[(&str, String)],
    bytes: &[u8],
    fault: Option<&Fault>,
) -> Option<()> {
    let range = request
        .headers
        .get("range")
        .filter(|_| !matches!(fault, Some(Fault::Whole)));
    let start = range.and_then(|range| {
        range
            .strip_prefix("bytes=")?
            .split('-')
            .next()?
            .parse()
            .ok()
    });
    let mut headers = headers.to_vec();
    headers.push(("accept-ranges", "bytes".to_owned()));
    let (status, mut body) = match start {
        Some(start) if start >= bytes.len() => (416, Vec::new()),
        Some(start) => {
            headers.push((
                "content-range",
                format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len()),
            ));
            (206, bytes[start..].to_vec())
        }
        None => (200, bytes.to_vec()),
    };
    stream
        .write_all(head(status, &headers, body.len()).as_bytes())
        .ok()?;
    if request.method == "HEAD" {
        return Some(());
    }
    match fault {
        Some(Fault::Cut(length)) => {
            stream.write_all(&body[..(*length).min(body.len())]).ok()?;
            None
        }
        Some(Fault::Drip) => {
            for byte in body {
                stream.write_all(&[byte]).ok()?;
                thread::sleep(Duration::from_millis(50));
            }
            Some(())
        }
        Some(Fault::Corrupt) => {
            let middle = body.len() / 2;
            body[middle] ^= 1;
            stream.write_all(&body).ok()
        }
        _ => stream.write_all(&body).ok(),
    }
}
