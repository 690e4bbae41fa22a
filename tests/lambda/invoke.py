#!/usr/bin/env python3
"""Sends API Gateway and load balancer events to the function `api` under the Lambda emulator.

    python tests/lambda/invoke.py CARGO_LAMBDA EVENTS
        [--port 9000] [--env KEY=VALUE]... [--release] [--features NAMES]

It starts `CARGO_LAMBDA lambda watch`, posts the events of the folder EVENTS to
the emulator, and checks the status of each response and that all vectors are
equal. It prints one line per event and ends the processes that it started. The
exit status is 0, or 1 after printing the problems.

The emulator compiles the function when the first event arrives, which may take
minutes. Needs only Python's standard library.
"""

import argparse
import array
import base64
import contextlib
import http.client
import json
import math
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
FUNCTION = "api"
WIDTH = 384

EMULATOR_START_S = 30
FIRST_ANSWER_S = 15 * 60
ANSWER_S = 60
PROGRESS_S = 10
END_S = 5
LOG_LINES = 40

# Output of the emulator or of cargo after which no response will come. The emulator
# keeps waiting: it restarts a function only when its code changes.
DEAD = ("could not compile", "command exited", "command killed", "command ended", "error: no bin ")

# Event, its expected statuses, and the kind of its response. Other events follow
# those with an invalid host or query, which would fail if these ended the function.
EVENTS = (
    ("rest_plain", (200,), "vector"),
    ("rest_base64", (200,), "vector"),
    ("rest_wrong_host", (200, 400), "vector"),
    ("http_wrong_host", (200,), "vector"),
    ("http_bad_query", (200,), "vector"),
    ("http_plain", (200,), "vector"),
    ("http_base64", (200,), "vector"),
    ("http_default_stage", (200,), "vector"),
    ("http_bad_json", (400,), "error"),
    ("rest_openai", (200,), "vector"),
    ("rest_get_info", (200,), "info"),
    ("rest_private", (200,), "vector"),
    ("alb_wrong_host", (200,), "vector"),
    ("alb_plain", (200,), "vector"),
    ("alb_multi_value_base64", (200,), "vector"),
    ("alb_health", (200,), "empty"),
    ("scheduled", (200,), "empty"),
    ("alb_long_response", (413,), "error"),
)


class Failure(Exception):
    """A failure that ends the run."""


def main():
    parser = option_parser(__doc__.split("\n")[0])
    parser.add_argument("events", type=Path, help="the folder with the events")
    options = parse_options(parser)
    # SIGTERM must not leave the emulator running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        events = [read_event(options.events / f"{name}.json") for name, _, _ in EVENTS]
        with Emulator(options) as emulator:
            problems = send_all(emulator, events)
    except Failure as failure:
        problems = [str(failure)]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if not problems:
        print(f"{len(EVENTS)} events answered as expected")
    return 1 if problems else 0


