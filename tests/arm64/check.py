#!/usr/bin/env python3
"""Runs the arm64 programs as Lambda does, under emulation on another machine.

    python tests/arm64/check.py PROGRAMS KIVU BUNDLE [EMULATOR...]

PROGRAMS is a folder with `kivu`, `api` and `batch` for arm64 and ONNX Runtime in `lib`, KIVU the native program,
BUNDLE a bundle of all-MiniLM-L6-v2, EMULATOR the command that runs arm64 programs, if needed. Checks that

- bundles built by both programs have the same bytes, except for the measured quality;
- `api` responds to an event of API Gateway with the vector of the native program, and `batch` to the test event of S3;
- `kivu serve` works without /sys, as on Lambda.

The exit code is 0 if all checks pass. Needs only the standard library.
"""

import argparse
import functools
import http.server
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EVENT = ROOT / "tests/lambda/http_plain.json"
# An encoder, and an encoder-decoder whose random weights cannot be quantized.
MODELS = (("tiny-bert", "int8"), ("tiny-m2m100", "fp32"))
START_S = 120
TIMEOUT_S = 60
# Between processors, for all-MiniLM-L6-v2 in int8.
MIN_COSINE = 0.999


class Failure(Exception):
    """A failed check."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("programs", "kivu", "bundle"):
        parser.add_argument(name, type=lambda path: Path(path).absolute())
    parser.add_argument("emulator", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    text = json.loads(json.loads(EVENT.read_bytes())["body"])["inputs"]
    checks = {
        **{
            f"{model} in {precision}, built by both": functools.partial(same_bundle, options, model, precision)
            for model, precision in MODELS
        },
        "events of the functions": lambda: events(options, native(options, text)),
        "a start without /sys": lambda: start_without_sys(options, text),
    }
    problems = 0
    # Omits the log of successful requests.
    os.environ["RUST_LOG"] = "error"
    for name, check in checks.items():
        started = time.monotonic()
        try:
            result = check()
        except (Failure, OSError, subprocess.SubprocessError) as failure:
            problems += 1
            print(f"error: {name}: {failure}", file=sys.stderr, flush=True)
            continue
        print(f"{name}: {result}, {time.monotonic() - started:.1f} s", flush=True)
    return 1 if problems else 0



def same_bundle(options, model, precision):
    """Checks that bundles do not depend on the architecture, except for the measured quality."""
    manifests, qualities = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for name, command in (("native", [options.kivu]), ("arm64", [*options.emulator, options.programs / "kivu"])):
            out = Path(scratch, name, model)
            build = [*command, "build", ROOT / "tests/fixtures/models" / model, "--precision", precision, "--out", out]
            subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
            # The manifest has the hashes of all other files.
            manifest = (out / "manifest.toml").read_text()
            qualities.append(" ".join(re.findall(r"^(?:mean|worst)_cosine = (.+)$", manifest, re.MULTILINE)))
            manifests.append(re.sub(r"^\[weights\.quality\]\n(?:.+\n)*", "", manifest, flags=re.MULTILINE))
    if manifests[0] != manifests[1]:
        lines = [f"{a!r} and {b!r}" for a, b in zip(*(text.splitlines() for text in manifests)) if a != b]
        raise Failure(f"expected identical bundles, but found differences: {', '.join(lines)}")
    if not qualities[0]:
        return "identical files"
    return f"identical files, cosine to fp32 {qualities[0]} native and {qualities[1]} on arm64"


def native(options, text):
    """The vector of `text` from the native program."""
    with Server([options.kivu], options.bundle) as server:
        return server.embed(text)


def events(options, expected):
    variables = {
        **os.environ,
        "AWS_LAMBDA_FUNCTION_NAME": "kivu",
        "AWS_LAMBDA_FUNCTION_VERSION": "1",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "1769",
        "AWS_LAMBDA_LOG_GROUP_NAME": "group",
        "AWS_LAMBDA_LOG_STREAM_NAME": "stream",
        "AWS_REGION": "eu-west-1",
        "KIVU_MODELS": str(options.bundle),
        "KIVU_AUTH__MODE": "none",
    }
    results = []
    for function, event in (("api", json.loads(EVENT.read_bytes())), ("batch", {"Event": "s3:TestEvent"})):
        with RuntimeApi(event) as api:
            command = [*options.emulator, options.programs / function]
            answer = api.run(command, {**variables, "AWS_LAMBDA_RUNTIME_API": api.address})
        if function == "api":
            if answer.get("statusCode") != 200:
                raise Failure(f"expected status 200 from `api`, but found {answer}")
            results.append(f"`api` returned a vector of cosine {compare(expected, json.loads(answer['body'])[0]):.6f}")
        else:
            results.append(f"`batch` returned {json.dumps(answer)}")
    return ", ".join(results)


def start_without_sys(options, text):
    hide = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs none /sys && exec "$@"', "sh"]
    if subprocess.run([*hide, "true"], capture_output=True, check=False).returncode != 0:
        return "skipped, hiding /sys is not permitted on this machine"
    command = [*hide, *options.emulator, options.programs / "kivu"]
    with Server(command, options.bundle) as server:
        return f"returned a vector of cosine {compare(native(options, text), server.embed(text)):.6f}"


def compare(expected, found):
    """The cosine of two vectors, if it is high enough."""
    cosine = sum(a * b for a, b in zip(expected, found, strict=True))
    cosine /= math.hypot(*expected) * math.hypot(*found)
    if not cosine >= MIN_COSINE:
        raise Failure(f"expected a cosine of at least {MIN_COSINE} to the native vector, but found {cosine}")
    return cosine


class Server:
    """`kivu serve` during a `with` block."""

    def __init__(self, command, bundle):
        self.command = [*command, "serve", bundle, "--listen", "127.0.0.1:0"]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if "http://" not in line:
            self.__exit__()
            raise Failure(f"the server did not start: {line!r}, status {self.process.returncode}")
        self.url = "http://" + line.split("http://")[1].strip()
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(START_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.stdout.close()

    def embed(self, text):
        body = json.dumps({"inputs": text}).encode()
        request = urllib.request.Request(f"{self.url}/embed", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)[0]


class RuntimeApi(http.server.ThreadingHTTPServer):
    """The runtime API of Lambda, with one event."""

    daemon_threads = True

    def __init__(self, event):
        super().__init__(("127.0.0.1", 0), Handler)
        self.event = json.dumps(event).encode()
        self.is_sent = False
        self.answer = None
        self.answered = threading.Event()
        self.address = "{}:{}".format(*self.server_address)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        """Ignores the errors of functions that are killed while they wait for a second event."""

    def run(self, command, variables):
        process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + START_S
            while not self.answered.wait(0.2):
                if process.poll() is not None:
                    raise Failure(f"{command[-1]} exited with {process.returncode} before it responded")
                if time.monotonic() > deadline:
                    raise Failure(f"{command[-1]} did not respond within {START_S} s")
        finally:
            process.kill()
            process.wait()
        path, body = self.answer
        if not path.endswith("/response"):
            raise Failure(f"{command[-1]} sent {path}: {body.decode(errors='replace')}")
        return json.loads(body)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.server.is_sent:
            # There is no second event.
            time.sleep(START_S)
            return
        self.server.is_sent = True
        self.send_response(200)
        self.send_header("Lambda-Runtime-Aws-Request-Id", "1")
        self.send_header("Lambda-Runtime-Deadline-Ms", str(int((time.time() + TIMEOUT_S) * 1000)))
        self.send_header("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:eu-west-1:000000000000:function:kivu")
        self.send_header("Content-Length", str(len(self.server.event)))
        self.end_headers()
        self.wfile.write(self.server.event)

    def do_POST(self):
        length = self.headers.get("Content-Length")
        body = self.rfile.read(int(length)) if length else b"".join(self.chunks())
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()
        self.server.answer = (self.path, body)
        self.server.answered.set()

    def chunks(self):
        while size := int(self.rfile.readline().strip() or b"0", 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()


if __name__ == "__main__":
    sys.exit(main())
