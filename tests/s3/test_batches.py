"""Batches of requests in S3: the function `api` creates them, and the function `batch` runs them. Uploads go to a sink.

    TEST_API=… TEST_BATCH=… TEST_KIVU=… TEST_BUNDLE=… python tests/s3/test_batches.py
"""

import base64
import json
import os
import unittest
import urllib.request
from pathlib import Path

from harness import BUCKET, HOST, Function, Weed
from sinks import VectorIndexes

API = os.environ["TEST_API"]
BUNDLE = Path(os.environ["TEST_BUNDLE"])
FOLDER = Path(__file__).resolve().parents[2] / "functions/api"
PREFIX = "files"
ENDED = ("completed", "failed", "expired", "cancelled")


def event(method, path, body=b"", kind="application/json"):
    """A request of an HTTP API."""
    path, _, query = path.partition("?")
    return {
        "version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": query,
        "headers": {"content-type": kind, "host": "a.execute-api.eu-west-1.amazonaws.com"},
        "requestContext": {
            "accountId": "1", "apiId": "a", "domainName": "a", "domainPrefix": "a", "requestId": "r",
            "routeKey": "$default", "stage": "$default",
            "http": {"method": method, "path": path, "protocol": "HTTP/1.1", "sourceIp": HOST, "userAgent": "test"},
            "time": "25/Nov/2024:06:57:15 +0000", "timeEpoch": 1732517835204,
        },
        "body": base64.b64encode(body).decode(), "isBase64Encoded": True,
    }


def created(key):
    """An event of EventBridge in a message of the queue."""
    detail = {"bucket": {"name": BUCKET}, "object": {"key": key}}
    body = json.dumps({"source": "aws.s3", "detail-type": "Object Created", "detail": detail})
    return {"Records": [{"eventSource": "aws:sqs", "messageId": "message-0", "body": body}]}


class Batches(unittest.TestCase):
    maxDiff = 2000

    @classmethod
    def setUpClass(cls):
        cls.weed = Weed()
        env = {
            "KIVU_ONNXRUNTIME": os.environ["TEST_ONNXRUNTIME"], "KIVU_AUTH__MODE": "none",
            "KIVU_FILES__FOLDER": f"s3://{BUCKET}/{PREFIX}", "KIVU_BATCH__MARGIN_MS": "500",
        }
        cls.env = env
        cls.api = Function(cls.weed.endpoint, [BUNDLE], env | {"AWS_LAMBDA_FUNCTION_NAME": "api"}, API, FOLDER)
        cls.batch = Function(cls.weed.endpoint, [BUNDLE], env)

    @classmethod
    def tearDownClass(cls):
        cls.api.stop()
        cls.batch.stop()
        cls.weed.stop()

    def ask(self, method, path, body=b"", kind="application/json"):
        answer = self.api.call(event(method, path, body, kind), 30)
        text = answer.get("body") or ""
        text = base64.b64decode(text).decode() if answer.get("isBase64Encoded") else text
        self.assertEqual(answer["statusCode"], 200, text)
        return text

    def get(self, path):
        return json.loads(self.ask("GET", path))

    def start(self, bodies):
        """Uploads requests and starts a batch; its id and the event at its creation."""
        lines = "".join(
            json.dumps({"custom_id": f"r{number}", "method": "POST", "url": "/v1/embeddings", "body": body}) + "\n"
            for number, body in enumerate(bodies)
        )
        form = (
            '--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--x\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{lines}\r\n--x--\r\n'
        )
        file = json.loads(self.ask("POST", "/v1/files", form.encode(), "multipart/form-data; boundary=x"))
        self.assertEqual(file["bytes"], len(lines))
        request = {"input_file_id": file["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
        batch = json.loads(self.ask("POST", "/v1/batches", json.dumps(request).encode()))
        (key,) = [key for key in self.weed.keys(f"{PREFIX}/queue/") if key.endswith(batch["id"])]
        return batch["id"], created(key)

    def lines(self, file):
        return [json.loads(line) for line in self.ask("GET", f"/v1/files/{file}/content").splitlines()]

    def test_a_batch_has_the_responses_of_its_route(self):
        bodies = [{"input": "the cat"}, {"input": ""}, {"input": ["the cat", "a dog"], "encoding_format": "base64"}]
        batch, message = self.start(bodies)
        self.assertEqual(self.get(f"/v1/batches/{batch}")["status"], "validating")
        self.assertEqual(self.batch.call(message), {"batchItemFailures": []})
        batch = self.get(f"/v1/batches/{batch}")
        self.assertEqual(batch["status"], "completed", batch)
        self.assertEqual(batch["request_counts"], {"total": 3, "completed": 2, "failed": 1})
        output = {line["custom_id"]: line["response"]["body"] for line in self.lines(batch["output_file_id"])}
        self.assertEqual(list(output), ["r0", "r2"])
        for number in (0, 2):
            direct = self.ask("POST", "/v1/embeddings", json.dumps(bodies[number]).encode())
            self.assertEqual(output[f"r{number}"], json.loads(direct))
        (error,) = self.lines(batch["error_file_id"])
        self.assertEqual((error["custom_id"], error["response"]["status_code"]), ("r1", 422))
        listed = [file["id"] for file in self.get("/v1/files?purpose=batch_output")["data"]]
        self.assertLessEqual({batch["output_file_id"], batch["error_file_id"]}, set(listed))
        # Only the object and the files are left, and a repeated event changes nothing.
        self.assertEqual(self.weed.keys(f"{PREFIX}/queue/"), [])
        self.batch.call(message)
        self.assertEqual(self.get(f"/v1/batches/{batch['id']}"), batch)

    def test_a_batch_that_needs_several_invocations_loses_no_line(self):
        count = 3000
        batch, message = self.start([{"input": [f"the cat {number}"] * 10} for number in range(count)])
        calls, seconds = 0, 0.6
        while self.get(f"/v1/batches/{batch}")["status"] not in ENDED:
            calls += 1
            self.assertLess(calls, 60)
            self.batch.wait(self.batch.send(message, seconds))
            seconds *= 1.2
        batch = self.get(f"/v1/batches/{batch}")
        self.assertEqual((batch["status"], batch["request_counts"]["completed"]), ("completed", count))
        # More than a response of the function may have.
        answer = self.api.call(event("GET", f"/v1/files/{batch['output_file_id']}/content"), 30)
        self.assertEqual(answer["statusCode"], 302, answer)
        with urllib.request.urlopen(answer["headers"]["location"]) as response:
            contents = response.read()
        ids = [json.loads(line)["custom_id"] for line in contents.splitlines()]
        self.assertEqual(ids, [f"r{number}" for number in range(count)])

    def test_a_cancelled_batch_runs_no_request(self):
        batch, message = self.start([{"input": "the cat"}])
        self.assertEqual(json.loads(self.ask("POST", f"/v1/batches/{batch}/cancel"))["status"], "cancelling")
        self.batch.call(message)
        self.assertEqual(self.get(f"/v1/batches/{batch}")["status"], "cancelled")

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
