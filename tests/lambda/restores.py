#!/usr/bin/env python3
"""Runs the functions `api` and `batch` with a runtime API that holds them back where Lambda takes a snapshot.

    python tests/lambda/restores.py API BATCH BUNDLE

Their services (credentials, secrets, S3, OTLP) are on loopback, too: they count connections, change the credentials while
the function is held back, and refuse the old ones. BUNDLE is an embedding model. Prints the times to first responses. Needs
only Python's standard library.
"""

import datetime
import hashlib
import json
import statistics
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from runtime_api import TIMEOUT_S, Function, expect
from streaming import url_event

KEY = "kivu_" + "0" * 64
KEYS = f"test:{hashlib.sha256(KEY.encode()).hexdigest()}"
DAY_S = 24 * 60 * 60
# Requests with unknown models list the bundles again after this time.
LIST_S = 3.1
# Above a warm request's time; development builds on busy machines are slow.
MAX_OVERHEAD_MS = 1000
# Lambda ends a restore that takes longer.
RESTORE_S = 10


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self):
        self.server.connections.discard(self.connection)
        super().finish()

    def record(self, service):
        """Whether the request has the current credentials."""
        signed = self.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
        self.server.seen.append((service, signed))
        return signed == self.server.key

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        if self.path == "/credentials":
            self.server.seen.append(("credentials", ""))
            end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
            return self.reply(200, {
                "AccessKeyId": self.server.key, "SecretAccessKey": "s", "Token": "t", "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
            })
        if not self.record("s3"):
            return self.reply(403, b"<Error><Code>ExpiredToken</Code></Error>")
        path = self.path.partition("?")[0].removeprefix("/models").removeprefix("/")
        if not path:
            entries = "".join(
                f"<Contents><Key>{name}</Key><ETag>&quot;{tag}&quot;</ETag><Size>{len(data)}</Size></Contents>"
                for name, (tag, data) in self.server.objects.items()
            )
            return self.reply(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode())
        if path not in self.server.objects:
            return self.reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
        tag, data = self.server.objects[path]
        headers, status = {"ETag": f'"{tag}"'}, 200
        if "Range" in self.headers:
            start, end = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            end = min(end, len(data) - 1)
            headers["Content-Range"], status = f"bytes {start}-{end}/{len(data)}", 206
            data = data[start:end + 1]
        self.reply(status, data, headers)

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.startswith("/v1/"):
            self.server.seen.append(("otlp", ""))
            return self.reply(200, b"")
        is_current = self.record("secret")
        if self.server.hangs:
            time.sleep(TIMEOUT_S)
        self.reply(200 if is_current else 400, {"SecretString": KEYS} if is_current else {"__type": "ExpiredTokenException"})

    def reply(self, status, body, headers=()):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        """Checks print what is wrong."""


