"""Runs the real clients, unmodified, against a running server.

    pip install --require-hashes -r tests/clients/requirements.txt
    TEST_URL=http://127.0.0.1:8080 python tests/clients/test_clients.py

The server serves the model `minilm`: all-MiniLM-L6-v2 in int8, vectors of 384
numbers, texts of at most 256 tokens.

Environment:

- TEST_URL: where the server listens. Needed.
- TEST_GOLDENS: a file of embeddings by sentence-transformers in fp32
  ({"cases": [{"text", "ids", "embedding"}]}). Without it, the tests that compare
  with it are skipped.

The clients send requests to TEST_URL only, without a proxy and without tokens
from the home folder.
"""

import json
import os
import re
import sys
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

URL = os.environ.get("TEST_URL", "").rstrip("/")
GOLDENS = os.environ.get("TEST_GOLDENS", "")

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

# int8 quantizes activations by the range of the whole batch, so a vector may depend
# on the rest of the batch (cosine down to 0.967 on a server that pads four short
# texts into one batch); the vector of a text alone must not change.
SAME_TEXT_OTHER_BATCH = 0.95
SAME_TEXT_SAME_BATCH = 0.9999
# The minimum cosine of int8 to fp32, for each ordinary text and on average.
GOLDEN_WORST = 0.97
GOLDEN_MEAN = 0.985
ORDINARY_WORDS = 3
ORDINARY_CHARACTERS = re.compile(r"[A-Za-z\u00c0-\u024f0-9\s.,;:!?'()-]")

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


