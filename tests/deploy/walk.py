"""Deploys the template to an emulator of AWS and goes through it as a user would.

    python tests/deploy/walk.py KIVU [--compiled FUNCTION]

KIVU is the `kivu` command. What is deployed is what `make deploy` deploys, by the same commands; IAM is enforced, so
that a permission that the template forgets is missed here. The functions are compiled for Lambda, unless FUNCTION names
one of those that cargo has compiled for this machine.
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
import time
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ among the sources

from emulator import PATCHES, Emulator

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / ".kivu/bundles/minilm"
STACK = "walk"
ARCHITECTURE = {"x86_64": "x86_64", "aarch64": "arm64"}[platform.machine()]
SECRET_TEXT = "correcthorsebatterystaple"
MOST_ZIPPED = 45_000_000


class Problem(Exception):
    """What was not as expected, in a sentence."""


def expect(what, expected, found):
    if expected != found:
        raise Problem(f"{what}: expected {expected!r}, but found {found!r}")


def eventually(what, expected, found, within_s=15):
    """Keys are read again every few seconds at the soonest."""
    end = time.monotonic() + within_s
    while (last := found()) != expected and time.monotonic() < end:
        time.sleep(0.5)
    expect(what, expected, last)


class Walk:
    def __init__(self, emulator, kivu, compiled):
        self.emulator, self.kivu, self.compiled = emulator, kivu, compiled
        self.outputs = {}
        self.key = None

    def run(self, *command, **variables):
        """A command of the user's, spoken to the emulator."""
        environment = os.environ | self.emulator.environment | {"SAM_CLI_TELEMETRY": "0"} | variables
        # A `make` around this one has no say in what a user makes.
        environment = {name: value for name, value in environment.items() if not name.startswith(("MAKE", "MFLAGS"))}
        done = subprocess.run(list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise Problem(f"{' '.join(map(str, command))}\n{(done.stdout + done.stderr)[-4000:]}")
        return done.stdout

    def make(self, target, *variables):
        """What a user makes, but for the program, which is there."""
        given = ["-o", "program", f"KIVU={self.kivu}", f"STACK={STACK}", f"ARCHITECTURE={ARCHITECTURE}"]
        if self.compiled:
            given.append(f"CARGO_LAMBDA={ROOT}/tests/deploy/compiled")
            return self.run("make", *given, target, *variables, COMPILED=str(self.compiled.parent))
        return self.run("make", *given, target, *variables)

    def deploy(self, **parameters):
        given = " ".join(f"{name}={value}" for name, value in parameters.items())
        self.make("deploy", f"PARAMETERS={given}")
        stack = self.emulator.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"][0]
        self.outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}

    def ask(self, method, path, body=None, **headers):
        """Asks over the HTTP API; status, headers and body of the answer."""
        host = self.outputs["Url"].removeprefix("https://").split(".")[0]
        connection = http.client.HTTPConnection("127.0.0.1", self.emulator.port, timeout=60)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers |= {"host": f"{host}.execute-api.localhost:{self.emulator.port}", "content-type": "application/json"}
        connection.request(method, path, body if body is None or isinstance(body, bytes) else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def log_of(self, function):
        """What the function has logged, line by line."""
        logs = self.emulator.client("logs")
        pages = logs.get_paginator("filter_log_events").paginate(logGroupName=f"/aws/lambda/{STACK}-{function}")
        return [event["message"].rstrip() for page in pages for event in page["events"]]

    # ------------------------------------------------------------------------------------------------- the way

    def the_smallest_deployment(self):
        self.deploy()
        zipped = archive_size(ROOT / ".aws-sam/build/ApiFunction")
        print(f"  the function with its model is {zipped / 1e6:.1f} MB zipped")
        if zipped > MOST_ZIPPED and not self.compiled:
            raise Problem(f"expected at most {MOST_ZIPPED} bytes zipped, but found {zipped}")

    def nobody_gets_in_without_a_key(self):
        expect("/health", 200, self.ask("GET", "/health")[0])
        status, headers, body = self.ask("POST", "/embed", {"inputs": "hello"})
        expect("/embed without a key", (401, b""), (status, body))
        expect("its challenge", "Bearer", headers.get("www-authenticate"))
        status, _, body = self.ask("POST", "/v1/embeddings", {"input": "hello"}, authorization="Bearer kivu_0")
        expect("a wrong key", (401, "invalid_api_key"), (status, json.loads(body)["error"]["code"]))

    def a_key_opens(self):
        self.key = self.make("key", "NAME=alice").split()[-1]
        eventually("a new key", 200, lambda: self.ask("GET", "/v1/models", x_api_key=self.key)[0])
        status, headers, body = self.ask("POST", "/embed", {"inputs": SECRET_TEXT}, x_api_key=self.key)
        expect("/embed with a key", (200, 384), (status, len(json.loads(body)[0])))
        status, _, body = self.ask(
            "POST", "/v1/embeddings", {"input": SECRET_TEXT, "encoding_format": "base64"}, authorization=f"Bearer {self.key}"
        )
        expect("OpenAI's route", (200, 384 * 4), (status, len(base64.b64decode(json.loads(body)["data"][0]["embedding"]))))
        expect("the key in the wrong header", 401, self.ask("POST", "/embed", {"inputs": "a"}, api_key=self.key)[0])

    def bytes_pass_both_ways(self):
        tensor = SECRET_TEXT.encode()
        tensor = len(tensor).to_bytes(4, "little") + tensor
        head = json.dumps({
            "inputs": [{"name": "TEXT", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(tensor)}}],
            "outputs": [{"name": "embedding", "parameters": {"binary_data": True}}],
        }).encode()
        status, headers, body = self.ask(
            "POST", "/v2/models/minilm/infer", head + tensor, x_api_key=self.key,
            inference_header_content_length=str(len(head)),
        )
        expect("KServe's bytes", 200, status)
        expect("the vector's bytes", 384 * 4, len(body) - int(headers["inference-header-content-length"]))

    def bodies_that_are_too_long_are_refused(self):
        status, _, _ = self.ask("POST", "/embed", b"[" + b" " * 7_000_000, x_api_key=self.key)
        expect("7 MB", 413, status)

    def a_key_can_be_taken_back(self):
        self.emulator.client("secretsmanager").put_secret_value(SecretId=self.outputs["Keys"], SecretString="# nobody\n")

        def closed():
            # A stranger's key has the secret read again, sooner than the five minutes that it would take.
            self.ask("GET", "/v1/models", x_api_key="kivu_0")
            return self.ask("GET", "/v1/models", x_api_key=self.key)[0]

        eventually("the key that was taken back", 401, closed)

    def keys_that_cannot_be_read_are_told_as_our_fault(self):
        secrets = self.emulator.client("secretsmanager")
        secrets.put_secret_value(SecretId=self.outputs["Keys"], SecretString="this is no list of keys\n")
        self.new_version()
        status, headers, body = self.ask("POST", "/v1/embeddings", {"input": "a"}, x_api_key=self.key)
        expect("keys that cannot be read", (503, "1"), (status, headers.get("retry-after")))
        for told in (b"secret", b"arn:", b"Keys"):
            if told in body:
                raise Problem(f"expected nothing of the inside in an answer, but found {body!r}")
        secrets.delete_secret(SecretId=self.outputs["Keys"], ForceDeleteWithoutRecovery=True)
        time.sleep(1)
        expect("a secret that is missing", 503, self.ask("POST", "/embed", {"inputs": "a"}, x_api_key=self.key)[0])
        expect("/health all the same", 200, self.ask("GET", "/health")[0])

    def new_version(self):
        """Another version behind the alias, with environments that know no keys from before.

        On AWS a changed parameter is enough; the emulator does not tell the translator what parameters are.
        """
        functions, name = self.emulator.client("lambda"), self.outputs["Function"]
        functions.update_function_configuration(FunctionName=name, MemorySize=1024)
        version = functions.publish_version(FunctionName=name)["Version"]
        functions.update_alias(FunctionName=name, Name="live", FunctionVersion=version)

    def the_log_tells_what_was_done_and_never_what_was_said(self):
        log = "\n".join(self.log_of("api")) + self.emulator.log.read_text(errors="replace")
        for kept in (SECRET_TEXT, self.key):
            if kept in log:
                raise Problem(f"expected nothing of a request in the log, but found {kept!r}")
        for told in ('"caller":"alice"', '"refused":"unknown key"', "cannot read the keys", '"CloudWatchMetrics"', '"Tokens"'):
            if told not in log:
                raise Problem(f"expected {told} in the log, but found no such line")

    def a_model_is_pushed_and_files_are_answered(self):
        place = f"s3://{self.outputs['ModelBucket']}/models"
        self.run(self.kivu, "push", BUNDLE, place)
        self.deploy(Models=f"{place}/minilm", Batch="yes")
        self.drop("in/rows.jsonl", [{"id": number, "text": SECRET_TEXT} for number in range(20)])
        found = self.answers("out/rows.jsonl")
        expect("the rows of a file", list(range(20)), [row["id"] for row in found])
        expect("their vectors", {384}, {len(row["embedding"]) for row in found})

    def a_message_that_can_never_be_done_is_put_aside(self):
        sqs = self.emulator.client("sqs")
        # As deployed a message comes back after an hour and a half.
        sqs.set_queue_attributes(QueueUrl=self.outputs["Uploads"], Attributes={"VisibilityTimeout": "1"})
        sqs.send_message(QueueUrl=self.outputs["Uploads"], MessageBody="no event")

        def dead():
            found = sqs.receive_message(QueueUrl=self.outputs["DeadLetters"]).get("Messages", [])
            return [message["Body"] for message in found]

        eventually("the dead letters", ["no event"], dead, within_s=60)

    def a_large_file_goes_through_the_state_machine(self):
        if not PATCHES.is_file():
            print(f"  skipped: {PATCHES} is not there")
            return
        self.drop("large/rows.jsonl", [{"id": number, "text": f"text {number}"} for number in range(503)])
        found = self.answers("out/large/rows.jsonl")
        expect("the rows of a large file", list(range(503)), [row["id"] for row in found])
        states = self.emulator.client("stepfunctions")
        runs = lambda: [run["status"] for run in states.list_executions(stateMachineArn=self.outputs["LargeFiles"])["executions"]]
        eventually("the runs of the state machine", ["SUCCEEDED"], runs)
        # The queue leaves it alone: its jobs say so in the log.
        done = [line for line in self.log_of("batch") if '"message":"done"' in line]
        expect("files done by the queue", (1, 0), (sum("/in/" in line for line in done), sum("/large/" in line for line in done)))

    def drop(self, key, rows):
        body = "".join(json.dumps(row) + "\n" for row in rows).encode()
        self.emulator.client("s3").put_object(Bucket=self.outputs["DataBucket"], Key=key, Body=body)

    def answers(self, key, within_s=90):
        """The rows of an output, once it is there."""
        s3, end = self.emulator.client("s3"), time.monotonic() + within_s
        while True:
            try:
                body = s3.get_object(Bucket=self.outputs["DataBucket"], Key=key)["Body"].read()
                return [json.loads(line) for line in body.splitlines()]
            except s3.exceptions.NoSuchKey:
                if time.monotonic() > end:
                    raise Problem(f"expected {key}, but found nothing within {within_s} s") from None
                time.sleep(0.5)

    def it_says_how_it_is(self):
        said = self.make("status")
        for told in (self.outputs["Url"], self.outputs["DataBucket"], f"{STACK}-", "messages in Uploads", "messages in DeadLetters"):
            if told not in said:
                raise Problem(f"expected {told} from `make status`, but found {said}")
        expect("the log as it is written", True, '"message":"done"' in self.logs())

    def logs(self, within_s=10):
        """What `make logs` says until somebody interrupts it."""
        command = ["make", "logs", f"STACK={STACK}"]
        environment = os.environ | self.emulator.environment
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, start_new_session=True,
            # Whoever started this may have it ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        time.sleep(within_s)
        os.killpg(process.pid, signal.SIGINT)
        return process.communicate(timeout=within_s)[0].decode()

    def it_can_be_removed(self):
        self.make("undeploy")
        try:
            self.emulator.client("cloudformation").describe_stacks(StackName=STACK)
        except self.emulator.client("cloudformation").exceptions.ClientError:
            return
        raise Problem("expected no deployment after `make undeploy`, but found it")

    def way(self):
        return [
            self.the_smallest_deployment,
            self.nobody_gets_in_without_a_key,
            self.a_key_opens,
            self.bytes_pass_both_ways,
            self.bodies_that_are_too_long_are_refused,
            self.a_key_can_be_taken_back,
            self.keys_that_cannot_be_read_are_told_as_our_fault,
            self.the_log_tells_what_was_done_and_never_what_was_said,
            self.a_model_is_pushed_and_files_are_answered,
            self.a_message_that_can_never_be_done_is_put_aside,
            self.a_large_file_goes_through_the_state_machine,
            self.it_says_how_it_is,
            self.it_can_be_removed,
        ]


def archive_size(folder):
    """How large the archive of a folder is, as it is uploaded."""
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
            for step in walk.way():
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