def option_parser(description):
    """Options of all scripts that start the emulator."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("cargo_lambda", help="the `cargo-lambda` command, or `cargo` if it has it")
    parser.add_argument("--port", type=int, default=9000, help="port of the emulator")
    parser.add_argument(
        "--env", action="append", default=[], metavar="KEY=VALUE", help="environment variable of the function; may be repeated"
    )
    parser.add_argument("--release", action="store_true", help="build with optimizations")
    parser.add_argument("--features", help="Cargo features of the function")
    return parser


def parse_options(parser):
    options = parser.parse_args()
    for pair in options.env:
        if "=" not in pair:
            parser.error(f"expected --env KEY=VALUE, but found `{pair}`")
    return options


def read_event(path):
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Failure(f"the event {path} cannot be read: {error}") from error


def send_all(emulator, events):
    """Sends every event and returns the problems of the responses."""
    problems = []
    vectors = {}
    timeout_s = FIRST_ANSWER_S
    for (name, statuses, kind), event in zip(EVENTS, events):
        started = time.monotonic()
        status, body = emulator.invoke(event, timeout_s)
        timeout_s = ANSWER_S
        elapsed_ms = (time.monotonic() - started) * 1000
        print(f"{name:20} {status}  {body[:100]!r}  {elapsed_ms:.0f} ms", flush=True)
        if status not in statuses:
            expected = " or ".join(map(str, statuses))
            problems.append(f"{name}: expected status {expected}, but found {status}: {body[:300]}")
            continue
        try:
            checked = check(body, kind if status == 200 else "error")
        except (ValueError, LookupError, TypeError) as error:
            problems.append(f"{name}: {error!r} in the answer {body[:300]}")
            continue
        if checked is not None:
            vectors[name] = checked
    return problems + differences(vectors)


def check(body, kind):
    """Checks a response and returns its vector, if its kind has one."""
    if kind == "empty":
        if body:
            raise ValueError("expected no body")
        return None
    answer = json.loads(body)
    if kind == "error":
        if not isinstance(answer["error"], (str, dict)):
            raise ValueError("expected a message in `error`")
        return None
    if kind == "info":
        if not answer["model_id"]:
            raise ValueError("expected a name in `model_id`")
        return None
    numbers = answer["data"][0]["embedding"] if isinstance(answer, dict) else answer[0]
    # As float32, so that the number of digits is irrelevant.
    vector = array.array("f", numbers)
    if len(vector) != WIDTH:
        raise ValueError(f"expected {WIDTH} numbers, but found {len(vector)}")
    norm = math.sqrt(sum(number * number for number in vector))
    if not abs(norm - 1.0) < 1e-3:
        raise ValueError(f"expected a vector of length 1, but found {norm}")
    return vector


def differences(vectors):
    """All events contain the same text, so all vectors must be equal."""
    names = list(vectors)
    for name in names[1:]:
        if vectors[name] != vectors[names[0]]:
            distance = max(abs(a - b) for a, b in zip(vectors[name], vectors[names[0]]))
            return [f"{name} and {names[0]} return different vectors, by up to {distance}"]
    return []


class Emulator:
    """`cargo lambda watch`, while the `with` block runs."""

    def __init__(self, options):
        self.port = options.port
        self.command = watch_command(options)
        # Through the environment, because --env-var splits its values at commas.
        self.environment = {**os.environ, **dict(pair.split("=", 1) for pair in options.env)}

    def __enter__(self):
        if self.listens():
            raise Failure(f"port {self.port} is taken; give a free one with --port")
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            self.command,
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self.wait_until_it_listens()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        end_family(self.process)
        self.log.close()

    def wait_until_it_listens(self):
        deadline = time.monotonic() + EMULATOR_START_S
        while not self.listens():
            self.check_alive()
            if time.monotonic() > deadline:
                raise Failure(
                    f"the emulator did not listen on port {self.port} within {EMULATOR_START_S} s"
                    f"{self.last_lines()}"
                )
            time.sleep(0.1)

    def listens(self):
        # Not by a request: any path outside the API would start a function.
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex((HOST, self.port)) == 0

    def invoke(self, event, timeout_s):
        """The status and body of the response that API Gateway or a load balancer would send."""
        return self.unwrap(self.exchange(event, timeout_s), "elb" in event.get("requestContext", {}))

    def exchange(self, event, timeout_s, function=FUNCTION):
        """Posts one event to the Invoke API; returns the status and body of the emulator's response."""
        answers = queue.Queue()
        caller = threading.Thread(
            target=lambda: answers.put(self.post(event, timeout_s, function)), daemon=True
        )
        caller.start()
        started = time.monotonic()
        next_progress = PROGRESS_S
        while True:
            try:
                answer = answers.get(timeout=0.2)
                break
            except queue.Empty:
                self.check_alive()
            waited = time.monotonic() - started
            if waited > timeout_s:
                raise Failure(f"no answer within {timeout_s} s{self.last_lines()}")
            if waited > next_progress:
                next_progress += PROGRESS_S
                lines = self.log_lines()
                last = lines[-1].strip()[:100] if lines else ""
                print(f"... {waited:.0f} s without an answer; last line: {last}", flush=True)
        if isinstance(answer, Exception):
            raise Failure(f"the emulator closed the connection: {answer!r}{self.last_lines()}")
        return answer

    def post(self, event, timeout_s, function):
        """Returns the status and body, or the error, which cannot be raised from this thread."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout_s + 10)
        try:
            path = f"/2015-03-31/functions/{function}/invocations"
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(event), headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            return error
        finally:
            connection.close()

    def unwrap(self, answer, is_load_balancer=False):
        """The function's HTTP response, from the emulator's response."""
        status, body = answer
        try:
            wrapped = json.loads(body)
        except ValueError:
            wrapped = None
        if status != 200 or not isinstance(wrapped, dict) or "statusCode" not in wrapped:
            # API Gateway responds with 502 both to a failure and to a response that it cannot read.
            return 502, f"the function failed: {body.decode(errors='replace')}"
        if is_load_balancer:
            # A load balancer reads one of them, depending on the target group.
            one, several = wrapped["headers"], wrapped["multiValueHeaders"]
            if {name: [value] for name, value in one.items()} != several or "x-request-id" not in one:
                return 502, f"expected the same headers with one and with several values, but found {one} and {several}"
            if not wrapped["statusDescription"].startswith(f"{wrapped['statusCode']} ") or len(body) > 1_000_000:
                return 502, f"expected a status description and at most 1000000 bytes, but found {body[:300]}"
        text = wrapped.get("body") or ""
        if wrapped.get("isBase64Encoded"):
            text = base64.b64decode(text).decode(errors="replace")
        return wrapped["statusCode"], text

    def check_alive(self):
        status = self.process.poll()
        if status is not None:
            raise Failure(f"the emulator ended with status {status}{self.last_lines()}")
        for line in self.log_lines():
            if any(sign in line for sign in DEAD):
                time.sleep(0.5)  # for the lines that explain it
                raise Failure(f"the function does not run: {line.strip()}{self.last_lines()}")

    def log_lines(self):
        # pread does not move the offset at which the child process writes.
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), size, 0).decode(errors="replace").splitlines()

    def last_lines(self):
        lines = self.log_lines()[-LOG_LINES:]
        return "\n  the emulator's last lines:\n" + "\n".join(f"    {line}" for line in lines)


def watch_command(options):
    binary = shutil.which(options.cargo_lambda)
    if binary is None:
        raise Failure(f"expected a command at `{options.cargo_lambda}`, but found none")
    # No --bin: the emulator adds it from the name in the URL, and a second one is
    # an error. --wait avoids starting unused functions, and --ignore-changes
    # restarts when files change.
    command = [os.path.abspath(binary), "lambda", "watch", "--wait", "--ignore-changes"]
    command += ["--invoke-address", HOST, "--invoke-port", str(options.port), "--color", "never"]
    if options.release:
        command += ["--release"]
    if options.features:
        command += ["--features", options.features]
    return command


def end_family(process):
    """Ends the process and its descendants, by their ids.

    The emulator starts each function in its own process group, so ending the
    emulator's group would leave the function running.
    """
    family = descendants(process.pid)
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for sign in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + END_S
        for pid in still_running(family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
        while still_running(family) and time.monotonic() < deadline:
            time.sleep(0.05)


def descendants(pid):
    """The descendants of `pid`: their ids and start times."""
    table = process_table()
    family = {}
    parents = {pid}
    while parents:
        children = {child: row for child, row in table.items() if row[0] in parents}
        parents = set(children) - set(family)
        family.update({child: started for child, (_, started) in children.items()})
    return family


def still_running(family):
    """Those of `family` that run, without processes that reuse an id."""
    table = process_table()
    return [pid for pid, started in family.items() if table.get(pid, (0, None))[1] == started]


def process_table():
    """All processes except zombies: {id: (id of the parent, start time)}."""
    if os.path.exists("/proc/self/stat"):
        rows = [row for row in map(process_row, os.listdir("/proc")) if row]
    else:
        columns = ["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="]
        listing = subprocess.run(columns, capture_output=True, text=True, check=False).stdout
        rows = [row for row in (line.split(None, 3) for line in listing.splitlines()) if row]
    return {
        int(pid): (int(parent), started)
        for pid, parent, state, started in rows
        if not state.startswith("Z")
    }


def process_row(pid):
    """Id, parent, state and start time of a process in /proc, if it still runs."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return (pid, fields[1], fields[0], fields[19]) if pid.isdigit() else None


if __name__ == "__main__":
    sys.exit(main())
