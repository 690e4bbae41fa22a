"""Lambda's runtime API on loopback, as AWS documents it, and a function that uses it: the function asks for events and
posts its answers; with SnapStart it first asks for a restore. Needs only Python's standard library.
"""

import contextlib
import json
import queue
import socket
import subprocess
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TIMEOUT_S = 60
NEXT = "/2018-06-01/runtime/invocation/next"
RESTORE = "/2018-06-01/runtime/restore/next"
# Where failures are reported that belong to no invocation.
FAILURES = {"/2018-06-01/runtime/init/error": "init/error", "/2018-06-01/runtime/restore/error": "restore/error"}
ARN = "arn:aws:lambda:eu-west-1:000000000000:function:test"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One packet for head and body, without delays.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self):
        if self.path == RESTORE:
            self.server.waiting.put(None)
            self.server.restores.get()
            self.server.restored_at = time.monotonic()
            return self.reply(200)
        if self.path != NEXT:
            return self.reply(404)
        event, left_s = self.server.events.get()
        self.reply(200, event if isinstance(event, bytes) else json.dumps(event).encode(), {
            "Content-Type": "application/json",
            "Lambda-Runtime-Aws-Request-Id": str(uuid.uuid4()),
            "Lambda-Runtime-Invocation-Id": "2",
            "Lambda-Runtime-Deadline-Ms": str(int((time.time() + left_s) * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": ARN,
        })

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
        self.server.answered_at = time.monotonic()
        self.reply(202, b'{"status":"OK"}')
        route = FAILURES.get(self.path, self.path.rpartition("/")[2])
        self.server.received.put((route, dict(self.headers), body, chunks))

    def chunked(self):
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while trailer := self.rfile.readline().strip():
            sys.exit(f"expected no trailers, but found {trailer}")
        return b"".join(chunks), len(chunks)

    def reply(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Failures are printed by the checks."""


class RuntimeApi(ThreadingHTTPServer):
    """Hands out the invocations in `events`, and puts what the function sends into `received`."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        # Events, each with the seconds until its deadline.
        self.events = queue.Queue()
        # The route in the runtime API, headers, body and number of chunks.
        self.received = queue.Queue()
        # An item when the function is ready for a snapshot; another one lets it go on.
        self.waiting, self.restores = queue.Queue(), queue.Queue()
        self.restored_at = self.answered_at = None
        # Whether to close the connection after the first byte of a response.
        self.cancels = False
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        """The function is killed while it waits for the next event."""


class Function:
    """A function's process with a runtime API of its own, until the end of a `with` block."""

    def __init__(self, command, variables, folder, log):
        self.api, self.log = RuntimeApi(), open(log, "w+b")
        address = {"AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self.api.server_port}"}
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command, cwd=folder, env=address | variables, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.api.shutdown()
        self.log.close()

    def next(self, event, left_s=TIMEOUT_S):
        """What the function sends for an event."""
        self.api.events.put((event, left_s))
        return self.take(self.api.received)

    def take(self, items):
        """The next item, which the function causes."""
        deadline, status = time.monotonic() + TIMEOUT_S, None
        while status is None and time.monotonic() < deadline:
            # What an ended process has sent is there already.
            status = self.process.poll()
            with contextlib.suppress(queue.Empty):
                return items.get(timeout=0.2)
        self.log.seek(0)
        sys.exit(f"expected a request, but found none (exit status {status})\n{self.log.read().decode()}")

    def restored(self, event, left_s=TIMEOUT_S):
        """What the function sends for its first event after a restore, and the milliseconds that it takes."""
        self.api.events.put((event, left_s))
        self.api.restores.put(None)
        received = self.take(self.api.received)
        return received, (self.api.answered_at - self.api.restored_at) * 1000


def expect(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: expected {expected!r:.500}, but found {found!r:.500}")
