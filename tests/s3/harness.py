"""Shared parts of the S3 tests: a real S3 server, the Lambda runtime API, and the programs under test.

Every server listens on a free port of 127.0.0.1 and is ended by its own process id.
"""

import contextlib
import hashlib
import http.client
import http.server
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import boto3
from botocore.config import Config

sys.path.append(str(Path(__file__).resolve().parents[1]))
from ports import HOST, free_ports  # noqa: E402

BUCKET = "kivu-tests"
KIVU = os.environ.get("TEST_KIVU", "")
FUNCTION = os.environ.get("TEST_BATCH", "")
TRIES = 6
WEED = str(Path(sys.executable).parent / "weed")

# Without credentials of the environment, and without a proxy.
for name in list(os.environ):
    if name.lower().endswith("_proxy") or name.startswith("AWS_"):
        del os.environ[name]
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
os.environ.update(CREDENTIALS)


def wait_for(what, check, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(Exception):
            found = check()
            if found:
                return found
        time.sleep(0.05)
    raise TimeoutError(f"waited {seconds} s for {what}")


def client(service, endpoint):
    config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 3}, read_timeout=60)
    return boto3.client(service, endpoint_url=endpoint, region_name="us-east-1", config=config)


class Weed:
    """SeaweedFS as an S3 server."""

    def __init__(self):
        # On a busy machine its parts sometimes wait for each other for minutes, and another test may take one of its
        # ports first; a new server on other ports is ready in seconds.
        for attempt in range(TRIES):
            try:
                self.begin()
                return
            except (TimeoutError, ConnectionError) as error:
                print(f"weed, attempt {attempt + 1} of {TRIES}: {error}\n{self.log()}", file=sys.stderr)
                self.stop()
                if attempt + 1 == TRIES:
                    raise

    def begin(self):
        self.folder = tempfile.mkdtemp(prefix="kivu-weed-")
        self.ports = free_ports(4)
        self.endpoint = f"http://{HOST}:{self.ports[0]}"
        self.process = None
        self.start(30)
        self.s3 = client("s3", self.endpoint)
        self.wait_for("a bucket", lambda: self.s3.create_bucket(Bucket=BUCKET), 30)
        # A bucket needs the filer alone, an object the volume server too.
        self.wait_for("an object", lambda: self.put("ready", b"ready") and self.get("ready") == b"ready", 30)
        self.s3.delete_object(Bucket=BUCKET, Key="ready")

    def start(self, timeout=120):
        s3, master, volume, filer = self.ports
        self.process = subprocess.Popen(
            [
                WEED, "server", f"-dir={self.folder}", "-s3", f"-ip={HOST}", f"-ip.bind={HOST}",
                f"-s3.port={s3}", f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}",
                "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false", "-volume.max=20",
                "-master.volumeSizeLimitMB=1024", "-metricsPort=0",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=open(self.log_path(), "ab"),
        )
        self.wait_for("weed", self.is_listening, timeout)

    def is_listening(self):
        with socket.create_connection((HOST, self.ports[0]), 1):
            return True

    def wait_for(self, what, check, seconds):
        """Waits for a part of the server, and fails at once when the process exits."""
        wait_for(what, lambda: self.process.poll() is not None or check(), seconds)
        if self.process.poll() is not None:
            raise ConnectionError(f"weed exited with {self.process.returncode} before it served {what}")

    def log_path(self):
        return Path(self.folder) / "weed.log"

    def log(self):
        """The last lines that the server logged."""
        return "\n".join(self.log_path().read_text(errors="replace").splitlines()[-15:])

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process.poll() is not None:
            print(f"weed exited with {self.process.returncode} on its own:\n{self.log()}", file=sys.stderr)
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def get(self, key, **more):
        return self.s3.get_object(Bucket=BUCKET, Key=key, **more)["Body"].read()

    def put(self, key, body, **more):
        return self.s3.put_object(Bucket=BUCKET, Key=key, Body=body, **more)

    def exists(self, key):
        with contextlib.suppress(self.s3.exceptions.ClientError):
            self.s3.head_object(Bucket=BUCKET, Key=key)
            return True
        return False

    def keys(self, prefix=""):
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]


# Error responses of an S3 server. Completing an upload may fail after S3 has sent the status 200.
REFUSALS = {"slow down": (503, "SlowDown"), "denied": (403, "AccessDenied"), "skewed": (403, "RequestTimeTooSkewed"),
            "late error": (200, "InternalError")}


