"""Measures the cost of OpenTelemetry: a server that sends traces of a share of its requests and metrics, against one
that sends nothing. Both run at once, and take turns with the load, so that both see the same machine.

    PYTHON benches/tracing.py KIVU BUNDLE [--share 0.1] [--turns 20] [--seconds 3] [--clients 2] [--target 0.98]

BUNDLE is an embedding model. The receiver is the one in tests/telemetry, so PYTHON needs the packages in
tests/telemetry/requirements.txt (`make tools` installs them in .kivu/telemetry). Exits with 1 below the target.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests/telemetry"))
from collector import Collector  # noqa: E402

BODY = json.dumps({"inputs": "What is deep learning?"})
WARM_UP_S = 2


class Server:
    def __init__(self, kivu, bundle, variables):
        # Request lines cost more than a sampled trace, and are the same in both servers.
        environment = os.environ | {"RUST_LOG": "error"} | variables
        command = [kivu, "serve", bundle, "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.host = self.process.stdout.readline().split("http://")[1].strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def processor_s(self):
        """Processor seconds of the server, in user mode and in the kernel."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def requests(self, until):
        """Requests of one client until a time."""
        connection, count = http.client.HTTPConnection(self.host, timeout=60), 0
        while time.perf_counter() < until:
            connection.request("POST", "/embed", BODY, {"content-type": "application/json"})
            response = connection.getresponse()
            response.read()
            if response.status != 200:
                raise RuntimeError(f"expected status 200, but found {response.status}")
            count += 1
        connection.close()
        return count

    def rate(self, clients, seconds):
        """Requests per second from concurrent clients."""
        started, counts = time.perf_counter(), []
        threads = [threading.Thread(target=lambda: counts.append(self.requests(started + seconds))) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(counts) < clients:
            raise RuntimeError("a client failed")
        return sum(counts) / (time.perf_counter() - started)


class Receiver(Collector):
    """Reads the messages after the measurement: Python's share of the processors is not part of the cost."""

    def __init__(self):
        super().__init__()
        self.received = []

    def receive(self, *message):
        self.received.append(message)
        return self.status

    def read_all(self):
        for message in self.received:
            super().receive(*message)


def receive(pipe):
    """A receiver in its own process, since Python's threads share a processor with the clients."""
    with Receiver() as receiver:
        pipe.send(receiver.url)
        pipe.recv()
        receiver.read_all()
        pipe.send((len(receiver.servers()), len(receiver.spans), receiver.malformed))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("kivu")
    parser.add_argument("bundle")
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--target", type=float, default=0.98)
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    receiver = multiprocessing.Process(target=receive, args=(theirs,), daemon=True)
    receiver.start()
    traced = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": ours.recv(), "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": str(options.share),
    }
    with Server(options.kivu, options.bundle, traced) as sending, Server(options.kivu, options.bundle, {}) as silent:
        ratio = measure(sending, silent, options)
    ours.send(None)
    requests, spans, malformed = ours.recv()
    receiver.join()
    if not requests or malformed:
        raise RuntimeError(f"expected spans, but found {spans}, malformed: {malformed}")
    print(f"{spans} spans of {requests} requests were received")
    return 0 if ratio >= options.target else 1


def measure(sending, silent, options):
    """The median ratio of both rates."""
    for server in (sending, silent):
        server.rate(options.clients, WARM_UP_S)
    pairs, before = [], {server: server.processor_s() for server in (sending, silent)}
    for turn in range(options.turns):
        # The order alternates, since one load may affect the next.
        servers = (sending, silent) if turn % 2 == 0 else (silent, sending)
        rates = {server: server.rate(options.clients, options.seconds) for server in servers}
        pairs.append((rates[sending], rates[silent]))
    ms = [1000 * (server.processor_s() - before[server]) / sum(rates) / options.seconds for server, rates in zip((sending, silent), zip(*pairs))]
    print(f"processor time of a request: {ms[0]:.3f} ms with OTLP, {ms[1]:.3f} ms without, ratio {ms[1] / ms[0]:.3f}")
    ratios = sorted(first / second for first, second in pairs)
    ratio, quarter = statistics.median(ratios), len(ratios) // 4
    medians = [statistics.median(rates) for rates in zip(*pairs)]
    print(f"with OTLP at {options.share:.0%}: {medians[0]:.0f} requests/s, without: {medians[1]:.0f} requests/s")
    print(f"ratio {ratio:.3f} (quartiles {ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f}), target {options.target}")
    return ratio


if __name__ == "__main__":
    sys.exit(main())
