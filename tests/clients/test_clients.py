"""Runs the real clients, unmodified, against a running server.

    pip install --require-hashes -r tests/clients/requirements.txt
    TEST_URL=http://127.0.0.1:8080 python tests/clients/test_clients.py

The server serves the model `minilm`: all-MiniLM-L6-v2 in int8, vectors of 384
numbers, texts of at most 256 tokens. It runs in the native engine, where a text has
the same bits in every batch and through every API (docs/bundle-reference.md), so the
packages' vectors must have the bits of /embed. What a server returns without a
package is tested in tests/integration.

The clients send requests to TEST_URL only, without a proxy and without tokens
from the home folder.
"""

import json
import os
import sys
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

URL = os.environ.get("TEST_URL", "").rstrip("/")

# Set before the import, since the clients read them then.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1"
os.environ["HF_TOKEN_PATH"] = os.devnull
for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "OPENAI_BASE_URL"):
    os.environ.pop(name, None)
for name in ("http_proxy", "https_proxy", "all_proxy"):
    os.environ.pop(name, None)
    os.environ.pop(name.upper(), None)

import numpy  # noqa: E402
import openai  # noqa: E402
from huggingface_hub import InferenceClient  # noqa: E402
from huggingface_hub.errors import HfHubHTTPError  # noqa: E402

MODEL = "minilm"
WIDTH = 384
MAX_TOKENS = 256
TIMEOUT_S = 30

QUESTION = "What is deep learning?"
TEXTS = [
    "Today is a nice day",
    "I like you",
    "The ferry to the island leaves every morning at seven.",
    "Der Zug nach Hamburg hat zwanzig Minuten Verspätung.",
]
# Each word is one token, which determines the number of tokens.
LONG = "the river carried the boat past the old mill and the quiet town " * 40


def setUpModule():
    """Waits until the server responds, so that a slow start is not a failure."""
    if not URL:
        raise SystemExit("expected the server's address in TEST_URL, but found none")
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            status, _ = ask("GET", "/health")
            found = f"status {status}"
            if status == 200:
                return
        except OSError as error:
            found = str(error)
        if time.monotonic() > deadline:
            raise SystemExit(
                f"expected {URL}/health to answer 200 within {TIMEOUT_S} s, but found {found}"
            )
        time.sleep(0.2)


