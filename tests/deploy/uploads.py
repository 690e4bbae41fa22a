"""Tests uploads of blobs in parts to registries that keep, drop or forget what arrived before a break, or refuse parts,
and registries that lead credentials or files elsewhere.

    python tests/deploy/uploads.py
"""

import hashlib
import random
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "functions"))

import image  # noqa: E402
import registry  # noqa: E402

PART, SIZE = 1 << 16, 200_000
STARTS = ["PATCH 0", "PATCH 65536", "PATCH 131072", "PATCH 196608"]


class Uploads(ThreadingHTTPServer):
    """A repository for one blob. Connections break off at `breaks`, places in the blob, each once."""

    daemon_threads = True

    def __init__(self, breaks=(), keeps=True, knows=True, takes_parts=True, joins=True, is_ecr=False, location=None, realm=None):
        self.breaks, self.keeps, self.knows, self.takes_parts, self.joins, self.is_ecr = list(breaks), keeps, knows, takes_parts, joins, is_ecr
        self.upload, self.number, self.blob, self.asked = b"", 0, None, []
        self.location, self.realm = location, realm
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def range(self):
        # ECR repeats the end of the first part.
        end = min(len(self.upload), PART) if self.is_ecr else len(self.upload)
        return f"0-{max(end - 1, 0)}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, **headers):
        self.send_response(status)
        for name, value in ({"Content-Length": "0"} | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def state(self, status):
        self.answer(status, Location=self.server.location or f"/v2/kivu/blobs/uploads/{self.server.number}", Range=self.server.range)

    @property
    def is_known(self):
        return self.path.startswith(f"/v2/kivu/blobs/uploads/{self.server.number}")

    def do_HEAD(self):
        if self.server.realm:
            return self.answer(401, **{"WWW-Authenticate": f'Bearer realm="{self.server.realm}",service="kivu"'})
        self.answer(200 if self.server.blob is not None else 404)

    def do_POST(self):
        self.server.asked.append("POST")
        self.server.upload, self.server.number = b"", self.server.number + 1
        self.state(202)

    def do_GET(self):
        self.server.asked.append("GET")
        self.state(204) if self.is_known else self.answer(404)

    def do_PATCH(self):
        server, length = self.server, int(self.headers["Content-Length"])
        start = int(self.headers["Content-Range"].partition("-")[0])
        server.asked.append(f"PATCH {start}")
        if server.breaks and start <= server.breaks[0] < start + length:
            arrived = self.rfile.read(server.breaks.pop(0) - start)
            server.upload += arrived if server.keeps else b""
            # An upload whose number has changed is not known any more.
            server.number += 0 if server.knows else 1
            self.close_connection = True
            return
        content = self.rfile.read(length)
        if not server.takes_parts:
            return self.answer(405)
        if not self.is_known:
            return self.answer(404)
        if start != len(server.upload):
            return self.answer(416)
        server.upload += content if server.joins else content[::-1]
        self.state(201 if server.is_ecr else 202)

    def do_PUT(self):
        server, length = self.server, int(self.headers["Content-Length"])
        server.asked.append("PUT all" if length else "PUT")
        server.upload += self.rfile.read(length)
        (digest,) = parse_qs(urlsplit(self.path).query)["digest"]
        if digest != f"sha256:{hashlib.sha256(server.upload).hexdigest()}":
            return self.answer(400)
        server.blob = server.upload
        self.answer(201)

    def log_message(self, *_):
        pass


def expect(what, expected, found):
    if expected != found:
        sys.exit(f"{what}: expected {expected!r}, but found {found!r}")


def expect_refusal(what, message, action, *arguments):
    """An action is refused at once, with a message that contains this one."""
    try:
        action(*arguments)
    except registry.Interrupted as error:
        sys.exit(f"{what}: expected no other try, but found `{error}`")
    except (image.ImageError, registry.RegistryError) as error:
        expect(f"{what}: {error}", True, message in str(error))
    else:
        sys.exit(f"{what}: expected a refusal")


def main():
    registry.PART, registry.time = PART, SimpleNamespace(sleep=lambda _: None)
    content = random.Random(1).randbytes(SIZE)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    with tempfile.TemporaryDirectory() as folder:
        blob = Path(folder) / "blob"
        blob.write_bytes(content)
        for what, options, expected in (
            ("no break", {}, ["POST", *STARTS, "PUT"]),
            ("the beginning of a part is kept", {"breaks": [100_000]}, ["POST", *STARTS[:2], "GET", "PATCH 100000", "PATCH 165536", "PUT"]),
            ("it is dropped", {"breaks": [100_000], "keeps": False}, ["POST", *STARTS[:2], "GET", *STARTS[1:], "PUT"]),
            ("two breaks", {"breaks": [0, 70_000]}, ["POST", "PATCH 0", "GET", *STARTS[:2], "GET", "PATCH 70000", "PATCH 135536", "PUT"]),
            ("the upload is forgotten", {"breaks": [100_000], "knows": False}, ["POST", *STARTS[:2], "GET", "PATCH 65536", "POST", *STARTS, "PUT"]),
            ("ECR", {"breaks": [140_000], "keeps": False, "is_ecr": True}, ["POST", *STARTS[:3], "GET", *STARTS[2:], "PUT"]),
            ("parts are refused", {"takes_parts": False}, ["POST", "PATCH 0", "POST", "PUT all"]),
            ("parts are damaged", {"joins": False}, ["POST", *STARTS, "PUT", "POST", "PUT all"]),
        ):
            server = Uploads(**options)
            target = registry.Registry(f"127.0.0.1:{server.server_port}/kivu")
            expect(f"{what}: sent", True, target.upload(digest, blob))
            expect(f"{what}: requests", expected, server.asked)
            expect(f"{what}: the blob", True, server.blob == content)
            expect(f"{what}: again", False, target.upload(digest, blob))
        # A registry that has refused parts is not asked again, and one that always breaks off ends the push.
        server = Uploads(takes_parts=False)
        target = registry.Registry(f"127.0.0.1:{server.server_port}/kivu")
        for _ in range(2):
            server.blob = None
            target.upload(digest, blob)
        expect("requests for two blobs", ["POST", "PATCH 0", "POST", "PUT all", "POST", "PUT all"], server.asked)
        server = Uploads(breaks=[5] * 100, keeps=False)
        try:
            registry.Registry(f"127.0.0.1:{server.server_port}/kivu").upload(digest, blob)
        except registry.Interrupted as error:
            expect("the message", True, "the connection failed" in str(error))
        else:
            sys.exit("expected an upload that always breaks off to fail")
        expect("tries", registry.TRIES**2, server.asked.count("PATCH 0"))
        realms = ({"realm": f"http://{place}/"} for place in ("tokens.example", "localhost:x@tokens.example", r"tokens.example\\@localhost"))
        for options in ({"location": "http://localhost:1/"}, {"location": "https://127.0.0.1:1/"}, *realms):
            server = Uploads(**options)
            expect_refusal(options, "credentials", registry.Registry(f"127.0.0.1:{server.server_port}/kivu", "sesame").upload, digest, blob)
        made = image.Image(Path(folder) / "layout", "api", "x86_64")
        for wrong in ("sha256:../../../outside", f"sha256:{'0' * 63}", f"sha256:{'0' * 64}\n", "/outside", "sha512:" + "0" * 64):
            expect_refusal(wrong, "expected the digest of a blob", made._fetched, None, wrong)


if __name__ == "__main__":
    main()
