"""Sinks for tests: a real PostgreSQL with pgvector, and stand-ins for S3 Vectors and OpenSearch.

No real server of the last two can run here. The stand-in for S3 Vectors checks requests against botocore's service
model and the documented limits; the one for OpenSearch implements the documented bulk API strictly.
"""

import base64
import contextlib
import http.server
import importlib.util
import json
import math
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from pathlib import Path

import botocore.loaders
import botocore.model
import botocore.validate

from harness import HOST, wait_for
from ports import free_ports

# The package starts servers too, but not as another user. It is not available for every Python and processor.
PACKAGE = importlib.util.find_spec("pgserver")
PROGRAMS = PACKAGE and Path(PACKAGE.origin).parent / "pginstall" / "bin"
PASSWORD = "p@ss/word"
# PostgreSQL does not run as root.
NOBODY = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}


class Postgres:
    """A server with the user `kivu`, whose password is checked."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="kivu-pg-", dir="/tmp"))
        if NOBODY:
            os.chown(self.folder, NOBODY["user"], NOBODY["group"])
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        data = self.folder / "data"
        self.run("initdb", "--pgdata", data, "--username", "kivu", "--pwfile", secret, "--auth", "scram-sha-256",
                 "--no-sync", "--no-locale", "--encoding", "UTF8")
        self.port = free_ports(1)[0]
        command = [PROGRAMS / "postgres", "-D", data, "-p", str(self.port), "-k", "", "-c", f"listen_addresses={HOST}",
                   "-c", "fsync=off"]
        self.log = (self.folder / "log").open("wb")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, cwd=self.folder, **NOBODY)
        wait_for("PostgreSQL", lambda: self.sql("SELECT 1") == "1")

    def run(self, program, *arguments):
        done = subprocess.run([PROGRAMS / program, *map(str, arguments)], capture_output=True, text=True,
                              cwd=self.folder, **NOBODY)
        if done.returncode:
            raise AssertionError(f"{program}: {done.stderr}")

    def psql(self):
        return [PROGRAMS / "psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1",
                "-h", HOST, "-p", str(self.port), "-U", "kivu", "-d", "postgres"]

    def sql(self, *statements):
        """The rows of the last statement."""
        done = subprocess.run([*self.psql(), *(part for text in statements for part in ("-c", text))],
                              env=os.environ | {"PGPASSWORD": PASSWORD}, capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(done.stderr)
        return done.stdout.strip()

    @contextlib.contextmanager
    def session(self, *statements):
        """Runs statements, and keeps their transaction open."""
        process = subprocess.Popen(self.psql(), env=os.environ | {"PGPASSWORD": PASSWORD}, text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process.stdin.write("".join(f"{text};\n" for text in ("BEGIN", *statements, "SELECT 'ready'")))
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.stdin.close()
            process.wait()

    def url(self, table, more="", user="kivu", port=None):
        return f"postgres://{user}@{HOST}:{port or self.port}/postgres?table={table}{more}"

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class TlsProxy:
    """Adds TLS to a PostgreSQL server, with a certificate for 127.0.0.1 that only `roots` trusts."""

    def __init__(self, port, folder):
        self.roots = folder / "roots.pem"
        key = folder / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-keyout", key, "-out", self.roots, "-days", "2", "-subj", "/CN=kivu test",
                        "-addext", f"subjectAltName=IP:{HOST}", "-addext", "basicConstraints=critical,CA:FALSE"], check=True, capture_output=True)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self.roots, key)
        self.upstream = port
        self.listener = socket.create_server((HOST, 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.forward, args=(connection,), daemon=True).start()

    def forward(self, connection):
        # SSLRequest: the length and the code.
        assert connection.recv(8) == bytes([0, 0, 0, 8, 4, 210, 22, 47])
        connection.sendall(b"S")
        with contextlib.suppress(OSError):
            client = self.context.wrap_socket(connection, server_side=True)
            server = socket.create_connection((HOST, self.upstream))
            threading.Thread(target=self.copy, args=(server, client), daemon=True).start()
            self.copy(client, server)

    @staticmethod
    def copy(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def stop(self):
        self.listener.close()


class StandIn:
    """An HTTP server. `fault` may return a status for a request's number, or block."""

    def __init__(self):
        self.fault = None
        self.seen = 0
        self.wrong = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                status, headers, answer = outer.respond(self, body)
                text = json.dumps(answer).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(text)

            do_GET = do_POST = do_PUT = do

        self.server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        self.endpoint = f"http://{HOST}:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def respond(self, handler, body):
        try:
            return self.answer(handler, body)
        except AssertionError as error:
            self.wrong.append(repr(error))
            return 400, {"x-amzn-errortype": "ValidationException"}, {"message": repr(error)}

    def write(self):
        """Counts a write; the status of a fault, if there is one."""
        self.seen += 1
        return self.fault(self.seen) if self.fault else None

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


SERVICE = botocore.model.ServiceModel(botocore.loaders.Loader().load_service_model("s3vectors", "service-2"))


