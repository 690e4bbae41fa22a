"""Runs the real clients, unmodified, for tasks other than embeddings and for KServe v2.

    pip install --require-hashes -r tests/clients/requirements.txt
    TEST_URL=http://127.0.0.1:8080 python tests/clients/test_tasks.py

One server serves all of these models (`kivu serve` on a folder of bundles):

- `minilm`: feature-extraction, as in test_clients.py
- `zero-shot`: zero-shot-classification, by embeddings
- `rank`: text-ranking, by embeddings
- `sentiment`: text-classification with the labels negative, neutral and positive;
  its tests are skipped if it is not served
- `ner`: token-classification, with random weights; its tests are skipped if it is not served
- `summary`: summarization, with random weights; its tests are skipped if it is not served
- `translate-en-pt`, `translate-pt-en`: translation; their tests are skipped if they are not served

TEST_URL is that of test_clients.py.
"""

import json
import platform
import sys
import unittest
import urllib.parse
from importlib.metadata import version

sys.dont_write_bytecode = sys.pycache_prefix is None  # no __pycache__ among the sources

import test_clients as base  # first: it sets what the clients read on import  # noqa: E402
from test_clients import MODEL, QUESTION, TEXTS, TIMEOUT_S, URL, WIDTH, ServerTest, ask, vector

import cohere
import httpx
import numpy
import tritonclient.http as triton
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from tritonclient.utils import InferenceServerException

setUpModule = base.setUpModule

TASKS = {
    MODEL: "feature-extraction",
    "zero-shot": "zero-shot-classification",
    "rank": "text-ranking",
    "sentiment": "text-classification",
    "text-language": "text-classification",
    "ner": "token-classification",
    "summary": "summarization",
    "translate-en-pt": "translation",
    "translate-pt-en": "translation",
}
SENTIMENTS = {"negative", "neutral", "positive"}
NO_MODEL = "no-such-model"

FOOTBALL = "The striker scored twice and the home team won the match."
KITCHEN = "Simmer the onions in butter, then add the stock and the rice."
TOPICS = ["cooking", "politics", "sport"]

ASKED = "How many people live in Berlin?"
ANSWERING = 2
DOCUMENTS = [
    "The recipe needs two eggs, flour and a little sugar.",
    "New York City is famous for the Metropolitan Museum of Art.",
    "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 km².",
    "Berlin is known for its museums and its nightlife.",
]


def served():
    """The names of the served models."""
    status, answer = ask("GET", "/v1/models")
    if status != 200:
        raise SystemExit(f"expected /v1/models to answer 200, but found {status}: {answer[:200]!r}")
    return [model["id"] for model in json.loads(answer)["data"]]


def need(model):
    if model not in served():
        raise unittest.SkipTest(f"skipped: {URL}/v1/models does not list `{model}`")


def hub(model):
    return InferenceClient(model=f"{URL}/models/{model}", timeout=TIMEOUT_S)


class TaskTest(ServerTest):
    """Assertions on responses of any dialect."""

    def assert_descending(self, scores):
        self.assertEqual(sorted(scores, reverse=True), list(scores), "expected the best first")

    def assert_message(self, shape, answer, *named):
        """The error message of a dialect contains each of `named`."""
        body = json.loads(answer)
        if shape == "openai":
            self.assertIsInstance(body.get("error"), dict, f"not in OpenAI's shape: {body}")
            self.assertLessEqual({"message", "type", "param", "code"}, set(body["error"]))
            message = body["error"]["message"]
        elif shape == "tei":
            self.assertEqual(set(body), {"error", "error_type"})
            message = body["error"]
        else:
            self.assertEqual(set(body), {{"cohere": "message", "jina": "detail"}[shape]})
            (message,) = body.values()
        self.assertIsInstance(message, str, f"no message in {body}")
        for name in named:
            self.assertIn(name, message)


class HubEmbeddingTest(TaskTest):
    """`huggingface_hub` at POST /models/minilm."""

    @classmethod
    def setUpClass(cls):
        need(MODEL)
        cls.client = hub(MODEL)

    def test_feature_extraction(self):
        rows = self.client.feature_extraction(TEXTS)
        self.assert_same_bits(rows, self.embed(TEXTS))

    def test_options_of_feature_extraction(self):
        for options in ({"dimensions": 64}, {"normalize": False}):
            rows = self.client.feature_extraction(QUESTION, **options)
            self.assert_same_bits(rows, self.embed(QUESTION, **options))

    def test_sentence_similarity(self):
        near, far = self.client.sentence_similarity(
            "How do I bake bread?",
            other_sentences=["Which flour is good for a loaf?", "The parliament meets today."],
        )
        self.assertIsInstance(near, float)
        self.assertGreater(near, far + 0.2, "expected the sentence about bread to be nearer")

    def test_a_pair_where_a_text_belongs(self):
        for inputs in ({"text": "a", "text_pair": "b"}, [["a", "b"]]):
            with self.subTest(inputs=inputs):
                answer = self.refusal(f"/models/{MODEL}", {"inputs": inputs}, [422])
                self.assert_message("tei", answer, "inputs")

    def test_unknown_model(self):
        with self.assertRaises(HfHubHTTPError) as caught:
            hub(NO_MODEL).feature_extraction(QUESTION)
        self.assert_refused(caught.exception, [404], NO_MODEL)


