#!/usr/bin/env python3
"""Runs the function `api` with streamed responses against a runtime API on loopback.

    python tests/lambda/streaming.py BOOTSTRAP BUNDLE

Checks what Lambda would get for events of a function URL and of a REST API: prelude, separator, chunks, and that errors
before the first byte have their status. BUNDLE is an embedding model. Needs only Python's standard library.
"""

import base64
import gzip
import json
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TIMEOUT_S = 60
MANY = 3000
# Lambda's limit for responses that are not streamed.
BUFFERED_BYTES = 6 * 1024 * 1024
PRELUDE_TYPE = "application/vnd.awslambda.http-integration-response"


class RuntimeApi(BaseHTTPRequestHandler):
    """Requests to a runtime API."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        event, left_s = self.server.events.get()
        body = event if isinstance(event, bytes) else json.dumps(event).encode()
        self.send_response(200)
        self.send_header("Lambda-Runtime-Aws-Request-Id", "1")
        self.send_header("Lambda-Runtime-Invocation-Id", "2")
        self.send_header("Lambda-Runtime-Deadline-Ms", str(int((time.time() + left_s) * 1000)))
        self.send_header("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:eu-west-1:000000000000:function:api")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        if self.server.cancels:
            self.server.cancels = False
            self.rfile.read(1)
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if "Content-Length" in self.headers:
            body, chunks = self.rfile.read(int(self.headers["Content-Length"])), 0
        else:
            body, chunks = self.chunked()
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()
        self.server.received.put((self.path.rpartition("/")[2], dict(self.headers), body, chunks))

    def chunked(self):
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while trailer := self.rfile.readline().strip():
            sys.exit(f"expected no trailers, but found {trailer}")
        return b"".join(chunks), len(chunks)

    def log_message(self, *_):
        """Failures are printed by the checks."""


class Server(ThreadingHTTPServer):
    """A function's runtime API: hands out the invocations in `events`, and puts what the function sends into `received`."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), RuntimeApi)
        self.events, self.received = queue.Queue(), queue.Queue()
        # Whether to close the connection after the first byte of a response.
        self.cancels = False
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        """The function is killed while it waits for the next event."""


def url_event(method, path, body=None, headers=(), is_base64=False):
    """An event of a function URL."""
    http = {"method": method, "path": path, "protocol": "HTTP/1.1", "sourceIp": "127.0.0.1", "userAgent": "test"}
    context = {"http": http, "stage": "$default", "domainName": "a.lambda-url.eu-west-1.on.aws", "requestId": "1",
               "accountId": "anonymous", "apiId": "a", "domainPrefix": "a", "routeKey": "$default",
               "time": "12/Mar/2020:19:03:58 +0000", "timeEpoch": 1583348638390}
    return {"version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": "",
            "headers": {"content-type": "application/json", **dict(headers)}, "requestContext": context, "body": body,
            "isBase64Encoded": is_base64}


