"""Batch jobs and their function, with a real S3 server.

    TEST_KIVU=… TEST_BATCH=… TEST_BUNDLE=… TEST_CLASSIFIER=… python tests/s3/test_batch.py
"""

import contextlib
import csv
import gzip
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import pyarrow
import pyarrow.parquet

import box
import harness
from harness import BUCKET, Faults, Function, Queue, Weed, event_bridge, kivu, s3_event, sns, sns_in_queue, sqs, wait_for

sys.path.append(str(Path(__file__).parents[1] / "telemetry"))
from collector import Collector  # noqa: E402

BUNDLE = Path(os.environ["TEST_BUNDLE"])
CLASSIFIER = Path(os.environ["TEST_CLASSIFIER"])
VERSIONED = "kivu-versions"
KILLS = int(os.environ.get("TEST_KILLS", "100"))


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def rows(count, start=0):
    return [{"id": number, "text": f"text number {number} " + "word " * (number % 7)} for number in range(start, start + count)]


def parsed(text):
    return [json.loads(line) for line in text.decode().splitlines()]


class Base(unittest.TestCase):
    maxDiff = 2000

    @classmethod
    def setUpClass(cls):
        cls.weed = Weed()
        cls.folder = Path(tempfile.mkdtemp(prefix="kivu-batch-"))
        cls.env = {"KIVU_ONNXRUNTIME": os.environ["TEST_ONNXRUNTIME"], "KIVU_HOME": str(cls.folder / "home")}
        cls.function = Function(cls.weed.endpoint, [BUNDLE, CLASSIFIER], cls.env)

    @classmethod
    def tearDownClass(cls):
        cls.function.stop()
        cls.weed.stop()
        shutil.rmtree(cls.folder)

    def report(self, key):
        return json.loads(self.weed.get(f"{key}.report.json"))

    def local(self, name, contents, *arguments, check=True, model=CLASSIFIER):
        """Runs a job on local files and returns the output, the report and the process."""
        source, target = self.folder / name, self.folder / f"out-{name}"
        source.write_bytes(contents)
        target.unlink(missing_ok=True)
        done = kivu(self.weed.endpoint, "batch", source, target, "--model", model, *arguments, env=self.env, check=check)
        report = Path(f"{target}.report.json")
        return (target.read_bytes() if target.exists() else None,
                json.loads(report.read_text()) if report.exists() else None, done)


class Files(Base):
    """Valid and invalid files."""

    def test_json_lines_keep_what_they_hold(self):
        source = '{"text": "ä \\u00e9", "n": 1.50, "deep": {"a": [1, 2]}}\n{ "n":2,"text":"two" }\n'.encode()
        output, report, _ = self.local("a.jsonl", source)
        first, second = output.decode().splitlines()
        self.assertTrue(first.startswith('{"text": "ä \\u00e9", "n": 1.50, "deep": {"a": [1, 2]},"label":'), first)
        self.assertTrue(second.startswith('{ "n":2,"text":"two","label":'), second)
        self.assertEqual((report["rows"], report["errors"], report["status"]), (2, {}, "finished"))
        self.assertEqual(report["task"], "text-classification")
        self.assertGreater(report["tokens"], 0)

    def test_every_form_and_packing_gives_the_same(self):
        count = 300
        expected = parsed(self.local("b.jsonl", lines(rows(count)), model=BUNDLE)[0])
        vectors = [row["embedding"] for row in expected]
        packed = self.local("b.jsonl.gz", gzip.compress(lines(rows(count))), model=BUNDLE)[0]
        self.assertEqual(parsed(gzip.decompress(packed)), expected)
        text = io.StringIO()
        writer = csv.DictWriter(text, ["id", "text"])
        writer.writeheader()
        writer.writerows(rows(count))
        output = self.local("b.csv", text.getvalue().encode(), model=BUNDLE)[0]
        read = list(csv.DictReader(io.StringIO(output.decode())))
        self.assertEqual([json.loads(row["embedding"]) for row in read], vectors)
        self.assertEqual([row["text"] for row in read], [row["text"] for row in rows(count)])
        target = self.folder / "b.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows(count)), target, row_group_size=70)
        output = self.local("c.parquet", target.read_bytes(), model=BUNDLE)[0]
        table = pyarrow.parquet.read_table(io.BytesIO(output))
        self.assertEqual(table.column_names, ["id", "text", "embedding", "error"])
        self.assertEqual(table["id"].to_pylist(), list(range(count)))
        for found, vector in zip(table["embedding"].to_pylist(), vectors):
            self.assertLess(max(abs(a - b) for a, b in zip(found, vector)), 1e-7)

    def test_zstd(self):
        packed = pyarrow.compress(lines(rows(50)), "zstd", asbytes=True)
        output = self.local("z.jsonl.zst", packed)[0]
        with pyarrow.input_stream(io.BytesIO(output), compression="zstd") as unpacked:
            self.assertEqual([row["id"] for row in parsed(unpacked.read())], list(range(50)))

    def test_a_bad_row_has_its_error_and_stops_no_other(self):
        good = lines(rows(6))
        source = good + b'{"text": "broken", "id": 7\n' + lines([{"id": 8}, {"id": 9, "text": None}, {"id": 10, "text": ""},
                                                               {"id": 11, "text": 5}, {"id": 12, "text": "last"}])
        source += '{"id": 13, "text": "caf\u00e9"}\n'.encode("cp1252") + b"[1]\n"
        output, report, _ = self.local("bad.jsonl", source)
        found = parsed(output)
        self.assertEqual(len(found), 14)
        self.assertEqual([row.get("id") for row in found[:6]], list(range(6)))
        self.assertEqual(found[6]["input"], '{"text": "broken", "id": 7')
        self.assertIn("expected a JSON object", found[6]["error"])
        self.assertEqual([row["error"] for row in found[7:11]], [
            "expected text in `text`, but found nothing", "expected text in `text`, but found null",
            "expected a text, but found an empty one", "expected text in `text`, but found a number"])
        self.assertIn("label", found[11])
        self.assertIn("expected UTF-8, but found the byte 0xe9", found[12]["error"])
        self.assertIn("input_base64", found[12])
        self.assertEqual((found[13]["input"], "error" in found[13]), ("[1]", True))
        self.assertEqual((report["rows"], report["errors"]), (14, {"row": 3, "text": 4}))
        self.assertEqual([sample["row"] for sample in report["samples"]], [7, 8, 9, 10, 11, 13, 14])

    def test_line_ends_marks_and_empty_lines(self):
        source = b'\xef\xbb\xbf{"text": "a"}\r\n\n{"text": "b"}\n  \r\n{"text": "c"}'
        self.assertEqual([row["text"] for row in parsed(self.local("ends.jsonl", source)[0])], ["a", "b", "c"])
        source = b'\xef\xbb\xbfid;text\r\n1;"a;b"\n2;c\r\n'
        output = self.local("ends.csv", source)[0].decode().splitlines()
        self.assertEqual(output[0], "\ufeffid;text;label;score;error")
        self.assertTrue(output[1].startswith('1;"a;b";'), output)

    def test_csv_rows_of_the_wrong_width_lose_nothing(self):
        source = "id,text\n1,one\n2\n3,three,more\n4,caf\u00e9\n".encode("cp1252")
        output = list(csv.reader(io.StringIO(self.local("wide.csv", source)[0].decode("cp1252"))))
        self.assertEqual(output[2][:2] + output[2][-1:], ["2", "", "expected 2 fields, but found 1"])
        self.assertEqual(output[3][:2] + output[3][-1:], ["3", "three,more", "expected 2 fields, but found 3"])
        self.assertEqual(output[4][1], "caf\u00e9")
        self.assertIn("0xe9", output[4][-1])

    def test_files_that_cannot_be_read_say_why(self):
        cases = {
            "empty.jsonl": (b"", "expected rows, but found an empty file"),
            "no-text.csv": (b"a,b\n1,2\n", "expected a column called `text` or another that is known, but found `a`, `b`"),
            "list.json": (b'[{"text": "a"}]', "expected an object per line, but found a list"),
            "not.parquet": (b"text\nhello\n", "the file is not Parquet, though its name says so"),
            "cut.jsonl.gz": (gzip.compress(lines(rows(5000)))[:-200], "cannot read the input"),
            "torn.parquet": (b"PAR1 and nothing else PAR1", "expected a Parquet file, but found one that cannot be read"),
        }
        table = pyarrow.table({"text": [1, 2], "x": [1.0, 2.0]})
        pyarrow.parquet.write_table(table, self.folder / "types.parquet")
        cases["numbers.parquet"] = ((self.folder / "types.parquet").read_bytes(), "expected texts in the column `text`, but found Int64")
        for name, (contents, message) in cases.items():
            with self.subTest(name):
                output, report, done = self.local(name, contents, check=False)
                self.assertEqual(done.returncode, 1)
                self.assertIn(message, done.stderr)
                self.assertIsNone(output)
                # The others are refused before their first row.
                if name == "cut.jsonl.gz":
                    self.assertEqual(report["status"], "failed")
                    self.assertIn(message, report["error"])
                else:
                    self.assertIsNone(report)

    def test_names_with_a_wrong_compression(self):
        # The name of the output determines the output's compression.
        output = self.local("plain.jsonl.gz", lines(rows(3)))[0]
        self.assertEqual(len(parsed(gzip.decompress(output))), 3)
        output = self.local("packed.jsonl", gzip.compress(lines(rows(3))))[0]
        self.assertEqual(len(parsed(output)), 3)

    def test_a_bomb_and_a_row_of_ten_megabytes(self):
        source = lines([{"id": 1, "text": "long " * 2_000_000}, {"id": 2, "text": "short"}])
        found = parsed(self.local("long.jsonl", source)[0])
        self.assertEqual([("label" in row, len(row["text"])) for row in found], [(True, 10_000_000), (True, 5)])
        output, report, done = self.local("bomb.jsonl.gz", gzip.compress(b"\n" * 10_000_000) * 150, check=False)
        self.assertIn("expected a file that unpacks to at most 400 times its size", done.stderr)
        self.assertEqual((output, report), (None, None))

    def test_a_quote_that_is_never_closed(self):
        source = b'id,text\n1,"never closed\n' + b"2,more\n" * 10_000_000
        done = self.local("quote.csv", source, check=False)[2]
        found = "error: expected rows of at most 67108864 bytes, but found a longer one that begins in line 2\n"
        self.assertIn(f"{found}hint: is a quote never closed?\n", done.stderr)

    def test_invalid_options(self):
        output, _, done = self.local("x.jsonl", lines(rows(1)), "--column", "nothing", check=False)
        self.assertEqual(parsed(output)[0]["error"], "expected text in `nothing`, but found nothing")
        self.assertEqual(done.returncode, 3)
        done = self.local("x.csv", b"text\na\n", "--column", "nothing", check=False)[2]
        self.assertIn("expected a column `nothing`, but found `text`", done.stderr)