class HubZeroShotTest(TaskTest):
    """`huggingface_hub` at POST /models/zero-shot."""

    PATH = "/models/zero-shot"

    @classmethod
    def setUpClass(cls):
        need("zero-shot")
        cls.client = hub("zero-shot")

    def classify(self, text=FOOTBALL, labels=TOPICS, **options):
        found = self.client.zero_shot_classification(text, labels, **options)
        self.assertEqual({element.label for element in found}, set(labels))
        self.assertEqual(len(found), len(labels))
        self.assert_descending([element.score for element in found])
        return found

    def test_football_is_sport_and_scores_sum_to_one(self):
        for text, expected in ((FOOTBALL, "sport"), (KITCHEN, "cooking")):
            with self.subTest(text=text):
                found = self.classify(text)
                self.assertEqual(found[0].label, expected)
                self.assertGreater(found[0].score, 0.5)
                self.assertAlmostEqual(sum(element.score for element in found), 1.0, places=4)

    def test_order_of_labels_does_not_matter(self):
        one = self.classify()
        other = self.classify(labels=TOPICS[::-1])
        self.assertEqual([e.label for e in one], [e.label for e in other])
        for left, right in zip(one, other):
            # A sum over the labels, in their order.
            self.assertAlmostEqual(left.score, right.score, delta=1e-6, msg=left.label)

    def test_multi_label_scores_each_label_on_its_own(self):
        found = {e.label: e.score for e in self.classify(multi_label=True)}
        self.assertEqual(max(found, key=found.get), "sport")
        for score in found.values():
            self.assertTrue(0.0 <= score <= 1.0, found)
        # The score of a label does not depend on the other labels.
        alone = self.classify(labels=["sport"], multi_label=True)[0].score
        self.assertEqual(alone, found["sport"])

    def test_one_label_is_scored_on_its_own(self):
        right = self.classify(labels=["sport"])[0].score
        wrong = self.classify(labels=["politics"])[0].score
        self.assertLess(right, 1.0, "a softmax over one label would be 1")
        self.assertGreater(right, wrong)

    def test_hypothesis_template(self):
        default = self.classify()
        same = self.classify(hypothesis_template="This example is {}.")
        other = self.classify(hypothesis_template="This text is about {}.")
        self.assertEqual([e.score for e in same], [e.score for e in default])
        self.assertNotEqual([e.score for e in other], [e.score for e in default])
        self.assertEqual(other[0].label, "sport")

    def test_labels_as_one_string(self):
        labels = {"candidate_labels": " sport, cooking,, politics "}
        found = self.post(self.PATH, {"inputs": FOOTBALL, "parameters": labels})
        self.assertEqual({element["label"] for element in found}, set(TOPICS))
        self.assertEqual(found[0]["label"], "sport")

    def test_a_list_of_texts_is_a_list_of_lists(self):
        body = {"inputs": [FOOTBALL, KITCHEN], "parameters": {"candidate_labels": TOPICS}}
        found = self.post(self.PATH, body)
        self.assertEqual([labels[0]["label"] for labels in found], ["sport", "cooking"])
        self.assertEqual(len(self.post(self.PATH, {**body, "inputs": [FOOTBALL]})[0]), len(TOPICS))

    def test_errors_of_client_requests(self):
        for labels, options, named in (
            ([], {}, "labels"),
            (["sport", "cooking", "sport"], {}, "labels[2]"),
            (["sport", " "], {}, "labels[1]"),
            (["sport"], {"hypothesis_template": "This lacks a gap."}, "hypothesis_template"),
        ):
            with self.subTest(labels=labels, **options):
                with self.assertRaises(HfHubHTTPError) as caught:
                    self.client.zero_shot_classification(FOOTBALL, labels, **options)
                self.assert_refused(caught.exception, [422], named)

    def test_errors_of_plain_requests(self):
        labels = {"candidate_labels": TOPICS}
        for body, named in (
            ({"inputs": FOOTBALL}, "parameters"),
            ({"inputs": FOOTBALL, "parameters": {}}, "candidate_labels"),
            ({"inputs": FOOTBALL, "parameters": {"candidate_labels": [1]}}, "labels[0]"),
            ({"inputs": FOOTBALL, "parameters": {"candidate_labels": " , "}}, "labels"),
            ({"inputs": "", "parameters": labels}, "inputs"),
            ({"inputs": [], "parameters": labels}, "inputs"),
            ({"inputs": {"text": "a", "text_pair": "b"}, "parameters": labels}, "inputs"),
            ({"inputs": [["a", "b"]], "parameters": labels}, "inputs[0]"),
        ):
            with self.subTest(body=str(body)[:80]):
                self.assert_message("tei", self.refusal(self.PATH, body, [400, 422]), named)


