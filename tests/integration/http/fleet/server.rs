//! Triton, from its Python package. `make test` installs it and sets `TEST_TRITON` to its folder.

use std::{
    env, fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use kivu::{
    onnx::Runtime,
    pipeline::Task,
    repository::{Bundle, manifest::Precision},
};

use crate::{
    models::{build_request, fixtures, request},
    tools::free_ports,
};

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The packages in the Python environment at `TEST_TRITON`.
pub(crate) fn packages() -> Option<PathBuf> {
    let Some(folder) = env::var_os("TEST_TRITON").map(PathBuf::from) else {
        crate::skips::missing("TEST_TRITON");
        return None;
    };
    let versions =
        fs::read_dir(folder.join("lib")).expect("TEST_TRITON names a Python environment");
    let packages = versions.map(|version| version.unwrap().path().join("site-packages"));
    Some(
        packages
            .into_iter()
            .find(|packages| packages.is_dir())
            .expect("the environment has packages"),
    )
}

/// A server, which is killed when it is dropped.
pub(crate) struct Triton {
    process: Child,
    prefix: String,
    log_path: PathBuf,
    pub(crate) http: u16,
    pub(crate) grpc: u16,
}

impl Triton {
    /// Starts a server for all models in `repository` on unused ports, and waits until it is ready.
    pub(crate) fn start(packages: &Path, repository: &Path) -> Self {
        Self::start_at(packages, repository, free_ports(), &[])
    }

    pub(crate) fn start_at(
        packages: &Path,
        repository: &Path,
        ports: [u16; 2],
        options: &[&str],
    ) -> Self {
        let server = Self::launch(packages, repository, ports, options);
        server.wait_until_ready();
        server
    }

    /// Starts a server without waiting until it is ready.
    pub(crate) fn launch(
        packages: &Path,
        repository: &Path,
        ports: [u16; 2],
        options: &[&str],
    ) -> Self {
        let [http, grpc] = ports;
        let triton = packages.join("pytriton/tritonserver");
        let prefix = format!("kivu-test-{}-{http}", std::process::id());
        let path = repository.join(format!("../triton-{http}.log"));
        let log = fs::File::create(&path).unwrap();
        let process = Command::new(triton.join("bin/tritonserver"))
            .arg(format!("--model-repository={}", repository.display()))
            .arg(format!(
                "--backend-directory={}",
                triton.join("backends").display()
            ))
            .arg(format!(
                "--backend-config=python,shm-region-prefix-name={prefix}"
            ))
            .args([format!("--http-port={http}"), format!("--grpc-port={grpc}")])
            .args([
                "--http-address=127.0.0.1",
                "--grpc-address=127.0.0.1",
                "--allow-metrics=false",
            ])
            .args(["--exit-timeout-secs=2", "--exit-on-error=true"])
            .args(options)
            .env("LD_LIBRARY_PATH", packages.join("nvidia_pytriton.libs"))
            .env("PYTHONPATH", packages)
            .env("OMP_NUM_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            // Kills the model processes too.
            .process_group(0)
            .spawn()
            .expect("TEST_TRITON has Triton in it");
        Self {
            process,
            prefix,
            log_path: path,
            http,
            grpc,
        }
    }

    pub(crate) fn wait_until_ready(&self) {
        let started = Instant::now();
        while !self.is_ready() {
            if started.elapsed() > START_TIMEOUT {
                panic!("Triton did not become ready:\n{}", self.log());
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log_path).unwrap()
    }

    fn is_ready(&self) -> bool {
        self.ask("GET", "/v2/health/ready")
            .is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }

    /// Sends a request without a body over HTTP. Returns the response, if there is one.
    pub(crate) fn ask(&self, method: &str, path: &str) -> Option<String> {
        let mut connection = TcpStream::connect(("127.0.0.1", self.http)).ok()?;
        connection
            .set_read_timeout(Some(Duration::from_secs(20)))
            .ok()?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: triton\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        );
        connection.write_all(head.as_bytes()).ok()?;
        let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
        // Triton may keep the connection open in spite of the header.
        while !is_whole(&answer) {
            match connection.read(&mut piece) {
                Ok(read) if read > 0 => answer.extend_from_slice(&piece[..read]),
                _ => break,
            }
        }
        Some(String::from_utf8_lossy(&answer).into_owned())
    }

    /// The URLs for HTTP and gRPC.
    pub(crate) fn urls(&self) -> [String; 2] {
        [
            format!("http://127.0.0.1:{}", self.http),
            format!("grpc://127.0.0.1:{}", self.grpc),
        ]
    }

    /// Sends a signal to the server and its model processes.
    pub(crate) fn signal(&self, signal: &str) {
        let group = format!("-{}", self.process.id());
        let _ = Command::new("kill")
            .args(["-s", signal, "--", &group])
            .stderr(Stdio::null())
            .status();
    }

    /// Kills the server without a graceful shutdown.
    pub(crate) fn kill(&mut self) {
        self.signal("KILL");
        let _ = self.process.wait();
    }
}

impl Drop for Triton {
    fn drop(&mut self) {
        self.kill();
        // The models' shared memory remains after both have ended.
        for entry in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if entry
                .file_name()
                .to_string_lossy()
                .starts_with(&self.prefix)
            {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Whether a response is as long as its `content-length`.
fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    length
        .and_then(|length| length.parse::<usize>().ok())
        .is_some_and(|length| body.len() >= length)
}

fn sources() -> PathBuf {
    fixtures().join("../fleet")
}

/// A model in a repository: name, program and bundle.
pub(crate) struct Served<'a> {
    pub(crate) name: &'a str,
    pub(crate) program: Option<&'a str>,
    pub(crate) bundle: Option<&'a Path>,
    /// Appended to its configuration.
    pub(crate) more: &'a str,
}

impl Served<'_> {
    /// Writes the model into `repository` as version 1.
    pub(crate) fn write(&self, repository: &Path) {
        let folder = repository.join(self.name);
        let version = folder.join("1");
        fs::create_dir_all(&version).unwrap();
        let config = fs::read_to_string(
            sources()
                .join("repository")
                .join(self.name)
                .join("config.pbtxt"),
        );
        let mut config = config.unwrap();
        if let Some(program) = self.program {
            fs::copy(sources().join(program), version.join("model.py")).unwrap();
        }
        if let Some(bundle) = self.bundle {
            let bundle = Bundle::open(bundle).unwrap();
            for file in &bundle.manifest().files {
                fs::copy(bundle.path(&file.name), version.join(&file.name)).unwrap();
            }
            let embedding = bundle.manifest().settings.embedding();
            if let Some(dense) = embedding.and_then(|embedding| embedding.dense.as_ref()) {
                config = config.replace("WIDTH", &dense.dimensions.to_string());
            }
        }
        fs::write(folder.join("config.pbtxt"), config + self.more).unwrap();
    }
}

/// Configuration lines for `parameters`.
pub(crate) fn parameters(parameters: &[(&str, &str)]) -> String {
    let lines = parameters.iter().map(|(name, value)| {
        format!("parameters {{ key: \"{name}\" value {{ string_value: \"{value}\" }} }}\n")
    });
    lines.collect()
}

/// Builds a fixture as a bundle in fp32.
pub(crate) fn bundle(task: Task, fixture: &str, folder: &Path, runtime: Runtime) -> PathBuf {
    let out = folder.join(format!("{task}-{fixture}"));
    let mut request = request(
        fixtures().join("models").join(fixture),
        out.clone(),
        Some(Precision::Fp32),
    );
    request.task = Some(task);
    request.name = Some(format!("{task}"));
    build_request(&request, runtime).unwrap();
    out
}