class VectorIndexes(StandIn):
    """Amazon S3 Vectors with the index `docs` in the bucket `vectors`."""

    def __init__(self, dimension):
        super().__init__()
        self.vectors = {}
        self.puts = []
        self.index = {
            "vectorBucketName": "vectors", "indexName": "docs", "creationTime": 1.0, "dataType": "float32",
            "indexArn": "arn:aws:s3vectors:us-east-1:123456789012:bucket/vectors/index/docs",
            "dimension": dimension, "distanceMetric": "cosine",
            "metadataConfiguration": {"nonFilterableMetadataKeys": ["body"]},
        }

    def answer(self, handler, body):
        operation = SERVICE.operation_model(handler.path.lstrip("/"))
        assert handler.command == operation.http["method"]
        assert "/us-east-1/s3vectors/aws4_request" in handler.headers["authorization"], handler.headers["authorization"]
        request = json.loads(body)
        report = botocore.validate.ParamValidator().validate(request, operation.input_shape)
        assert not report.has_errors(), report.generate_report()
        named = (request.get("vectorBucketName"), request.get("indexName"))
        if named != ("vectors", "docs") and request.get("indexArn") != self.index["indexArn"]:
            return 404, {"x-amzn-errortype": "NotFoundException"}, {"message": "The specified index could not be found"}
        if operation.name == "GetIndex":
            return 200, {}, {"index": self.index}
        assert operation.name == "PutVectors" and len(body) <= 20 << 20 and len(request["vectors"]) <= 500
        if status := self.write():
            code = {429: "TooManyRequestsException", 503: "ServiceUnavailableException"}[status]
            return status, {"x-amzn-errortype": code}, {"message": "made by the test"}
        keys = [vector["key"] for vector in request["vectors"]]
        assert len(set(keys)) == len(keys)
        for vector in request["vectors"]:
            values, metadata = vector["data"]["float32"], vector.get("metadata", {})
            assert len(values) == self.index["dimension"] and all(map(math.isfinite, values)) and any(values)
            filterable = {name: value for name, value in metadata.items() if name != "body"}
            if len(json.dumps(filterable)) > 2048 or None in metadata.values():
                message = f"Invalid record for key '{vector['key']}': Filterable metadata must have at most 2048 bytes"
                return 400, {"x-amzn-errortype": "ValidationException"}, {"message": message}
        self.vectors |= {vector["key"]: vector for vector in request["vectors"]}
        self.puts.append(keys)
        return 200, {}, {}


class OpenSearch(StandIn):
    """An OpenSearch cluster with the index `docs`, whose `price` is a number, and whose pipeline drops the title `dropped`."""

    def __init__(self, dimension, user="kivu"):
        super().__init__()
        self.dimension, self.user = dimension, user
        self.documents = {}
        self.puts = []
        # Ids whose documents have a status once.
        self.refused_once = {}
        self.max_bytes = 10 << 20

    def url(self, index="docs", user=None):
        credentials = f"{user or self.user}:{PASSWORD.replace('@', '%40').replace('/', '%2F')}@"
        return f"opensearch+{self.endpoint.replace('://', '://' + credentials)}/{index}"

    def answer(self, handler, body):
        expected = "Basic " + base64.b64encode(f"{self.user}:{PASSWORD}".encode()).decode()
        if handler.headers["authorization"] != expected:
            return 401, {}, {"status": 401}
        if not handler.path.startswith("/docs/"):
            return 404, {}, {"error": {"type": "index_not_found_exception"}, "status": 404}
        if handler.path == "/docs/_mapping":
            assert handler.command == "GET" and not body
            fields = {"embedding": {"type": "knn_vector", "dimension": self.dimension}, "price": {"type": "float"}}
            return 200, {}, {"docs-000001": {"mappings": {"properties": fields}}}
        assert (handler.command, handler.path) == ("POST", "/docs/_bulk")
        assert handler.headers["content-type"] == "application/x-ndjson" and body.endswith(b"\n")
        if len(body) > self.max_bytes:
            return 413, {}, {}
        if status := self.write():
            return status, {}, {"status": status}
        lines = [json.loads(line) for line in body.decode().split("\n")[:-1]]
        pairs = list(zip(lines[::2], lines[1::2], strict=True))
        items = [{"index": self.item(action, document)} for action, document in pairs]
        self.puts.append([action["index"]["_id"] for action, _ in pairs])
        return 200, {}, {"took": 1, "errors": any("error" in item["index"] for item in items), "items": items}

    def item(self, action, document):
        assert list(action) == ["index"] and set(action["index"]) == {"_id"}
        key = action["index"]["_id"]
        assert isinstance(key, str) and len(key.encode()) <= 512 and len(document["embedding"]) == self.dimension
        if status := self.refused_once.pop(key, None):
            error = {"type": "rejected_execution_exception", "reason": "the queue is full"}
            return {"_id": key, "status": status, "error": error}
        try:
            float(document.get("price", 0))
        except ValueError:
            reason = (f"failed to parse field [price] of type [float] in document with id '{key}'. Preview of field's "
                      f"value: '{document['price']}'")
            return {"_id": key, "status": 400, "error": {"type": "mapper_parsing_exception", "reason": reason}}
        if document.get("title") == "dropped":
            return {"_id": key, "_version": -3, "status": 200, "result": "noop"}
        status = 200 if key in self.documents else 201
        self.documents[key] = document
        return {"_id": key, "status": status, "result": "updated" if status == 200 else "created"}