class SentimentTest(TaskTest):
    """Text classification: `huggingface_hub` at POST /models/sentiment, and TEI's POST /predict."""

    PATH = "/models/sentiment"
    GOOD = "I love this phone"
    BAD = "This is the worst film I have ever seen"

    @classmethod
    def setUpClass(cls):
        need("sentiment")
        cls.client = hub("sentiment")

    def predict(self, inputs, **options):
        return self.post("/predict", {"inputs": inputs, "model": "sentiment", **options})

    def assert_predictions(self, found):
        self.assertEqual([set(prediction) for prediction in found], [{"score", "label"}] * 3)
        self.assertEqual({prediction["label"] for prediction in found}, SENTIMENTS)
        self.assert_descending([prediction["score"] for prediction in found])

    def test_text_classification(self):
        for text, expected in ((self.GOOD, "positive"), (self.BAD, "negative")):
            with self.subTest(text=text):
                found = self.client.text_classification(text)
                self.assertEqual({element.label for element in found}, SENTIMENTS)
                self.assert_descending([element.score for element in found])
                self.assertEqual(found[0].label, expected)
                self.assertAlmostEqual(sum(element.score for element in found), 1.0, places=4)

    def test_top_k(self):
        for count, expected in ((1, 1), (2, 2), (3, 3), (100, len(SENTIMENTS))):
            found = self.client.text_classification(self.GOOD, top_k=count)
            self.assertEqual(len(found), expected, f"top_k={count}")

    def test_top_k_of_none_at_all(self):
        with self.assertRaises(HfHubHTTPError) as caught:
            self.client.text_classification(self.GOOD, top_k=0)
        self.assert_refused(caught.exception, [422], "top_k")

    def test_function_to_apply(self):
        def scores(function):
            found = self.client.text_classification(self.GOOD, function_to_apply=function)
            return {element.label: element.score for element in found}

        logits, softmax, sigmoid = scores("none"), scores("softmax"), scores("sigmoid")
        total = sum(numpy.exp(logit) for logit in logits.values())
        for label, logit in logits.items():
            self.assertAlmostEqual(softmax[label], numpy.exp(logit) / total, places=4)
            self.assertAlmostEqual(sigmoid[label], 1.0 / (1.0 + numpy.exp(-logit)), places=4)

    def test_unknown_function_to_apply(self):
        with self.assertRaises(HfHubHTTPError) as caught:
            self.client.text_classification(self.GOOD, function_to_apply="tanh")
        self.assert_refused(caught.exception, [422], "function_to_apply")

    def test_predict_one_text(self):
        found = self.predict(self.GOOD)
        self.assert_predictions(found)
        self.assertEqual(found[0]["label"], "positive")
        same = self.client.text_classification(self.GOOD)
        self.assertEqual([e.label for e in same], [prediction["label"] for prediction in found])
        self.assertEqual(same[0].score, found[0]["score"])

    def test_predict_one_pair_is_one_list(self):
        self.assert_predictions(self.predict([self.GOOD, self.BAD]))

    def test_predict_a_batch_is_a_list_of_lists(self):
        found = self.predict([[self.GOOD], [self.BAD], [self.GOOD, self.BAD]])
        self.assertEqual(len(found), 3)
        for predictions in found:
            self.assert_predictions(predictions)
        self.assertEqual([p[0]["label"] for p in found[:2]], ["positive", "negative"])
        self.assertEqual(len(self.predict([[self.GOOD]])), 1, "a batch of one is a batch")

    def test_predict_raw_scores(self):
        raw = {p["label"]: p["score"] for p in self.predict(self.GOOD, raw_scores=True)}
        scores = {p["label"]: p["score"] for p in self.predict(self.GOOD)}
        total = sum(numpy.exp(logit) for logit in raw.values())
        for label, logit in raw.items():
            self.assertAlmostEqual(scores[label], numpy.exp(logit) / total, places=4)

    def test_pairs_of_the_hub(self):
        pair = {"text": self.GOOD, "text_pair": self.BAD}
        found = self.post(self.PATH, {"inputs": pair})
        self.assertEqual(len(found), 1, "both official clients want a list of one list")
        self.assert_predictions(found[0])
        direct = self.predict([self.GOOD, self.BAD])
        self.assertEqual(found[0], direct)
        self.assertEqual(len(self.post(self.PATH, {"inputs": [self.GOOD, pair]})), 2)

    def test_wrong_inputs(self):
        for path, inputs, named in (
            ("/predict", "", "inputs"),
            ("/predict", [], "inputs"),
            ("/predict", ["a", "b", "c"], "inputs"),
            ("/predict", [["a", "b", "c"]], "inputs[0]"),
            ("/predict", [["a"], []], "inputs[1]"),
            ("/predict", {"text": "a", "text_pair": "b"}, "inputs"),
            (self.PATH, "", "inputs"),
            (self.PATH, [["a", "b"]], "inputs[0]"),
            (self.PATH, {"text_pair": "b"}, "inputs.text"),
            (self.PATH, {"text": "a", "text_pair": 7}, "inputs.text_pair"),
        ):
            with self.subTest(path=path, inputs=inputs):
                body = {"inputs": inputs, "model": "sentiment"}
                self.assert_message("tei", self.refusal(path, body, [400, 413, 422]), named)


class EntitiesTest(TaskTest):
    """Token classification: `huggingface_hub` at POST /models/ner, and KServe."""

    PATH = "/models/ner"
    TEXT = "My name is Sarah\u0301 and I live in 🇵🇹 London"

    @classmethod
    def setUpClass(cls):
        need("ner")
        cls.client = hub("ner")

    def plain(self, **parameters):
        return self.post(self.PATH, {"inputs": self.TEXT, "parameters": parameters})

    def assert_same(self, found, expected):
        self.assertEqual(len(found), len(expected))
        for element, entity in zip(found, expected):
            for name, value in entity.items():
                self.assertEqual(getattr(element, name), value, name)

    def test_token_classification(self):
        found = self.client.token_classification(self.TEXT)
        self.assertGreater(len(found), 3)
        self.assert_same(found, self.plain())
        for element in found:
            self.assertIn(element.entity_group, ("PER", "LOC"))
            self.assertLess(0.0, element.score)
            self.assertLess(0, len(self.TEXT[element.start : element.end]))

    def test_parameters(self):
        for options in (
            {"aggregation_strategy": "none"},
            {"aggregation_strategy": "average"},
            {"aggregation_strategy": "max", "ignore_labels": ["O", "PER"]},
            {"aggregation_strategy": "first", "stride": 4},
        ):
            with self.subTest(**options):
                found = self.client.token_classification(self.TEXT, **options)
                self.assert_same(found, self.plain(**options))
                self.assertGreater(len(found), 0)

    def test_a_list_of_texts_is_a_list_of_lists(self):
        found = self.post(self.PATH, {"inputs": [self.TEXT, "a"]})
        self.assertEqual(found[0], self.plain())
        self.assertEqual(len(found), 2)

    def test_refusals(self):
        with self.assertRaises(HfHubHTTPError) as caught:
            self.client.token_classification(self.TEXT, aggregation_strategy="median")
        self.assert_refused(caught.exception, [422], "aggregation_strategy")
        with self.assertRaises(HfHubHTTPError) as caught:
            self.client.token_classification(self.TEXT, stride=500)
        self.assert_refused(caught.exception, [422], "stride")

    def test_tensors(self):
        client = triton.InferenceServerClient(URL.removeprefix("http://"), network_timeout=TIMEOUT_S)
        texts = numpy.array([[self.TEXT.encode()]], dtype=object)
        tensor = triton.InferInput("TEXT", texts.shape, "BYTES")
        tensor.set_data_from_numpy(texts, binary_data=True)
        found = client.infer("ner", [tensor], parameters={"aggregation_strategy": "first"}).as_numpy("entities")
        self.assertEqual(json.loads(found[0][0]), self.plain(aggregation_strategy="first"))
        ids = numpy.array([[2, 9, 8, 3]], dtype=numpy.int64)
        tensor = triton.InferInput("input_ids", ids.shape, "INT64")
        tensor.set_data_from_numpy(ids, binary_data=True)
        self.assertEqual(client.infer("ner", [tensor]).as_numpy("logits").shape, (1, 4, 5))


