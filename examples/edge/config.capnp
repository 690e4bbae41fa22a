# workerd's configuration: the worker, and the folder with the bundle.
#
# Instances have at most 128 MiB of WebAssembly memory: 2,048 pages.

using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  v8Flags = ["--wasm-max-mem-pages=2048"],
  services = [
    (name = "embeddings", worker = .worker),
    (name = "model", disk = "model"),
  ],
  sockets = [(name = "http", address = "127.0.0.1:8787", http = (), service = "embeddings")],
);

const worker :Workerd.Worker = (
  compatibilityDate = "2026-01-01",
  bindings = [(name = "MODEL", service = "model")],
  modules = [
    (name = "worker.js", esModule = embed "worker.js"),
    (name = "kivuml-wasm", esModule = embed "node_modules/kivuml-wasm/workerd.js"),
    (name = "arguments.js", esModule = embed "node_modules/kivuml-wasm/arguments.js"),
    (name = "errors.js", esModule = embed "node_modules/kivuml-wasm/errors.js"),
    (name = "files.js", esModule = embed "node_modules/kivuml-wasm/files.js"),
    (name = "index.js", esModule = embed "node_modules/kivuml-wasm/index.js"),
    (name = "kivuml-relaxed.wasm", wasm = embed "node_modules/kivuml-wasm/kivuml-relaxed.wasm"),
    (name = "kivuml_wasm.js", esModule = embed "node_modules/kivuml-wasm/kivuml_wasm.js"),
    (name = "load.js", esModule = embed "node_modules/kivuml-wasm/load.js"),
    (name = "model.js", esModule = embed "node_modules/kivuml-wasm/model.js"),
    (name = "native.js", esModule = embed "node_modules/kivuml-wasm/native.js"),
  ],
);
