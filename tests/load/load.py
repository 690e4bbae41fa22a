"""Overloads a server on this machine and writes the results as JSON.

    python3 tests/load/load.py KIVU BUNDLE OHA --json FILE [--seconds N] [--soak SECONDS]

Starts `kivu serve` with a limit of a few concurrent requests, measures its capacity, and sends ten times as much,
bursts, slow clients, oversized bodies, and a mix of all. `oha` is the client; slow clients are sockets of this script.
The exit code is 0 if all checks pass. `--soak` sends the mix for longer. Needs only the standard library.
"""

import argparse
import atexit
import contextlib
import json
import os
import pathlib
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

# The limit of concurrent requests.
LIMIT = 16
TIMES = 10
# The timeout of requests and connections.
TIMEOUT_S = 5
BODY = json.dumps({"inputs": "The cat sits on the mat with the dog in the garden."})
HEAD = "POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


class Server:
    """`kivu serve` on a free port."""

    def __init__(self, kivu, bundle):
        environment = {**os.environ, "KIVU_LIMITS__REQUESTS": str(LIMIT), "KIVU_LIMITS__TIMEOUT_MS": str(1000 * TIMEOUT_S), "RUST_LOG": "error"}
        command = [kivu, "serve", bundle, "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        self.address = self.process.stdout.readline().strip().split("http://")[1]
        host, port = self.address.split(":")
        self.socket_address = (host, int(port))
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def resident_mb(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self):
        """Stops the server and returns how many seconds that took."""
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=60)
        if status != 0:
            sys.exit(f"expected the server to exit with 0, but found {status}")
        return time.monotonic() - started