class SummaryTest(TaskTest):
    """Summaries: `huggingface_hub` at POST /models/summary, and KServe."""

    TEXT = "the weather is lovely today and I like it"
    OPTIONS = {"max_new_tokens": 6, "num_beams": 2}

    @classmethod
    def setUpClass(cls):
        need("summary")
        cls.client = hub("summary")

    def plain(self):
        body = {"inputs": self.TEXT, "parameters": {"generate_parameters": self.OPTIONS}}
        return self.post("/models/summary", body)[0]["summary_text"]

    def test_summarization(self):
        found = self.client.summarization(self.TEXT, generate_parameters=self.OPTIONS)
        self.assertEqual(found.summary_text, self.plain())
        self.assertGreater(len(found.summary_text), 0)
        self.assertNotEqual(found.summary_text, self.client.summarization(self.TEXT).summary_text)

    def test_refusals(self):
        with self.assertRaises(HfHubHTTPError) as caught:
            self.client.summarization(self.TEXT, generate_parameters={"num_beams": 0})
        self.assert_refused(caught.exception, [422], "num_beams")

    def test_tensors(self):
        client = triton.InferenceServerClient(URL.removeprefix("http://"), network_timeout=TIMEOUT_S)
        texts = numpy.array([[self.TEXT.encode()]], dtype=object)
        tensor = triton.InferInput("TEXT", texts.shape, "BYTES")
        tensor.set_data_from_numpy(texts, binary_data=True)
        found = client.infer("summary", [tensor], parameters=self.OPTIONS).as_numpy("summary")
        self.assertEqual(found[0][0].decode(), self.plain())


class TranslationTest(TaskTest):
    """`huggingface_hub` at POST /models/translate-en-pt and back, `/translate`, and `tritonclient`."""

    ENGLISH = "The cat sleeps on the red sofa."

    @classmethod
    def setUpClass(cls):
        need("translate-en-pt")
        need("translate-pt-en")

    def assert_portuguese(self, text):
        self.assertIsInstance(text, str)
        self.assertIn("gato", text.lower())

    def test_a_text(self):
        answer = hub("translate-en-pt").translation(self.ENGLISH)
        self.assert_portuguese(answer.translation_text)

    def test_languages_by_any_name(self):
        client = hub("translate-en-pt")
        plain = client.translation(self.ENGLISH).translation_text
        for source, target in (("en", "pt"), ("English", "Portuguese"), ("eng", "por")):
            with self.subTest(source=source, target=target):
                answer = client.translation(self.ENGLISH, src_lang=source, tgt_lang=target)
                self.assertEqual(answer.translation_text, plain)
        with self.assertRaises(HfHubHTTPError) as caught:
            client.translation(self.ENGLISH, src_lang="en", tgt_lang="de")
        self.assert_refused(caught.exception, [422], "tgt_lang")

    def test_generate_parameters(self):
        client = hub("translate-en-pt")
        short = client.translation(self.ENGLISH, generate_parameters={"max_new_tokens": 2}).translation_text
        self.assertLess(len(short), len(client.translation(self.ENGLISH).translation_text))
        with self.assertRaises(HfHubHTTPError) as caught:
            client.translation(self.ENGLISH, generate_parameters={"num_beams": 2, "num_return_sequences": 3})
        self.assert_refused(caught.exception, [422], "num_return_sequences")

    def test_there_and_back(self):
        there = hub("translate-en-pt").translation(self.ENGLISH).translation_text
        back = hub("translate-pt-en").translation(there).translation_text
        self.assertIn("cat", back.lower())

    def test_texts_keep_their_spacing(self):
        text = "The cat sleeps.\n\n  It is red.  Where is the dog?\n"
        body = {"inputs": [text, "Good morning!"], "src_lang": "English", "tgt_lang": "pt"}
        answer = self.post("/translate", body)
        self.assertEqual(answer["model"], "translate-en-pt")
        first, second = (translation["text"] for translation in answer["translations"])
        self.assert_portuguese(first)
        self.assertRegex(first, r"^\S.*\n\n  \S.*  \S.*\n$")
        self.assertTrue(second)
        self.assertGreater(answer["usage"]["output_tokens"], 0)
        back = self.post("/translate", {"inputs": first, "src_lang": "pt", "tgt_lang": "en"})
        self.assertEqual(back["model"], "translate-pt-en")

    def test_tensors(self):
        address = urllib.parse.urlsplit(URL).netloc
        client = triton.InferenceServerClient(address, connection_timeout=TIMEOUT_S, network_timeout=TIMEOUT_S)
        self.addCleanup(client.close)
        text = triton.InferInput("TEXT", [1, 1], "BYTES")
        text.set_data_from_numpy(numpy.array([[self.ENGLISH.encode()]], dtype=numpy.object_))
        for binary in (True, False):
            with self.subTest(binary=binary):
                wanted = [triton.InferRequestedOutput("translation", binary_data=binary)]
                answer = client.infer("translate-en-pt", [text], outputs=wanted).as_numpy("translation")
                found = answer[0, 0]
                self.assert_portuguese(found.decode() if isinstance(found, bytes) else found)
        ids = self.post("/tokenize", {"inputs": self.ENGLISH, "model": "translate-en-pt"})
        ids = numpy.array([[token["id"] for token in ids[0]]], dtype=numpy.int64)
        self.assertEqual(ids[0, -1], 0)  # `</s>`
        inputs = [triton.InferInput(name, list(ids.shape), "INT64") for name in ("input_ids", "attention_mask")]
        inputs[0].set_data_from_numpy(ids)
        inputs[1].set_data_from_numpy(numpy.ones_like(ids))
        indices = client.infer("translate-en-pt", inputs).as_numpy("generated_indices")
        self.assertEqual((indices.dtype, indices.shape[0]), (numpy.int64, 1))
        decoded = self.post("/decode", {"ids": indices.tolist(), "model": "translate-en-pt"})
        self.assert_portuguese(decoded[0])


