"""Uploads that go to a sink, and uploads of OpenAI's batch requests.

    TEST_BATCH=… TEST_BUNDLE=… python tests/s3/test_uploads.py
"""

import json
import os
import unittest
from pathlib import Path

from harness import BUCKET, Function, Weed
from sinks import VectorIndexes

BUNDLE = Path(os.environ["TEST_BUNDLE"])


class Uploads(unittest.TestCase):
    maxDiff = 2000

    @classmethod
    def setUpClass(cls):
        cls.weed = Weed()
        cls.env = {"KIVU_ONNXRUNTIME": os.environ["TEST_ONNXRUNTIME"], "KIVU_BATCH__MARGIN_MS": "500"}

    @classmethod
    def tearDownClass(cls):
        cls.weed.stop()

    def test_requests_have_a_response_each(self):
        function = Function(self.weed.endpoint, [BUNDLE], self.env)
        self.addCleanup(function.stop)
        bodies = [{"input": "the cat"}, {"input": ""}, {"input": ["a", "b"]}]
        lines = "".join(
            json.dumps({"custom_id": f"r{number}", "method": "POST", "url": "/v1/embeddings", "body": body}) + "\n"
            for number, body in enumerate(bodies)
        )
        self.weed.put("in/requests.jsonl", lines.encode())
        report = function.call({"input": f"s3://{BUCKET}/in/requests.jsonl"})
        self.assertEqual((report["status"], report["rows"], report["errors"]), ("finished", 3, {"input": 1}))
        found = [json.loads(line) for line in self.weed.get("out/requests.jsonl").splitlines()]
        summary = [(line["custom_id"], line["response"]["status_code"]) for line in found]
        self.assertEqual(summary, [("r0", 200), ("r1", 422), ("r2", 200)])
        self.assertEqual(len(found[2]["response"]["body"]["data"]), 2)

    def test_uploads_go_to_a_sink(self):
        indexes = VectorIndexes(32)
        self.addCleanup(indexes.stop)
        sink = "s3vectors://vectors/docs"
        function = Function(self.weed.endpoint, [BUNDLE], self.env | {
            "AWS_ENDPOINT_URL_S3VECTORS": indexes.endpoint, "KIVU_BATCH__SINK": sink, "KIVU_BATCH__METADATA": "title",
        })
        self.addCleanup(function.stop)
        rows = [{"id": number, "text": f"text {number}", "title": f"title {number}"} for number in range(70)]
        rows[7]["id"] = None
        self.weed.put("in/docs.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
        upload = {"input": f"s3://{BUCKET}/in/docs.jsonl"}
        self.assertEqual(function.call(upload)["errors"], {"sink": 1})
        self.assertEqual((len(indexes.vectors), indexes.wrong), (69, []))
        self.assertEqual(indexes.vectors["3"]["metadata"], {"title": "title 3"})
        self.assertEqual(json.loads(self.weed.get("out/docs.jsonl"))["text"], "text 7")
        report = json.loads(self.weed.get("out/docs.jsonl.report.json"))
        self.assertEqual((report["sink"], report["rows"]), (sink, 70))
        # A repeated event finds the output.
        self.assertEqual((function.call(upload)["status"], len(indexes.puts)), ("known", 1))
        # A file without errors has an empty output.
        self.weed.put("in/one.jsonl", b'{"id": "one", "text": "a text"}')
        self.assertEqual(function.call({"input": f"s3://{BUCKET}/in/one.jsonl"})["errors"], {})
        self.assertEqual((self.weed.get("out/one.jsonl"), "one" in indexes.vectors), (b"", True))


if __name__ == "__main__":
    unittest.main()
