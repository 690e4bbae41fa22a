"""Measures models on demand: first requests, and the 99th percentile of a loaded model's requests while others load and
leave.

    python benches/on_demand.py KIVU BUNDLE [--models 100] [--memory 500MB] [--seconds 30]

BUNDLE is an embedding model, which is copied under many names. Needs Linux and only Python's standard library.
"""

import argparse
import http.client
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

TEXT = "What is deep learning?"


def copies(bundle, folder, count):
    """Copies under the names m0, m1, …, with hard links where possible."""
    for number in range(count):
        out = folder / f"m{number}"
        out.mkdir()
        for file in bundle.iterdir():
            if file.name != "manifest.toml":
                try:
                    os.link(file.resolve(), out / file.name)
                except OSError:
                    shutil.copy(file, out / file.name)
        lines = (bundle / "manifest.toml").read_text().splitlines(keepends=True)
        lines = [line for line in lines if not line.startswith(("#", "aliases"))]
        place = next(place for place, line in enumerate(lines) if line.startswith("name = "))
        lines[place] = f'name = "m{number}"\n'
        (out / "manifest.toml").write_text("".join(lines))


class Server:
    def __init__(self, kivu, folder, memory):
        command = [kivu, "serve", str(folder), "--load", "on-demand", "--max-memory", memory, "--listen", "127.0.0.1:0"]
        environment = os.environ | {"RUST_LOG": "error"}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.host = self.process.stdout.readline().split("http://")[1].strip()

    def stop(self):
        self.process.kill()
        self.process.communicate()


class Client:
    def __init__(self, server):
        self.connection = http.client.HTTPConnection(server.host, timeout=120)

    def ask(self, name):
        """Milliseconds, and whether the response is the model's."""
        body = json.dumps({"model": name, "input": TEXT})
        started = time.perf_counter()
        self.connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
        response = self.connection.getresponse()
        found = json.loads(response.read())
        return (time.perf_counter() - started) * 1000, response.status == 200 and found["model"] == name

    def post(self, path):
        self.connection.request("POST", path, "{}", {"content-type": "application/json"})
        self.connection.getresponse().read()


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def first_requests(server, count=20):
    """Times of first requests to models that are not loaded."""
    client, times = Client(server), []
    for number in range(count):
        client.post(f"/v2/repository/models/m{number}/unload")
        ms, is_right = client.ask(f"m{number}")
        assert is_right
        times.append(ms)
    return {"first_request_ms": {"median": statistics.median(times), "max": max(times)}}


def ask_all(server, names, end, pause, found, lock):
    client, order = Client(server), random.Random(threading.get_ident())
    while time.monotonic() < end:
        answer = client.ask(order.choice(names))
        with lock:
            found.append(answer)
        time.sleep(pause)


def run(server, seconds, *groups):
    """Runs a client for each group of names and a pause; returns their answers."""
    lock, end, answers, threads = threading.Lock(), time.monotonic() + seconds, [], []
    for names, pause in groups:
        answers.append([])
        threads.append(threading.Thread(target=ask_all, args=(server, names, end, pause, answers[-1], lock)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(is_right for group in answers for _, is_right in group)
    return answers


def beside_others(server, names, seconds):
    """The first model's times, alone and while a client asks others, each of which is loaded for it."""
    [alone] = run(server, seconds, (names[:1], 0.005))
    [beside, others] = run(server, seconds, (names[:1], 0.005), (names[1:], 0.2))
    alone, beside = ([ms for ms, _ in answers] for answers in (alone, beside))
    p99 = [percentile(times, 0.99) for times in (alone, beside)]
    return {"p99_alone_ms": p99[0], "p99_beside_loads_ms": p99[1], "ratio": p99[1] / p99[0], "loads": len(others)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kivu")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--memory", default="500MB")
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copies(options.bundle, Path(folder), options.models)
        names = [f"m{number}" for number in range(options.models)]
        server = Server(options.kivu, folder, options.memory)
        try:
            print(json.dumps(first_requests(server)))
            print(json.dumps(beside_others(server, names, options.seconds)))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
