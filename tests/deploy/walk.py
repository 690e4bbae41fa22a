"""Deploys the template to an emulator of AWS and uses the deployment.

    python tests/deploy/walk.py KIVU [--compiled FUNCTION]

KIVU is the `kivu` command. Deploys with the commands of `make`, with IAM enforced, so that a missing permission is a
failure. The functions are compiled for Lambda, unless FUNCTION is one of those that cargo has compiled for this machine.
"""

import argparse
import base64
import contextlib
import http.client
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = sys.pycache_prefix is None  # no __pycache__ among the sources

from emulator import PATCHES, Emulator
from ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / ".kivu/bundles/minilm"
STACK = "walk"
ARCHITECTURE = {"x86_64": "x86_64", "aarch64": "arm64"}[platform.machine()]
SECRET_TEXT = "correcthorsebatterystaple"
MAX_ZIPPED = 45_000_000


class Problem(Exception):
    """An expectation that failed."""


def expect(what, expected, found):
    if expected != found:
        raise Problem(f"{what}: expected {expected!r}, but found {found!r}")


def eventually(what, expected, found, within_s=15):
    """Repeats `found` until it is as expected; functions cache keys for a few seconds."""
    end = time.monotonic() + within_s
    while (last := found()) != expected and time.monotonic() < end:
        time.sleep(0.5)
    expect(what, expected, last)