def cosine(left, right):
    left = numpy.asarray(left, dtype=numpy.float64)
    right = numpy.asarray(right, dtype=numpy.float64)
    return float(left @ right / (numpy.linalg.norm(left) * numpy.linalg.norm(right)))


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

    def embed(self, text):
        return vector(self.post("/embed", {"inputs": text})[0])

    def assert_unit(self, numbers, width=WIDTH):
        self.assertEqual(len(numbers), width, "the vector has the wrong width")
        norm = float(numpy.linalg.norm(numpy.asarray(numbers, dtype=numpy.float64)))
        self.assertAlmostEqual(norm, 1.0, places=4, msg="the vector is not normalized")

    def assert_near(self, found, expected, least, what):
        similarity = cosine(found, expected)
        self.assertGreaterEqual(similarity, least, f"{what}: the vectors are too far apart")

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

    def test_base64_and_float_are_equal_bit_for_bit(self):
        # Without encoding_format, the package requests base64 and decodes it.
        base64 = vector(self.create(QUESTION).data[0].embedding)
        floats = vector(self.create(QUESTION, encoding_format="float").data[0].embedding)
        self.assert_unit(base64)
        differing = int((base64.view(numpy.uint32) != floats.view(numpy.uint32)).sum())
        self.assertEqual(differing, 0, "numbers that differ between base64 and float")

    def test_base64_is_little_endian_float32_on_the_wire(self):
        body = {"model": MODEL, "input": QUESTION, "encoding_format": "base64"}
        embedding = self.post("/v1/embeddings", body)["data"][0]["embedding"]
        self.assertIsInstance(embedding, str, "base64 was requested")
        # Three bytes make four characters: 384 numbers are 1536 bytes.
        self.assertEqual(len(embedding), WIDTH * 4 // 3 * 4, "the base64 has the wrong length")

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

    def test_same_vector_as_the_tei_dialect(self):
        found = vector(self.create(QUESTION).data[0].embedding)
        self.assert_near(found, self.embed(QUESTION), SAME_TEXT_SAME_BATCH, "openai and /embed")

    def test_list_keeps_the_order(self):
        data = self.create(TEXTS).data
        self.assertEqual([entry.index for entry in data], list(range(len(TEXTS))))
        self.assertEqual([entry.object for entry in data], ["embedding"] * len(TEXTS))
        for text, entry in zip(TEXTS, data):
            self.assert_unit(entry.embedding)
            self.assert_near(entry.embedding, self.embed(text), SAME_TEXT_OTHER_BATCH, text)

    def test_list_of_one_returns_one(self):
        self.assertEqual(len(self.create([QUESTION]).data), 1)

    def test_dimensions_are_a_renormalized_prefix(self):
        whole = vector(self.create(QUESTION).data[0].embedding)
        short = vector(self.create(QUESTION, dimensions=64).data[0].embedding)
        self.assert_unit(short, width=64)
        expected = whole[:64] / numpy.linalg.norm(whole[:64])
        distance = float(numpy.abs(short - expected).max())
        self.assertLess(distance, 1e-5, "greatest distance to the renormalized prefix")

    def test_dimensions_beyond_the_model_are_rejected(self):
        with self.assertRaises((openai.BadRequestError, openai.UnprocessableEntityError)) as caught:
            self.create(QUESTION, dimensions=WIDTH + 1)
        self.assertIn("dimensions", str(caught.exception), "the message must name the field")

    def test_token_ids_equal_their_text(self):
        # As in TEI, ids are used unchanged, including special tokens.
        ids = self.token_ids(QUESTION)
        own = {"extra_body": {"token_encoding": "model"}}
        one = self.create(ids, **own).data
        self.assertEqual(len(one), 1, "one array of ids is one input")
        self.assert_near(one[0].embedding, self.embed(QUESTION), SAME_TEXT_SAME_BATCH, "[int]")
        many = self.create([self.token_ids(text) for text in TEXTS], **own).data
        self.assertEqual(len(many), len(TEXTS), "each inner array of ids is one input")
        for text, entry in zip(TEXTS, many):
            self.assert_near(entry.embedding, self.embed(text), SAME_TEXT_OTHER_BATCH, text)

    def test_response_has_model_and_usage(self):
        answer = self.create(QUESTION)
        self.assertEqual(answer.object, "list")
        self.assertEqual(answer.model, MODEL)
        bare = len(self.token_ids(QUESTION, add_special_tokens=False))
        full = len(self.token_ids(QUESTION))
        self.assertGreaterEqual(answer.usage.prompt_tokens, bare, "fewer tokens than the text has")
        self.assertLessEqual(answer.usage.prompt_tokens, full, "more tokens than the text has")
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens)

    def test_usage_counts_every_text(self):
        alone = [self.create(text).usage.prompt_tokens for text in TEXTS]
        self.assertEqual(self.create(TEXTS).usage.prompt_tokens, sum(alone))

    def test_models_lists_the_model(self):
        models = list(self.client.models.list())
        self.assertIn(MODEL, [model.id for model in models])
        self.assertEqual({model.object for model in models}, {"model"})

    def test_default_model_is_the_first(self):
        answer = self.post("/v1/embeddings", {"input": QUESTION})
        self.assertEqual(answer["model"], MODEL)

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
        self.assertEqual(rows.shape, (1, WIDTH))
        self.assertEqual(rows.dtype, numpy.float32)
        self.assert_unit(rows[0])
        self.assert_near(rows[0], self.embed(QUESTION), SAME_TEXT_SAME_BATCH, "POST / and /embed")

    def test_a_list_is_one_row_each(self):
        rows = self.client.feature_extraction(TEXTS)
        self.assertEqual(rows.shape, (len(TEXTS), WIDTH))
        for text, row in zip(TEXTS, rows):
            self.assert_near(row, self.embed(text), SAME_TEXT_OTHER_BATCH, text)

    def test_normalize(self):
        normal = self.client.feature_extraction(QUESTION, normalize=True)[0]
        raw = self.client.feature_extraction(QUESTION, normalize=False)[0]
        self.assert_unit(normal)
        self.assert_near(raw, normal, SAME_TEXT_SAME_BATCH, "normalize=False")
        norm = float(numpy.linalg.norm(raw))
        self.assertGreater(abs(norm - 1.0), 0.01, "normalize=False was normalized all the same")

    def test_dimensions(self):
        whole = self.client.feature_extraction(QUESTION)[0]
        short = self.client.feature_extraction(QUESTION, dimensions=64)
        self.assertEqual(short.shape, (1, 64))
        self.assert_unit(short[0], width=64)
        self.assert_near(short[0], whole[:64], SAME_TEXT_SAME_BATCH, "dimensions=64")

    def test_truncate_cuts_the_end(self):
        other_end = LONG + "and the captain was never seen again"
        rows = [
            self.client.feature_extraction(text, truncate=True)[0] for text in (LONG, other_end)
        ]
        self.assert_near(rows[0], rows[1], SAME_TEXT_SAME_BATCH, "texts that differ past the cut")

    def test_truncation_direction(self):
        text = "Recipe for a lemon cake with poppy seeds and sugar. " + LONG
        right, left = (
            self.client.feature_extraction(text, truncate=True, truncation_direction=direction)[0]
            for direction in ("right", "left")
        )
        self.assertLess(cosine(right, left), 0.999, "the direction made no difference")
        self.assertGreater(
            cosine(right, self.embed("lemon cake recipe")),
            cosine(left, self.embed("lemon cake recipe")),
            "`right` must keep the beginning of the text",
        )

    def test_too_long_texts_are_rejected_without_truncation(self):
        with self.assertRaises(HfHubHTTPError) as caught:
            self.client.feature_extraction(LONG, truncate=False)
        self.assert_refused(caught.exception, [413, 422], str(MAX_TOKENS))

    def test_default_prompt_is_empty(self):
        rows = self.client.feature_extraction(QUESTION, prompt_name=None)
        self.assert_near(rows[0], self.embed(QUESTION), SAME_TEXT_SAME_BATCH, "prompt_name=None")

    def test_unknown_prompt_name_is_rejected(self):
        with self.assertRaises(HfHubHTTPError) as caught:
            self.client.feature_extraction(QUESTION, prompt_name="no-such-prompt")
        self.assert_refused(caught.exception, [400, 422], "no-such-prompt")

    def test_sentence_similarity(self):
        scores = self.client.sentence_similarity(
            "Machine learning is so easy.",
            other_sentences=[
                "Deep learning is so straightforward.",
                "This is so difficult, like rocket science.",
                "The cat sleeps on the warm stove.",
            ],
        )
        self.assertEqual(len(scores), 3)
        self.assertTrue(all(isinstance(score, float) for score in scores), scores)
        self.assertEqual(sorted(scores, reverse=True), scores, "expected near to far")
        self.assertGreater(scores[0], 0.6)
        self.assertLess(scores[2], 0.3)

    def test_sentence_similarity_to_itself_is_one(self):
        scores = self.client.sentence_similarity(QUESTION, other_sentences=[QUESTION])
        self.assertAlmostEqual(scores[0], 1.0, places=3)

    def test_sentence_similarity_without_sentences_is_rejected(self):
        with self.assertRaises(HfHubHTTPError) as caught:
            self.client.sentence_similarity(QUESTION, other_sentences=[])
        self.assert_refused(caught.exception, [400, 422], "sentences")

    def test_empty_text_is_rejected(self):
        with self.assertRaises(HfHubHTTPError) as caught:
            self.client.feature_extraction("")
        self.assert_refused(caught.exception, [400, 422], "inputs")


