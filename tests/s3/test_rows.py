"""The function `batch` with rows of data warehouses and streams, and the function `api` behind a load balancer.

    TEST_BATCH=… TEST_API=… TEST_BUNDLE=… TEST_CLASSIFIER=… TEST_TRANSLATOR=… python tests/s3/test_rows.py

The recorded events are in tests/lambda. The answers of streams are objects in a real S3 server.
"""

import base64
import json
import os
import tempfile
import unittest
from pathlib import Path

from harness import BUCKET, Function, Weed

ROOT = Path(__file__).resolve().parents[2]
EVENTS = ROOT / "tests/lambda"
BUNDLES = [os.environ[name] for name in ("TEST_BUNDLE", "TEST_CLASSIFIER", "TEST_TRANSLATOR")]
RULES = f"""
[[batch.rules]]
input = "kinesis:reviews"
output = "s3://{BUCKET}/stream/"

[[batch.rules]]
input = "dynamodb:reviews"
output = "s3://{BUCKET}/table/"

[[batch.rules]]
input = "firehose:reviews"
ask = {{ model = "tiny-bert-sentiment" }}

[[batch.rules]]
input = "redshift:public.classify"
ask = {{ model = "tiny-bert-sentiment" }}

[[batch.rules]]
input = "redshift:public.translate"
ask = {{ model = "translator", source-language = "en", target-language = "de" }}
"""


def recorded(name):
    return json.loads((EVENTS / f"{name}.json").read_text())


def environment(**more):
    return {"KIVU_ONNXRUNTIME": os.environ["TEST_ONNXRUNTIME"], "KIVU_AUTH__MODE": "none"} | more


class Rows(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.weed = Weed()
        cls.folder = tempfile.TemporaryDirectory()
        Path(cls.folder.name, "kivu.toml").write_text(RULES)
        cls.function = Function(cls.weed.endpoint, BUNDLES, environment(), folder=cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.function.stop()
        cls.weed.stop()
        cls.folder.cleanup()

    def redshift(self, name, rows):
        event = {"request_id": "1", "external_function": f"public.{name}", "num_records": len(rows), "arguments": rows}
        answer = self.function.call(event)
        self.assertEqual((answer["success"], answer["num_records"]), (True, len(rows)), answer)
        return answer["results"]

    def lines(self, key):
        return [json.loads(line) for line in self.weed.get(key).splitlines()]

    def test_redshift(self):
        answer = self.function.call(recorded("rows_redshift"))
        self.assertEqual((answer["success"], answer["num_records"], answer["results"][1]), (True, 3, None))
        self.assertEqual(len(json.loads(answer["results"][0])), 32)
        label = json.loads(self.redshift("classify", [["I like it"]])[0])
        self.assertEqual(sorted(label), ["label", "score"])
        translated = self.redshift("translate", [["Hello"], ["Hello"]])
        self.assertTrue(all(isinstance(text, str) for text in translated))
        self.assertEqual(translated[0], translated[1])
        same, other = self.redshift("compare", [["cat", "cat"], ["cat", "dog and bird"]])
        self.assertAlmostEqual(same, 1, delta=1e-5)
        self.assertLess(other, same)
        # The model with the function's name.
        self.assertEqual(self.redshift("tiny-bert-sentiment", [["I like it"]]), [json.dumps(label, separators=(",", ":"))])

    def test_snowflake(self):
        answer = self.function.call(recorded("rows_snowflake"))
        rows = json.loads(answer["body"])["data"]
        self.assertEqual((answer["statusCode"], [row[0] for row in rows], rows[1][1]), (200, [0, 1, 2], None))
        self.assertEqual((len(rows[0][1]), len(rows[2][1])), (32, 32))

    def test_firehose(self):
        records = self.function.call(recorded("rows_firehose"))["records"]
        self.assertEqual([one["result"] for one in records][:3], ["Ok", "Dropped", "Ok"])
        row = json.loads(base64.b64decode(records[0]["data"]))
        self.assertEqual((row["id"], row["text"], sorted(row)), (1, "cat", ["id", "label", "score", "text"]))

    def test_kinesis(self):
        event = recorded("rows_kinesis")
        self.assertEqual(self.function.call(event), {"batchItemFailures": []})
        first = event["Records"][0]["kinesis"]["sequenceNumber"]
        rows = self.lines(f"stream/reviews/{first}.jsonl")
        self.assertEqual([row["id"] for row in rows], [1, 2, 3])
        self.assertEqual([len(row.get("embedding", [])) for row in rows], [32, 0, 32])
        self.assertIn("expected text in `text`", rows[1]["error"])
        # A repeated batch replaces its object.
        before = self.weed.get(f"stream/reviews/{first}.jsonl")
        self.assertEqual(self.function.call(event), {"batchItemFailures": []})
        self.assertEqual(self.weed.get(f"stream/reviews/{first}.jsonl"), before)

    def test_dynamodb(self):
        event = recorded("rows_dynamodb")
        self.assertEqual(self.function.call(event), {"batchItemFailures": []})
        rows = self.lines("table/reviews/4421584500000000017450439091.jsonl")
        self.assertEqual([row["id"] for row in rows], [1, 3])
        expected = {
            "tags": ["a", "b"], "scores": [1.5, None], "place": {"open": True, "code": "AAEqQQ=="},
            "digits": "12345678901234567890123456789",
        }
        self.assertEqual({name: rows[0][name] for name in expected}, expected)
        self.assertEqual([len(row["embedding"]) for row in rows], [32, 32])


class LoadBalancer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        variables = environment(AWS_LAMBDA_FUNCTION_NAME="api")
        cls.function = Function("http://127.0.0.1:9", BUNDLES[:1], variables, os.environ["TEST_API"], ROOT / "functions/api")

    @classmethod
    def tearDownClass(cls):
        cls.function.stop()

    def test_events(self):
        vectors = []
        for name in ("rest_private", "alb_wrong_host", "alb_plain", "alb_multi_value_base64"):
            answer = self.function.call(recorded(name), seconds=20)
            self.assertEqual(answer["statusCode"], 200, answer)
            vectors.append(answer["body"])
            if name.startswith("alb"):
                self.assertEqual(answer["statusDescription"], "200 OK")
                several = {header: [value] for header, value in answer["headers"].items()}
                self.assertEqual(several, answer["multiValueHeaders"])
        self.assertEqual(len(set(vectors)), 1)

    def test_health_checks(self):
        answer = self.function.call(recorded("alb_health"), seconds=20)
        self.assertEqual((answer["statusCode"], answer.get("body") or ""), (200, ""))

    def test_long_responses_are_refused(self):
        event = recorded("alb_plain") | {"body": json.dumps({"inputs": ["a b c d e f g h i j k l m"] * 400})}
        fits = self.function.call(event, seconds=60)
        self.assertEqual(fits["statusCode"], 200)
        self.assertLess(len(json.dumps(fits)), 1_000_000)
        answer = self.function.call(event | {"path": "/embed_all"}, seconds=60)
        self.assertEqual(answer["statusCode"], 413, answer["body"][:300])
        self.assertIn("the limit of the load balancer", json.loads(answer["body"])["error"])
        self.assertIn("x-request-id", answer["headers"])
        self.assertIn("the response is too long", self.function.text())


if __name__ == "__main__":
    unittest.main()