class CohereTest(TaskTest):
    """The `cohere` package: POST /v2/rerank."""

    @classmethod
    def setUpClass(cls):
        need("rank")
        connections = httpx.Client(timeout=TIMEOUT_S)  # ours, since the package closes none
        cls.addClassCleanup(connections.close)
        cls.client = cohere.ClientV2(api_key="none", base_url=URL, httpx_client=connections)

    def rerank(self, **options):
        options = {"model": "rank", "query": ASKED, "documents": DOCUMENTS, **options}
        return self.client.rerank(**options)

    def test_the_relevant_text_comes_first(self):
        answer = self.rerank()
        self.assertTrue(answer.id)
        self.assertEqual(answer.results[0].index, ANSWERING)
        self.assertEqual({result.index for result in answer.results}, set(range(len(DOCUMENTS))))
        scores = [result.relevance_score for result in answer.results]
        self.assert_descending(scores)
        self.assertTrue(all(0.0 <= score <= 1.0 for score in scores), scores)
        self.assertEqual(answer.meta.api_version.version, "2")
        self.assertEqual(answer.meta.billed_units.search_units, 1)

    def test_top_n(self):
        everything = self.rerank().results
        self.assertEqual(self.rerank(top_n=2).results, everything[:2])
        self.assertEqual(self.rerank(top_n=100).results, everything)

    def test_unknown_model(self):
        with self.assertRaises(cohere.NotFoundError) as caught:
            self.rerank(model=NO_MODEL)
        self.assert_cohere_error(caught.exception, NO_MODEL)

    def test_invalid_requests(self):
        for options, named in (
            ({"documents": []}, "documents"),
            ({"documents": ["a", ""]}, "documents[1]"),
            ({"top_n": 0}, "top_n"),
            ({"query": ""}, "query"),
        ):
            with self.subTest(**options):
                with self.assertRaises(cohere.UnprocessableEntityError) as caught:
                    self.rerank(**options)
                self.assert_cohere_error(caught.exception, named)

    def assert_cohere_error(self, error, named):
        self.assert_message("cohere", json.dumps(error.body), named)
        self.assertIn(error.body["message"], str(error), "the package must show our message")


class JinaTest(TaskTest):
    """POST /v1/rerank of Jina, which has no client on PyPI."""

    BODY = {"model": "rank", "query": ASKED, "documents": DOCUMENTS}

    @classmethod
    def setUpClass(cls):
        need("rank")

    def test_shape(self):
        answer = self.post("/v1/rerank", self.BODY)
        self.assertEqual(answer["model"], "rank")
        self.assertEqual(answer["results"][0]["index"], ANSWERING)
        for result in answer["results"]:
            self.assertEqual(set(result), {"index", "relevance_score", "document"})
            self.assertEqual(result["document"], {"text": DOCUMENTS[result["index"]]})
        self.assert_descending([result["relevance_score"] for result in answer["results"]])
        usage = answer["usage"]
        # With an embedding model: the query once, and each document.
        texts = [ASKED, *DOCUMENTS]
        tokenized = self.post("/tokenize", {"inputs": texts, "model": "rank"})
        self.assertEqual(usage["total_tokens"], sum(len(tokens) for tokens in tokenized))
        self.assertEqual(usage["prompt_tokens"], usage["total_tokens"])

    def test_documents_can_be_omitted(self):
        answer = self.post("/v1/rerank", {**self.BODY, "return_documents": False, "top_n": 2})
        self.assertEqual([set(r) for r in answer["results"]], [{"index", "relevance_score"}] * 2)

    def test_documents_as_objects(self):
        objects = [{"text": text} for text in DOCUMENTS]
        mixed = [*objects[:2], *DOCUMENTS[2:]]
        expected = self.post("/v1/rerank", self.BODY)["results"]
        for documents in (objects, mixed):
            found = self.post("/v1/rerank", {**self.BODY, "documents": documents})["results"]
            self.assertEqual(found, expected)

    def test_default_model_is_the_ranking_model(self):
        body = {"query": ASKED, "documents": DOCUMENTS}
        self.assertEqual(self.post("/v1/rerank", body)["model"], "rank")

    def test_invalid_requests(self):
        for change, statuses, named in (
            ({"model": NO_MODEL}, [404], NO_MODEL),
            ({"documents": []}, [422], "documents"),
            ({"documents": "a"}, [422], "documents"),
            ({"documents": [["a", "b"]]}, [422], "documents[0]"),
            ({"documents": ["a", {"title": "b"}]}, [422], "documents[1]"),
            ({"documents": ["a", ""]}, [422], "documents[1]"),
            ({"query": ["a", "b"]}, [422], "query"),
            ({"query": ""}, [422], "query"),
            ({"top_n": 0}, [422], "top_n"),
            ({"top_n": -1}, [422], "top_n"),
        ):
            with self.subTest(**change):
                answer = self.refusal("/v1/rerank", {**self.BODY, **change}, statuses)
                self.assert_message("jina", answer, named)

    def test_broken_json_and_wrong_method_have_errors_of_jina(self):
        self.assert_message("jina", self.refusal("/v1/rerank", b'{"query": ', [400]), "JSON")
        status, answer = ask("GET", "/v1/rerank")
        self.assertEqual(status, 405)
        self.assert_message("jina", answer, "GET")