class Events(Base):
    """The function with all kinds of events."""

    def put(self, key, contents=None, **more):
        return self.weed.put(key, lines(rows(5)) if contents is None else contents, **more)["ETag"]

    def test_every_kind_of_event_does_the_job(self):
        kinds = {
            "s3": lambda key, etag: s3_event(key, etag),
            "copied": lambda key, etag: s3_event(key, etag, name="ObjectCreated:Copy"),
            "event-bridge": event_bridge,
            "sqs": lambda key, etag: sqs(s3_event(key, etag)),
            "sns": lambda key, etag: sns(s3_event(key, etag)),
            "sns-sqs": lambda key, etag: sqs(sns_in_queue(s3_event(key, etag))),
            "event-bridge-sqs": lambda key, etag: sqs(event_bridge(key, etag)),
        }
        for name, event in kinds.items():
            with self.subTest(name):
                key = f"in/{name}.jsonl"
                answer = self.function.call(event(key, self.put(key)))
                self.assertEqual(answer, {"batchItemFailures": []} if "sqs" in name else {"status": "done"})
                found = parsed(self.weed.get(f"out/{name}.jsonl"))
                self.assertEqual([row["id"] for row in found], list(range(5)))
                self.assertEqual(self.report(f"out/{name}.jsonl")["rows"], 5)

    def test_a_job_belongs_to_its_invocations_trace(self):
        trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
        with Collector() as collector:
            function = Function(self.weed.endpoint, [BUNDLE], self.env | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})
            self.addCleanup(function.stop)
            function.x_ray = f"Root=1-{trace[:8]}-{trace[8:]};Parent={parent};Sampled=1"
            function.call(s3_event("in/traced.jsonl", self.put("in/traced.jsonl")))
            # The function sends its spans before its response.
            (span,) = [span for span in collector.spans if span.name == "batch job"]
            self.assertEqual((span.trace, span.parent), (trace, parent))
            self.assertEqual((span.attributes["kivu.rows"], span.attributes["kivu.status"]), (5, "finished"))
            self.assertEqual(collector.malformed, [])

    def test_keys_of_every_kind(self):
        keys = ["a b.jsonl", "a+b.jsonl", "100%25.jsonl", "é ü/日本.jsonl", "a:b&c=d.jsonl"]
        keys.append("y/" * 506 + "12.jsonl")
        self.assertEqual(len(("in/" + keys[-1]).encode()), 1023)
        for key in keys:
            with self.subTest(key[:20]):
                etag = self.put(f"in/{key}")
                self.function.call(s3_event(f"in/{key}", etag))
                written = f"out/{key}"
                if len(written.encode()) > 1000:
                    written = next(found for found in self.weed.keys("out/y/") if found.endswith(".jsonl"))
                    self.assertTrue([found for found in self.weed.keys("out/y/") if found.endswith(".report.json")])
                self.assertEqual(len(parsed(self.weed.get(written))), 5)

    def test_a_repeat_does_nothing(self):
        event = s3_event("in/repeat.jsonl", self.put("in/repeat.jsonl"))
        self.function.call(event)
        about = lambda: self.weed.s3.head_object(Bucket=BUCKET, Key="out/repeat.jsonl")
        first, report = about(), self.weed.get("out/repeat.jsonl.report.json")
        time.sleep(1.1)
        self.function.call(event)
        self.assertEqual(about()["LastModified"], first["LastModified"])
        self.assertEqual(self.weed.get("out/repeat.jsonl.report.json"), report)
        self.assertEqual([key for key in self.weed.keys("out/") if "checkpoint" in key], [])
        # Other contents are another job, which replaces the output.
        etag = self.put("in/repeat.jsonl", lines(rows(3)))
        self.function.call(event)
        self.assertEqual(len(parsed(self.weed.get("out/repeat.jsonl"))), 5, "the event was about a replaced object")
        self.function.call(s3_event("in/repeat.jsonl", etag))
        self.assertEqual(len(parsed(self.weed.get("out/repeat.jsonl"))), 3)

    def version(self, key, contents):
        """Writes a version in a bucket with versioning, and returns its event."""
        with contextlib.suppress(self.weed.s3.exceptions.BucketAlreadyOwnedByYou, self.weed.s3.exceptions.BucketAlreadyExists):
            self.weed.s3.create_bucket(Bucket=VERSIONED)
        self.weed.s3.put_bucket_versioning(Bucket=VERSIONED, VersioningConfiguration={"Status": "Enabled"})
        written = self.weed.s3.put_object(Bucket=VERSIONED, Key=key, Body=contents)
        event = s3_event(key, written["ETag"], written["VersionId"])
        event["Records"][0]["s3"]["bucket"]["name"] = VERSIONED
        return event

    def test_late_events_of_older_versions_are_skipped(self):
        get = lambda key: parsed(self.weed.s3.get_object(Bucket=VERSIONED, Key=key)["Body"].read())
        keys = lambda prefix: [item["Key"] for item in self.weed.s3.list_objects_v2(Bucket=VERSIONED, Prefix=prefix).get("Contents", [])]
        events = [self.version("in/versions.jsonl", lines(rows(count))) for count in (5, 3, 3)]
        self.function.call(events[1])
        self.assertEqual(keys("out/versions"), [], "the same contents were written again later")
        for event in (events[2], events[0], events[1]):
            self.function.call(event)
            self.assertEqual(len(get("out/versions.jsonl")), 3)
        self.assertEqual(keys("out/versions"), ["out/versions.jsonl", "out/versions.jsonl.report.json"])
        event = self.version("in/deleted.jsonl", lines(rows(5)))
        self.weed.s3.delete_object(Bucket=VERSIONED, Key="in/deleted.jsonl")
        self.assertEqual(self.function.call(sqs(event)), {"batchItemFailures": []})
        self.assertEqual(keys("out/deleted.jsonl"), [])

    def test_an_older_job_that_ends_last_is_skipped(self):
        """Another function does the newer job before the older one's last part, or before its upload is completed."""
        changes = {"part": "partNumber=", "end": "uploadId="}
        for bucket, put in ((BUCKET, lambda key, contents: s3_event(key, self.put(key, contents))), (VERSIONED, self.version)):
            for moment, what in [("part", "replaced"), ("end", "replaced"), ("part", "deleted")]:
                with self.subTest(f"{bucket}, {what} before the {moment}"):
                    key = f"{what}-{moment}.jsonl"
                    older, faults, done = put(f"in/{key}", lines(rows(5))), Faults(self.weed.endpoint), []

                    def change(request, _):
                        method = "PUT" if moment == "part" else "POST"
                        if done or request.command != method or changes[moment] not in request.path:
                            return
                        done.append(request.path)
                        if what == "deleted":
                            self.weed.s3.delete_object(Bucket=bucket, Key=f"in/{key}")
                        else:
                            self.function.call(put(f"in/{key}", lines(rows(3))))
                    faults.fault = change
                    function = Function(faults.endpoint, [BUNDLE, CLASSIFIER], self.env)
                    try:
                        self.assertEqual(function.call(sqs(older)), {"batchItemFailures": []})
                    finally:
                        function.stop()
                        faults.stop()
                    self.assertEqual(len(done), 1)
                    found = self.weed.s3.list_objects_v2(Bucket=bucket, Prefix=f"out/{key}").get("Contents", [])
                    if what == "deleted":
                        self.assertEqual(found, [])
                    else:
                        self.assertEqual([item["Key"] for item in found], [f"out/{key}", f"out/{key}.report.json"])
                        output = self.weed.s3.get_object(Bucket=bucket, Key=f"out/{key}")["Body"].read()
                        self.assertEqual(len(parsed(output)), 3)
                    uploads = self.weed.s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
                    self.assertNotIn(f"out/{key}", [upload["Key"] for upload in uploads])

    def test_an_object_that_kivu_did_not_write_stays(self):
        self.weed.put("out/mine.jsonl", b"mine")
        self.function.call(s3_event("in/mine.jsonl", self.put("in/mine.jsonl")))
        self.assertEqual(self.weed.get("out/mine.jsonl"), b"mine")
        self.assertIn("was not written by Kivu", self.report("out/mine.jsonl")["error"])
        self.assertEqual([key for key in self.weed.keys("out/mine") if "checkpoint" in key], [])

    def test_files_with_one_output_do_not_replace_it_in_turns(self):
        function = Function(self.weed.endpoint, [BUNDLE], self.env | {"KIVU_BATCH__OUTPUT": f"s3://{BUCKET}/shared/"})
        self.addCleanup(function.stop)
        function.call(s3_event("in/same.jsonl", self.put("in/same.jsonl")))
        event = self.version("in/same.jsonl", lines(rows(3)))
        with self.assertRaisesRegex(RuntimeError, f"it is the output for `s3://{BUCKET}/in/same.jsonl`"):
            function.call(event)
        failures = function.call(sqs(event))["batchItemFailures"]
        self.assertEqual(len(failures), 1)
        self.assertEqual(len(parsed(self.weed.get("shared/same.jsonl"))), 5)
        self.assertEqual(self.report("shared/same.jsonl")["rows"], 5)
        # Nor is its report replaced by a failure's.
        with self.assertRaisesRegex(RuntimeError, "it is the output for"):
            function.call(self.version("in/same.jsonl", b'[{"text": "a"}]'))
        self.assertEqual(self.report("shared/same.jsonl")["rows"], 5)
        self.assertEqual(len(self.weed.keys("shared/")), 2)
        self.weed.s3.delete_object(Bucket=BUCKET, Key="shared/same.jsonl")
        event = self.version("in/same.jsonl", lines(rows(3)))
        function.call(event)
        self.assertEqual(len(parsed(self.weed.get("shared/same.jsonl"))), 3)

    def test_an_object_without_a_size_is_no_empty_one(self):
        faults = Faults(self.weed.endpoint)
        faults.fault = lambda request, _: "size" if request.command == "HEAD" else None
        function = Function(faults.endpoint, [CLASSIFIER], self.env)
        try:
            event = s3_event("in/sizeless.jsonl", self.put("in/sizeless.jsonl", lines(rows(3))))
            with self.assertRaisesRegex(RuntimeError, "Content-Length"):
                function.call(event)
            faults.fault = None
            function.call(event)
            self.assertEqual(len(parsed(self.weed.get("out/sizeless.jsonl"))), 3)
        finally:
            function.stop()
            faults.stop()

    def test_an_object_that_appears_during_a_job_stays(self):
        self.weed.put("in/late.jsonl", lines(rows(300)))
        faults = Faults(self.weed.endpoint)
        job = ["batch", f"s3://{BUCKET}/in/late.jsonl", f"s3://{BUCKET}/out/late.jsonl", "--model", CLASSIFIER]

        def appear(request, _):
            if request.command == "POST" and "uploadId=" in request.path and "late.jsonl" in request.path:
                self.weed.put("out/late.jsonl", b"mine")
        try:
            faults.fault = appear
            refused = kivu(faults.endpoint, *job, env=self.env, check=False)
        finally:
            faults.stop()
        # Before the upload was completed, and then before the job was resumed.
        for process in (refused, kivu(self.weed.endpoint, *job, env=self.env, check=False)):
            self.assertEqual(process.returncode, 1, process.stdout)
            self.assertIn("was not written by Kivu", process.stderr)
            self.assertEqual(self.weed.get("out/late.jsonl"), b"mine")
        # The rows were kept.
        self.weed.s3.delete_object(Bucket=BUCKET, Key="out/late.jsonl")
        seen = []
        faults = Faults(self.weed.endpoint)
        faults.fault = lambda request, _: seen.append(request.path) if "partNumber=" in request.path else None
        try:
            kivu(faults.endpoint, *job, env=self.env)
        finally:
            faults.stop()
        self.assertEqual(seen, [])
        self.assertEqual(len(parsed(self.weed.get("out/late.jsonl"))), 300)
        self.weed.put("out/late.jsonl", b"mine")
        kivu(self.weed.endpoint, *job, "--overwrite", env=self.env)
        self.assertEqual(len(parsed(self.weed.get("out/late.jsonl"))), 300)

    def test_another_setting_is_another_job(self):
        self.weed.put("in/limits.jsonl", lines(rows(50)))
        job = ["batch", f"s3://{BUCKET}/in/limits.jsonl", f"s3://{BUCKET}/out/limits.jsonl", "--model", BUNDLE]

        def run(code=0, **env):
            done = kivu(self.weed.endpoint, *job, env=self.env | env, check=False)
            self.assertEqual(done.returncode, code, done.stderr)
            return done.stdout

        run()
        whole = self.weed.get("out/limits.jsonl")
        self.assertIn("known", run())
        limit = {"KIVU_LIMITS__TOKENS": "4"}
        # Without truncation, every row fails.
        for code, env in ((0, limit), (3, limit | {"KIVU_LIMITS__TRUNCATE": "false"})):
            self.assertNotIn("known", run(code, **env))
            self.assertNotEqual(self.weed.get("out/limits.jsonl"), whole)
            self.assertIn("known", run(**env))
        self.assertIn("but the model takes at most 4", self.weed.get("out/limits.jsonl").decode())
        self.assertNotIn("known", run())
        self.assertEqual(self.weed.get("out/limits.jsonl"), whole)

    def test_a_lost_upload_and_restart_begin_again(self):
        self.weed.put("in/lost.jsonl", lines(rows(5000)))
        job = ["batch", f"s3://{BUCKET}/in/lost.jsonl", f"s3://{BUCKET}/out/lost.jsonl", "--model", CLASSIFIER]
        for arguments, is_lost in (([], True), (["--restart"], False)):
            with self.subTest(arguments):
                self.weed.s3.delete_object(Bucket=BUCKET, Key="out/lost.jsonl")
                faults = Faults(self.weed.endpoint)
                # The job fails when its upload should be completed.
                faults.fault = lambda request, _: "denied" if request.command == "POST" and "uploadId=" in request.path else None
                try:
                    refused = kivu(faults.endpoint, *job, env=self.env, check=False)
                finally:
                    faults.stop()
                self.assertEqual(refused.returncode, 1)
                uploads = self.weed.s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
                [upload] = [upload for upload in uploads if upload["Key"] == "out/lost.jsonl"]
                if is_lost:
                    self.weed.s3.abort_multipart_upload(Bucket=BUCKET, Key="out/lost.jsonl", UploadId=upload["UploadId"])
                seen = []
                faults = Faults(self.weed.endpoint)
                faults.fault = lambda request, _: seen.append(request.path) if "partNumber=" in request.path else None
                try:
                    kivu(faults.endpoint, *job, *arguments, env=self.env)
                finally:
                    faults.stop()
                self.assertTrue(seen)
                self.assertEqual([row["id"] for row in parsed(self.weed.get("out/lost.jsonl"))], list(range(5000)))
                self.assertFalse([key for key in self.weed.keys("out/lost") if "checkpoint" in key])

    def test_a_table_larger_than_a_part(self):
        """Pages of Parquet are compressed when they are complete: a writer counts more bytes than it writes."""
        generator = random.Random(2)
        table = pyarrow.Table.from_pylist([row | {"noise": generator.randbytes(1500).hex()} for row in rows(17_000)])
        pyarrow.parquet.write_table(table, self.folder / "parts.parquet")
        self.weed.put("in/parts.parquet", (self.folder / "parts.parquet").read_bytes())
        job = ["batch", f"s3://{BUCKET}/in/parts.parquet", f"s3://{BUCKET}/out/parts.parquet", "--model", CLASSIFIER]
        sizes = {}

        def fault(request, _):
            number = request.command == "PUT" and re.search(r"partNumber=(\d+)", request.path)
            if not number:
                return None
            if len(sizes) == 1 and not refusals:
                refusals.append(number)
                return "denied"
            declared = request.headers.get("x-amz-decoded-content-length") or request.headers["content-length"]
            sizes[int(number[1])] = int(declared)
            return None
        faults, refusals = Faults(self.weed.endpoint), []
        faults.fault = fault
        try:
            self.assertEqual(kivu(faults.endpoint, *job, env=self.env, check=False).returncode, 1)
            kivu(faults.endpoint, *job, env=self.env)
        finally:
            faults.stop()
        *before, _ = [size for _, size in sorted(sizes.items())]
        self.assertGreater(len(before), 1)
        self.assertGreaterEqual(min(before), 5 * 1024 * 1024, sizes)
        found = pyarrow.parquet.read_table(io.BytesIO(self.weed.get("out/parts.parquet")))
        self.assertEqual(found.select(["id", "text", "noise"]), table)
        self.assertEqual(found["label"].null_count, 0)

    def test_two_at_once_end_in_one_result(self):
        event = s3_event("in/twice.jsonl", self.put("in/twice.jsonl", lines(rows(3000))))
        other = Function(self.weed.endpoint, [BUNDLE, CLASSIFIER], self.env | {"KIVU_BATCH__SAVE_MS": "50"})
        try:
            numbers = [self.function.send(event), other.send(event)]
            outcomes = [self.function.wait(numbers[0])[0], other.wait(numbers[1])[0]]
            self.assertIn("response", outcomes)
            for function in (self.function, other):
                function.call(event)
        finally:
            other.stop()
        self.assertEqual([row["id"] for row in parsed(self.weed.get("out/twice.jsonl"))], list(range(3000)))
        self.assertEqual([key for key in self.weed.keys("out/twice") if "checkpoint" in key], [])

    def test_events_that_are_skipped(self):
        for key in ("in/folder/", "in/empty.jsonl", "in/_SUCCESS"):
            self.weed.put(key, b"")
        for key in ("in/_committed_1", "in/.a.csv.crc", "in/_temporary/a.jsonl"):
            self.weed.put(key, lines(rows(1)))
        self.weed.put("out/x.jsonl", b"{}")
        quiet = [
            {"Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2026-01-02T03:04:05.000Z", "Bucket": BUCKET},
            s3_event("in/folder/"), s3_event("in/deleted.jsonl"), s3_event("elsewhere/x.jsonl"),
            s3_event("out/x.jsonl"), s3_event("in/removed.jsonl", name="ObjectRemoved:Delete"),
            s3_event("in/empty.jsonl"), s3_event("in/_SUCCESS"), s3_event("in/_committed_1"), s3_event("in/.a.csv.crc"),
            s3_event("in/_temporary/a.jsonl"), {"detail-type": "Scheduled Event", "source": "aws.events", "detail": {}},
        ]
        before = self.weed.keys("out/")
        for event in quiet:
            self.assertEqual(self.function.call(event), {"status": "done"})
            self.assertEqual(self.function.call(sqs(event)), {"batchItemFailures": []})
        self.assertEqual(self.weed.keys("out/"), before)

    def test_failed_messages_are_returned_to_the_queue(self):
        good = s3_event("in/good.jsonl", self.put("in/good.jsonl"))
        answer = self.function.call(sqs("no json", good, {"Records": [{"eventSource": "aws:other"}]}))
        self.assertEqual([item["itemIdentifier"] for item in answer["batchItemFailures"]], ["message-0", "message-2"])
        self.assertEqual(len(parsed(self.weed.get("out/good.jsonl"))), 5)
        with self.assertRaisesRegex(RuntimeError, "Kivu.Failed"):
            self.function.call({"hello": 1})

    def test_an_unusable_file_has_a_report_and_is_not_repeated(self):
        etag = self.put("in/nothing.csv", b"a,b\n1,2\n")
        self.assertEqual(self.function.call(sqs(s3_event("in/nothing.csv", etag))), {"batchItemFailures": []})
        self.assertEqual(self.report("out/nothing.csv")["status"], "failed")
        self.assertFalse(self.weed.exists("out/nothing.csv"))

    def test_options_come_from_prefix_and_metadata(self):
        for key, more in [(f"in/{CLASSIFIER.name}/a.jsonl", {}), ("in/b.jsonl", {"Metadata": {"kivu-model": CLASSIFIER.name}})]:
            self.function.call(s3_event(key, self.put(key, **more)))
            self.assertIn("label", parsed(self.weed.get(key.replace("in/", "out/", 1)))[0])
        key = "in/c.jsonl"
        self.put(key, b'{"note": "x", "other": "a text"}\n', Metadata={"kivu-column": "other", "kivu-dimensions": "4"})
        self.function.call(s3_event(key))
        self.assertEqual(len(parsed(self.weed.get("out/c.jsonl"))[0]["embedding"]), 4)
        for metadata in ({"kivu-modle": "x"}, {"kivu-model": "nothing"}):
            self.put("in/d.jsonl", Metadata=metadata)
            self.function.call(s3_event("in/d.jsonl"))
            self.assertEqual(self.report("out/d.jsonl")["status"], "failed")

    def test_outputs_cannot_become_inputs(self):
        function = Function(self.weed.endpoint, [BUNDLE], self.env | {"KIVU_BATCH__OUTPUT": "in/done/"})
        try:
            function.start()
            wait_for("its end", lambda: function.process.poll() is not None, 30)
            self.assertIn("expected an output outside the input prefix `in/`", function.text())
        finally:
            function.stop()
        function = Function(self.weed.endpoint, [BUNDLE], self.env | {"KIVU_BATCH__OUTPUT": f"s3://{BUCKET}/in/done/"})
        try:
            with self.assertRaisesRegex(RuntimeError, "expected an output outside the input prefixes"):
                function.call(s3_event("in/loop.jsonl", self.put("in/loop.jsonl")))
        finally:
            function.stop()


