"""Jobs that are watched while they run.

    TEST_KIVU=… TEST_BATCH=… TEST_BUNDLE=… python tests/s3/test_progress.py
"""

import json
import os
import time
import unittest
from pathlib import Path

from harness import BUCKET, Function, Weed, kivu, s3_event, wait_for

BUNDLE = Path(os.environ["TEST_BUNDLE"])
ROWS = 40_000
SECRET = "nobody-sees-this"


class Progress(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.weed = Weed()
        cls.env = {"KIVU_ONNXRUNTIME": os.environ["TEST_ONNXRUNTIME"], "KIVU_BATCH__SAVE_MS": "200", "KIVU_BATCH__MARGIN_MS": "500"}

    @classmethod
    def tearDownClass(cls):
        cls.weed.stop()

    def jobs(self, *options):
        return json.loads(kivu(self.weed.endpoint, "jobs", f"s3://{BUCKET}/out/", "--json", *options).stdout)

    def published(self):
        return [key for key in self.weed.keys("out/") if key.endswith(".progress")]

    def test_a_job_is_seen_while_it_runs_when_it_died_and_when_it_is_done(self):
        function = Function(self.weed.endpoint, [BUNDLE], self.env)
        self.addCleanup(function.stop)
        lines = "".join(json.dumps({"id": row, "text": f"{SECRET} {row} " * 8}) + "\n" for row in range(ROWS))
        event = s3_event("in/long.jsonl", self.weed.put("in/long.jsonl", lines.encode())["ETag"])
        function.send(event)
        wait_for("progress", self.published, 60)
        (key,) = self.published()
        first = json.loads(self.weed.get(key))
        self.assertEqual(
            (first["status"], first["input"], first["output"], first["model"]),
            ("running", f"s3://{BUCKET}/in/long.jsonl", f"s3://{BUCKET}/out/long.jsonl", BUNDLE.name),
        )
        wait_for("more rows", lambda: json.loads(self.weed.get(key))["rows"] > first["rows"], 30)
        (job,) = self.jobs()
        self.assertEqual((job["state"], job["output"], job["errors"]), ("running", first["output"], 0))
        self.assertGreater(job["rows_per_second"], 0)
        self.assertLess(job["rows"], ROWS)
        self.assertIn("seconds_left", job)
        text = kivu(self.weed.endpoint, "jobs", f"s3://{BUCKET}/out/").stdout
        self.assertRegex(text, r"running +[0-9]+ +0  [0-9]+ rows/s, .* left +s3://kivu-tests/out/long\.jsonl")
        self.assertNotIn(SECRET, self.weed.get(key).decode() + text)
        # An earlier job with another model, for the same input and output.
        report = "out/long.jsonl.report.json"
        old = {field: first[field] for field in ("input", "version", "output", "rows")}
        old |= {"status": "finished", "model": "other", "model_digest": "", "task": "", "errors": {}, "samples": [], "tokens": 0,
                "truncated": 0, "seconds": 1.0}
        self.weed.put(report, json.dumps(old).encode())
        self.assertEqual([job["state"] for job in self.jobs()], ["running", "finished"])
        self.weed.s3.delete_object(Bucket=BUCKET, Key=report)
        # The process dies: its progress gets old.
        function.kill()
        left = json.loads(self.weed.get(key))
        self.weed.put(key, json.dumps(left | {"updated": int(time.time()) - 3600}).encode())
        (job,) = self.jobs()
        self.assertEqual((job["state"], job["rows"], "seconds_left" in job), ("stale", left["rows"], False))
        text = kivu(self.weed.endpoint, "jobs", f"s3://{BUCKET}/out/").stdout
        self.assertRegex(text, r"stale .*last seen 1 h ago +s3://kivu-tests/out/long\.jsonl")
        # Out of time, it waits for its next run.
        function.wait(function.send(event, seconds=1.5))
        (job,) = self.jobs()
        self.assertEqual(job["state"], "waiting", job)
        # The next run ends it, and a failed one is beside it.
        function.call(event)
        self.weed.put("in/empty.csv", b"a,b\n1,2\n")
        function.wait(function.send(s3_event("in/empty.csv")))
        failed, finished = self.jobs()
        self.assertEqual((failed["state"], finished["state"], finished["rows"]), ("failed", "finished", ROWS))
        self.assertIn("expected a column", failed["error"])
        self.assertEqual(self.published(), [])
        # A process that was replaced writes once more.
        self.weed.put(key, json.dumps(left).encode())
        self.assertEqual([job["state"] for job in self.jobs()], ["failed", "finished"])

    def test_short_jobs_publish_nothing_and_other_objects_are_no_jobs(self):
        self.weed.put("other/a.jsonl", b'{"text": "a"}\n')
        self.weed.put("other/x.progress", b"no progress")
        self.weed.put("other/x.report.json", b"[]")
        self.weed.put("other/model.checkpoint", b"weights")
        done = kivu(self.weed.endpoint, "jobs", f"s3://{BUCKET}/other/")
        self.assertEqual((done.stdout, done.stderr), ("", f"no jobs below s3://{BUCKET}/other/\n"))
        self.weed.put("other/b.jsonl.0123456789abcdef.checkpoint", b"begun")
        done = kivu(self.weed.endpoint, "jobs", f"s3://{BUCKET}/other/")
        self.assertRegex(done.stdout, r"begun +- +- +s3://kivu-tests/other/b\.jsonl\n")


if __name__ == "__main__":
    unittest.main()