class TeiRerankTest(TaskTest):
    """POST /rerank of TEI, and the same at the hub's route."""

    BODY = {"model": "rank", "query": ASKED, "texts": DOCUMENTS}

    @classmethod
    def setUpClass(cls):
        need("rank")

    def test_sorted_and_without_texts(self):
        ranks = self.post("/rerank", self.BODY)
        self.assertEqual([set(rank) for rank in ranks], [{"index", "score"}] * len(DOCUMENTS))
        self.assertEqual(ranks[0]["index"], ANSWERING)
        self.assert_descending([rank["score"] for rank in ranks])

    def test_return_text(self):
        for rank in self.post("/rerank", {**self.BODY, "return_text": True}):
            self.assertEqual(rank["text"], DOCUMENTS[rank["index"]])

    def test_raw_scores_are_cosines(self):
        scores = {r["index"]: r["score"] for r in self.post("/rerank", self.BODY)}
        raw = {
            r["index"]: r["score"]
            for r in self.post("/rerank", {**self.BODY, "raw_scores": True})
        }
        sentences = {"source_sentence": ASKED, "sentences": DOCUMENTS}
        cosines = self.post("/similarity", {"model": MODEL, "inputs": sentences})
        for index, cosine in enumerate(cosines):
            self.assertEqual(raw[index], cosine, DOCUMENTS[index])
            self.assertEqual(scores[index], min(max(raw[index], 0.0), 1.0))

    def test_all_dialects_have_equal_scores(self):
        tei = [(r["index"], r["score"]) for r in self.post("/rerank", self.BODY)]
        nested = {"inputs": {"query": ASKED, "texts": DOCUMENTS}}
        by_hub = [(r["index"], r["score"]) for r in self.post("/models/rank", nested)]
        body = {"model": "rank", "query": ASKED, "documents": DOCUMENTS}
        jina, v2 = (
            [(r["index"], r["relevance_score"]) for r in self.post(path, body)["results"]]
            for path in ("/v1/rerank", "/v2/rerank")
        )
        for name, found in (("hub", by_hub), ("jina", jina), ("cohere", v2)):
            with self.subTest(dialect=name):
                self.assertEqual(found, tei)

    def test_invalid_requests(self):
        for change, statuses, named in (
            ({"model": NO_MODEL}, [404], NO_MODEL),
            ({"texts": []}, [400, 422], "texts"),
            ({"texts": ["a", ""]}, [400, 422], "texts[1]"),
            ({"texts": [["a", "b"]]}, [422], "texts[0]"),
            ({"query": ["a", "b"]}, [422], "query"),
            ({"query": ""}, [400, 422], "query"),
        ):
            with self.subTest(**change):
                answer = self.refusal("/rerank", {**self.BODY, **change}, statuses)
                self.assert_message("tei", answer, named)


class WrongTaskTest(TaskTest):
    """A model for another task: 422 with both tasks in the message."""

    SIMILARITY = {"inputs": {"source_sentence": "a", "sentences": ["b"]}}
    ROUTES = (
        ("/embed", "tei", "feature-extraction", {"inputs": "a"}),
        ("/embed_all", "tei", "feature-extraction", {"inputs": "a"}),
        ("/similarity", "tei", "feature-extraction", SIMILARITY),
        ("/predict", "tei", "text-classification", {"inputs": "a"}),
        ("/rerank", "tei", "text-ranking", {"query": "a", "texts": ["b"]}),
        ("/v1/embeddings", "openai", "feature-extraction", {"input": "a"}),
        ("/v1/rerank", "jina", "text-ranking", {"query": "a", "documents": ["b"]}),
        ("/v2/rerank", "cohere", "text-ranking", {"query": "a", "documents": ["b"]}),
    )

    def test_every_route(self):
        models = [model for model in served() if model in TASKS]
        for path, shape, wanted, body in self.ROUTES:
            # Embedding models rank by cosine similarity.
            able = {wanted, "feature-extraction"} if wanted == "text-ranking" else {wanted}
            for model in models:
                if TASKS[model] not in able:
                    with self.subTest(path=path, model=model):
                        answer = self.refusal(path, {**body, "model": model}, [422])
                        tasks = f"`{wanted}`", f"`{TASKS[model]}`"
                        self.assert_message(shape, answer, f"`{model}`", *tasks)

    def test_a_body_for_another_task_at_the_route_of_the_hub(self):
        ranking = {"query": "a", "texts": ["b"]}
        for model, inputs, named in (
            (MODEL, ranking, "inputs"),
            ("rank", "a", "query"),
            ("zero-shot", "a", "parameters"),
            ("sentiment", ranking, "inputs"),
        ):
            if model in served():
                with self.subTest(model=model):
                    answer = self.refusal(f"/models/{model}", {"inputs": inputs}, [422])
                    self.assert_message("tei", answer, named)