class Maps(Base):
    """Ranges of a file's rows, which a state machine passes to the function, and the last call, which joins their answers."""

    def index(self, key, rows=64, run="run", **more):
        event = {"index": {"input": f"s3://{BUCKET}/{key}", "run": run, "rows": rows}}
        return self.function.call(event, **more)

    def ranges(self, index):
        return parsed(self.weed.get(index["key"]))

    def spread(self, key, rows=64):
        """Does the job of the file in ranges, the last first."""
        index = self.index(key, rows)
        self.assertGreater(index["ranges"], 1)
        ranges = self.ranges(index)
        self.assertEqual(len(ranges), index["ranges"])
        for one in reversed(ranges):
            done = self.function.call({"range": one, "of": index})
            self.assertEqual((done["first"], done["rows"]), (one["first"], one["rows"]))
        report = self.function.call({"join": {"of": index}})
        self.assertEqual(report["rows"], sum(one["rows"] for one in ranges))
        return report

    def three_ways(self, name, contents, **options):
        """The output of `kivu batch`, which an event and ranges give too. Metadata have the options of the object."""
        arguments = [word for option, value in options.items() for word in (["--no-header"] if option == "header" else [f"--{option}", value])]
        key, expected = f"in/{name}", self.local(name, contents, *arguments, model=BUNDLE)
        self.assertIsNotNone(expected[0], expected[2].stderr)
        metadata = {f"kivu-{option}": value for option, value in options.items()}
        self.function.call(s3_event(key, self.weed.put(key, contents, Metadata=metadata)["ETag"]))
        self.assertEqual(self.weed.get(f"out/{name}"), expected[0], f"{name} by an event")
        whole = self.report(f"out/{name}")
        for suffix in ("", ".report.json"):
            self.weed.s3.delete_object(Bucket=BUCKET, Key=f"out/{name}{suffix}")
        self.spread(key)
        self.assertEqual(self.weed.get(f"out/{name}"), expected[0], f"{name} in ranges")
        self.assertEqual(self.index(key), {"ranges": 0}, "a file that is done")
        spread = self.report(f"out/{name}")
        for report in (whole, spread, expected[1]):
            for field in ("seconds", "input", "output", "version", "output_digest"):
                report.pop(field, None)
        self.assertEqual(spread, whole)
        self.assertEqual(spread, expected[1])
        self.assertEqual([key for key in self.weed.keys(f"out/{name}") if "parts" in key or "checkpoint" in key], [])
        return expected[0]

    def test_every_way_gives_the_same_bytes_of_text(self):
        texts = ["text", "", "a, b", 'with "quotes"', "sep=;", "é ü 漢"] + [f"the cat {number}" for number in range(100)]
        contents = "\ufeff" + "\r\n".join(texts)
        found = parsed(self.three_ways("a.txt", contents.encode()))
        self.assertEqual([row["text"] for row in found], texts)

    def test_every_way_gives_the_same_bytes_of_csv(self):
        texts = ["plain", 'with "quotes"', "two\nlines", "back\\slash \\N", "comma, semi; tab\t", "", "é ü 漢", "x\r\ny", "'single'"]
        def table(delimiter, terminator):
            text = io.StringIO(newline="")
            writer = csv.writer(text, delimiter=delimiter, lineterminator=terminator)
            writer.writerow(["id", "text", "note"])
            for number in range(400):
                row = [number, texts[number % len(texts)], texts[number % 7]]
                # Some rows have fewer fields, or more.
                writer.writerow(row[:2] if number % 41 == 40 else row + ["more"] if number % 43 == 42 else row)
            return text.getvalue()
        for name, contents in {
            "commas.csv": table(",", "\n").encode(),
            "windows.csv": ("\ufeff" + table(";", "\r\n")).encode(),
            "tabs.tsv": table("\t", "\n").encode(),
            "bytes.csv": table("|", "\n").replace("é", "\udce9").encode(errors="surrogateescape"),
            "unended.csv": table(",", "\n").rstrip("\n").encode(),
            "case.csv": b'id,text\n1,"a\\b"\n2,hello,more,even more\n3\n4,"quoted ""text"""\n' + b"5,x\n" * 200,
        }.items():
            with self.subTest(name):
                self.three_ways(name, contents)
        rows = "".join(f"{number};'it\\'s ; {number}\nsecond line'\n" for number in range(300))
        self.three_ways("escaped.csv", f"id;text\n{rows}".encode(), quote="'", escape="\\", delimiter=";")
        self.three_ways("headless.csv", rows.encode(), quote="'", escape="\\", delimiter=";", header="false", column="column2")
        text = "".join(f'{number}^ "quoted" \\N^\\N\n' for number in range(300)).replace("^", "\x01")
        self.three_ways("hive.csv", f"id\x01text\x01note\n{text}".encode(), quote="none", delimiter="^A", null="\\N")
        self.three_ways("one.csv", b"text\n" + b"hello\n\n" * 150)

    def test_every_way_gives_the_same_bytes_of_json_lines(self):
        kinds = ['{{"id": {0}, "text": "a \\u00e9 {0}", "n": 1.50}}', '{{ "text":"b {0}","id":{0} }}', '{{"id": {0}}}', "{0}", '["{0}"]',
                 "no JSON {0}", '{{"text": ""}}', "", '{{"text": 7}}', "null"]
        text = "".join(kinds[number % len(kinds)].format(number) + ("\r\n" if number % 3 else "\n") for number in range(700))
        self.three_ways("mixed.jsonl", ("\ufeff" + text).encode())
        self.three_ways("bytes.jsonl", text.replace("no JSON", "no \udcff").encode(errors="surrogateescape"))
        # Without a known name, the first rows decide on the column, and later rows would decide otherwise.
        rows = [{"opinion": f"text {number}"} if number < 300 else {"n": number} for number in range(600)]
        self.three_ways("column.jsonl", lines(rows).rstrip(b"\n"))

    def test_every_way_gives_the_same_bytes_of_parquet(self):
        table = pyarrow.table({
            "id": pyarrow.array(range(500), pyarrow.int32()),
            "text": pyarrow.array([None if number % 11 == 0 else f"text {number}" for number in range(500)]),
            "when": pyarrow.array([number * 10**9 for number in range(500)], pyarrow.timestamp("us", "UTC")),
            "tags": pyarrow.array([["a", None, str(number)][: number % 4] for number in range(500)]),
            "kind": pyarrow.array([f"kind {number % 3}" for number in range(500)]).dictionary_encode(),
        })
        for name, groups in (("groups.parquet", 70), ("one.parquet", 1000), ("many.parquet", 7)):
            with self.subTest(name):
                target = io.BytesIO()
                pyarrow.parquet.write_table(table, target, row_group_size=groups)
                output = self.three_ways(name, target.getvalue())
                found = pyarrow.parquet.read_table(io.BytesIO(output))
                self.assertTrue(found.drop_columns(["embedding", "error"]).equals(table))

    def test_files_without_ranges_are_whole_jobs(self):
        few, packed = lines(rows(60)), gzip.compress(lines(rows(500)))
        for name, contents in (("few.jsonl", few), ("packed.jsonl.gz", packed), ("header.csv", b"id,text\n"), ("a.zip", b"PK\x03\x04" + b"x" * 99),
                               ("_SUCCESS", b"x" * 5000)):
            key = f"in/{name}"
            self.weed.put(key, contents)
            self.assertEqual(self.index(key), {"ranges": 0}, name)
        items = [{"Key": f"in/{name}"} for name in ("packed.jsonl.gz", "a.zip", "_SUCCESS")]
        done = self.function.call({"BatchInput": {"bucket": BUCKET}, "Items": items})
        self.assertEqual([one["status"] for one in done], ["finished", "failed", "skipped"])
        self.assertEqual(done[0]["rows"], 500)
        with self.assertRaisesRegex(RuntimeError, "Kivu.Failed.*found none"):
            self.index("in/nothing.csv")

    def test_an_index_that_runs_out_of_time_is_continued(self):
        count = 20_000
        self.weed.put("in/long.csv", b"id,text\n" + b"".join(b'%d,"text\n%d"\n' % (number, number) for number in range(count)))
        expected, seconds, calls = self.ranges(self.index("in/long.csv", run="whole")), 0.1, 0
        while calls < 100:
            calls += 1
            try:
                index = self.index("in/long.csv", run="parts", seconds=seconds)
                break
            except RuntimeError as error:
                self.assertIn("Kivu.Unfinished", str(error))
                seconds *= 1.1
        self.assertGreater(calls, 1)
        self.assertEqual(self.ranges(index), expected)
        self.assertEqual((expected[-1]["first"] + expected[-1]["rows"], expected[0]["rows"]), (count, 64))

    def test_rows_without_an_answer_have_an_error(self):
        self.weed.put("in/lost.jsonl", lines(rows(200)))
        index = self.index("in/lost.jsonl")
        for one in self.ranges(index):
            if one["first"] != 64:
                self.function.call({"range": one, "of": index})
        report = self.function.call({"join": {"of": index}})
        self.assertEqual((report["rows"], report["errors"]), (200, {"model": 64}))
        found = parsed(self.weed.get("out/lost.jsonl"))
        self.assertEqual([row["id"] for row in found], list(range(200)))
        self.assertEqual([row["id"] for row in found if "error" in row], list(range(64, 128)))

    def test_ranges_of_another_file_are_refused(self):
        self.weed.put("in/new.jsonl", lines(rows(200)))
        index = self.index("in/new.jsonl")
        first = self.ranges(index)[0]
        self.weed.put("in/new.jsonl", lines(rows(200, start=1)))
        for event in ({"range": first, "of": index}, {"join": {"of": index}}):
            with self.assertRaisesRegex(RuntimeError, "was changed during the execution; start the state machine again"):
                self.function.call(event)
        # The same run finds the ranges of the file as it is now.
        self.weed.put("in/new.jsonl", lines(rows(200, start=10**6)))
        index = self.index("in/new.jsonl")
        self.assertEqual(self.ranges(index), self.ranges(self.index("in/new.jsonl", run="fresh")))
        with self.assertRaisesRegex(RuntimeError, "expected 99 rows after row 0, but found 64"):
            self.function.call({"range": self.ranges(index)[0] | {"rows": 99}, "of": index})

    def test_an_interrupted_join_is_repeated_to_its_end(self):
        key, services, faults = "in/joined.jsonl", Queue(), Faults(self.weed.endpoint)
        interruptions = [("POST", "uploadId="), ("PUT", ".report.json"), ("DELETE", "checkpoint"), ("DELETE", "000000000000064")]

        def fault(request, _):
            is_next = interruptions and interruptions[0][0] == request.command and interruptions[0][1] in request.path
            return "denied" if is_next else None
        faults.fault = fault
        function = Function(faults.endpoint, [BUNDLE], self.env | services.environment)
        try:
            self.weed.put(key, lines(rows(150)))
            index = function.call({"index": {"input": f"s3://{BUCKET}/{key}", "run": "run", "rows": 1}})
            for one in self.ranges(index):
                function.call({"range": one, "of": index})
            while interruptions:
                with self.assertRaises(RuntimeError):
                    function.call({"join": {"of": index}})
                self.assertEqual(services.events, [])
                interruptions.pop(0)
            self.assertEqual(function.call({"join": {"of": index}})["status"], "known")
        finally:
            function.stop()
            faults.stop()
            services.stop()
        self.assertEqual([row["id"] for row in parsed(self.weed.get("out/joined.jsonl"))], list(range(150)))
        report = self.report("out/joined.jsonl")
        self.assertEqual((report["status"], report["rows"]), ("finished", 150))
        self.assertEqual([event["Detail"]["rows"] for event in services.events], [150])
        self.assertEqual(self.weed.keys("out/joined"), ["out/joined.jsonl", "out/joined.jsonl.report.json"])


