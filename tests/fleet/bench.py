"""The cost of forwarding to Triton: `kivu serve` in front of a real server, compared with clients of the server.

    benches/run.py fleet

runs it with the program and a bundle of an embedding model. Every figure has a baseline from the same run.
"""

import http.client
import json
import os
import pathlib
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import tomllib

import numpy
import tokenizers
import tritonclient.grpc

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from ports import free_ports  # noqa: E402

PACKAGES = pathlib.Path(tokenizers.__file__).parents[1]
TRITON = PACKAGES / "pytriton" / "tritonserver"
SHORT = "What is deep learning?"
TEXTS = [f"text number {number} of some that are to be embedded" for number in range(10, 42)]


class Connection:
    """A minimal HTTP client that reuses its connection."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def ask(self, message):
        self.socket.sendall(message)
        status, length = self.file.readline(), 0
        while (line := self.file.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        body = self.file.read(length)
        return b" 200 " in status, body


def message(path, body, header="content-type: application/json"):
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{header}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def embed(texts):
    return message("/embed", json.dumps({"inputs": texts}).encode())


def infer(model, tokenizer, texts):
    encodings = tokenizer.encode_batch(texts)
    rows, columns = len(texts), len(encodings[0].ids)
    columns_of = {
        "input_ids": [encoding.ids for encoding in encodings],
        "attention_mask": [encoding.attention_mask for encoding in encodings],
        "token_type_ids": [encoding.type_ids for encoding in encodings],
    }
    inputs, tail = [], b""
    for name in columns_of:
        values = [value for row in columns_of[name] for value in row]
        data = struct.pack(f"<{len(values)}q", *values)
        parameters = {"binary_data_size": len(data)}
        inputs.append({"name": name, "shape": [rows, columns], "datatype": "INT64", "parameters": parameters})
        tail += data
    return inputs, tail


def direct(model, inputs, tail, names):
    chosen = [tensor for tensor in inputs if tensor["name"] in names]
    body = json.dumps({"inputs": chosen, "parameters": {"binary_data_output": True}}).encode()
    sizes, data, at = {}, b"", 0
    for tensor in inputs:
        size = tensor["parameters"]["binary_data_size"]
        if tensor["name"] in names:
            data += tail[at : at + size]
        at += size
    header = f"inference-header-content-length: {len(body)}"
    return message(f"/v2/models/{model}/infer", body + data, header)


def latencies(sides, turns=400):
    """The latencies of each side in milliseconds, measured alternately."""
    took = [[] for _ in sides]
    for turn in range(turns):
        for side, ask in enumerate(sides):
            started = time.perf_counter()
            fine, body = ask()
            if not fine:
                raise SystemExit(f"side {side}: {body[:300]}")
            if turn >= turns // 10:
                took[side].append((time.perf_counter() - started) * 1000)
    return took


def throughput(asks, seconds):
    """Requests per second with one concurrent client per element of `asks`, the failures, and all latencies."""
    until, counts, failures, took = time.perf_counter() + seconds, [0] * len(asks), [], []

    def call(place):
        while (started := time.perf_counter()) < until:
            if not asks[place]():
                failures.append(started)
            counts[place] += 1
            took.append((started, (time.perf_counter() - started) * 1000))

    threads = [threading.Thread(target=call, args=(place,)) for place in range(len(asks))]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - started), failures, took


class Triton:
    def __init__(self, repository):
        self.repository, (self.http, self.grpc) = repository, free_ports(2)
        self.shared = f"kivu-bench-{self.http}"
        self.start()

    def start(self):
        environment = dict(os.environ, LD_LIBRARY_PATH=str(PACKAGES / "nvidia_pytriton.libs"))
        environment.update(PYTHONPATH=str(PACKAGES), OMP_NUM_THREADS="1")
        command = [TRITON / "bin" / "tritonserver", f"--model-repository={self.repository}"]
        command += [f"--backend-directory={TRITON / 'backends'}", "--allow-metrics=false"]
        command += [f"--backend-config=python,shm-region-prefix-name={self.shared}"]
        command += [f"--http-port={self.http}", f"--grpc-port={self.grpc}", "--http-address=127.0.0.1"]
        command += ["--grpc-address=127.0.0.1"]
        null = subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, env=environment, stdin=null, stdout=null, stderr=null, start_new_session=True
        )
        for _ in range(600):
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=5)
                connection.request("GET", "/v2/health/ready")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise SystemExit("Triton did not become ready")

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        # The shared memory of the models remains after both have ended.
        for left in pathlib.Path("/dev/shm").glob(f"{self.shared}*"):
            left.unlink(missing_ok=True)


class Kivu:
    def __init__(self, program, bundle, policy, urls):
        environment = dict(os.environ, KIVU_FLEET__URLS=",".join(urls), KIVU_FLEET__POLICY=policy)
        environment.update(RUST_LOG="error")
        self.process = subprocess.Popen(
            [program, "serve", bundle, "--listen", "127.0.0.1:0"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])

    def stop(self):
        self.process.terminate()
        self.process.wait()


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]


def line(what, kivu, against, unit, result):
    print(f"{what:62} {kivu:9.3f} {against:9.3f} {unit:10} {result}", flush=True)


def measure(program, bundle, folder):
    manifest = tomllib.loads(pathlib.Path(bundle, "manifest.toml").read_text())
    name, names = manifest["name"], [tensor["name"] for tensor in manifest["signature"]["inputs"]]
    repository = pathlib.Path(folder, "repository")
    command = [program, "triton", bundle, "--out", repository, "--backend", "python"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(bundle, "tokenizer.json")))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    one = direct(name, *infer(name, tokenizer, [SHORT]), names)
    first, second = Triton(repository), Triton(repository)
    servers = []
    try:
        # The latency that Kivu adds to a plain call, for one short text.
        by_http = Kivu(program, bundle, "fleet", [f"http://127.0.0.1:{first.http}"])
        by_grpc = Kivu(program, bundle, "fleet", [f"grpc://127.0.0.1:{first.grpc}"])
        servers += [by_http, by_grpc]
        inputs, tail = infer(name, tokenizer, [SHORT])
        clients = [tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{first.grpc}") for _ in range(32)]
        tensors, at = [], 0
        for tensor in inputs:
            size = tensor["parameters"]["binary_data_size"]
            if tensor["name"] in names:
                given = tritonclient.grpc.InferInput(tensor["name"], tensor["shape"], "INT64")
                given.set_data_from_numpy(numpy.frombuffer(tail[at : at + size], "<i8").reshape(tensor["shape"]))
                tensors.append(given)
            at += size

        def ask(connection, bytes_):
            return lambda: connection.ask(bytes_)

        def infer_by_grpc(client):
            return lambda: (bool(client.infer(name, tensors)), b"")

        sides = [ask(Connection(first.http), one), infer_by_grpc(clients[0])]
        sides += [ask(Connection(server.port), embed([SHORT])) for server in (by_http, by_grpc)]
        bare, bare_grpc, over_http, over_grpc = map(statistics.median, latencies(sides))
        line("POST /embed over HTTP, p50 | bare HTTP call", over_http, bare, "ms", f"+ {over_http - bare:.3f}")
        line("POST /embed over gRPC, p50 | tritonclient.grpc", over_grpc, bare_grpc, "ms", f"+ {over_grpc - bare_grpc:.3f}")
        line("POST /embed over gRPC, p50 | bare HTTP call", over_grpc, bare, "ms", f"+ {over_grpc - bare:.3f}")

        # 32 concurrent clients: through Kivu, and with Triton's client library.
        straight = [lambda client=client: bool(client.infer(name, tensors)) for client in clients]

        def through(server, body):
            connections = [Connection(server.port) for _ in range(32)]
            return [lambda connection=connection: connection.ask(body)[0] for connection in connections]

        rates = {"straight": [], "http": [], "grpc": []}
        for _ in range(3):
            rates["straight"].append(throughput(straight, 3)[0])
            rates["http"].append(throughput(through(by_http, embed([SHORT])), 3)[0])
            rates["grpc"].append(throughput(through(by_grpc, embed([SHORT])), 3)[0])
        straight, over_http, over_grpc = (statistics.median(rates[side]) for side in ("straight", "http", "grpc"))
        line("32 callers through Kivu, HTTP | tritonclient", over_http, straight, "requests/s", f"{over_http / straight:.3f} x")
        line("32 callers through Kivu, gRPC | tritonclient", over_grpc, straight, "requests/s", f"{over_grpc / straight:.3f} x")

        # A fleet of two servers, one of which is killed under load.
        urls = [f"grpc://127.0.0.1:{server.grpc}" for server in (first, second)]
        both = Kivu(program, bundle, "fleet", urls)
        either = Kivu(program, bundle, "auto", urls)
        servers += [both, either]
        asks = through(both, embed([SHORT]))[:8]
        throughput(asks, 1)
        killer = threading.Timer(3, second.kill)
        killer.start()
        started = time.perf_counter()
        _, failures, took = throughput(asks, 7)
        before = [ms for at, ms in took if at - started < 2.5]
        during = [ms for at, ms in took if 2.5 <= at - started < 5]
        ratio = percentile(during, 0.99) / percentile(before, 0.99)
        what = f"fleet of two, one killed: {len(failures)} of {len(took)} failed; p99 during | before"
        line(what, percentile(during, 0.99), percentile(before, 0.99), "ms", f"{ratio:.2f} x")

        # The whole fleet is killed under load, with `auto`.
        asks = through(either, embed(TEXTS))[:4]
        throughput(asks, 1)
        killer = threading.Timer(2, first.kill)
        killer.start()
        _, failures, took = throughput(asks, 5)
        print(f"whole fleet killed under `auto`: {len(failures)} of {len(took)} requests failed")
    finally:
        for server in servers:
            server.stop()
        first.kill()
        second.kill()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        measure(sys.argv[1], sys.argv[2], folder)