class Faults:
    """A proxy that answers some requests with `fault`."""

    def __init__(self, endpoint, port=0):
        self.upstream = endpoint.removeprefix("http://").split(":")
        self.fault = None
        self.seen = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do(self):
                # A client may leave before its response.
                with contextlib.suppress(ConnectionError):
                    self.forward()

            def forward(self):
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                outer.seen += 1
                fault = outer.fault(self, outer.seen) if outer.fault else None
                if fault in REFUSALS:
                    status, code = REFUSALS[fault]
                    text = f"<Error><Code>{code}</Code><Message>made by the test</Message></Error>".encode()
                    text = b"" if self.command == "HEAD" else text
                    self.send_response(status)
                    self.send_header("content-type", "application/xml")
                    self.send_header("content-length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)
                    return
                upstream = http.client.HTTPConnection(*outer.upstream, timeout=60)
                upstream.request(self.command, self.path, body, dict(self.headers))
                answer = upstream.getresponse()
                data = answer.read()
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                declared = answer.getheader("content-length") if self.command == "HEAD" else str(len(data))
                if declared is not None and fault != "size":
                    self.send_header("content-length", declared)
                self.end_headers()
                if self.command == "HEAD":
                    return
                if fault == "cut":
                    self.wfile.write(data[: len(data) // 2])
                    self.wfile.flush()
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                if fault == "flip" and data:
                    data = bytes([data[0] ^ 1]) + data[1:]
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do

        self.server = http.server.ThreadingHTTPServer((HOST, port), Handler)
        self.endpoint = f"http://{HOST}:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def kivu(endpoint, *arguments, check=True, env=(), timeout=120):
    """Runs the command."""
    environment = os.environ | {"AWS_ENDPOINT_URL": endpoint} | dict(env)
    done = subprocess.run(
        [KIVU, *map(str, arguments)], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=timeout,
    )
    if check and done.returncode:
        raise AssertionError(f"kivu {arguments}: {done.stderr}")
    return done


class Function:
    """The function `batch`, or another one, with the Lambda runtime API."""

    def __init__(self, endpoint, bundles, env=(), program=FUNCTION, folder=None, box=None):
        self.program, self.folder, self.box = program, folder, box
        # X-Ray's header of each invocation, if there is one.
        self.x_ray = None
        self.events = queue.Queue()
        self.answers = {}
        self.asked = threading.Event()
        self.process = None
        self.env = os.environ | {
            "AWS_ENDPOINT_URL": endpoint,
            "KIVU_MODELS": ",".join(map(str, bundles)),
            "AWS_LAMBDA_FUNCTION_NAME": "batch",
            "AWS_LAMBDA_FUNCTION_VERSION": "1",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "3538",
            "RUST_LOG": "warn,kivu=info",
        } | dict(env)
        self.log = tempfile.TemporaryFile()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                outer.asked.set()
                while True:
                    with contextlib.suppress(queue.Empty):
                        number, event, seconds = outer.events.get(timeout=0.2)
                        break
                    if outer.process is None or outer.process.poll() is not None:
                        self.close_connection = True
                        return
                body = json.dumps(event).encode()
                self.send_response(200)
                self.send_header("lambda-runtime-aws-request-id", str(number))
                self.send_header("lambda-runtime-deadline-ms", str(int((time.time() + seconds) * 1000)))
                self.send_header("lambda-runtime-invoked-function-arn", "arn:aws:lambda:us-east-1:1:function:batch")
                if outer.x_ray:
                    self.send_header("lambda-runtime-trace-id", outer.x_ray)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                parts = self.path.split("/")
                outer.answers[parts[-2]] = (parts[-1], json.loads(body or b"null"))
                self.send_response(202)
                self.send_header("content-length", "0")
                self.end_headers()

        self.server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        self.env["AWS_LAMBDA_RUNTIME_API"] = f"{HOST}:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.number = 0

    def start(self):
        self.asked.clear()
        self.process = subprocess.Popen([self.program], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=self.log,
                                        preexec_fn=self.box and self.box.enter)

    def send(self, event, seconds=600):
        """Queues an event. The function has `seconds` from when it takes the event, as on Lambda."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        self.number += 1
        self.events.put((self.number, event, seconds))
        return str(self.number)

    def wait(self, number, seconds=120):
        wait_for(f"answer {number}", lambda: number in self.answers or self.process.poll() is not None, seconds)
        if number not in self.answers:
            raise AssertionError(f"the function ended: {self.text()[-2000:]}")
        return self.answers[number]

    def call(self, event, seconds=600):
        """The response to an event; raises errors."""
        kind, answer = self.wait(self.send(event, seconds))
        if kind != "response":
            raise RuntimeError(json.dumps(answer))
        return answer

    def private_mb(self):
        """The private memory in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) / 1024

    def text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-200_000:]

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        while not self.events.empty():
            self.events.get()

    def stop(self):
        self.kill()
        self.server.shutdown()
        self.server.server_close()


def s3_event(key, etag=None, version=None, name="ObjectCreated:Put"):
    """An event of S3, in which keys are encoded like form fields."""
    import urllib.parse

    thing = {"key": urllib.parse.quote_plus(key, safe="/"), "size": 1, "sequencer": "0055AED6DCD90281E5"}
    if etag:
        thing["eTag"] = etag.strip('"')
    if version:
        thing["versionId"] = version
    return {
        "Records": [{
            "eventVersion": "2.1", "eventSource": "aws:s3", "awsRegion": "us-east-1",
            "eventTime": "2026-01-02T03:04:05.678Z", "eventName": name,
            "userIdentity": {"principalId": "AWS:EXAMPLE"},
            "requestParameters": {"sourceIPAddress": "127.0.0.1"},
            "responseElements": {"x-amz-request-id": "C3D13FE58DE4C810"},
            "s3": {
                "s3SchemaVersion": "1.0", "configurationId": "files",
                "bucket": {"name": BUCKET, "ownerIdentity": {"principalId": "A3"}, "arn": f"arn:aws:s3:::{BUCKET}"},
                "object": thing,
            },
        }]
    }


def event_bridge(key, etag="0"):
    """An event of EventBridge, in which keys are not encoded."""
    return {
        "version": "0", "id": "17793124-05d4-b198-2fde-7ededc63b103", "detail-type": "Object Created",
        "source": "aws.s3", "account": "111122223333", "time": "2026-01-02T03:04:05Z", "region": "us-east-1",
        "resources": [f"arn:aws:s3:::{BUCKET}"],
        "detail": {
            "version": "0", "bucket": {"name": BUCKET},
            "object": {"key": key, "size": 1, "etag": etag.strip('"'), "sequencer": "00617F08299329D189"},
            "request-id": "N4N7GDK58NMKJ12R", "requester": "123456789012", "source-ip-address": "1.2.3.4",
            "reason": "PutObject",
        },
    }


class Queue:
    """Amazon SQS and EventBridge, as far as the function uses them: `sent` has the body and the attributes of each message,
    `events` has the events. The bus refuses an event for each of `refusals`."""

    def __init__(self):
        outer, self.sent, self.events, self.refusals = self, [], [], []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                given = json.loads(self.rfile.read(int(self.headers["content-length"])))
                respond = {"AmazonSQS.SendMessage": outer.send_message, "AWSEvents.PutEvents": outer.put_events}
                body = json.dumps(respond[self.headers["x-amz-target"]](given)).encode()
                self.send_response(200)
                self.send_header("content-type", self.headers["content-type"])
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        self.endpoint = f"http://{HOST}:{self.server.server_port}"
        self.url = f"{self.endpoint}/1/files"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def send_message(self, message):
        assert message["QueueUrl"] == self.url
        attributes = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
        self.sent.append((message["MessageBody"], attributes))
        return {"MessageId": "1", "MD5OfMessageBody": hashlib.md5(message["MessageBody"].encode()).hexdigest()}

    def put_events(self, given):
        if self.refusals:
            return {"FailedEntryCount": 1, "Entries": [{"ErrorCode": self.refusals.pop(), "ErrorMessage": "made by the test"}]}
        self.events += [entry | {"Detail": json.loads(entry["Detail"])} for entry in given["Entries"]]
        return {"FailedEntryCount": 0, "Entries": [{"EventId": "1"}]}

    @property
    def environment(self):
        return {
            "KIVU_BATCH__QUEUE": self.url, "AWS_ENDPOINT_URL_SQS": self.endpoint,
            "KIVU_BATCH__EVENT_BUS": "jobs", "AWS_ENDPOINT_URL_EVENTBRIDGE": self.endpoint,
        }

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def sqs(*bodies, attributes=()):
    """Messages of a queue, each with the same attributes."""
    attributes = {name: {"stringValue": value, "dataType": "String"} for name, value in dict(attributes).items()}
    return {
        "Records": [
            {
                "messageId": f"message-{place}", "receiptHandle": "handle",
                "body": body if isinstance(body, str) else json.dumps(body),
                "attributes": {"ApproximateReceiveCount": "1"}, "messageAttributes": attributes, "md5OfBody": "0",
                "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:us-east-1:1:files", "awsRegion": "us-east-1",
            }
            for place, body in enumerate(bodies)
        ]
    }


def sns(message):
    """An event of a topic."""
    return {
        "Records": [{
            "EventSource": "aws:sns", "EventVersion": "1.0", "EventSubscriptionArn": "arn:aws:sns:us-east-1:1:t:1",
            "Sns": {"Type": "Notification", "MessageId": "1", "TopicArn": "arn:aws:sns:us-east-1:1:t",
                    "Subject": "Amazon S3 Notification", "Message": json.dumps(message)},
        }]
    }


def sns_in_queue(message):
    """A message of a topic in a queue."""
    return {"Type": "Notification", "MessageId": "1", "TopicArn": "arn:aws:sns:us-east-1:1:t",
            "Message": json.dumps(message)}
