#!/usr/bin/env python3
"""Runs the arm64 programs as Lambda does, under emulation on another machine.

    python tests/arm64/check.py PROGRAMS KIVU BUNDLE [EMULATOR...]

PROGRAMS is the folder of the arm64 `kivu`, `api` and `batch` with ONNX Runtime in its `lib`, KIVU this machine's own
program, BUNDLE a bundle of all-MiniLM-L6-v2, EMULATOR the command that runs an arm64 program, if there has to be one.
It checks that

- bundles built by the arm64 program have the bytes of those built by this machine's, but for their measured quality;
- `api` answers an event of API Gateway with the vector that this machine's program answers, and `batch` the event
  that S3 tries it with;
- `kivu serve` starts and answers where /sys has nothing, as on Lambda.

It exits with 0 if all of that holds. Only Python's standard library is needed.
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
# An encoder, and an encoder-decoder whose random weights bear no quantising.
MODELS = (("tiny-bert", "int8"), ("tiny-m2m100", "fp32"))
START_S = 120
ANSWER_S = 60
# Between processors, for all-MiniLM-L6-v2 in int8.
LEAST_COSINE = 0.999


class Failure(Exception):
    """What does not hold, in a sentence."""


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
        "events of the functions": lambda: events(options, here(options, text)),
        "a start without /sys": lambda: start_without_sys(options, text),
    }
    problems = 0
    # What the programs log of requests that went well.
    os.environ["RUST_LOG"] = "error"
    for name, check in checks.items():
        started = time.monotonic()
        try:
            told = check()
        except (Failure, OSError, subprocess.SubprocessError) as failure:
            problems += 1
            print(f"error: {name}: {failure}", file=sys.stderr, flush=True)
            continue
        print(f"{name}: {told}, {time.monotonic() - started:.1f} s", flush=True)
    return 1 if problems else 0



def same_bundle(options, model, precision):
    """The files of a bundle do not depend on the machine that builds it; only its measured quality may."""
    manifests, qualities = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for name, command in (("here", [options.kivu]), ("there", [*options.emulator, options.programs / "kivu"])):
            out = Path(scratch, name, model)
            build = [*command, "build", ROOT / "tests/fixtures/models" / model, "--precision", precision, "--out", out]
            subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
            # It has the hashes of all other files.
            manifest = (out / "manifest.toml").read_text()
            qualities.append(" ".join(re.findall(r"^(?:mean|worst)_cosine = (.+)$", manifest, re.MULTILINE)))
            manifests.append(re.sub(r"^\[weights\.quality\]\n(?:.+\n)*", "", manifest, flags=re.MULTILINE))
    if manifests[0] != manifests[1]:
        lines = [f"{a!r} and {b!r}" for a, b in zip(*(text.splitlines() for text in manifests)) if a != b]
        raise Failure(f"expected the same bundle, but found differences: {', '.join(lines)}")
    if not qualities[0]:
        return "the same files"
    return f"the same files, cosine to fp32 {qualities[0]} here and {qualities[1]} there"


def here(options, text):
    """The vector of `text` by this machine's own program."""
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
    told = []
    for function, event in (("api", json.loads(EVENT.read_bytes())), ("batch", {"Event": "s3:TestEvent"})):
        with RuntimeApi(event) as api:
            command = [*options.emulator, options.programs / function]
            answer = api.run(command, {**variables, "AWS_LAMBDA_RUNTIME_API": api.address})
        if function == "api":
            if answer.get("statusCode") != 200:
                raise Failure(f"expected `api` to answer 200, but found {answer}")
            told.append(f"`api` answered a vector of cosine {compare(expected, json.loads(answer['body'])[0]):.6f}")
        else:
            told.append(f"`batch` answered {json.dumps(answer)}")
    return ", ".join(told)


def start_without_sys(options, text):
    hide = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs none /sys && exec "$@"', "sh"]
    if subprocess.run([*hide, "true"], capture_output=True, check=False).returncode != 0:
        return "skipped, this machine lets nobody hide /sys"
    command = [*hide, *options.emulator, options.programs / "kivu"]
    with Server(command, options.bundle) as server:
        return f"answered a vector of cosine {compare(here(options, text), server.embed(text)):.6f}"


def compare(expected, found):
    """The cosine of two vectors, if it is high enough."""
    cosine = sum(a * b for a, b in zip(expected, found, strict=True))
    cosine /= math.hypot(*expected) * math.hypot(*found)
    if not cosine >= LEAST_COSINE:
        raise Failure(f"expected a cosine of at least {LEAST_COSINE} to this machine's vector, but found {cosine}")
    return cosine


class Server:
    """`kivu serve` for as long as the `with` block runs."""

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
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return json.load(answer)[0]


class RuntimeApi(http.server.ThreadingHTTPServer):
    """Lambda's side of a function: one event, and its answer."""

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
        """Functions are killed while they wait for a second event."""

    def run(self, command, variables):
        process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + START_S
            while not self.answered.wait(0.2):
                if process.poll() is not None:
                    raise Failure(f"{command[-1]} ended with {process.returncode} before it answered")
                if time.monotonic() > deadline:
                    raise Failure(f"{command[-1]} did not answer within {START_S} s")
        finally:
            process.kill()
            process.wait()
        path, body = self.answer
        if not path.endswith("/response"):
            raise Failure(f"{command[-1]} answered {path}: {body.decode(errors='replace')}")
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
        self.send_header("Lambda-Runtime-Deadline-Ms", str(int((time.time() + ANSWER_S) * 1000)))
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
