#!/usr/bin/env python3
"""Runs clients against the function `api` under the Lambda emulator, through a gateway on loopback.

    python tests/lambda/gateway.py CARGO_LAMBDA SCRIPT ... [--port 9000] [--env KEY=VALUE]... [--release]

Each SCRIPT runs with the gateway's address in TEST_URL. Like an HTTP API of API Gateway, the gateway converts a
request to an event of format 2.0 with a base64 body, invokes the function, and converts its response back. The exit
status is 0 if that of every script is, else 1.
"""

import base64
import http.client
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

sys.dont_write_bytecode = sys.pycache_prefix is None  # no __pycache__ among the sources

from invoke import FIRST_ANSWER_S, FUNCTION, HOST, Emulator, Failure, option_parser, parse_options

# On a busy machine the emulator sometimes loses a response of more than one packet, after the function has sent it.
# Requests without a response within this time are repeated, which is safe because none of them changes state.
LOST_AFTER_S = 4
TRIES = 5


class Gateway(ThreadingHTTPServer):
    """Listens on a free port and forwards requests to the emulator."""

    daemon_threads = True

    def __init__(self, emulator_port):
        super().__init__((HOST, 0), Handler)
        self.emulator_port = emulator_port

    @property
    def url(self):
        return f"http://{HOST}:{self.server_address[1]}"

    def invoke(self, event):
        """The function's response to an event."""
        for _ in range(TRIES):
            connection = http.client.HTTPConnection(HOST, self.emulator_port, timeout=LOST_AFTER_S)
            try:
                path = f"/2015-03-31/functions/{FUNCTION}/invocations"
                connection.request("POST", path, json.dumps(event), {"Content-Type": "application/json"})
                response = connection.getresponse()
                return response.status, json.loads(response.read())
            except TimeoutError:
                print("the emulator lost a response; trying again", file=sys.stderr, flush=True)
            finally:
                connection.close()
        raise Failure(f"expected an answer within {TRIES} tries of {LOST_AFTER_S} s, but found none")


class Handler(BaseHTTPRequestHandler):
    """Converts requests to events, and the function's results to responses."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self):
        try:
            status, answer = self.server.invoke(self.event())
        except (Failure, OSError, ValueError) as error:
            status, answer = 504, {"errorMessage": str(error)}
        if status != 200 or "statusCode" not in answer:
            answer = {"statusCode": 502, "body": json.dumps(answer)}
        body = answer.get("body") or ""
        body = base64.b64decode(body) if answer.get("isBase64Encoded") else body.encode()
        self.send_response(answer["statusCode"])
        for name, value in (answer.get("headers") or {}).items():
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_OPTIONS = answer

    def event(self):
        body = self.body()
        path, _, query = self.path.partition("?")
        return {
            "version": "2.0",
            "routeKey": "$default",
            "rawPath": path,
            "rawQueryString": query,
            "headers": {name.lower(): ",".join(self.headers.get_all(name)) for name in self.headers},
            "requestContext": {
                "accountId": "123456789012",
                "apiId": "local",
                "domainName": f"{HOST}",
                "domainPrefix": "local",
                "http": {
                    "method": self.command,
                    "path": path,
                    "protocol": self.request_version,
                    "sourceIp": HOST,
                    "userAgent": self.headers.get("user-agent", ""),
                },
                "requestId": str(uuid.uuid4()),
                "routeKey": "$default",
                "stage": "$default",
                "time": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime()),
                "timeEpoch": int(time.time() * 1000),
            },
            "body": base64.b64encode(body).decode() if body else None,
            "isBase64Encoded": bool(body),
        }

    def body(self):
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def log_message(self, *_):
        """The scripts report failures."""


def main():
    parser = option_parser(__doc__.split("\n")[0])
    parser.add_argument("scripts", nargs="+", metavar="SCRIPT", help="scripts to run, in order")
    options = parse_options(parser)
    failed = []
    try:
        with Emulator(options) as emulator, Gateway(options.port) as gateway:
            threading.Thread(target=gateway.serve_forever, daemon=True).start()
            # The first event compiles the function, which takes longer than the timeouts of clients.
            emulator.invoke(health(), FIRST_ANSWER_S)
            for script in options.scripts:
                environment = {**os.environ, "TEST_URL": gateway.url}
                if subprocess.run([sys.executable, script], env=environment, check=False).returncode:
                    failed.append(script)
            gateway.shutdown()
    except Failure as failure:
        failed.append(str(failure))
    for reason in failed:
        print(f"error: {reason}", file=sys.stderr)
    return 1 if failed else 0


def health():
    context = {"http": {"method": "GET", "path": "/health", "sourceIp": HOST}, "stage": "$default"}
    return {"version": "2.0", "rawPath": "/health", "headers": {}, "requestContext": context, "isBase64Encoded": False}


if __name__ == "__main__":
    sys.exit(main())