class Survival(Base):
    """Timeouts, killed functions and servers that restart."""

    def test_time_that_runs_out(self):
        count = 40_000
        etag = self.weed.put("in/long.jsonl", lines(rows(count)))["ETag"]
        function = Function(self.weed.endpoint, [BUNDLE], self.env | {"KIVU_BATCH__MARGIN_MS": "500"})
        try:
            # The first call has the time of a tenth of the rows, and spends at least half of it on rows. It has at least
            # 0.6 s, because a deadline that has passed when the call arrives is ignored. Each further call has more time:
            # a fast machine does not finish at once, and a slow one finishes.
            short, started = self.weed.put("in/short.jsonl", lines(rows(count // 10)))["ETag"], time.monotonic()
            function.call(s3_event("in/short.jsonl", short))
            calls, seconds = 0, max(0.6, time.monotonic() - started)
            while True:
                calls += 1
                answer = function.wait(function.send(sqs(s3_event("in/long.jsonl", etag)), seconds))[1]
                if not answer["batchItemFailures"]:
                    break
                self.assertEqual(answer["batchItemFailures"], [{"itemIdentifier": "message-0"}])
                self.assertLess(calls, 40)
                seconds *= 1.2
        finally:
            function.stop()
        self.assertGreater(calls, 1)
        self.assertEqual([row["id"] for row in parsed(self.weed.get("out/long.jsonl"))], list(range(count)))
        self.assertEqual(self.report("out/long.jsonl")["rows"], count)

    def test_the_end_of_a_job_is_an_event(self):
        services = Queue()
        function = Function(self.weed.endpoint, [BUNDLE], self.env | services.environment)
        url = f"s3://{BUCKET}/in/events.jsonl"
        try:
            self.weed.put("in/events.jsonl", lines(rows(10)))
            services.refusals = ["InternalFailure"]
            # Another delivery of the message finds the output, and sends the event that could not be sent.
            self.assertEqual(function.call(sqs({"input": url}))["batchItemFailures"], [{"itemIdentifier": "message-0"}])
            self.assertEqual(function.call(sqs({"input": url})), {"batchItemFailures": []})
            self.weed.put("in/broken.parquet", b"text")
            function.call({"input": f"s3://{BUCKET}/in/broken.parquet"})
            self.weed.put("in/ranges.jsonl", lines(rows(200)))
            index = function.call({"index": {"input": f"s3://{BUCKET}/in/ranges.jsonl", "run": "run", "rows": 1}})
            for row_range in parsed(self.weed.get(index["key"])):
                function.call({"range": row_range, "of": index})
            function.call({"join": {"of": index}})
        finally:
            function.stop()
            services.stop()
        about = [(event["EventBusName"], event["Source"], event["DetailType"]) for event in services.events]
        self.assertEqual(set(about), {("jobs", "kivu", "Job Ended")})
        first, failed, joined = [event["Detail"] for event in services.events]
        expected = {"status": "finished", "input": url, "output": f"s3://{BUCKET}/out/events.jsonl", "rows": 10, "errors": {},
                    "report": f"s3://{BUCKET}/out/events.jsonl.report.json"}
        self.assertEqual(first, first | expected)
        self.assertEqual((failed["status"], "error" in failed, joined["rows"]), ("failed", True, 200))

    def test_a_message_that_progresses_is_not_a_failure(self):
        count, messages = 40_000, Queue()
        etag = self.weed.put("in/queued.jsonl", lines(rows(count)))["ETag"]
        settings = {"KIVU_BATCH__MARGIN_MS": "500"} | messages.environment
        function = Function(self.weed.endpoint, [BUNDLE], self.env | settings)
        body, seconds = json.dumps(s3_event("in/queued.jsonl", etag)), 0.7
        call = lambda attributes: function.wait(function.send(sqs(body, attributes=attributes), seconds))[1]
        try:
            function.call(s3_event("in/none.jsonl", etag))
            # The run before this one got further, so that this one counts as failed.
            self.assertEqual(call({"kivu-reached": f"0 {count}"})["batchItemFailures"], [{"itemIdentifier": "message-0"}])
            self.assertEqual(messages.sent, [])
            attributes, reached = {}, [0]
            for _ in range(60):
                self.assertEqual(call(attributes), {"batchItemFailures": []})
                if len(messages.sent) < len(reached):
                    break
                sent, attributes = messages.sent[-1]
                self.assertEqual(sent, body)
                reached.append(int(attributes["kivu-reached"].removeprefix("0 ")))
                seconds *= 1.2
        finally:
            function.stop()
            messages.stop()
        self.assertEqual(reached, sorted(set(reached)))
        self.assertGreater(len(reached), 1)
        self.assertEqual([row["id"] for row in parsed(self.weed.get("out/queued.jsonl"))], list(range(count)))

    def test_a_hundred_kills(self):
        """Each job is killed at random moments until it is done."""
        generator = random.Random(1)
        count, kills, jobs = 12_000, 0, 0
        forms = {
            "jsonl": lines(rows(count)),
            "jsonl.gz": gzip.compress(lines(rows(count))),
            "csv": ("id,text\n" + "".join(f"{row['id']},{row['text']}\n" for row in rows(count))).encode(),
        }
        table = self.folder / "kill.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows(count)), table, row_group_size=5000)
        forms["parquet"] = table.read_bytes()
        function = Function(self.weed.endpoint, [BUNDLE], self.env | {"KIVU_BATCH__SAVE_MS": "100"})
        try:
            started, etag = time.monotonic(), self.weed.put("in/usual.jsonl", forms["jsonl"])["ETag"]
            function.call(s3_event("in/usual.jsonl", etag))
            usual = time.monotonic() - started
            while kills < KILLS:
                form = list(forms)[jobs % len(forms)]
                key = f"kill-{jobs}.{form}"
                event = s3_event(f"in/{key}", self.weed.put(f"in/{key}", forms[form])["ETag"])
                jobs += 1
                of_this = 0
                while True:
                    number = function.send(event)
                    # Most attempts are killed, and later ones may run longer, so that the job gets done.
                    ends = time.monotonic() + generator.uniform(0.05, usual * (0.7 + 0.05 * of_this))
                    while time.monotonic() < ends and number not in function.answers:
                        time.sleep(0.005)
                    if number in function.answers:
                        self.assertEqual(function.answers[number][0], "response", function.answers[number])
                        break
                    function.kill()
                    kills += 1
                    of_this += 1
                    self.assertLess(of_this, 150, "it never gets done")
                self.check(key, count)
        finally:
            function.stop()
        print(f"{kills} kills in {jobs} jobs", flush=True)
        self.assertEqual([key for key in self.weed.keys("out/kill") if "checkpoint" in key], [])

    def check(self, key, count):
        output = self.weed.get(f"out/{key}")
        if key.endswith("parquet"):
            table = pyarrow.parquet.read_table(io.BytesIO(output))
            found = table["id"].to_pylist()
            self.assertEqual(table["embedding"].null_count, 0)
        elif key.endswith("csv"):
            found = [int(row["id"]) for row in csv.DictReader(io.StringIO(output.decode()))]
        else:
            found = [row["id"] for row in parsed(gzip.decompress(output) if key.endswith("gz") else output)]
        self.assertEqual(found, list(range(count)), key)
        self.assertEqual(self.report(f"out/{key}")["rows"], count)

    @unittest.skipUnless(box.is_possible(), "this machine cannot limit the memory of a process")
    def test_memory_that_runs_out(self):
        """A row needs more memory than the function has, and kills it until the limit is raised."""
        large = [{"id": 3000, "text": "word " * 8_000_000}]
        contents = lines(rows(3000) + large + rows(3000, start=3001))
        event = lambda key: s3_event(key, self.weed.put(key, contents)["ETag"])
        self.function.call(event("in/quiet.jsonl"))
        small = box.Box(1769)
        function = Function(self.weed.endpoint, [BUNDLE], self.env | {"KIVU_BATCH__SAVE_MS": "50"}, box=small)
        try:
            function.call(s3_event("in/one.jsonl", self.weed.put("in/one.jsonl", lines(rows(1)))["ETag"]))
            small.bound_from(function.private_mb() + 24)
            boxed = event("in/boxed.jsonl")
            checkpoints = lambda: [key for key in self.weed.keys("out/boxed") if "checkpoint" in key]
            # On a busy machine, it may be killed before its first checkpoint.
            for kills in range(1, 9):
                function.send(boxed)
                self.assertEqual(function.process.wait(120), -signal.SIGKILL)
                self.assertFalse(self.weed.exists("out/boxed.jsonl"))
                if kills > 1 and checkpoints():
                    break
            self.assertTrue(checkpoints())
            small.bound(1769)
            function.call(boxed)
        finally:
            function.stop()
            small.remove()
        self.assertEqual(self.weed.get("out/boxed.jsonl"), self.weed.get("out/quiet.jsonl"))
        self.assertEqual(checkpoints(), [])

    def test_a_server_that_breaks_off_or_is_busy(self):
        etag = self.weed.put("in/faulty.jsonl", lines(rows(20_000)))["ETag"]
        faults = Faults(self.weed.endpoint)
        faults.fault = lambda request, seen: {2: "cut", 4: "slow down"}.get(seen % 6)
        function = Function(faults.endpoint, [BUNDLE], self.env | {"KIVU_BATCH__SAVE_MS": "100"})
        try:
            function.call(s3_event("in/faulty.jsonl", etag))
        finally:
            function.stop()
            faults.stop()
        self.assertEqual([row["id"] for row in parsed(self.weed.get("out/faulty.jsonl"))], list(range(20_000)))

    def test_an_upload_that_fails_after_the_status(self):
        self.weed.put("in/completed.jsonl", lines(rows(50)))
        faults, seen = Faults(self.weed.endpoint), []

        def fault(request, _):
            if request.command == "POST" and "uploadId=" in request.path:
                seen.append(request.path)
                return "late error" if len(seen) < 3 else None
            return None
        faults.fault = fault
        try:
            kivu(faults.endpoint, "batch", f"s3://{BUCKET}/in/completed.jsonl", f"s3://{BUCKET}/out/completed.jsonl",
                 "--model", CLASSIFIER, env=self.env)
        finally:
            faults.stop()
        self.assertEqual(len(seen), 3)
        self.assertEqual(len(parsed(self.weed.get("out/completed.jsonl"))), 50)

    def test_missing_permissions_are_reported_at_once(self):
        etag = self.weed.put("in/secret.jsonl", lines(rows(10)))["ETag"]
        faults = Faults(self.weed.endpoint)
        function = Function(faults.endpoint, [BUNDLE], self.env)
        try:
            for command, words in (("HEAD", "the server responded with 403"), ("GET", "AccessDenied: made by the test")):
                faults.fault = lambda request, _, command=command: (
                    "denied" if request.command == command and "in/secret" in request.path else None)
                started = time.monotonic()
                answer = function.call(sqs(s3_event("in/secret.jsonl", etag)))
                self.assertEqual(answer["batchItemFailures"], [{"itemIdentifier": "message-0"}])
                self.assertLess(time.monotonic() - started, 10)
                self.assertIn(f"cannot read `s3://{BUCKET}/in/secret.jsonl`: {words}", function.text())
            faults.fault = None
            function.call(sqs(s3_event("in/secret.jsonl", etag)))
        finally:
            function.stop()
            faults.stop()
        self.assertEqual(len(parsed(self.weed.get("out/secret.jsonl"))), 10)

    def test_an_object_that_is_replaced_while_it_is_read(self):
        # Larger than the ranges that are read ahead.
        big = lines([{"id": number, "text": "x " * 4000} for number in range(12000)])
        url = f"s3://{BUCKET}/in/moving.jsonl"
        # The new object has its own event, unless the sender named the input.
        for event, failures in ((lambda etag: s3_event("in/moving.jsonl", etag), []), (lambda _: {"input": url}, ["message-0"])):
            etag = self.weed.put("in/moving.jsonl", big)["ETag"]
            number = self.function.send(sqs(event(etag)))
            wait_for("its beginning", lambda: [key for key in self.weed.keys("out/moving") if "checkpoint" in key])
            etag = self.weed.put("in/moving.jsonl", lines(rows(10)))["ETag"]
            answer = self.function.wait(number)[1]
            self.assertEqual([item["itemIdentifier"] for item in answer["batchItemFailures"]], failures)
            self.assertEqual([key for key in self.weed.keys("out/moving") if "checkpoint" in key], [])
            self.assertEqual(self.function.call(sqs(event(etag))), {"batchItemFailures": []})
            self.assertEqual(len(parsed(self.weed.get("out/moving.jsonl"))), 10)

    def test_a_server_that_is_killed_and_comes_back(self):
        etag = self.weed.put("in/outage.jsonl", lines(rows(30_000)))["ETag"]
        function = Function(self.weed.endpoint, [BUNDLE], self.env | {"KIVU_BATCH__SAVE_MS": "200"})
        try:
            number = function.send(s3_event("in/outage.jsonl", etag))
            wait_for("its beginning", lambda: [key for key in self.weed.keys("out/outage") if "checkpoint" in key])
            self.weed.kill()
            time.sleep(1)
            self.weed.start()
            wait_for("the bucket", lambda: self.weed.keys("in/outage"), 60)
            kind, answer = function.wait(number)
            if kind != "response":
                function.call(s3_event("in/outage.jsonl", etag))
        finally:
            function.stop()
        self.assertEqual([row["id"] for row in parsed(self.weed.get("out/outage.jsonl"))], list(range(30_000)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