class KServeTest(TaskTest):
    """The `tritonclient` package: KServe v2 under /v2."""

    TEXTS = [QUESTION, TEXTS[3]]

    @classmethod
    def setUpClass(cls):
        status, _ = ask("GET", "/v2/health/ready")
        if status != 200:
            raise unittest.SkipTest(f"skipped: GET /v2/health/ready answers {status}, not 200")
        need(MODEL)
        address = urllib.parse.urlsplit(URL).netloc
        cls.client = triton.InferenceServerClient(
            address, concurrency=4, connection_timeout=TIMEOUT_S, network_timeout=TIMEOUT_S
        )
        cls.addClassCleanup(cls.client.close)
        metadata = cls.client.get_model_metadata(MODEL)
        cls.output = metadata["outputs"][0]["name"]

    def text_input(self, texts=TEXTS, shape=None, binary=True, name="TEXT"):
        shape = shape or [len(texts), 1]
        array = numpy.array([text.encode() for text in texts], dtype=numpy.object_)
        tensor = triton.InferInput(name, [len(texts)], "BYTES")
        tensor.set_data_from_numpy(array, binary_data=binary)
        tensor.set_shape(shape)
        return [tensor]

    def token_inputs(self, texts=TEXTS, binary=True, names=("input_ids", "attention_mask")):
        """Ids from /tokenize, padded to the longest, and their mask."""
        lists = [self.token_ids(text) for text in texts]
        width = max(len(ids) for ids in lists)
        ids = numpy.zeros((len(lists), width), dtype=numpy.int64)
        mask = numpy.zeros_like(ids)
        for row, found in enumerate(lists):
            ids[row, : len(found)] = found
            mask[row, : len(found)] = 1
        tensors = []
        for name, array in zip(names, (ids, mask)):
            tensor = triton.InferInput(name, list(array.shape), "INT64")
            tensors.append(tensor.set_data_from_numpy(array, binary_data=binary))
        return tensors

    def wanted(self, binary, name=None):
        return [triton.InferRequestedOutput(name or self.output, binary_data=binary)]

    def assert_same_as_embed(self, answer, texts=TEXTS):
        rows = answer.as_numpy(self.output)
        self.assertEqual(rows.dtype, numpy.float32)
        self.assert_same_bits(rows, self.embed(texts))

    def assert_infer_fails(self, inputs, *named, model=MODEL, status="400", **options):
        with self.assertRaises(InferenceServerException) as caught:
            self.client.infer(model, inputs, **options)
        error = caught.exception
        self.assertEqual(error.status(), status, error)
        for name in named:
            self.assertIn(name, error.message())

    def test_server(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        metadata = self.client.get_server_metadata()
        self.assertLessEqual({"name", "version", "extensions"}, set(metadata))
        self.assertIn("binary_tensor_data", metadata["extensions"])

    def test_model(self):
        self.assertTrue(self.client.is_model_ready(MODEL))
        self.assertTrue(self.client.is_model_ready(MODEL, "1"))
        metadata = self.client.get_model_metadata(MODEL)
        self.assertEqual(metadata["name"], MODEL)
        inputs = {tensor["name"]: tensor["datatype"] for tensor in metadata["inputs"]}
        self.assertEqual(inputs["TEXT"], "BYTES")
        self.assertEqual([inputs["input_ids"], inputs["attention_mask"]], ["INT64", "INT64"])
        (output,) = metadata["outputs"]
        self.assertEqual((output["datatype"], output["shape"]), ("FP32", [-1, WIDTH]))

    def test_every_model_has_metadata(self):
        for model in served():
            with self.subTest(model=model):
                self.assertTrue(self.client.is_model_ready(model))
                metadata = self.client.get_model_metadata(model)
                for tensor in metadata["inputs"] + metadata["outputs"]:
                    self.assertLessEqual({"name", "datatype", "shape"}, set(tensor))

    def test_texts(self):
        self.assert_same_as_embed(self.client.infer(MODEL, self.text_input()))

    def test_token_ids(self):
        self.assert_same_as_embed(self.client.infer(MODEL, self.token_inputs()))

    def test_one_text(self):
        one = self.TEXTS[:1]
        for inputs in (self.text_input(one), self.token_inputs(one)):
            self.assert_same_as_embed(self.client.infer(MODEL, inputs), one)

    def test_json_and_binary_both_ways(self):
        for of_inputs in (self.text_input, self.token_inputs):
            for binary_in in (True, False):
                for binary_out in (True, False):
                    with self.subTest(of=of_inputs.__name__, put=binary_in, got=binary_out):
                        inputs = of_inputs(binary=binary_in)
                        answer = self.client.infer(MODEL, inputs, outputs=self.wanted(binary_out))
                        output = answer.get_output(self.output)
                        size = output.get("parameters", {}).get("binary_data_size")
                        self.assertEqual(size, 2 * WIDTH * 4 if binary_out else None)
                        self.assertEqual("data" in output, not binary_out)
                        self.assert_same_as_embed(answer)

    def test_response_has_model_version_and_request_id(self):
        answer = self.client.infer(MODEL, self.text_input(), request_id="request-7").get_response()
        self.assertEqual(answer["id"], "request-7")
        self.assertEqual(answer["model_name"], MODEL)
        self.assertEqual(answer["model_version"], "1")
        self.assertNotIn("id", self.client.infer(MODEL, self.text_input()).get_response())

    def test_version_in_the_path(self):
        answer = self.client.infer(MODEL, self.text_input(), model_version="1")
        self.assert_same_as_embed(answer)
        self.assert_infer_fails(self.text_input(), "version", model_version="2")

    def test_only_requested_outputs_are_returned(self):
        answer = self.client.infer(MODEL, self.text_input(), outputs=self.wanted(True))
        self.assertEqual([o["name"] for o in answer.get_response()["outputs"]], [self.output])
        self.assert_infer_fails(
            self.text_input(), "no-such-output", outputs=self.wanted(True, "no-such-output")
        )

    def test_concurrent_requests(self):
        pending = [self.client.async_infer(MODEL, self.text_input()) for _ in range(4)]
        for request in pending:
            self.assert_same_as_embed(request.get_result(timeout=TIMEOUT_S))

    def test_compressed_responses_can_be_requested(self):
        answer = self.client.infer(
            MODEL, self.text_input(), response_compression_algorithm="gzip"
        )
        self.assert_same_as_embed(answer)

    def test_compressed_requests(self):
        for algorithm in ("gzip", "deflate"):
            for binary in (True, False):
                with self.subTest(algorithm=algorithm, binary=binary):
                    answer = self.client.infer(
                        MODEL, self.text_input(binary=binary), request_compression_algorithm=algorithm
                    )
                    self.assert_same_as_embed(answer)

    def test_int32_token_ids(self):
        for binary in (True, False):
            inputs = []
            for tensor in self.token_inputs(binary=True):
                array = numpy.frombuffer(tensor._get_binary_data(), dtype=numpy.int64).astype(numpy.int32)
                narrow = triton.InferInput(tensor.name(), tensor.shape(), "INT32")
                inputs.append(narrow.set_data_from_numpy(array.reshape(tensor.shape()), binary_data=binary))
            self.assert_same_as_embed(self.client.infer(MODEL, inputs))

    def test_zero_shot_with_parameters(self):
        need("zero-shot")
        parameters = {"hypothesis_template": "The text is about {}.", "multi_label": True}
        body = {"inputs": FOOTBALL, "parameters": {**parameters, "candidate_labels": TOPICS}}
        expected = {entry["label"]: entry["score"] for entry in self.post("/models/zero-shot", body)}
        inputs = self.text_input([FOOTBALL]) + self.text_input(TOPICS, [len(TOPICS)], name="LABELS")
        answer = self.client.infer("zero-shot", inputs, parameters=parameters).as_numpy("scores")
        self.assertEqual(answer.shape, (1, len(TOPICS)))
        self.assert_same_bits(answer[0], [expected[label] for label in TOPICS])
        self.assert_infer_fails(inputs, "hypothesis_template", model="zero-shot", parameters={"hypothesis_template": 7})
        self.assert_infer_fails(inputs, "{}", model="zero-shot", parameters={"hypothesis_template": "no gap"})

    def test_zero_shot_is_deterministic(self):
        need("zero-shot")
        labels = {"candidate_labels": ["astronomy", *TOPICS]}
        asked = [{"inputs": text, "parameters": labels} for text in (FOOTBALL, KITCHEN, FOOTBALL)]
        first, _, again = [self.post("/models/zero-shot", body) for body in asked]
        self.assertEqual(first, again)

    def test_ranking_with_raw_scores(self):
        need("rank")
        inputs = self.text_input([ASKED], [1], name="QUERY") + self.text_input(DOCUMENTS)
        for raw_scores in (False, True):
            body = {"query": ASKED, "texts": DOCUMENTS, "raw_scores": raw_scores}
            expected = {entry["index"]: entry["score"] for entry in self.post("/rerank", body)}
            answer = self.client.infer("rank", inputs, parameters={"raw_scores": raw_scores})
            places = range(len(DOCUMENTS))
            self.assert_same_bits(answer.as_numpy("scores").ravel(), [expected[place] for place in places])

    def test_an_output_twice_or_as_classes(self):
        twice = self.wanted(True) + self.wanted(True)
        self.assert_infer_fails(self.text_input(), self.output, "once", outputs=twice)
        classes = [triton.InferRequestedOutput(self.output, class_count=2)]
        self.assert_infer_fails(self.text_input(), "classification", outputs=classes)

    def test_wrong_names(self):
        self.assert_infer_fails(self.text_input(name="no-such-input"), "no-such-input", "TEXT")
        inputs = self.token_inputs(names=("input_ids", "no-such-mask"))
        self.assert_infer_fails(inputs, "no-such-mask")
        self.assert_infer_fails(self.text_input() + self.token_inputs(), "TEXT", "input_ids")
        self.assert_infer_fails(self.token_inputs()[1:], "input_ids")

    def test_wrong_shapes(self):
        for binary in (True, False):
            with self.subTest(binary=binary):
                self.assert_infer_fails(self.text_input(shape=[3, 1], binary=binary), "TEXT", "3")
                ids, mask = self.token_inputs(binary=binary)
                mask.set_shape(mask.shape()[::-1])
                self.assert_infer_fails([ids, mask], "attention_mask")
                ids, mask = self.token_inputs(binary=binary)
                ids.set_shape([1, *ids.shape()])
                self.assert_infer_fails([ids, mask], "input_ids")

    def test_wrong_datatypes(self):
        floats = numpy.zeros((1, 2), dtype=numpy.float32)
        numbers = numpy.zeros((1, 1), dtype=numpy.int64)
        for binary in (True, False):
            with self.subTest(binary=binary):
                tensor = triton.InferInput("input_ids", [1, 2], "FP32")
                tensor.set_data_from_numpy(floats, binary_data=binary)
                self.assert_infer_fails([tensor], "input_ids", "FP32")
                tensor = triton.InferInput("TEXT", [1, 1], "INT64")
                tensor.set_data_from_numpy(numbers, binary_data=binary)
                self.assert_infer_fails([tensor], "TEXT", "BYTES")
                inputs = self.text_input(name="input_ids", binary=binary)
                self.assert_infer_fails(inputs, "input_ids")

    def test_wrong_contents(self):
        self.assert_infer_fails(self.text_input(["a", ""]), "TEXT")
        tensor = triton.InferInput("TEXT", [1, 1], "BYTES")
        tensor.set_data_from_numpy(numpy.array([[b"\xff\xfe"]], dtype=numpy.object_))
        self.assert_infer_fails([tensor], "TEXT", "UTF-8")
        negative = triton.InferInput("input_ids", [1, 2], "INT64")
        negative.set_data_from_numpy(numpy.array([[101, -1]], dtype=numpy.int64))
        self.assert_infer_fails([negative], "input_ids")

    def test_unknown_model(self):
        self.assertFalse(self.client.is_model_ready(NO_MODEL))
        self.assert_infer_fails(self.text_input(), NO_MODEL, model=NO_MODEL, status="404")
        with self.assertRaises(InferenceServerException) as caught:
            self.client.get_model_metadata(NO_MODEL)
        self.assertIn(NO_MODEL, caught.exception.message())

    def test_unknown_route_has_an_error_of_kserve(self):
        status, answer = ask("GET", "/v2/no/such/path")
        self.assertEqual(status, 404)
        self.assertEqual(set(json.loads(answer)), {"error"})


if __name__ == "__main__":
    print(
        f"cohere {version('cohere')}, tritonclient {version('tritonclient')},"
        f" python {platform.python_version()}, server {URL or '(none)'}"
    )
    unittest.main(verbosity=2)
