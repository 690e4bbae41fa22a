"""Runs OpenAI's client, unmodified, for files and batches.

    pip install --require-hashes -r tests/clients/requirements.txt
    TEST_URL=http://127.0.0.1:8080 TEST_KEYS=KEY,OTHER python tests/clients/test_batches.py

The server serves `minilm`, has a folder for files (`files.folder`), and accepts both keys.
"""

import io
import json
import os
import sys
import time
import unittest

sys.dont_write_bytecode = True  # no __pycache__ among the sources

URL = os.environ["TEST_URL"]
KEY, OTHER = os.environ["TEST_KEYS"].split(",")

import openai  # noqa: E402

MODEL = "minilm"
TEXTS = ["Today is a nice day", "I like you", "The ferry leaves every morning at seven."]
TIMEOUT_S = 60


def client(key):
    return openai.OpenAI(base_url=f"{URL}/v1", api_key=key, max_retries=0)


def request(number, **body):
    return {"custom_id": f"request-{number}", "method": "POST", "url": "/v1/embeddings", "body": body}


class Batches(unittest.TestCase):
    def setUp(self):
        self.client = client(KEY)

    def upload(self, requests, name="requests.jsonl", **options):
        lines = "".join(json.dumps(line) + "\n" for line in requests)
        return self.client.files.create(file=(name, io.BytesIO(lines.encode())), purpose="batch", **options)

    def start(self, file, **options):
        return self.client.batches.create(
            input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h", **options
        )

    def wait(self, batch):
        deadline = time.monotonic() + TIMEOUT_S
        while batch.status not in ("completed", "failed", "expired", "cancelled"):
            self.assertLess(time.monotonic(), deadline, batch)
            time.sleep(0.05)
            batch = self.client.batches.retrieve(batch.id)
        return batch

    def lines(self, file_id):
        return [json.loads(line) for line in self.client.files.content(file_id).text.splitlines()]

    def test_a_batch_from_upload_to_download(self):
        requests = [request(number, model=MODEL, input=text) for number, text in enumerate(TEXTS)]
        requests.append(request(3, model="no-such-model", input="text"))
        file = self.upload(requests, "texts.jsonl", expires_after={"anchor": "created_at", "seconds": 3600})
        self.assertEqual((file.object, file.purpose, file.filename), ("file", "batch", "texts.jsonl"))
        self.assertEqual(file.expires_at - file.created_at, 3600)
        batch = self.start(file, metadata={"job": "nightly"})
        self.assertEqual((batch.object, batch.input_file_id), ("batch", file.id))
        batch = self.wait(batch)
        self.assertEqual(batch.status, "completed", batch)
        self.assertEqual(batch.metadata, {"job": "nightly"})
        counts = batch.request_counts
        self.assertEqual((counts.total, counts.completed, counts.failed), (4, 3, 1))
        times = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
        self.assertEqual(times, sorted(times))

        tokens = 0
        output = self.lines(batch.output_file_id)
        self.assertEqual([line["custom_id"] for line in output], [line["custom_id"] for line in requests[:3]])
        for line, text in zip(output, TEXTS):
            direct = self.client.embeddings.with_raw_response.create(model=MODEL, input=text, encoding_format="float")
            self.assertEqual(line["response"]["status_code"], 200)
            self.assertEqual(line["response"]["body"], json.loads(direct.content))
            tokens += line["response"]["body"]["usage"]["total_tokens"]
        self.assertEqual(batch.usage.total_tokens, tokens)
        (error,) = self.lines(batch.error_file_id)
        self.assertEqual(error["response"]["status_code"], 404)
        self.assertEqual(error["response"]["body"]["error"]["code"], "model_not_found")

        stored = self.client.files.retrieve(batch.output_file_id)
        self.assertEqual(stored.purpose, "batch_output")
        self.assertEqual(stored.bytes, len(self.client.files.content(stored.id).content))
        self.assertTrue(self.client.files.delete(stored.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.client.files.retrieve(stored.id)

    def test_a_wrong_file_fails_the_batch(self):
        wrong = request(1, model=MODEL, input="text") | {"method": "GET"}
        batch = self.wait(self.start(self.upload([request(0, input="a"), wrong, request(0, input="a")])))
        self.assertEqual(batch.status, "failed")
        errors = [(error.line, error.code, error.param) for error in batch.errors.data]
        self.assertEqual(errors, [(2, "invalid_method", "method"), (3, "duplicate_custom_id", "custom_id")])

    def test_a_batch_is_cancelled(self):
        requests = [request(number, model=MODEL, input=[f"{text} {number}" for text in TEXTS * 5]) for number in range(2000)]
        batch = self.start(self.upload(requests))
        self.assertEqual(self.client.batches.cancel(batch.id).status, "cancelling")
        batch = self.wait(batch)
        self.assertEqual(batch.status, "cancelled")
        self.assertGreaterEqual(batch.cancelled_at, batch.cancelling_at)
        with self.assertRaises(openai.UnprocessableEntityError):
            self.client.batches.cancel(batch.id)

    def test_lists_have_pages(self):
        files = [self.upload([request(0, input="a")]) for _ in range(3)]
        batches = [self.start(file) for file in files]
        found = [file.id for file in self.client.files.list(limit=2, purpose="batch")]
        self.assertEqual(found[:3], [file.id for file in reversed(files)])
        oldest = [file.id for file in self.client.files.list(order="asc")]
        self.assertEqual(oldest, sorted(oldest))
        page = self.client.batches.list(limit=2)
        self.assertEqual([batch.id for batch in page.data], [batch.id for batch in reversed(batches)][:2])
        self.assertTrue(page.has_more)
        self.assertEqual(page.get_next_page().data[0].id, batches[0].id)
        for batch in batches:
            self.wait(batch)

    def test_other_keys_see_nothing(self):
        file = self.upload([request(0, model=MODEL, input="a")])
        batch = self.start(file)
        other = client(OTHER)
        self.assertEqual((other.files.list().data, other.batches.list().data), ([], []))
        for ask in (
            lambda: other.files.retrieve(file.id),
            lambda: other.files.content(file.id),
            lambda: other.files.delete(file.id),
            lambda: other.batches.retrieve(batch.id),
            lambda: other.batches.cancel(batch.id),
            lambda: other.batches.create(
                input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
            ),
        ):
            self.assertRaises(openai.NotFoundError, ask)
        self.assertEqual(self.wait(batch).status, "completed")

    def test_errors_are_those_of_the_client(self):
        with self.assertRaises(openai.UnprocessableEntityError) as raised:
            self.client.batches.create(input_file_id="file-1", endpoint="/v1/responses", completion_window="24h")
        self.assertIn("`/v1/embeddings`", raised.exception.body["message"])
        with self.assertRaises(openai.UnprocessableEntityError):
            self.client.files.create(file=("a", b"{}"), purpose="fine-tune")


if __name__ == "__main__":
    unittest.main()