def ask(method, path, body=None):
    """Sends a plain HTTP request, like curl; returns the status and the raw body."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data=data, method=method)
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def vector(numbers):
    return numpy.asarray(numbers, dtype=numpy.float32)


class ServerTest(unittest.TestCase):
    """Assertions on responses."""

    longMessage = True

    def post(self, path, body):
        """Sends a request that must succeed; returns the JSON response."""
        status, answer = ask("POST", path, body)
        self.assertEqual(status, 200, f"POST {path} answered: {answer[:500]!r}")
        return json.loads(answer)

    def refusal(self, path, body, statuses):
        """Sends a request that must be rejected with one of `statuses`; returns the raw response."""
        status, answer = ask("POST", path, body)
        self.assertIn(status, statuses, f"POST {path} answered: {answer[:500]!r}")
        return answer.decode()

    def token_ids(self, text, add_special_tokens=True):
        body = {"inputs": text, "add_special_tokens": add_special_tokens}
        return [token["id"] for token in self.post("/tokenize", body)[0]]

    def embed(self, texts, **options):
        """The vectors that the server returns without a package."""
        return vector(self.post("/embed", {"inputs": texts, "model": MODEL, **options}))

    def assert_unit(self, numbers, width=WIDTH):
        self.assertEqual(len(numbers), width, "the vector has the wrong width")
        norm = float(numpy.linalg.norm(numpy.asarray(numbers, dtype=numpy.float64)))
        self.assertAlmostEqual(norm, 1.0, places=4, msg="the vector is not normalized")

    def assert_same_bits(self, found, expected):
        found, expected = vector(found), vector(expected)
        self.assertEqual(found.shape, expected.shape)
        differing = int((found.view(numpy.uint32) != expected.view(numpy.uint32)).sum())
        self.assertEqual(differing, 0, "numbers that differ")

    def assert_refused(self, error, statuses, named):
        """`{"error": message, …}`, which `huggingface_hub` appends to its own message."""
        self.assertIn(error.response.status_code, statuses, str(error))
        message = error.response.json().get("error")
        self.assertIsInstance(message, str, f"no `error` in {error.response.text}")
        self.assertIn(named, message)
        self.assertIn(message, str(error), "the package must show our message")


class OpenAiTest(ServerTest):
    """The `openai` package: POST /v1/embeddings and GET /v1/models."""

    @classmethod
    def setUpClass(cls):
        cls.client = openai.OpenAI(
            base_url=URL + "/v1", api_key="none", timeout=TIMEOUT_S, max_retries=0
        )

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    def create(self, text, **options):
        return self.client.embeddings.create(model=MODEL, input=text, **options)

    def vectors(self, texts, **options):
        return [entry.embedding for entry in self.create(texts, **options).data]

    def test_base64_and_floats(self):
        # Without encoding_format, the package requests base64 and decodes it.
        for options in ({}, {"encoding_format": "float"}):
            with self.subTest(**options):
                self.assert_same_bits(self.vectors(QUESTION, **options), self.embed(QUESTION))

    def test_other_types_than_floats_are_numbers_or_refused(self):
        # The package reads base64, which it requests by itself, as 32-bit floats.
        refusals = (openai.BadRequestError, openai.UnprocessableEntityError)
        for field in ("output_dtype", "embedding_type"):
            with self.assertRaisesRegex(refusals, "expected `encoding_format` `float`"):
                self.create(QUESTION, extra_body={field: "int8"})
            found = self.create(QUESTION, encoding_format="float", extra_body={field: "int8"})
            integers = found.data[0].embedding
            self.assertEqual(len(integers), WIDTH)
            self.assertEqual(integers, [round(value) for value in integers])
            self.assertGreater(max(map(abs, integers)), 1)

    def test_list_keeps_the_order(self):
        data = self.create(TEXTS).data
        self.assertEqual([entry.index for entry in data], list(range(len(TEXTS))))
        self.assertEqual([entry.object for entry in data], ["embedding"] * len(TEXTS))
        self.assert_same_bits([entry.embedding for entry in data], self.embed(TEXTS))
        alone = [self.vectors(text)[0] for text in TEXTS]
        self.assert_same_bits(alone, self.embed(TEXTS))

    def test_dimensions(self):
        short = self.vectors(QUESTION, dimensions=64)
        self.assert_unit(short[0], width=64)
        self.assert_same_bits(short, self.embed(QUESTION, dimensions=64))

    def test_dimensions_beyond_the_model_are_rejected(self):
        with self.assertRaises((openai.BadRequestError, openai.UnprocessableEntityError)) as caught:
            self.create(QUESTION, dimensions=WIDTH + 1)
        self.assertIn("dimensions", str(caught.exception), "the message must name the field")

    def test_query_parameters(self):
        # Clients for Azure add the first. An option would be ignored in the query.
        found = self.create(QUESTION, extra_query={"api-version": "2024-10-21"})
        self.assert_same_bits([found.data[0].embedding], self.embed(QUESTION))
        with self.assertRaises(openai.UnprocessableEntityError) as caught:
            self.create(QUESTION, extra_query={"dimensions": 64})
        self.assert_openai_error(caught.exception, "dimensions")

    def test_token_ids_equal_their_text(self):
        # As in TEI, ids are used unchanged, including special tokens.
        own = {"extra_body": {"token_encoding": "model"}}
        one = self.vectors(self.token_ids(QUESTION), **own)
        self.assert_same_bits(one, self.embed(QUESTION))
        many = self.vectors([self.token_ids(text) for text in TEXTS], **own)
        self.assert_same_bits(many, self.embed(TEXTS))

    def test_response_has_model_and_usage(self):
        answer = self.create(QUESTION)
        self.assertEqual(answer.object, "list")
        self.assertEqual(answer.model, MODEL)
        self.assertEqual(answer.usage.prompt_tokens, len(self.token_ids(QUESTION)))
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens)

    def test_models_lists_the_model(self):
        models = list(self.client.models.list())
        self.assertIn(MODEL, [model.id for model in models])
        self.assertEqual({model.object for model in models}, {"model"})

    def test_unknown_model_is_not_found(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.embeddings.create(model="no-such-model", input=QUESTION)
        self.assert_openai_error(caught.exception, "no-such-model")

    def test_empty_list_is_rejected(self):
        with self.assertRaises((openai.BadRequestError, openai.UnprocessableEntityError)) as caught:
            self.create([])
        self.assert_openai_error(caught.exception, "input")

    def test_empty_text_is_rejected(self):
        with self.assertRaises((openai.BadRequestError, openai.UnprocessableEntityError)) as caught:
            self.create("")
        self.assert_openai_error(caught.exception, "input")

    def test_wrong_type_has_an_error_of_openai(self):
        with self.assertRaises((openai.BadRequestError, openai.UnprocessableEntityError)) as caught:
            self.create({"text": QUESTION})
        self.assert_openai_error(caught.exception, "input")

    def assert_openai_error(self, error, named):
        """`{"error": {"message", "type", "param", "code"}}`, with `named` in the message."""
        body = error.response.json()
        self.assertIsInstance(body.get("error"), dict, f"not in OpenAI's shape: {body}")
        self.assertLessEqual({"message", "type", "param", "code"}, set(body["error"]))
        self.assertIn(named, body["error"]["message"])
        self.assertIn(body["error"]["message"], str(error), "the package must show our message")


class HuggingFaceTest(ServerTest):
    """`huggingface_hub.InferenceClient` with the server's address as its model.

    It posts to that URL without a path, so every task is sent to POST / and only
    the bodies differ:

    - feature_extraction: {"inputs": str or [str], and normalize, prompt_name,
      truncate, truncation_direction, dimensions as further fields}
    - sentence_similarity: {"inputs": {"source_sentence", "sentences"},
      "parameters": {}}
    """

    @classmethod
    def setUpClass(cls):
        cls.client = InferenceClient(model=URL, timeout=TIMEOUT_S)

    def test_one_text_is_one_row(self):
        rows = self.client.feature_extraction(QUESTION)
        self.assertEqual(rows.dtype, numpy.float32)
        self.assert_unit(rows[0])
        self.assert_same_bits(rows, self.embed(QUESTION))

    def test_a_list_is_one_row_each(self):
        self.assert_same_bits(self.client.feature_extraction(TEXTS), self.embed(TEXTS))

    def test_options(self):
        plain = self.embed(QUESTION)
        for options, is_plain in (
            ({"normalize": True}, True),
            ({"normalize": False}, False),
            ({"dimensions": 64}, False),
            ({"prompt_name": None}, True),
        ):
            with self.subTest(**options):
                rows = self.client.feature_extraction(QUESTION, **options)
                self.assert_same_bits(rows, self.embed(QUESTION, **options))
                self.assertEqual(numpy.array_equal(rows, plain), is_plain)

    def test_truncation(self):
        other_end = LONG + "and the captain was never seen again"
        right, left = (
            self.client.feature_extraction(other_end, truncate=True, truncation_direction=direction)
            for direction in ("right", "left")
        )
        self.assert_same_bits(right, self.embed(LONG))
        self.assertFalse(numpy.array_equal(right, left), "the direction made no difference")

    def test_too_long_texts_are_rejected_without_truncation(self):
        with self.assertRaises(HfHubHTTPError) as caught:
            self.client.feature_extraction(LONG, truncate=False)
        self.assert_refused(caught.exception, [413, 422], str(MAX_TOKENS))

    def test_unknown_prompt_name_is_rejected(self):
        with self.assertRaises(HfHubHTTPError) as caught:
            self.client.feature_extraction(QUESTION, prompt_name="no-such-prompt")
        self.assert_refused(caught.exception, [400, 422], "no-such-prompt")

    def test_sentence_similarity(self):
        source, others = QUESTION, ["What is machine learning?", "The cat sleeps on the stove."]
        scores = self.client.sentence_similarity(source, other_sentences=others)
        self.assertTrue(all(isinstance(score, float) for score in scores), scores)
        inputs = {"source_sentence": source, "sentences": others}
        self.assertEqual(scores, self.post("/similarity", {"inputs": inputs, "model": MODEL}))
        self.assertGreater(scores[0], scores[1])

    def test_sentence_similarity_without_sentences_is_rejected(self):
        with self.assertRaises(HfHubHTTPError) as caught:
            self.client.sentence_similarity(QUESTION, other_sentences=[])
        self.assert_refused(caught.exception, [400, 422], "sentences")

    def test_empty_text_is_rejected(self):
        with self.assertRaises(HfHubHTTPError) as caught:
            self.client.feature_extraction("")
        self.assert_refused(caught.exception, [400, 422], "inputs")


if __name__ == "__main__":
    print(f"openai {openai.__version__}, python {sys.version.split()[0]}, server {URL or '(none)'}")
    unittest.main(verbosity=2)