class Services(ThreadingHTTPServer):
    """Credentials, secrets, S3 with the objects of `bundle`, and an OTLP receiver."""

    daemon_threads = True

    def __init__(self, bundle):
        super().__init__(("127.0.0.1", 0), Handler)
        self.key, self.seen, self.connections = "BEFORE", [], set()
        # Whether secrets take longer than any client waits.
        self.hangs = False
        files = {file.name: file.read_bytes() for file in bundle.iterdir()}
        digest = hashlib.sha256(files["manifest.toml"]).hexdigest()
        objects = {f"tiny/{digest}/{name}": data for name, data in files.items()} | {"tiny/latest": digest.encode()}
        self.objects = {name: (hashlib.md5(data).hexdigest(), data) for name, data in objects.items()}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def variables(self):
        url = f"http://127.0.0.1:{self.server_port}"
        return {
            "AWS_ENDPOINT_URL": url, "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{url}/credentials", "AWS_REGION": "eu-west-1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        }

    def services(self):
        return {service for service, _ in self.seen}

    def expect_closed(self):
        """Waits until the function has closed its connections."""
        deadline = time.monotonic() + 5
        while self.connections and time.monotonic() < deadline:
            time.sleep(0.01)
        expect("open connections at the snapshot", len(self.connections), 0)

    def handle_error(self, *_):
        """The function is killed."""


class Snapshot(Function):
    """A function up to its snapshot."""

    def __init__(self, program, name, variables, folder):
        own = {
            "AWS_LAMBDA_FUNCTION_NAME": name, "AWS_LAMBDA_FUNCTION_VERSION": "1", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "3008",
            "AWS_LAMBDA_INITIALIZATION_TYPE": "snap-start",
        }
        super().__init__([program], own | variables, folder, Path(folder, f"{name}.log"))

    def lines(self):
        self.log.seek(0)
        return [json.loads(line) for line in self.log.read().decode().splitlines() if line.startswith("{")]

    def failure(self, route):
        """The error that ends the function."""
        found, _, body, _ = self.take(self.api.received)
        expect("the route", found, route)
        expect("whether the exit status is 0", self.process.wait(TIMEOUT_S) == 0, False)
        return json.loads(body)["errorMessage"]


def embed(text, model=None):
    body = {"input": text} | ({"model": model} if model else {})
    return url_event("POST", "/v1/embeddings", json.dumps(body), {"x-api-key": KEY})


def vector(received):
    route, _, body, _ = received
    expect("the route", route, "response")
    response = json.loads(body)
    if response["statusCode"] != 200:
        sys.exit(f"expected a vector, but found {response}")
    return json.loads(response["body"])["data"][0]["embedding"]


def compare(what, function, first_ms, send):
    """Prints a first response's time, and the median of later ones."""
    times = []
    for _ in range(20):
        before = time.monotonic()
        send()
        times.append((function.api.answered_at - before) * 1000)
    warm = statistics.median(times)
    print(f"{what}: {first_ms:.1f} ms after the restore, {warm:.1f} ms warm")
    if first_ms > warm + MAX_OVERHEAD_MS:
        sys.exit(f"expected at most {MAX_OVERHEAD_MS} ms more after a restore")


def check_renewal(api, bundle, folder):
    """Credentials that expired, broken connections, and a secret that was never read before."""
    services = Services(bundle)
    variables = services.variables() | {"KIVU_MODELS": "s3://models/tiny", "KIVU_LOAD": "on-demand", "KIVU_AUTH__KEYS_SECRET": "keys"}
    with Snapshot(api, "api", variables, folder) as function:
        function.take(function.api.waiting)
        expect("the services before the snapshot", services.services(), {"credentials", "s3"})
        warm_up = [line for line in function.lines() if line.get("message") == "request"]
        expect("the examples", [line["status"] for line in warm_up], [200])
        services.expect_closed()
        services.key = "AFTER"
        services.seen.clear()
        time.sleep(LIST_S)
        expect("requests while the function is held back", services.seen, [])
        received, first_ms = function.restored(embed("a cat"))
        first = vector(received)
        expect("equal vectors", vector(function.next(embed("a cat"))), first)
        compare("keys in a secret", function, first_ms, lambda: function.next(embed("a cat")))
        # The clock is a day behind the deadlines, and a day ahead.
        for moved_s in (DAY_S, -DAY_S):
            expect("equal vectors", vector(function.next(embed("a cat"), TIMEOUT_S + moved_s)), first)
        _, _, body, _ = function.next(embed("a cat", "unknown"))
        expect("the status with an unknown model", json.loads(body)["statusCode"], 404)
        expect("the services afterwards", services.services(), {"credentials", "s3", "secret", "otlp"})
        expect("the credentials", {key for service, key in services.seen if service in ("s3", "secret")}, {"AFTER"})


def check_time_limit(api, bundle, folder):
    """A secret that cannot be read delays a restore and its first request, but not beyond their limits."""
    services = Services(bundle)
    services.hangs = True
    variables = services.variables() | {"KIVU_MODELS": str(bundle), "KIVU_AUTH__KEYS_SECRET": "keys"}
    with Snapshot(api, "api", variables, folder) as function:
        function.take(function.api.waiting)
        (_, _, body, _), first_ms = function.restored(embed("a cat"))
        expect("the status without keys", json.loads(body)["statusCode"], 503)
        print(f"keys that cannot be read: {first_ms:.0f} ms after the restore")
        if first_ms > RESTORE_S * 1000:
            sys.exit(f"expected a response within {RESTORE_S} s")


def check_api(api, bundle, folder):
    with Snapshot(api, "api", {"KIVU_MODELS": str(bundle), "KIVU_AUTH__MODE": "none"}, folder) as function:
        function.take(function.api.waiting)
        received, first_ms = function.restored(embed("a cat"))
        vector(received)
        compare("api", function, first_ms, lambda: vector(function.next(embed("a cat"))))
        examples = [line for line in function.lines() if line.get("message") == "request"]
        ids = [line["id"] for line in examples]
        expect("ids that are equal", len(ids) - len(set(ids)), 0)


def check_batch(batch, bundle, folder):
    event = json.loads(Path(__file__).with_name("rows_redshift.json").read_text())
    Path(folder, "kivu.toml").write_text('[[batch.rules]]\ninput = "redshift:public.embed"\n')
    with Snapshot(batch, "batch", {"KIVU_MODELS": str(bundle)}, folder) as function:
        function.take(function.api.waiting)
        send = lambda: function.next(event)
        (route, _, body, _), first_ms = function.restored(event)
        expect("the route and success", (route, json.loads(body)["success"]), ("response", True))
        expect("equal answers", json.loads(send()[2])["results"], json.loads(body)["results"])
        compare("batch", function, first_ms, send)


def check_failures(api, batch, bundle, folder):
    for name, program in (("api", api), ("batch", batch)):
        with Snapshot(program, name, {"KIVU_MODELS": f"{folder}/none", "KIVU_AUTH__MODE": "none"}, folder) as function:
            message = function.failure("init/error")
            if "none" not in message:
                sys.exit(f"expected the folder in the error, but found {message!r}")
            expect("whether it was ready", function.api.waiting.empty(), True)
        # No receiver can be trusted, which is found out when the exporter starts.
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://127.0.0.1:1", "SSL_CERT_FILE": f"{folder}/none"}
        with Snapshot(program, name, {"KIVU_MODELS": str(bundle), "KIVU_AUTH__MODE": "none"} | variables, folder) as function:
            function.take(function.api.waiting)
            function.api.restores.put(None)
            print(name, function.failure("restore/error"))


def main():
    api, batch, bundle = (Path(argument).resolve() for argument in sys.argv[1:4])
    with tempfile.TemporaryDirectory() as folder:
        check_api(api, bundle, folder)
        check_batch(batch, bundle, folder)
        check_renewal(api, bundle, folder)
        check_time_limit(api, bundle, folder)
        check_failures(api, batch, bundle, folder)


if __name__ == "__main__":
    main()