class Watch:
    """Samples memory and open files of the server during a `with` block."""

    def __init__(self, server):
        self.server, self.samples, self.is_over = server, [], threading.Event()
        self.thread = threading.Thread(target=self.sample)

    def sample(self):
        while not self.is_over.wait(0.2):
            self.samples.append((time.monotonic(), self.server.resident_mb(), self.server.open_files()))

    def __enter__(self):
        self.before = self.server.resident_mb()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()

    def results(self):
        return {
            "resident_mb_before": round(self.before, 1),
            "resident_mb_peak": round(max(sample[1] for sample in self.samples), 1),
            "resident_mb_after": round(self.server.resident_mb(), 1),
            "open_files_peak": max(sample[2] for sample in self.samples),
            "open_files_after": self.server.open_files(),
        }


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def send(oha, server, seconds, clients, rate=None):
    """Responses and latencies by status, and the number of requests without a response."""
    with tempfile.TemporaryDirectory() as folder:
        body, responses = pathlib.Path(folder, "body"), pathlib.Path(folder, "answers")
        body.write_text(BODY)
        command = [oha, "--no-tui", "--output-format", "json", "--db-url", responses, "-z", f"{seconds}s", "-c", str(clients), "-m", "POST", "-T", "application/json", "-D", body, "--wait-ongoing-requests-after-deadline"]
        if rate:
            command += ["-q", str(rate)]
        output = subprocess.run([*command, f"http://{server.address}/embed"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with contextlib.closing(sqlite3.connect(responses)) as database:
            rows = database.execute("SELECT status, 1000 * duration FROM oha").fetchall()
    statuses = {}
    for status, took in rows:
        statuses.setdefault(str(status), []).append(took)
    lost = sum(json.loads(output.stdout)["errorDistribution"].values())
    result = {"requests": len(rows) + lost, "lost": lost, "per_second": round(len(rows) / seconds), "clients": clients}
    for status, times in sorted(statuses.items()):
        result[status] = {"responses": len(times), "per_second": round(len(times) / seconds), "p50_ms": round(percentile(times, 0.5), 2), "p99_ms": round(percentile(times, 0.99), 2)}
    return result


def send_slowly(server, count, seconds):
    """Opens connections that send one byte per second and never a whole request; counts those that the server closed."""
    sockets, closed = [], 0
    for _ in range(count):
        sockets.append(socket.create_connection(server.socket_address))
    until = time.monotonic() + seconds
    head = HEAD.encode()
    for second in range(int(seconds)):
        for each in list(sockets):
            try:
                each.send(head[second % len(head) : second % len(head) + 1])
            except OSError:
                sockets.remove(each)
                closed += 1
        time.sleep(max(0, min(1, until - time.monotonic())))
    for each in sockets:
        each.close()
    return {"connections": count, "closed_by_the_server": closed}


def oversize(server, count, megabytes):
    """Sends bodies beyond the limit and counts the statuses of the responses."""
    statuses = {}
    piece = b" " * 1024 * 1024
    for _ in range(count):
        with socket.create_connection(server.socket_address) as each:
            each.settimeout(30)
            status = "closed"
            try:
                each.sendall(f"{HEAD}content-length: {megabytes * len(piece)}\r\n\r\n".encode())
                for _ in range(megabytes):
                    each.sendall(piece)
            except OSError:
                pass
            try:
                status = each.recv(64).split(b" ")[1].decode()
            except (OSError, IndexError):
                pass
        statuses[status] = statuses.get(status, 0) + 1
    return {"bodies": count, "megabytes": megabytes, "statuses": statuses}


def concurrently(*works):
    found = [None] * len(works)

    def run(index):
        found[index] = works[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def growth(samples):
    """The growth of the median from the second to the last quarter."""
    quarter = max(1, len(samples) // 4)
    second, last = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    return [round(percentile([sample[of] for sample in last], 0.5) - percentile([sample[of] for sample in second], 0.5), 1) for of in (1, 2)]


def mixed(oha, server, seconds):
    until = time.monotonic() + seconds
    sent, slow, large = [], [], []

    def steady():
        while (left := until - time.monotonic()) > 1:
            sent.append(send(oha, server, max(1, int(min(20, left))), LIMIT // 2))
            if until - time.monotonic() > 3:
                sent.append(send(oha, server, 2, TIMES * LIMIT))

    def slow_clients():
        while (left := until - time.monotonic()) > 1:
            slow.append(send_slowly(server, 50, min(10, left)))

    def oversized():
        while until - time.monotonic() > 1:
            large.append(oversize(server, 1, 30))
            time.sleep(2)

    with Watch(server) as watch:
        concurrently(steady, slow_clients, oversized)
    time.sleep(TIMEOUT_S + 1)
    statuses = {}
    for run in sent:
        for status, result in run.items():
            if status.isdigit():
                statuses[status] = statuses.get(status, 0) + result["responses"]
    resident, files = growth(watch.samples)
    return {
        "seconds": seconds, "requests": sum(run["requests"] for run in sent), "statuses": statuses,
        "lost": sum(run["lost"] for run in sent),
        "slow_clients": sum(run["connections"] for run in slow), "large_bodies": len(large),
        "resident_mb_growth": resident, "open_files_growth": files, **watch.results(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("kivu", "bundle", "oha"):
        parser.add_argument(name)
    parser.add_argument("--json", required=True, type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--soak", type=int, default=0)
    arguments = parser.parse_args()
    oha, seconds = arguments.oha, arguments.seconds
    server = Server(arguments.kivu, arguments.bundle)
    send(oha, server, 2, LIMIT)
    found, failures = {"limit": LIMIT, "processors": os.cpu_count()}, []

    def check(name, passed):
        if not passed:
            failures.append(name)

    def run(name, work):
        with Watch(server) as watch:
            result = work()
        found[name] = {**result, **watch.results()}
        print(name, json.dumps(found[name]), flush=True)
        check(f"all requests got a response: {name}", result.get("others", result).get("lost", 0) == 0)
        return found[name]

    if arguments.soak:
        soak = mixed(oha, server, arguments.soak)
        found["soak"] = soak
        print(json.dumps(soak), flush=True)
        check("constant memory", soak["resident_mb_growth"] < 0.1 * soak["resident_mb_before"] + 5)
        check("constant open files", soak["open_files_after"] <= 64)
        check("only responses of 200 and 429", set(soak["statuses"]) <= {"200", "429"})
        check("all requests got a response", soak["lost"] == 0)
    else:
        # Memory grows with the first overload; later ones should not need more.
        send(oha, server, 2, 4 * TIMES * LIMIT)
        steady = run("steady", lambda: send(oha, server, seconds, LIMIT))
        check("only 200 at capacity", set(key for key in steady if key.isdigit()) == {"200"})
        rate = TIMES * steady["200"]["per_second"]
        flood = run("ten times", lambda: send(oha, server, seconds, 4 * TIMES * LIMIT, rate))
        check("constant memory at ten times", flood["resident_mb_peak"] < 1.1 * flood["resident_mb_before"] + 16)
        check("p99 of accepted requests at most twice that at capacity", flood["200"]["p99_ms"] <= 2 * steady["200"]["p99_ms"])
        check("others get 429", "429" in flood and set(key for key in flood if key.isdigit()) == {"200", "429"})
        run("burst", lambda: send(oha, server, 2, TIMES * LIMIT))
        slow, others = None, None

        def slow_traffic():
            nonlocal slow, others
            slow, others = concurrently(lambda: send_slowly(server, 500, 2 * TIMEOUT_S), lambda: send(oha, server, 2 * TIMEOUT_S, LIMIT // 2))
            return {**slow, "others": others}

        slow_result = run("slow clients", slow_traffic)
        check("slow clients are disconnected", slow_result["closed_by_the_server"] == slow_result["connections"])
        check("other clients get only 200", set(key for key in others if key.isdigit()) == {"200"})
        large = run("oversized", lambda: oversize(server, 40, 30))
        check("constant memory with oversized bodies", large["resident_mb_peak"] < 1.1 * large["resident_mb_before"] + 16)
        found["mixed"] = mixed(oha, server, 3 * seconds)
        print("mixed", json.dumps(found["mixed"]), flush=True)
        check("all requests got a response: mixed", found["mixed"]["lost"] == 0)
    found["shutdown_s"] = round(server.stop(), 2)
    found["failures"] = failures
    arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(f"failed checks: {', '.join(failures)}" if failures else 0)


if __name__ == "__main__":
    main()