class Walk:
    def __init__(self, emulator, kivu, compiled):
        self.emulator, self.kivu, self.compiled = emulator, kivu, compiled
        self.outputs = {}
        self.key, self.page_port = None, free_ports(1)[0]

    def run(self, *command, **variables):
        """Runs a command against the emulator."""
        environment = os.environ | self.emulator.environment | {"SAM_CLI_TELEMETRY": "0"} | variables
        # A `make` that runs this script must not affect those it runs.
        environment = {name: value for name, value in environment.items() if not name.startswith(("MAKE", "MFLAGS"))}
        done = subprocess.run(list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise Problem(f"{' '.join(map(str, command))}\n{(done.stdout + done.stderr)[-4000:]}")
        return done.stdout

    def make(self, target, *variables):
        """Runs `make TARGET`, without building the program, which exists."""
        given = ["-o", "program", f"KIVU={self.kivu}", f"STACK={STACK}", f"ARCHITECTURE={ARCHITECTURE}"]
        if self.compiled:
            given.append(f"CARGO_LAMBDA={ROOT}/tests/deploy/compiled")
            return self.run("make", *given, target, *variables, COMPILED=str(self.compiled.parent))
        return self.run("make", *given, target, *variables)

    def operate(self, *command):
        return self.run("deploy/operate", "--stack", STACK, *command)

    def deploy(self, **parameters):
        given = " ".join(f"{name}={value}" for name, value in parameters.items())
        self.make("deploy", f"PARAMETERS={given}")
        stack = self.emulator.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"][0]
        self.outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}

    def send(self, method, path, body=None, **headers):
        """Sends a request through the HTTP API; returns status, headers and body of the response."""
        host = self.outputs["Url"].removeprefix("https://").split(".")[0]
        connection = http.client.HTTPConnection("127.0.0.1", self.emulator.port, timeout=60)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers |= {"host": f"{host}.execute-api.localhost:{self.emulator.port}", "content-type": "application/json"}
        connection.request(method, path, body if body is None or isinstance(body, bytes) else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def log_of(self, function):
        """The lines that a function has logged."""
        logs = self.emulator.client("logs")
        pages = logs.get_paginator("filter_log_events").paginate(logGroupName=f"/aws/lambda/{STACK}-{function}")
        return [event["message"].rstrip() for page in pages for event in page["events"]]

    # ------------------------------------------------------------------------------------------------- steps

    def the_smallest_deployment(self):
        self.deploy(CorsOrigins=f"http://localhost:{self.page_port}")
        zipped = archive_size(ROOT / ".aws-sam/build/ApiFunction")
        print(f"  the function with its model is {zipped / 1e6:.1f} MB zipped")
        for function in ("ApiFunction", "BatchStack/BatchFunction", "LargeStack/LargeFunction", "StreamStack/StreamFunction"):
            parts = ROOT / ".aws-sam/build" / function / "kivu.cdx.json"
            expect(f"the list of crates in {function}", True, parts.is_file())
        if zipped > MAX_ZIPPED and not self.compiled:
            raise Problem(f"expected at most {MAX_ZIPPED} bytes zipped, but found {zipped}")

    def sam_local_serves_the_function(self):
        import local

        routes = local.routes()
        for path in ("$default", "/health"):
            found = [function for (_, route), function in routes.items() if route == path]
            expect(f"the function of {path}", ["ApiFunction"], found)
        response = local.respond()
        if response.get("statusCode") != 200:
            raise Problem(f"expected status 200 from `sam local invoke`, but found {response}")

    def requests_without_a_key_are_rejected(self):
        expect("/health", 200, self.send("GET", "/health")[0])
        status, headers, body = self.send("POST", "/embed", {"inputs": "hello"})
        expect("/embed without a key", 401, status)
        expect("its error", True, json.loads(body)["error"].startswith("expected a key in the header"))
        expect("its challenge", "Bearer", headers.get("www-authenticate"))
        status, _, body = self.send("POST", "/v1/embeddings", {"input": "hello"}, authorization="Bearer kivu_0")
        expect("a wrong key", (401, "invalid_api_key"), (status, json.loads(body)["error"]["code"]))

    def a_new_key_is_accepted(self):
        self.key = self.operate("key", "--kivu", self.kivu, "alice", "--models", "minilm", "--expires", "9999-12-31").split()[-1]
        eventually("a new key", 200, lambda: self.send("GET", "/v1/models", x_api_key=self.key)[0])
        status, headers, body = self.send("POST", "/embed", {"inputs": SECRET_TEXT}, x_api_key=self.key)
        expect("/embed with a key", (200, 384), (status, len(json.loads(body)[0])))
        status, _, body = self.send(
            "POST", "/v1/embeddings", {"input": SECRET_TEXT, "encoding_format": "base64"}, authorization=f"Bearer {self.key}"
        )
        expect("OpenAI's route", (200, 384 * 4), (status, len(base64.b64decode(json.loads(body)["data"][0]["embedding"]))))
        expect("the key in the wrong header", 401, self.send("POST", "/embed", {"inputs": "a"}, api_key=self.key)[0])

    def pages_of_allowed_origins_may_call_the_api(self):
        python, chromium = os.environ.get("TEST_PAGE"), os.environ.get("TEST_CHROMIUM")
        if not python or not chromium:
            print("  skipped: TEST_PAGE or TEST_CHROMIUM is not set")
            return
        host = self.outputs["Url"].removeprefix("https://").split(".")[0]
        url = f"http://{host}.execute-api.localhost:{self.emulator.port}/v1/embeddings"
        found = lambda port: self.run(python, "tests/deploy/browser.py", chromium, port, url, self.key).strip()
        expect("a request of a page", "200 true", found(self.page_port))
        expect("a request of a page of another origin", "TypeError: Failed to fetch", found(free_ports(1)[0]))

    def binary_bodies_pass_unchanged(self):
        tensor = SECRET_TEXT.encode()
        tensor = len(tensor).to_bytes(4, "little") + tensor
        head = json.dumps({
            "inputs": [{"name": "TEXT", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(tensor)}}],
            "outputs": [{"name": "embedding", "parameters": {"binary_data": True}}],
        }).encode()
        status, headers, body = self.send(
            "POST", "/v2/models/minilm/infer", head + tensor, x_api_key=self.key,
            inference_header_content_length=str(len(head)),
        )
        expect("KServe's bytes", 200, status)
        expect("the vector's bytes", 384 * 4, len(body) - int(headers["inference-header-content-length"]))

    def oversized_bodies_are_rejected(self):
        status, _, _ = self.send("POST", "/embed", b"[" + b" " * 7_000_000, x_api_key=self.key)
        expect("7 MB", 413, status)

    def a_revoked_key_is_rejected(self):
        self.emulator.client("secretsmanager").put_secret_value(SecretId=self.outputs["Keys"], SecretString="# none\n")

        def closed():
            # An unknown key makes the function read the secret again, before the five minutes are over.
            self.send("GET", "/v1/models", x_api_key="kivu_0")
            return self.send("GET", "/v1/models", x_api_key=self.key)[0]

        eventually("the revoked key", 401, closed)

    def an_unreadable_secret_is_a_server_error(self):
        secrets = self.emulator.client("secretsmanager")
        secrets.put_secret_value(SecretId=self.outputs["Keys"], SecretString="not a list of keys\n")
        self.new_version()
        status, headers, body = self.send("POST", "/v1/embeddings", {"input": "a"}, x_api_key=self.key)
        expect("keys that cannot be read", (503, "1"), (status, headers.get("retry-after")))
        for internal in (b"secret", b"arn:", b"Keys"):
            if internal in body:
                raise Problem(f"expected no internal names in a response, but found {body!r}")
        secrets.delete_secret(SecretId=self.outputs["Keys"], ForceDeleteWithoutRecovery=True)
        time.sleep(1)
        expect("a secret that is missing", 503, self.send("POST", "/embed", {"inputs": "a"}, x_api_key=self.key)[0])
        expect("/health without keys", 200, self.send("GET", "/health")[0])

    def new_version(self):
        """Publishes a version, whose environments have no cached keys, faster than `make deploy` with a changed parameter."""
        functions, name = self.emulator.client("lambda"), self.outputs["Function"]
        functions.update_function_configuration(FunctionName=name, MemorySize=1024)
        version = functions.publish_version(FunctionName=name)["Version"]
        functions.update_alias(FunctionName=name, Name="live", FunctionVersion=version)

    def a_rollback_returns_to_the_previous_version(self):
        functions, name = self.emulator.client("lambda"), self.outputs["Function"]
        version = lambda: int(functions.get_alias(FunctionName=name, Name="live")["FunctionVersion"])
        before = version()
        self.operate("rollback")
        expect("the version after a rollback", before - 1, version())

    def the_log_has_requests_but_no_texts(self):
        log = "\n".join(self.log_of("api")) + self.emulator.log.read_text(errors="replace")
        for kept in (SECRET_TEXT, self.key):
            if kept in log:
                raise Problem(f"expected no texts or keys in the log, but found {kept!r}")
        for entry in ('"caller":"alice"', '"refused":"unknown key"', "cannot read the keys", '"CloudWatchMetrics"', '"Tokens"'):
            if entry not in log:
                raise Problem(f"expected {entry} in the log, but found no such line")

    def files_are_processed_with_a_pushed_model(self):
        place = f"s3://{self.outputs['ModelBucket']}/models"
        self.run(self.kivu, "push", BUNDLE, place)
        self.deploy(Models=f"{place}/minilm", Batch="yes")
        self.upload("in/rows.jsonl", [{"id": number, "text": SECRET_TEXT} for number in range(20)])
        found = self.output("out/rows.jsonl")
        expect("the rows of a file", list(range(20)), [row["id"] for row in found])
        expect("their vectors", {384}, {len(row["embedding"]) for row in found})

    def an_invalid_message_ends_in_the_dead_letter_queue(self):
        sqs = self.emulator.client("sqs")
        # The deployed timeout is 90 minutes.
        sqs.set_queue_attributes(QueueUrl=self.outputs["Uploads"], Attributes={"VisibilityTimeout": "1"})
        sqs.send_message(QueueUrl=self.outputs["Uploads"], MessageBody="no event")

        def dead():
            found = sqs.receive_message(QueueUrl=self.outputs["DeadLetters"], VisibilityTimeout=0).get("Messages", [])
            return [message["Body"] for message in found]

        eventually("the dead letters", ["no event"], dead, within_s=60)
        expect("redrive", "1 messages are in the queue again, 0 executions are resumed", self.operate("redrive").splitlines()[-1])
        eventually("the dead letters after another try", ["no event"], dead, within_s=60)

    def a_large_file_is_processed_by_the_state_machine(self):
        if not PATCHES.is_file():
            print(f"  skipped: {PATCHES} is not there")
            return
        self.upload("large/rows.jsonl", [{"id": number, "text": f"text {number}"} for number in range(1503)])
        found = self.output("out/large/rows.jsonl")
        expect("the rows of a large file", list(range(1503)), [row["id"] for row in found])
        states = self.emulator.client("stepfunctions")
        runs = lambda: [run["status"] for run in states.list_executions(stateMachineArn=self.outputs["LargeFiles"])["executions"]]
        eventually("the runs of the state machine", ["SUCCEEDED"], runs)
        # Only the state machine processes it: the log has no such job from the queue.
        done = [line for line in self.log_of("batch") if '"message":"done"' in line]
        expect("files done by the queue", (1, 0), (sum("/in/" in line for line in done), sum("/large/" in line for line in done)))

    def upload(self, key, rows):
        body = "".join(json.dumps(row) + "\n" for row in rows).encode()
        self.emulator.client("s3").put_object(Bucket=self.outputs["DataBucket"], Key=key, Body=body)

    def output(self, key, within_s=90):
        """The rows of an output file, once it exists."""
        s3, end = self.emulator.client("s3"), time.monotonic() + within_s
        while True:
            try:
                body = s3.get_object(Bucket=self.outputs["DataBucket"], Key=key)["Body"].read()
                return [json.loads(line) for line in body.splitlines()]
            except s3.exceptions.NoSuchKey:
                if time.monotonic() > end:
                    raise Problem(f"expected {key}, but found nothing within {within_s} s") from None
                time.sleep(0.5)

    def status_and_logs_are_shown(self):
        said = self.operate("status")
        for part in (self.outputs["Url"], self.outputs["DataBucket"], f"{STACK}-", "messages in Uploads", "messages in DeadLetters"):
            if part not in said:
                raise Problem(f"expected {part} from `status`, but found {said}")
        expect("the followed log", True, self.follows(b'"message":"done"'))

    def follows(self, expected, within_s=120):
        """Whether `logs` prints a line with `expected` before it is interrupted."""
        command = ["deploy/operate", "--stack", STACK, "logs"]
        environment = os.environ | self.emulator.environment
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, start_new_session=True,
            # The parent process may ignore this signal.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        interrupt = lambda: os.killpg(process.pid, signal.SIGINT)
        timer = threading.Timer(within_s, interrupt)
        timer.start()
        found = any(expected in line for line in process.stdout)
        timer.cancel()
        interrupt()
        process.communicate(timeout=10)
        return found

    def the_deployment_is_deleted(self):
        self.operate("undeploy")
        try:
            self.emulator.client("cloudformation").describe_stacks(StackName=STACK)
        except self.emulator.client("cloudformation").exceptions.ClientError:
            return
        raise Problem("expected no deployment after `undeploy`, but found it")

    def steps(self):
        return [
            self.the_smallest_deployment,
            self.sam_local_serves_the_function,
            self.requests_without_a_key_are_rejected,
            self.a_new_key_is_accepted,
            self.pages_of_allowed_origins_may_call_the_api,
            self.binary_bodies_pass_unchanged,
            self.oversized_bodies_are_rejected,
            self.a_revoked_key_is_rejected,
            self.an_unreadable_secret_is_a_server_error,
            self.a_rollback_returns_to_the_previous_version,
            self.the_log_has_requests_but_no_texts,
            self.files_are_processed_with_a_pushed_model,
            self.an_invalid_message_ends_in_the_dead_letter_queue,
            self.a_large_file_is_processed_by_the_state_machine,
            self.status_and_logs_are_shown,
            self.the_deployment_is_deleted,
        ]


def archive_size(folder):
    """The size of a folder's archive, as it is uploaded."""
    import shutil

    with tempfile.TemporaryDirectory() as scratch:
        return Path(shutil.make_archive(f"{scratch}/function", "zip", folder)).stat().st_size


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kivu", type=Path)
    parser.add_argument("--compiled", type=Path, metavar="FUNCTION")
    options = parser.parse_args()
    log = ROOT / ".kivu/emulator.log"
    with Emulator(log) as emulator:
        walk = Walk(emulator, options.kivu, options.compiled)
        try:
            for step in walk.steps():
                started = time.monotonic()
                print(step.__name__.replace("_", " "), flush=True)
                step()
                print(f"  {time.monotonic() - started:.1f} s", flush=True)
        except Problem as problem:
            print(f"error: {problem}\n{log.read_text(errors='replace')[-3000:]}", file=sys.stderr)
            for function in ("api", "batch"):
                with contextlib.suppress(Exception):
                    print("\n".join(walk.log_of(function)[-20:]), file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