def expect(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: expected {expected!r:.500}, but found {found!r:.500}")


class Function:
    """A function with a runtime API of its own, until the end of a `with` block."""

    def __init__(self, bootstrap, variables, folder):
        self.api = Server()
        variables = {
            "AWS_LAMBDA_FUNCTION_NAME": "api", "AWS_LAMBDA_FUNCTION_VERSION": "1", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "3008",
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self.api.server_port}", **variables,
        }
        self.log = open(Path(folder, "log"), "w+b")
        self.process = subprocess.Popen([bootstrap], cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.api.shutdown()
        self.log.close()

    def next(self, event, left_s=TIMEOUT_S):
        """What the function sends for an event: its route in the runtime API, headers, body and number of chunks."""
        self.api.events.put((event, left_s))
        return self.sent()

    def sent(self):
        try:
            return self.api.received.get(timeout=TIMEOUT_S)
        except queue.Empty:
            self.log.seek(0)
            sys.exit(f"expected a response, but found none (exit status {self.process.poll()})\n{self.log.read().decode()}")

    def stream(self, event, left_s=TIMEOUT_S):
        """A streamed response: its status, headers, body and number of chunks."""
        route, headers, body, chunks = self.next(event, left_s)
        expect("the route", route, "response")
        expect("the type", headers.get("Content-Type", headers.get("content-type")), PRELUDE_TYPE)
        expect("the mode", {name.lower(): value for name, value in headers.items()}.get("lambda-runtime-function-response-mode"), "streaming")
        prelude, separator, body = body.partition(bytes(8))
        expect("the separator", separator, bytes(8))
        prelude = json.loads(prelude)
        expect("the prelude's fields", sorted(prelude), ["cookies", "headers", "statusCode"])
        return prelude["statusCode"], prelude["headers"], body, chunks


def check(function):
    embed = lambda texts: json.dumps({"inputs": texts})
    status, headers, body, _ = function.stream(url_event("POST", "/embed", embed(["a text"])))
    expect("the status", status, 200)
    expect("the type", headers["content-type"], "application/json")
    vector = json.loads(body)[0]

    status, _, body, chunks = function.stream(url_event("POST", "/embed_all", embed(["many " * 10] * MANY)))
    expect("the status of a long response", status, 200)
    expect("its rows", len(json.loads(body)), MANY)
    if len(body) <= BUFFERED_BYTES or chunks < len(body) // 65_536:
        sys.exit(f"expected more than {BUFFERED_BYTES} bytes in many chunks, but found {len(body)} in {chunks}")
    print(f"{len(body) / 1e6:.0f} MB in {chunks} chunks")

    compressed = base64.b64encode(gzip.compress(embed(["a text"]).encode())).decode()
    event = url_event("POST", "/embed", compressed, {"content-encoding": "gzip"}, is_base64=True)
    status, _, body, _ = function.stream(event)
    expect("a compressed request", (status, json.loads(body)), (200, [vector]))

    expect("HEAD", function.stream(url_event("HEAD", "/health"))[::2], (200, b""))
    expect("OPTIONS", function.stream(url_event("OPTIONS", "/embed"))[::2], (204, b""))
    expect("an empty body", function.stream(url_event("GET", "/health"))[::2], (200, b""))

    # Errors before the first byte keep their status.
    for what, event, left_s, expected in (
        ("an unknown route", url_event("GET", "/none"), TIMEOUT_S, 404),
        ("a body that is no JSON", url_event("POST", "/embed", "{"), TIMEOUT_S, 400),
        ("too many texts", url_event("POST", "/embed", embed(["a"] * (MANY + 1))), TIMEOUT_S, 413),
        ("a deadline that has passed", url_event("POST", "/embed", embed(["a text"])), 0.05, 504),
    ):
        status, headers, body, _ = function.stream(event, left_s)
        expect(what, (status, headers["content-type"], "error" in json.loads(body)), (expected, "application/json", True))

    rest = json.loads(Path(__file__).with_name("rest_plain.json").read_text())
    expect("an event of a REST API", function.stream(rest)[0], 200)

    # A load balancer invokes this function too, and does not read streams.
    balanced = json.loads(Path(__file__).with_name("alb_plain.json").read_text())
    route, headers, body, _ = function.next(balanced)
    modes = [value for name, value in headers.items() if name.lower() == "lambda-runtime-function-response-mode"]
    expect("an event of a load balancer", (route, modes, json.loads(body)["statusCode"]), ("response", [], 200))

    # The runtime API gets this error in its own form.
    expect("an event that is no request", function.next(b'{"Records": []}')[0], "error")

    # A client that disconnects ends its invocation, not the function.
    function.api.cancels = True
    function.api.events.put((url_event("POST", "/embed_all", embed(["many " * 10] * MANY)), TIMEOUT_S))
    status, _, body, _ = function.stream(url_event("POST", "/embed", embed(["a text"])))
    expect("the request after it", (status, json.loads(body)), (200, [vector]))
    expect("the function's exit status", function.process.poll(), None)


def main():
    bootstrap, bundle = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    variables = {
        "KIVU_MODELS": str(bundle), "KIVU_AUTH__MODE": "none", "KIVU_LIMITS__VALUES": "15000000", "KIVU_LIMITS__TEXTS": str(MANY),
    }
    with tempfile.TemporaryDirectory() as folder:
        refused = subprocess.run([bootstrap], cwd=folder, env=variables | {"RESPONSE_MODE": "stream"}, capture_output=True, text=True)
        message = "expected `RESPONSE_MODE` to be `buffered` or `streaming`, but found `stream`"
        expect("an unknown mode", (refused.returncode != 0, message in refused.stdout + refused.stderr), (True, True))
        with Function(bootstrap, variables | {"RESPONSE_MODE": "streaming"}, folder) as function:
            check(function)


if __name__ == "__main__":
    main()
