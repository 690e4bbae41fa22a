"""Runs the function out of its archive, as Lambda does, and checks one answer.

    python tests/lambda/archive.py ARCHIVE EVENT

Unpacks the archive into an empty folder, starts its bootstrap there with nothing but the variables that Lambda
sets and a door that is open, gives it the event through a runtime API of its own, and expects status 200. Prints how long it took from
the start of the process to asking for work and to the answer. Only Python's standard library is needed.
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

PATIENCE_S = 60


class RuntimeApi(BaseHTTPRequestHandler):
    """Lambda's runtime API for a single invocation."""

    protocol_version = "HTTP/1.1"
    event = b""
    moments = queue.Queue()

    def do_GET(self):
        RuntimeApi.moments.put(("asked", time.perf_counter(), None))
        if RuntimeApi.event is None:
            # There is no more work; the function waits until it is ended.
            time.sleep(PATIENCE_S)
            return
        event, RuntimeApi.event = RuntimeApi.event, None
        self.send_response(200)
        self.send_header("Lambda-Runtime-Aws-Request-Id", "1")
        self.send_header("Lambda-Runtime-Deadline-Ms", str(int((time.time() + PATIENCE_S) * 1000)))
        self.send_header("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:eu-west-1:000000000000:function:api")
        self.send_header("Content-Length", str(len(event)))
        self.end_headers()
        self.wfile.write(event)

    def do_POST(self):
        answer = self.rfile.read(int(self.headers["Content-Length"])) if "Content-Length" in self.headers else self.chunks()
        RuntimeApi.moments.put(("answered", time.perf_counter(), answer))
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


def main():
    archive, event = Path(sys.argv[1]), Path(sys.argv[2])
    RuntimeApi.event = event.read_bytes()
    server = ThreadingHTTPServer(("127.0.0.1", 0), RuntimeApi)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
        bootstrap = Path(folder, "bootstrap")
        bootstrap.chmod(0o755)
        variables = {
            "PATH": os.environ["PATH"],
            "LAMBDA_TASK_ROOT": folder,
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{server.server_port}",
            "AWS_LAMBDA_FUNCTION_NAME": "api",
            "AWS_LAMBDA_FUNCTION_VERSION": "1",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "1769",
            "KIVU_AUTH__MODE": "none",
        }
        started = time.perf_counter()
        function = subprocess.Popen([bootstrap], cwd=folder, env=variables, stdin=subprocess.DEVNULL)
        try:
            _, asked, _ = RuntimeApi.moments.get(timeout=PATIENCE_S)
            _, answered, body = RuntimeApi.moments.get(timeout=PATIENCE_S)
        except queue.Empty:
            sys.exit(f"expected an answer within {PATIENCE_S} s, but found none (exit status {function.poll()})")
        finally:
            function.kill()
            function.wait()
    answer = json.loads(body)
    if answer.get("statusCode") != 200:
        sys.exit(f"expected status 200, but found {body[:300]!r}")
    vector = json.loads(answer["body"])[0]
    print(
        f"the archive's function was ready after {1000 * (asked - started):.0f} ms and had answered after "
        f"{1000 * (answered - started):.0f} ms, with {len(vector)} values"
    )


if __name__ == "__main__":
    main()
