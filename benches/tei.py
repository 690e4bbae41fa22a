"""Compares Kivu with text-embeddings-inference over HTTP: the same model in int8, the same texts, cores and client.

    python benches/tei.py CHECKOUT WEIGHTS BUNDLE FOLDER KIVU RUNTIME [--seconds 5] [--rounds 5]

CHECKOUT is a checkout of text-embeddings-inference, 1.9.3 or near it. Its router is compiled once, in .kivu/tei, with the
profile of its authors and with ONNX Runtime as the only backend, which is loaded from the library RUNTIME. WEIGHTS, BUNDLE
and FOLDER are those of python_peers.py, whose packages are needed: the router gets its int8 model with a scale per output.
"""

import argparse
import http.client
import itertools
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from python_peers import CORES, INT8, SENTENCES, VINO, export, mixed

WORK = Path(__file__).resolve().parents[1] / ".kivu/tei"
ROUTER = WORK / "target/release/text-embeddings-router"


def compile_router(checkout):
    """Compiles the router without Candle, whose forks are not in registries, and without ONNX Runtime inside."""
    source = WORK / "source"
    shutil.copytree(checkout, source, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git", "rust-toolchain.toml", "target"))
    workspace = (source / "Cargo.toml").read_text().replace('"backends/candle",', "")
    before, _, after = workspace.partition("[patch.crates-io]")
    (source / "Cargo.toml").write_text(before + after[after.index("[profile.release]"):])
    # These need the forks, or are for tests.
    for manifest in ("backends/Cargo.toml", "router/Cargo.toml"):
        lines = (source / manifest).read_text().splitlines()
        lines = [line for line in lines if not re.match("(text-embeddings-backend-candle|cudarc|insta) = ", line)]
        (source / manifest).write_text(re.sub(r'"(dep:)?(text-embeddings-backend-candle|cudarc)\b[^"]*",?', "", "\n".join(lines)))
    ort = source / "backends/ort/Cargo.toml"
    ort.write_text(ort.read_text().replace('"download-binaries"', '"load-dynamic"').replace('"onednn", ', ""))
    # Its locked version does not compile with Rust 1.95.
    subprocess.run(["cargo", "update", "--package", "metrics@0.23.0", "--precise", "0.23.1"], cwd=source, check=True)
    command = ["cargo", "build", "--release", "--package", "text-embeddings-router", "--no-default-features", "--features", "http,ort"]
    subprocess.run(command, cwd=source, env=os.environ | {"CARGO_TARGET_DIR": str(WORK / "target")}, check=True)


def make_model(weights, folder, out):
    """A folder as the router reads it, with the model that `python_peers.py` exports."""
    if not (folder / VINO).exists():
        export(weights, folder)
    out.mkdir(parents=True)
    # The router does not read the settings that sentence-transformers writes since version 5.
    for file in weights.iterdir():
        if file.suffix in (".json", ".txt"):
            shutil.copy(file, out)
    shutil.copytree(weights / "1_Pooling", out / "1_Pooling")
    shutil.copy(folder / "onnx" / INT8, out / "model.onnx")


class Server:
    def __init__(self, name, command, port, variables):
        self.name, self.port = name, port
        began = time.monotonic()
        self.process = subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # The server of an earlier run might answer instead, at the same port.
        while self.process.poll() is None and self.try_answer() is None:
            time.sleep(0.002)
        if self.process.poll() is not None:
            sys.exit(f"{name} ended with status {self.process.returncode}")
        self.start = time.monotonic() - began

    def try_answer(self):
        try:
            return self.embed(["The ferry leaves at seven."])
        except OSError:
            return None

    def embed(self, texts):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        return json.loads(ask(connection, body(texts)))

    def memory(self):
        """Resident, in MB."""
        if self.process.poll() is not None:
            sys.exit(f"{self.name} ended with status {self.process.returncode}")
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1000

    def load(self, bodies, clients, seconds):
        """Requests per second."""
        requests, end = itertools.cycle(bodies), time.monotonic() + seconds
        counts = [0] * clients

        def client(index):
            connection = http.client.HTTPConnection("127.0.0.1", self.port)
            while time.monotonic() < end:
                ask(connection, next(requests))
                counts[index] += 1

        threads = [threading.Thread(target=client, args=(index,)) for index in range(clients)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.monotonic() - began)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def body(texts):
    return json.dumps({"inputs": texts}).encode()


def ask(connection, body):
    connection.request("POST", "/embed", body, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {answer[:200]}")
    return answer


def cosine(left, right):
    lengths = math.sqrt(sum(value * value for value in left) * sum(value * value for value in right))
    return sum(one * other for one, other in zip(left, right)) / lengths


def workloads():
    """Bodies by name, with the texts in a request and the number of clients."""
    short = [f"{number}: {SENTENCES[number % len(SENTENCES)]}" for number in range(480)]
    texts = mixed(960, 7)
    groups = lambda texts, size: [body(texts[start : start + size]) for start in range(0, len(texts), size)]
    return {
        "32 short texts a request, 4 clients": (groups(short, 32), 32, 4),
        "one short text a request, 1 client": (groups(short, 1), 1, 1),
        "one short text a request, 8 clients": (groups(short, 1), 1, 8),
        "32 mixed texts a request, 1 client": (groups(texts, 32), 32, 1),
        "32 mixed texts a request, 4 clients": (groups(texts, 32), 32, 4),
    }


def main():
    parser = argparse.ArgumentParser()
    for name in ("checkout", "weights", "bundle", "folder", "kivu", "runtime"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if not ROUTER.exists():
        compile_router(options.checkout)
    model = WORK / "model"
    if not model.exists():
        make_model(options.weights, options.folder, model)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    kivu = [options.kivu.resolve(), "serve", options.bundle, "--listen", "127.0.0.1:8291"]
    tei = [ROUTER, "--model-id", model, "--hostname", "127.0.0.1", "--port", "8292", "--dtype", "float32", "--auto-truncate"]
    tei_variables = {"ORT_DYLIB_PATH": str(options.runtime.resolve()), "HF_HUB_OFFLINE": "1"}
    servers = []
    try:
        servers.append(Server("Kivu", kivu, 8291, {}))
        servers.append(Server("text-embeddings-inference", tei, 8292, tei_variables))
        sample = mixed(64, 3)
        answers = [[vector for start in (0, 32) for vector in server.embed(sample[start : start + 32])] for server in servers]
        cosines = [cosine(*pair) for pair in zip(*answers)]
        report = {
            "load": os.getloadavg(),
            "cosine between both, mean and worst": [round(statistics.mean(cosines), 4), round(min(cosines), 4)],
            "start to first answer, ms": {server.name: round(server.start * 1e3) for server in servers},
        }
        for name, (bodies, size, clients) in workloads().items():
            rates = [[server.load(bodies, clients, options.seconds) * size for server in servers] for _ in range(options.rounds)]
            medians = [round(statistics.median(rate), 1) for rate in zip(*rates)]
            ratio = round(statistics.median(ours / theirs for ours, theirs in rates), 2)
            report[name] = {"texts per second": dict(zip((server.name for server in servers), medians)), "ratio": ratio}
            print(name, report[name], file=sys.stderr, flush=True)
        report["resident memory, MB"] = {server.name: round(server.memory(), 1) for server in servers}
        print(json.dumps(report, indent=2))
    finally:
        for server in servers:
            server.stop()


if __name__ == "__main__":
    main()