class TeiTest(ServerTest):
    """The examples of TEI's documentation, sent like curl."""

    def test_embed_one_text_is_two_dimensional(self):
        rows = self.post("/embed", {"inputs": "What is Deep Learning?"})
        self.assertEqual(len(rows), 1, "one text must answer a list of one vector")
        self.assert_unit(rows[0])

    def test_embed_list(self):
        rows = self.post("/embed", {"inputs": TEXTS})
        self.assertEqual(len(rows), len(TEXTS))
        for text, row in zip(TEXTS, rows):
            self.assert_unit(row)
            self.assert_near(row, self.embed(text), SAME_TEXT_OTHER_BATCH, text)

    def test_embed_again_is_equal_bit_for_bit(self):
        first, second = (ask("POST", "/embed", {"inputs": QUESTION})[1] for _ in range(2))
        self.assertEqual(json.loads(first), json.loads(second))

    def test_embed_ids(self):
        rows = self.post("/embed", {"inputs": [self.token_ids(QUESTION)]})
        self.assert_near(rows[0], self.embed(QUESTION), SAME_TEXT_SAME_BATCH, "ids and text")

    def test_embed_treats_null_as_default(self):
        body = {"inputs": QUESTION, "truncate": None, "prompt_name": None, "dimensions": None}
        rows = self.post("/embed", body)
        self.assert_near(rows[0], self.embed(QUESTION), SAME_TEXT_SAME_BATCH, "nulls")

    def test_embed_all_returns_a_vector_per_token(self):
        texts = self.post("/embed_all", {"inputs": "What is Deep Learning?"})
        self.assertEqual(len(texts), 1, "one text must answer a list of one list of vectors")
        tokens = vector(texts[0])
        self.assertEqual(tokens.shape, (len(self.token_ids("What is Deep Learning?")), WIDTH))
        # The model uses mean pooling: their mean has the direction of /embed.
        self.assert_near(
            tokens.mean(axis=0),
            self.embed("What is Deep Learning?"),
            SAME_TEXT_SAME_BATCH,
            "the mean over the tokens",
        )

    def test_similarity(self):
        sentences = ["What is Machine Learning?", "How do I bake bread?"]
        scores = self.post(
            "/similarity",
            {"inputs": {"source_sentence": "What is Deep Learning?", "sentences": sentences}},
        )
        source = self.embed("What is Deep Learning?")
        self.assertEqual(len(scores), len(sentences))
        for sentence, score in zip(sentences, scores):
            expected = cosine(source, self.embed(sentence))
            self.assertAlmostEqual(score, expected, delta=0.02, msg=sentence)

    def test_tokenize(self):
        text = "What is deep learning, unbelievably?"
        tokens = self.post("/tokenize", {"inputs": text})[0]
        self.assertLessEqual({"id", "text", "special", "start", "stop"}, set(tokens[0]))
        self.assertEqual([token["special"] for token in (tokens[0], tokens[-1])], [True, True])
        for token in tokens[1:-1]:
            self.assertFalse(token["special"], token)
            covered = text[token["start"] : token["stop"]].lower()
            self.assertEqual(token["text"].replace("##", "").lower(), covered, token)

    def test_tokenize_without_special_tokens(self):
        ids = self.token_ids(QUESTION)
        self.assertEqual(self.token_ids(QUESTION, add_special_tokens=False), ids[1:-1])

    def test_tokenize_list(self):
        lists = self.post("/tokenize", {"inputs": TEXTS})
        found = [[token["id"] for token in tokens] for tokens in lists]
        self.assertEqual(found, [self.token_ids(text) for text in TEXTS])

    def test_decode_inverts_tokenize(self):
        # The model is lower case.
        texts = ["what is deep learning?", "the ferry leaves at seven."]
        ids = [self.token_ids(text) for text in texts]
        self.assertEqual(self.post("/decode", {"ids": ids}), texts)
        self.assertEqual(self.post("/decode", {"ids": ids[0]}), texts[:1])

    def test_decode_can_keep_special_tokens(self):
        body = {"ids": self.token_ids("hello"), "skip_special_tokens": False}
        self.assertEqual(self.post("/decode", body), ["[CLS] hello [SEP]"])

    def test_info(self):
        status, answer = ask("GET", "/info")
        self.assertEqual(status, 200, answer)
        info = json.loads(answer)
        expected = {
            "model_id", "model_sha", "model_dtype", "served_model_name", "model_type",
            "max_concurrent_requests", "max_input_length", "max_batch_tokens",
            "max_batch_requests", "max_client_batch_size", "auto_truncate",
            "tokenization_workers", "version", "sha", "docker_label",
        }  # fmt: skip
        self.assertEqual(expected - set(info), set(), "fields that /info does not have")
        self.assertEqual(info["model_type"], {"embedding": {"pooling": "mean"}})
        self.assertEqual(info["max_input_length"], MAX_TOKENS)
        self.assertGreaterEqual(info["max_client_batch_size"], 1)
        self.assertIsInstance(info["auto_truncate"], bool)
        self.assertIsInstance(info["version"], str)

    def test_health(self):
        self.assertEqual(ask("GET", "/health")[0], 200)

    def test_errors_are_those_of_tei(self):
        too_long = {"inputs": LONG, "truncate": False}
        for body, statuses, named in (
            (too_long, [413, 422], str(MAX_TOKENS)),
            ({"inputs": ""}, [400, 422], "inputs"),
            ({"inputs": []}, [400, 422], "inputs"),
            ({"inputs": 7}, [422], "inputs"),
            ({}, [422], "inputs"),
        ):
            with self.subTest(body=str(body)[:60]):
                answer = json.loads(self.refusal("/embed", body, statuses))
                self.assertLessEqual({"error", "error_type"}, set(answer))
                self.assertIn(named, answer["error"])

    def test_broken_json_is_400(self):
        self.refusal("/embed", b'{"inputs": "hello', [400])

    def test_unknown_path_is_404(self):
        self.assertEqual(ask("GET", "/no/such/path")[0], 404)

    def test_one_invalid_text_fails_its_own_request_only(self):
        self.refusal("/embed", {"inputs": [QUESTION, LONG], "truncate": False}, [413, 422])
        self.assert_unit(self.embed(QUESTION))


