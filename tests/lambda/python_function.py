"""Runs the example of a Lambda function in Python with AWS's own runtime client, `awslambdaric`.

    python tests/lambda/python_function.py FUNCTION PACKAGES [--starts 5]

FUNCTION is the folder with `app.py` and `model`, and PACKAGES the layer's folder `python`. This script implements the
runtime API as AWS documents it: the client asks for events and posts answers. Prints the time from the start of the
process to the first answer, and the median of later answers.
"""

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

VERSION = "/2018-06-01/runtime"
TIMEOUT_S = 60
ARN = "arn:aws:lambda:eu-west-1:000000000000:function:embed"
DIMENSIONS = 384


class RuntimeApi(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.events, self.answers = queue.Queue(), queue.Queue()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def invoke(self, event):
        self.events.put(json.dumps(event).encode())
        return self.answers.get(timeout=TIMEOUT_S)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One packet for head and body, without delays.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self):
        if self.path != f"{VERSION}/invocation/next":
            return self.reply(404, b"")
        event = self.server.events.get()
        self.reply(200, event, {
            "Content-Type": "application/json",
            "Lambda-Runtime-Aws-Request-Id": str(uuid.uuid4()),
            "Lambda-Runtime-Deadline-Ms": str(int(time.time() * 1000) + TIMEOUT_S * 1000),
            "Lambda-Runtime-Invoked-Function-Arn": ARN,
            "Lambda-Runtime-Trace-Id": "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=0",
        })

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.reply(202, b'{"status":"OK"}')
        self.server.answers.put((self.path.rsplit("/", 1)[-1], json.loads(body)))

    def reply(self, status, body, headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Function:
    """An environment with the function, until the end of a `with` block."""

    def __init__(self, options):
        self.api, self.log = RuntimeApi(), tempfile.TemporaryFile("w+")
        # Lambda's runtime has the layer at /opt/python, and the code at /var/task.
        environment = {
            "PATH": os.environ["PATH"],
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self.api.server_port}",
            "AWS_LAMBDA_FUNCTION_NAME": "embed",
            "LAMBDA_TASK_ROOT": str(options.function),
            "PYTHONPATH": f"{options.packages.resolve()}:{options.function.resolve()}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "awslambdaric", "app.handler"], cwd=options.function, env=environment,
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.api.shutdown()

    def invoke(self, event):
        try:
            return self.api.invoke(event)
        except queue.Empty:
            self.log.seek(0)
            sys.exit(f"no answer; status {self.process.poll()}\n{self.log.read()}")


def expect(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: expected {expected!r}, but found {found!r:.2000}")


def check(function):
    """Answers and errors; returns the time of the first answer."""
    kind, answer = function.invoke({"texts": ["The ferry leaves at seven.", "猫 🐈"]})
    first = time.monotonic() - function.started
    expect("the answer", kind, "response")
    expect("the vectors", [len(vector) for vector in answer.get("embeddings", [])], [DIMENSIONS] * 2)
    norm = sum(value * value for value in answer["embeddings"][0])
    expect("the vector's length", round(norm, 3), 1.0)
    for event, message in (
        ({"texts": ["a", ""]}, "expected a text in `texts[1]`, but found an empty one"),
        ({"texts": [7]}, "expected `texts[0]` to be a string, but found `int`"),
        ({"texts": []}, "expected at least one text in `texts`, but found none"),
        ({"text": "a"}, "expected a list `texts` in the event"),
        ([], "expected a list `texts` in the event"),
    ):
        expect(f"the answer to {event}", function.invoke(event), ("response", {"error": message}))
    _, again = function.invoke({"texts": ["The ferry leaves at seven."]})
    expect("a repeated vector", again["embeddings"][0], answer["embeddings"][0])
    return first


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("function", type=Path)
    parser.add_argument("packages", type=Path)
    parser.add_argument("--starts", type=int, default=1)
    options = parser.parse_args()
    starts = []
    for _ in range(options.starts):
        with Function(options) as function:
            starts.append(check(function))
            times = []
            for _ in range(50):
                began = time.monotonic()
                function.invoke({"texts": ["The ferry leaves at seven."]})
                times.append(time.monotonic() - began)
    print(f"first answer after {statistics.median(starts) * 1e3:.0f} ms, later ones within {statistics.median(times) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
