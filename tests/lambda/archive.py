"""Runs a packed function as Lambda does, with one event.

    python tests/lambda/archive.py ARCHIVE|FOLDER EVENT

Unpacks an archive into an empty folder, starts its bootstrap with only the variables that Lambda sets and
KIVU_AUTH__MODE=none, sends it the event through a runtime API, and expects status 200. Prints the time from the start
of the process to its readiness and to the response. Needs only Python's standard library.
"""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TIMEOUT_S = 60


class RuntimeApi(BaseHTTPRequestHandler):
    """Lambda's runtime API for a single invocation."""

    protocol_version = "HTTP/1.1"
    event = b""
    moments = queue.Queue()

    def do_GET(self):
        RuntimeApi.moments.put(("ready", time.perf_counter(), None))
        if RuntimeApi.event is None:
            # There are no more events; the function waits until it is killed.
            time.sleep(TIMEOUT_S)
            return
        event, RuntimeApi.event = RuntimeApi.event, None
        self.send_response(200)
        self.send_header("Lambda-Runtime-Aws-Request-Id", "1")
        self.send_header("Lambda-Runtime-Deadline-Ms", str(int((time.time() + TIMEOUT_S) * 1000)))
        self.send_header("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:eu-west-1:000000000000:function:api")
        self.send_header("Content-Length", str(len(event)))
        self.end_headers()
        self.wfile.write(event)

    def do_POST(self):
        response = self.rfile.read(int(self.headers["Content-Length"])) if "Content-Length" in self.headers else self.chunks()
        RuntimeApi.moments.put(("answered", time.perf_counter(), response))
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def chunks(self):
        body = b""
        while size := int(self.rfile.readline().strip() or b"0", 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """The function is killed while it waits for the next event."""


def invoke(folder, variables, event):
    """Runs an unpacked function; returns its response, and the ms until it was ready and had responded."""
    RuntimeApi.event = event
    server = Server(("127.0.0.1", 0), RuntimeApi)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    variables = {
        "PATH": os.environ["PATH"],
        "LAMBDA_TASK_ROOT": str(folder),
        "AWS_LAMBDA_FUNCTION_NAME": "api",
        "AWS_LAMBDA_FUNCTION_VERSION": "1",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "1769",
        **variables,
        "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{server.server_port}",
    }
    started = time.perf_counter()
    function = subprocess.Popen([Path(folder, "bootstrap")], cwd=folder, env=variables, stdin=subprocess.DEVNULL)
    try:
        _, ready, _ = RuntimeApi.moments.get(timeout=TIMEOUT_S)
        _, answered, body = RuntimeApi.moments.get(timeout=TIMEOUT_S)
    except queue.Empty:
        sys.exit(f"expected a response within {TIMEOUT_S} s, but found none (exit status {function.poll()})")
    finally:
        function.kill()
        function.wait()
        server.shutdown()
    return json.loads(body), 1000 * (ready - started), 1000 * (answered - started)


def main():
    packed, event = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        if packed.is_file():
            with zipfile.ZipFile(packed) as archive:
                archive.extractall(folder)
            Path(folder, "bootstrap").chmod(0o755)
        response, ready, answered = invoke(
            folder if packed.is_file() else packed, {"KIVU_AUTH__MODE": "none"}, event.read_bytes()
        )
    if response.get("statusCode") != 200:
        sys.exit(f"expected status 200, but found {str(response)[:300]}")
    vector = json.loads(response["body"])[0]
    print(f"ready after {ready:.0f} ms, response after {answered:.0f} ms, with {len(vector)} values")


if __name__ == "__main__":
    main()
