"""Loads a server on this machine, and tells what became of it as JSON.

    python3 tests/load/load.py KIVU BUNDLE OHA --json FILE [--seconds N] [--soak SECONDS]

Starts `kivu serve` with room for a few requests, finds out what it can do, and then sends ten times that, bursts,
callers who dribble, bodies that are too large, and all of it mixed. `oha` sends; slow callers are sockets of this
script's own. What is asked of each is checked: the exit status tells whether all of it held. `--soak` sends the
mixture for longer. Only Python's standard library is needed.
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

# Requests under way at once; what comes beyond is refused.
ROOM = 16
TIMES = 10
# How long a connection may say nothing.
PATIENCE_S = 5
BODY = json.dumps({"inputs": "The cat sits on the mat and looks at the dog in the garden."})
HEAD = "POST /embed HTTP/1.1\r\nhost: kivu\r\ncontent-type: application/json\r\n"


class Server:
    """`kivu serve` on a free port, watched while something is sent to it."""

    def __init__(self, kivu, bundle):
        environment = {**os.environ, "KIVU_LIMITS__REQUESTS": str(ROOM), "KIVU_LIMITS__TIMEOUT_MS": str(1000 * PATIENCE_S), "RUST_LOG": "error"}
        command = [kivu, "serve", bundle, "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        self.address = self.process.stdout.readline().strip().split("http://")[1]
        host, port = self.address.split(":")
        self.place = (host, int(port))
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def resident_mb(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self):
        """Seconds from being asked to stop to having ended well."""
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=60)
        if status != 0:
            sys.exit(f"expected the server to end well, but found status {status}")
        return time.monotonic() - started


class Watch:
    """The most memory and files that the server had while something went on, and what it has afterwards."""

    def __init__(self, server):
        self.server, self.samples, self.is_over = server, [], threading.Event()
        self.thread = threading.Thread(target=self.look)

    def look(self):
        while not self.is_over.wait(0.2):
            self.samples.append((time.monotonic(), self.server.resident_mb(), self.server.open_files()))

    def __enter__(self):
        self.before = self.server.resident_mb()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()

    def told(self):
        return {
            "resident_mb_before": round(self.before, 1),
            "resident_mb_most": round(max(sample[1] for sample in self.samples), 1),
            "resident_mb_after": round(self.server.resident_mb(), 1),
            "open_files_most": max(sample[2] for sample in self.samples),
            "open_files_after": self.server.open_files(),
        }


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def send(oha, server, seconds, callers, rate=None):
    """What `oha` counted: how many answers of each status, how long they took, and requests without an answer."""
    with tempfile.TemporaryDirectory() as folder:
        body, answers = pathlib.Path(folder, "body"), pathlib.Path(folder, "answers")
        body.write_text(BODY)
        command = [oha, "--no-tui", "--output-format", "json", "--db-url", answers, "-z", f"{seconds}s", "-c", str(callers), "-m", "POST", "-T", "application/json", "-D", body, "--wait-ongoing-requests-after-deadline"]
        if rate:
            command += ["-q", str(rate)]
        output = subprocess.run([*command, f"http://{server.address}/embed"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with contextlib.closing(sqlite3.connect(answers)) as database:
            rows = database.execute("SELECT status, 1000 * duration FROM oha").fetchall()
    statuses = {}
    for status, took in rows:
        statuses.setdefault(str(status), []).append(took)
    lost = sum(json.loads(output.stdout)["errorDistribution"].values())
    told = {"requests": len(rows) + lost, "lost": lost, "a_second": round(len(rows) / seconds), "callers": callers}
    for status, times in sorted(statuses.items()):
        told[status] = {"answers": len(times), "a_second": round(len(times) / seconds), "p50_ms": round(percentile(times, 0.5), 2), "p99_ms": round(percentile(times, 0.99), 2)}
    return told


def dribble(server, count, seconds):
    """Opens connections that say a byte a second and never say all; how many the server closed."""
    sockets, closed = [], 0
    for _ in range(count):
        sockets.append(socket.create_connection(server.place))
    until = time.monotonic() + seconds
    head = HEAD.encode()
    for place in range(int(seconds)):
        for each in list(sockets):
            try:
                each.send(head[place % len(head) : place % len(head) + 1])
            except OSError:
                sockets.remove(each)
                closed += 1
        time.sleep(max(0, min(1, until - time.monotonic())))
    for each in sockets:
        each.close()
    return {"connections": count, "closed_by_the_server": closed}


def oversize(server, count, megabytes):
    """Sends bodies beyond the limit; the statuses that came back, or that the connection was cut."""
    statuses = {}
    piece = b" " * 1024 * 1024
    for _ in range(count):
        with socket.create_connection(server.place) as each:
            each.settimeout(30)
            status = "cut off"
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


def side_by_side(*works):
    found = [None] * len(works)

    def run(place):
        found[place] = works[place]()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def growth(samples):
    """How much the middle of the last quarter lies above that of the second: what does not go flat."""
    quarter = max(1, len(samples) // 4)
    second, last = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    return [round(percentile([sample[of] for sample in last], 0.5) - percentile([sample[of] for sample in second], 0.5), 1) for of in (1, 2)]


def mixed(oha, server, seconds):
    until = time.monotonic() + seconds
    sent, slow, large = [], [], []

    def steadily():
        while (left := until - time.monotonic()) > 1:
            sent.append(send(oha, server, max(1, int(min(20, left))), ROOM // 2))
            if until - time.monotonic() > 3:
                sent.append(send(oha, server, 2, TIMES * ROOM))

    def slowly():
        while (left := until - time.monotonic()) > 1:
            slow.append(dribble(server, 50, min(10, left)))

    def largely():
        while until - time.monotonic() > 1:
            large.append(oversize(server, 1, 30))
            time.sleep(2)

    with Watch(server) as watch:
        side_by_side(steadily, slowly, largely)
    time.sleep(PATIENCE_S + 1)
    statuses = {}
    for run in sent:
        for status, told in run.items():
            if status.isdigit():
                statuses[status] = statuses.get(status, 0) + told["answers"]
    resident, files = growth(watch.samples)
    return {
        "seconds": seconds, "requests": sum(run["requests"] for run in sent), "statuses": statuses,
        "lost": sum(run["lost"] for run in sent),
        "slow_callers": sum(run["connections"] for run in slow), "large_bodies": len(large),
        "resident_mb_growth": resident, "open_files_growth": files, **watch.told(),
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
    send(oha, server, 2, ROOM)
    found, failures = {"room": ROOM, "processors": os.cpu_count()}, []

    def holds(what, is_so):
        if not is_so:
            failures.append(what)

    def run(name, work):
        with Watch(server) as watch:
            told = work()
        found[name] = {**told, **watch.told()}
        print(name, json.dumps(found[name]), flush=True)
        holds(f"nothing lost: {name}", told.get("beside", told).get("lost", 0) == 0)
        return found[name]

    if arguments.soak:
        soak = mixed(oha, server, arguments.soak)
        found["soak"] = soak
        print(json.dumps(soak), flush=True)
        holds("memory flat", soak["resident_mb_growth"] < 0.1 * soak["resident_mb_before"] + 5)
        holds("open files flat", soak["open_files_after"] <= 64)
        holds("no other answers than 200 and 429", set(soak["statuses"]) <= {"200", "429"})
        holds("nothing lost", soak["lost"] == 0)
    else:
        # The first crowd makes room that stays: what matters is that a second one needs no more.
        send(oha, server, 2, 4 * TIMES * ROOM)
        steady = run("steady", lambda: send(oha, server, seconds, ROOM))
        holds("all are answered at capacity", set(key for key in steady if key.isdigit()) == {"200"})
        rate = TIMES * steady["200"]["a_second"]
        flood = run("ten times", lambda: send(oha, server, seconds, 4 * TIMES * ROOM, rate))
        holds("memory flat at ten times", flood["resident_mb_most"] < 1.1 * flood["resident_mb_before"] + 16)
        holds("p99 of the accepted at most twice that at capacity", flood["200"]["p99_ms"] <= 2 * steady["200"]["p99_ms"])
        holds("the rest are refused", "429" in flood and set(key for key in flood if key.isdigit()) == {"200", "429"})
        run("burst", lambda: send(oha, server, 2, TIMES * ROOM))
        slow, beside = None, None

        def loris():
            nonlocal slow, beside
            slow, beside = side_by_side(lambda: dribble(server, 500, 2 * PATIENCE_S), lambda: send(oha, server, 2 * PATIENCE_S, ROOM // 2))
            return {**slow, "beside": beside}

        loris = run("slow callers", loris)
        holds("slow callers are closed", loris["closed_by_the_server"] == loris["connections"])
        holds("others are answered beside slow callers", set(key for key in beside if key.isdigit()) == {"200"})
        large = run("oversized", lambda: oversize(server, 40, 30))
        holds("memory flat with bodies that are too large", large["resident_mb_most"] < 1.1 * large["resident_mb_before"] + 16)
        found["mixed"] = mixed(oha, server, 3 * seconds)
        print("mixed", json.dumps(found["mixed"]), flush=True)
        holds("nothing lost: mixed", found["mixed"]["lost"] == 0)
    found["stopped_in_s"] = round(server.stop(), 2)
    found["failures"] = failures
    arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(f"did not hold: {', '.join(failures)}" if failures else 0)


if __name__ == "__main__":
    main()
