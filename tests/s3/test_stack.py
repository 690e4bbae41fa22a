"""The function with queues, notifications and state machines, in an emulator.

    TEST_BATCH=… TEST_BUNDLE=… python tests/s3/test_stack.py

A file outside of the repository, ../shared/tools/ms_patched.py, adds two features of a Distributed Map that the emulator
lacks: batches of items and the writing of results. Without it, the tests of the state machine are skipped.
"""

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
import zipfile
from pathlib import Path

import pyarrow
import pyarrow.parquet

import harness
from harness import HOST, client, wait_for
from ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = Path(os.environ["TEST_BUNDLE"])
PATCHED = next((path for path in (ROOT.parent / "shared/tools/ms_patched.py", Path(os.environ.get("TEST_PATCHED", "")))
                if path.is_file()), None)
BUCKET = "files"
ROLE = "arn:aws:iam::000000000000:role/role"


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def parsed(text):
    return [json.loads(line) for line in text.decode().splitlines()]


class Stack(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        [port] = free_ports(1)
        cls.endpoint = f"http://{HOST}:{port}"
        cls.log = tempfile.NamedTemporaryFile(prefix="kivu-ministack-", suffix=".log")
        command = [sys.executable, str(PATCHED)] if PATCHED else [str(Path(sys.executable).parent / "ministack")]
        # Its functions are local programs, which use this address too.
        environment = os.environ | {"GATEWAY_PORT": str(port), "MINISTACK_HOST": "localhost", "EDGE_PORT": str(port)}
        cls.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=cls.log,
                                       stderr=subprocess.STDOUT, start_new_session=True)
        cls.s3, cls.sqs = client("s3", cls.endpoint), client("sqs", cls.endpoint)
        cls.functions, cls.states = client("lambda", cls.endpoint), client("stepfunctions", cls.endpoint)
        wait_for("the emulator", lambda: cls.s3.create_bucket(Bucket=BUCKET), 30)
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as target:
            about = zipfile.ZipInfo("bootstrap")
            about.external_attr = 0o755 << 16
            target.writestr(about, Path(os.environ["TEST_BATCH"]).read_bytes())
        cls.function = cls.functions.create_function(
            FunctionName="batch", Runtime="provided.al2023", Handler="bootstrap", Role=ROLE, Timeout=60,
            MemorySize=1769, Code={"ZipFile": archive.getvalue()},
            Environment={"Variables": {
                "KIVU_MODELS": str(BUNDLE), "KIVU_ONNXRUNTIME": os.environ["TEST_ONNXRUNTIME"],
                "AWS_ENDPOINT_URL": cls.endpoint, "AWS_EC2_METADATA_DISABLED": "true", "KIVU_BATCH__MARGIN_MS": "1000",
            }},
        )["FunctionArn"]

    @classmethod
    def tearDownClass(cls):
        os.killpg(cls.process.pid, signal.SIGKILL)
        cls.process.wait()

    def get(self, key):
        return self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()

    def keys(self, prefix):
        return [item["Key"] for item in self.s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])]

    def wait_for_rows(self, key, count):
        found = wait_for(key, lambda: parsed(self.get(key)), 60)
        self.assertEqual([row["id"] for row in found], list(range(count)))
        return found

    def test_a_file_that_is_dropped_comes_back_through_a_queue(self):
        dead = self.sqs.create_queue(QueueName="dead")["QueueUrl"]
        arn = lambda url: self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn(dead), "maxReceiveCount": "2"})
        queue = self.sqs.create_queue(QueueName="uploads", Attributes={"VisibilityTimeout": "60", "RedrivePolicy": policy})["QueueUrl"]
        self.functions.create_event_source_mapping(
            EventSourceArn=arn(queue), FunctionName="batch", BatchSize=5, FunctionResponseTypes=["ReportBatchItemFailures"])
        # Otherwise, other tests' files would be done before their state machine begins.
        self.addCleanup(self.s3.put_bucket_notification_configuration, Bucket=BUCKET, NotificationConfiguration={})
        self.s3.put_bucket_notification_configuration(Bucket=BUCKET, NotificationConfiguration={"QueueConfigurations": [{
            "QueueArn": arn(queue), "Events": ["s3:ObjectCreated:*"],
            "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "in/"}]}}}]})
        rows = [{"id": number, "text": f"text {number}"} for number in range(20)]
        for name in ("plain.jsonl", "a b+c é.jsonl", "100%.jsonl"):
            self.s3.put_object(Bucket=BUCKET, Key=f"in/{name}", Body=lines(rows))
            found = self.wait_for_rows(f"out/{name}", 20)
            self.assertIn("embedding", found[0])
        # A message that always fails goes to the dead-letter queue, and does not delay others. A file whose job takes longer
        # than this timeout would go there too.
        self.sqs.set_queue_attributes(QueueUrl=queue, Attributes={"VisibilityTimeout": "3"})
        self.sqs.send_message(QueueUrl=queue, MessageBody="no event")
        self.s3.put_object(Bucket=BUCKET, Key="in/after.jsonl", Body=lines(rows))
        self.wait_for_rows("out/after.jsonl", 20)
        letters = wait_for("the dead letter", lambda: self.sqs.receive_message(QueueUrl=dead, MaxNumberOfMessages=10).get("Messages"))
        self.assertEqual([letter["Body"] for letter in letters], ["no event"])

    def run_machine(self, name, event, definition=None):
        text = (ROOT / "functions/batch/large.asl.json").read_text()
        for variable, value in {"BatchFunction": self.function, "Bucket": BUCKET, "MaxConcurrency": "4"}.items():
            text = text.replace(f"${{{variable}}}", value)
        self.assertNotIn("${", text)
        machine = self.states.create_state_machine(
            name=name, definition=(definition or (lambda text: text))(text), roleArn=ROLE)["stateMachineArn"]
        execution = self.states.start_execution(stateMachineArn=machine, name=f"{name}-1", input=json.dumps(event))
        about = lambda: self.states.describe_execution(executionArn=execution["executionArn"])
        wait_for(name, lambda: about()["status"] != "RUNNING", 120)
        return about()

    @unittest.skipUnless(PATCHED, "skipped: ../shared/tools/ms_patched.py is not there")
    def test_a_large_file_is_spread_and_joined(self):
        rows = [{"id": number, "text": f"text {number}"} for number in range(503)]
        table = "zeta,text,alpha\n" + "".join(f'{number},"text, {number}\n""b""\\",x\n' for number in range(300)) + "more,a,b,c,d\nfew\n"
        parquet = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), parquet, row_group_size=70)
        self.s3.put_object(Bucket=BUCKET, Key="big/x", Body=b"")
        for number, (name, contents, count) in enumerate([
            ("large é.jsonl", lines(rows), 503), ("large.csv", table.encode(), 302), ("large.parquet", parquet.getvalue(), 503),
            ("large.csv.gz", gzip.compress(table.encode()), 302),
        ]):
            with self.subTest(name):
                self.s3.put_object(Bucket=BUCKET, Key=f"in/{name}", Body=contents)
                expected, whole = self.batch(name, contents)
                done = self.run_machine(f"spread-{number}", {"key": f"in/{name}", "rows": 50})
                self.assertEqual(done["status"], "SUCCEEDED", done)
                self.assertEqual(json.loads(done["output"])["rows"], count)
                self.assertEqual(self.get(f"out/{name}"), expected)
                report = json.loads(self.get(f"out/{name}.report.json"))
                self.assertEqual((report["rows"], report["status"]), (count, "finished"))
                self.assertEqual((report["errors"], report["samples"]), (whole["errors"], whole["samples"]))
        self.assertEqual([key for key in self.keys("out/large") if "parts" in key or "checkpoint" in key], [])

    def batch(self, name, contents):
        """The output of `kivu batch` and its report."""
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, name), Path(folder, f"out-{name}")
            source.write_bytes(contents)
            harness.kivu(self.endpoint, "batch", source, target, "--model", BUNDLE,
                         env={"KIVU_ONNXRUNTIME": os.environ["TEST_ONNXRUNTIME"], "KIVU_HOME": folder})
            return target.read_bytes(), json.loads(Path(f"{target}.report.json").read_text())

    @unittest.skipUnless(PATCHED, "skipped: ../shared/tools/ms_patched.py is not there")
    def test_ranges_that_fail_leave_rows_with_errors_as_far_as_that_is_tolerated(self):
        rows = [{"id": number, "text": f"text {number}"} for number in range(320)]
        self.s3.put_object(Bucket=BUCKET, Key="in/partly.jsonl", Body=lines(rows))
        # The function for the range with row 128 does not exist.
        def fail(text):
            definition = json.loads(text)
            answer = definition["States"]["Ranges"]["ItemProcessor"]["States"]
            answer["Broken"] = {"Type": "Fail", "Error": "Made.ToFail", "Cause": "for the test"}
            answer["Which"] = {"Type": "Choice", "Default": "Answer",
                               "Choices": [{"Variable": "$.range.first", "NumericEquals": 128, "Next": "Broken"}]}
            definition["States"]["Ranges"]["ItemProcessor"]["StartAt"] = "Which"
            return json.dumps(definition)
        done = self.run_machine("refused", {"key": "in/partly.jsonl", "rows": 64, "tolerated": 10}, fail)
        self.assertEqual(done["status"], "FAILED", done)
        done = self.run_machine("tolerated", {"key": "in/partly.jsonl", "rows": 64, "tolerated": 20}, fail)
        self.assertEqual(done["status"], "SUCCEEDED", done)
        found = parsed(self.get("out/partly.jsonl"))
        self.assertEqual([row["id"] for row in found], list(range(320)))
        self.assertEqual([row["id"] for row in found if "error" in row], list(range(128, 192)))
        report = json.loads(self.get("out/partly.jsonl.report.json"))
        self.assertEqual((report["rows"], report["errors"]), (320, {"model": 64}))
        self.assertIn("Made.ToFail", report["samples"][0]["message"])

    @unittest.skipUnless(PATCHED, "skipped: ../shared/tools/ms_patched.py is not there")
    def test_every_file_below_a_prefix(self):
        rows = [{"id": number, "text": f"text {number}"} for number in range(10)]
        for name in ("a", "b", "c d"):
            self.s3.put_object(Bucket=BUCKET, Key=f"in/folder/{name}.jsonl", Body=lines(rows))
        done = self.run_machine("folder", {"key": "in/folder/"})
        self.assertEqual(done["status"], "SUCCEEDED", done)
        for name in ("a", "b", "c d"):
            self.assertEqual(len(parsed(self.get(f"out/folder/{name}.jsonl"))), 10)
        self.s3.put_object(Bucket=BUCKET, Key="in/x.zip", Body=b"PK\x03\x04" + b"x" * 99)
        self.assertEqual(self.run_machine("unknown", {"key": "in/x.zip"})["error"], "Kivu.Failed")
        self.assertIn("a ZIP archive", json.loads(self.get("out/x.zip.report.json"))["error"])
        self.assertEqual(self.run_machine("missing", {"key": "in/missing.csv"})["status"], "FAILED")


if __name__ == "__main__":
    unittest.main(verbosity=2)
