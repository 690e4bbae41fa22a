"""Measures the memory of a server while one client holds hundreds of unfinished requests.

    python3 tests/load/stalled.py KIVU BUNDLE [--connections N]

Starts `kivu serve` with its default limits. For each method and route, and for bodies that stop at different positions,
opens all connections at once, waits until the server has read what was sent, and compares its memory with the bound in
docs/sizing.md. The exit code is 0 if no case exceeds it. Needs only the standard library.
"""

import argparse
import atexit
import gzip
import json
import os
import pathlib
import selectors
import socket
import subprocess
import sys
import threading
import time

MIB = 1024 * 1024
BODY_BYTES = 6 * MIB
BUFFER_BYTES = 256 * MIB
CONNECTION_BYTES = 384 * 1024
POSITIONS = [0, 1, 1000, 16 * 1024, 65 * 1024, 500_000, 2 * MIB, BODY_BYTES - 1]
ROUTES = ["/", "/embed", "/v1/embeddings", "/v2/models/minilm/infer", "/v2/translate", "/v2/languages", "/vertex", "/health", "/nowhere"]
METHODS = ["GET", "HEAD", "DELETE", "OPTIONS", "PUT"]


class Server:
    def __init__(self, kivu, bundle):
        command = [kivu, "serve", bundle, "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, env={**os.environ, "RUST_LOG": "error"}, stdout=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        host, port = self.process.stdout.readline().strip().split("http://")[1].split(":")
        self.address = (host, int(port))
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def resident(self, field="VmRSS"):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith(field)).split()[1])

    def forget_peak(self):
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")


def hold(server, count, head, body):
    """Sends the same bytes on all connections, as far as the server reads them; returns the peak of its memory."""
    server.forget_peak()
    selector, sockets = selectors.DefaultSelector(), []
    for _ in range(count):
        connection = socket.create_connection(server.address)
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_WRITE, [memoryview(head + body)])
        sockets.append(connection)
    quiet_since = time.monotonic()
    while selector.get_map() and time.monotonic() - quiet_since < 1:
        for key, _ in selector.select(0.2):
            try:
                sent = key.fileobj.send(key.data[0])
                quiet_since = time.monotonic()
                key.data[0] = key.data[0][sent:]
            except OSError:
                key.data[0] = key.data[0][:0]
            if not key.data[0]:
                selector.unregister(key.fileobj)
    time.sleep(0.5)
    peak = server.resident("VmHWM")
    for connection in sockets:
        connection.close()
    while len(os.listdir(f"/proc/{server.process.pid}/fd")) > count // 2:
        time.sleep(0.05)
    return peak


def cases():
    def head(method, route, *more):
        lines = [f"{method} {route} HTTP/1.1", "host: localhost", f"content-length: {BODY_BYTES}", *more]
        return ("\r\n".join([*lines, "", ""])).encode()

    text, form = "content-type: application/json", "content-type: application/x-www-form-urlencoded"
    body = b'{"inputs": "' + BODY_BYTES * b"a"
    for position in POSITIONS:
        yield f"POST /embed, {position} bytes", head("POST", "/embed", text), body[:position]
    for route in ROUTES:
        yield f"POST {route}, {BODY_BYTES - 1} bytes", head("POST", route, form if "translate" in route else text), body[: BODY_BYTES - 1]
    for method in METHODS:
        for route in ["/v2/languages", "/embed", "/health"]:
            yield f"{method} {route}, {BODY_BYTES - 1} bytes", head(method, route, form), body[: BODY_BYTES - 1]
    yield "headers without an end", head("POST", "/embed")[:-2] + b"x: " + 1_000_000 * b"a", b""
    packed = gzip.compress(json.dumps({"inputs": BODY_BYTES // 2 * "a", "truncate": False}).encode())
    packed_head = head("POST", "/embed", text, "content-encoding: gzip").replace(str(BODY_BYTES).encode(), str(len(packed)).encode())
    yield "compressed bodies", packed_head, packed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kivu")
    parser.add_argument("bundle")
    parser.add_argument("--connections", type=int, default=500)
    arguments = parser.parse_args()
    server, failures = Server(arguments.kivu, arguments.bundle), []
    idle = server.resident()
    bound = idle + BUFFER_BYTES + arguments.connections * CONNECTION_BYTES
    print(f"idle: {idle / MIB:.0f} MiB; bound: {bound / MIB:.0f} MiB")
    for name, head, body in cases():
        peak = hold(server, arguments.connections, head, body)
        print(f"{name}: {peak / MIB:.0f} MiB", flush=True)
        if peak > bound:
            failures.append(name)
    server.process.terminate()
    server.process.wait(timeout=120)
    sys.exit(f"above the bound: {', '.join(failures)}" if failures else 0)


if __name__ == "__main__":
    main()
