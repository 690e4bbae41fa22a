"""Measures the packed function with the memory and CPU share of Lambda, by memory size.

    python tests/lambda/memory.py FOLDER EVENT [--sizes 512 1024 1769] [--requests 200] [--instructions avx2]

FOLDER is the unpacked function (`.aws-sam/build/ApiFunction` after `make deploy`). Needs root, cgroups of version 1,
and only Python's standard library. M MB have M/1769 of a CPU. --instructions selects the native engine's, by default
all that the processor has. Prints one row of docs/sizing.md per size: the time from
the start of the process to its readiness, the first response, the median and 99th percentile of the others, the peak
memory, and the cost of a million requests at the median (x86-64, us-east-1, Lambda only).
"""

import argparse
import math
import os
import queue
import re
import statistics
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from box import Box

# In US dollars.
GB_SECOND, REQUEST = 0.0000166667, 0.0000002
STARTS = 5
TIMEOUT_S = 120


class Api(BaseHTTPRequestHandler):
    """Lambda's runtime API, which returns the same event for every request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    event, moments, last, left = b"", queue.Queue(), 0.0, 0

    def do_GET(self):
        now = time.perf_counter()
        if Api.left == 0:
            Api.moments.put(None)
            time.sleep(TIMEOUT_S)
            return
        Api.left -= 1
        Api.moments.put(("asked", now))
        self.send_response(200)
        self.send_header("Lambda-Runtime-Aws-Request-Id", "1")
        self.send_header("Lambda-Runtime-Deadline-Ms", str(int((time.time() + TIMEOUT_S) * 1000)))
        self.send_header("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:eu-west-1:000000000000:function:api")
        self.send_header("Content-Length", str(len(self.event)))
        self.end_headers()
        Api.last = time.perf_counter()
        self.wfile.write(self.event)

    def do_POST(self):
        if "Content-Length" in self.headers:
            answer = self.rfile.read(int(self.headers["Content-Length"]))
        else:
            answer = b""
            while size := int(self.rfile.readline().strip() or b"0", 16):
                answer += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        Api.moments.put(("answered", 1000 * (time.perf_counter() - Api.last)))
        assert b'"statusCode":200' in answer.replace(b" ", b""), answer[:300]
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def serve(event):
    """Starts the runtime API, and returns its port."""
    Api.event = event
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def measure(program, port, megabytes, requests, others={}):
    """The start time, the response times and the peak memory of one process with the variables `others`."""
    box = Box(megabytes)
    variables = {
        "PATH": os.environ["PATH"],
        "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{port}",
        "AWS_LAMBDA_FUNCTION_NAME": "api",
        "AWS_LAMBDA_FUNCTION_VERSION": "1",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(megabytes),
        "KIVU_AUTH__MODE": "none",
    } | others
    Api.left, Api.moments = requests, queue.Queue()
    started = time.perf_counter()
    function = subprocess.Popen(
        [program], cwd=program.parent, env=variables, preexec_fn=box.enter,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    asked, answers = None, []
    try:
        while moment := Api.moments.get(timeout=TIMEOUT_S):
            what, value = moment
            if what == "answered":
                answers.append(value)
            elif asked is None:
                asked = 1000 * (value - started)
        status = Path(f"/proc/{function.pid}/status").read_text()
    finally:
        function.kill()
        function.wait()
    most = int(re.search(r"VmHWM:\s*(\d+)", status)[1]) / 1024
    time.sleep(0.1)
    box.remove()
    return asked, answers, most


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("event", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 1769])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--instructions")
    options = parser.parse_args()
    port, program = serve(options.event.read_bytes()), options.folder.resolve() / "bootstrap"
    variables = {"KIVU_INSTRUCTIONS": options.instructions} if options.instructions else {}
    for size in options.sizes:
        runs = [measure(program, port, size, options.requests, variables) for _ in range(STARTS)]
        start = statistics.median(run[0] for run in runs)
        first = statistics.median(run[1][0] for run in runs)
        answers = sorted(time for run in runs for time in run[1][1:])
        median, slowest = statistics.median(answers), answers[int(len(answers) * 0.99)]
        million = 1e6 * (math.ceil(median) / 1000 * size / 1024 * GB_SECOND + REQUEST)
        print(
            f"| {size} | {start:.0f} | {first:.1f} | {median:.2f} | {slowest:.1f} | "
            f"{max(run[2] for run in runs):.0f} | {million:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