@unittest.skipUnless(GOLDENS, "skipped: TEST_GOLDENS names no file")
class GoldenTest(ServerTest):
    """The deviation of int8 from sentence-transformers in fp32."""

    @classmethod
    def setUpClass(cls):
        with open(GOLDENS, encoding="utf-8") as file:
            cls.cases = [case for case in json.load(file)["cases"] if case["text"].strip()]

    def test_token_ids(self):
        for case in self.cases:
            # The reference truncates at the model's limit, /tokenize does not.
            if len(case["ids"]) < MAX_TOKENS:
                with self.subTest(text=case["text"][:60]):
                    self.assertEqual(self.token_ids(case["text"]), case["ids"])

    def test_cosine_to_fp32(self):
        found = []
        for case in self.cases:
            row = self.post("/embed", {"inputs": case["text"], "truncate": True})[0]
            found.append((cosine(row, case["embedding"]), case["text"]))
        ordinary = [(similarity, text) for similarity, text in found if is_ordinary(text)]
        self.assertGreater(len(ordinary), 0, f"no ordinary text in {GOLDENS}")
        for name, some in (("all", found), ("ordinary", ordinary)):
            mean = sum(similarity for similarity, _ in some) / len(some)
            worst, text = min(some)
            print(
                f"cosine to fp32, {len(some)} {name} texts: mean {mean:.4f},"
                f" worst {worst:.4f} ({text[:40]!a})"
            )
        # The lowest of the ordinary texts.
        self.assertGreaterEqual(worst, GOLDEN_WORST, f"the worst text: {text[:60]!a}")
        self.assertGreaterEqual(mean, GOLDEN_MEAN, "the mean over the ordinary texts")

    def test_cosine_to_fp32_in_one_batch(self):
        ordinary = [case for case in self.cases if is_ordinary(case["text"])][:16]
        body = {"inputs": [case["text"] for case in ordinary], "truncate": True}
        for case, row in zip(ordinary, self.post("/embed", body)):
            self.assert_near(row, case["embedding"], GOLDEN_WORST, case["text"][:60])


def is_ordinary(text):
    """A few words in Latin letters: not a list of symbols, another script or a made-up word."""
    known = len(ORDINARY_CHARACTERS.findall(text))
    letters = sum(character.isalpha() for character in text)
    enough = len(text.split()) >= ORDINARY_WORDS
    return enough and known >= 0.95 * len(text) and letters >= 0.5 * len(text)


if __name__ == "__main__":
    print(f"openai {openai.__version__}, python {sys.version.split()[0]}, server {URL or '(none)'}")
    unittest.main(verbosity=2)
