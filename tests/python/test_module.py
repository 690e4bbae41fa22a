"""Uses the Python package `kivuml` as its users do, next to a server and a batch job with the same models.

    TEST_BUNDLES=FOLDER TEST_URL=http://127.0.0.1:8080 TEST_KIVU=target/debug/kivu TEST_PACKAGE=FOLDER \
      python tests/python/test_module.py

TEST_PACKAGE has the folder `kivuml` with the native module. The server serves TEST_BUNDLES.
"""

import asyncio
import inspect
import json
import multiprocessing
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = sys.pycache_prefix is None  # no __pycache__ among the sources
sys.path.insert(0, os.environ["TEST_PACKAGE"])
os.environ.update(PYTHONPATH=os.environ["TEST_PACKAGE"], HAYSTACK_TELEMETRY_ENABLED="False")

import numpy as np  # noqa: E402

import kivuml  # noqa: E402
from kivuml import errors, load  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
URL = os.environ["TEST_URL"].rstrip("/")
BUNDLES = Path(os.environ["TEST_BUNDLES"])
KIVU = os.environ["TEST_KIVU"]
TEXTS = ["The ferry leaves at seven.", "Der Zug nach Hamburg fährt um zwölf ab.", "A cat sat on the mat.", "猫 🐈", " "]
PEOPLE = ["Ada Lovelace lived in London.", "Angela Merkel wurde in Hamburg geboren."]
MODELS = {}


def model(name):
    """A loaded model; the same one in all tests."""
    if name not in MODELS:
        MODELS[name] = load(BUNDLES / name)
    return MODELS[name]


def post(path, body):
    request = urllib.request.Request(f"{URL}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def refusal(path, body):
    try:
        post(path, body)
    except urllib.error.HTTPError as error:
        return json.load(error)["error"]
    raise AssertionError(f"{path} accepts {body}")


def as_server(test, path, body, found):
    test.assertEqual(post(path, body), found)


def run(*arguments, code=None):
    script = [sys.executable, "-c", code] if code else [sys.executable, "-m", "kivuml"]
    return subprocess.run([*script, *map(str, arguments)], capture_output=True, text=True, timeout=60)


class Vectors(unittest.TestCase):
    def test_vectors_have_the_bits_of_the_server_and_of_batch_jobs(self):
        found = model("minilm").encode(TEXTS)
        self.assertEqual((found.shape, found.dtype), ((5, 384), np.float32))
        served = np.array(post("/embed", {"inputs": TEXTS, "model": "minilm"}), np.float32)
        self.assertEqual(found.tobytes(), served.tobytes())
        with tempfile.TemporaryDirectory() as folder:
            rows, out = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
            rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
            subprocess.run([KIVU, "batch", rows, out, "--model", BUNDLES / "minilm"], check=True, capture_output=True)
            stored = [json.loads(line)["embedding"] for line in out.read_text().splitlines()]
        self.assertEqual(found.tobytes(), np.array(stored, np.float32).tobytes())

    def test_options_are_the_servers(self):
        for options, body in (
            ({"dimensions": 128}, {"dimensions": 128}),
            ({"prompt": "query: "}, {"prompt": "query: "}),
            ({"precision": "int8"}, {"output_dtype": "int8"}),
            ({"precision": "uint8", "dimensions": 64}, {"output_dtype": "uint8", "dimensions": 64}),
            ({"precision": "binary"}, {"output_dtype": "binary"}),
            ({"precision": "ubinary"}, {"output_dtype": "ubinary"}),
        ):
            found = model("minilm").encode(TEXTS, **options)
            served = post("/embed", {"inputs": TEXTS, "model": "minilm"} | body)
            self.assertEqual(found.astype(float).tolist(), np.array(served, found.dtype).astype(float).tolist(), options)

    def test_a_single_text_is_one_row(self):
        single, many = model("minilm").encode(TEXTS[0]), model("minilm").encode([TEXTS[0]])
        self.assertEqual((single.shape, many.shape), ((384,), (1, 384)))
        self.assertTrue((single == many[0]).all() and single.flags.writeable)

    def test_batches_of_any_size_have_the_same_bits(self):
        texts = [f"{text} {number}" for number in range(450) for text in TEXTS]
        with tempfile.TemporaryFile("w+") as errors_of_test:
            sys.stderr, before = errors_of_test, sys.stderr
            try:
                found = model("vectors-static").encode(texts, show_progress=True)
            finally:
                sys.stderr = before
            errors_of_test.seek(0)
            self.assertIn("2250/2250 texts", errors_of_test.read())
        places = random.Random(1).sample(range(len(texts)), 20)
        one_by_one = np.stack([model("vectors-static").encode(texts[place]) for place in places])
        self.assertEqual(found[places].tobytes(), one_by_one.tobytes())

    def test_sparse_vectors(self):
        found = model("vectors-splade").sparse(TEXTS[:2], max_active_dims=5)
        served = post("/embed_sparse", {"inputs": TEXTS[:2], "model": "vectors-splade", "max_active_dims": 5})
        self.assertEqual([{value["index"]: value["value"] for value in text} for text in served],
                         [{id: float(np.float32(weight).astype(str)) for id, weight in text.items()} for text in found])
        words = model("vectors-splade").sparse(TEXTS[0], max_active_dims=5, words=True)
        self.assertTrue(all(isinstance(word, str) for word in words) and len(words) == 5)

    def test_multi_vectors(self):
        for name in ("vectors-colbert", "minilm"):
            found = model(name).multi_vectors(TEXTS)
            served = post("/embed_all", {"inputs": TEXTS, "model": name})
            self.assertEqual([vectors.tobytes() for vectors in found],
                             [np.array(vectors, np.float32).tobytes() for vectors in served])


class Tasks(unittest.TestCase):
    """Results equal the server's responses."""

    def test_classification(self):
        found = model("sentiment").classify(TEXTS, top_k=1)
        as_server(self, "/models/sentiment", {"inputs": TEXTS, "parameters": {"top_k": 1}}, found)
        self.assertEqual(model("sentiment").classify(TEXTS[0], top_k=1), found[0])
        pair = model("sentiment").classify([("Good", "Bad")])
        as_server(self, "/predict", {"inputs": [["Good", "Bad"]], "model": "sentiment"}, pair)
        self.assertEqual(model("sentiment").classify(("Good", "Bad")), pair[0])

    def test_zero_shot_classification(self):
        labels = ["travel", "animals"]
        body = {"inputs": TEXTS[:2], "parameters": {"candidate_labels": labels, "multi_label": True}}
        as_server(self, "/models/zero-shot", body, model("zero-shot").zero_shot(TEXTS[:2], labels, multi_label=True))
        with self.assertRaisesRegex(errors.InvalidError, "`prompt` is not supported: the model does not read labels and text together"):
            model("zero-shot").zero_shot(TEXTS, labels, prompt="topic")
        with self.assertRaisesRegex(errors.TooLargeError, "tokens"):
            model("zero-shot").zero_shot("word " * 600, labels, truncate=False)
        self.assertEqual(model("zero-shot").zero_shot(TEXTS[0], np.array(labels)), model("zero-shot").zero_shot(TEXTS[0], "travel,animals"))

    def test_entities(self):
        body = {"inputs": PEOPLE, "parameters": {"redact": True, "aggregation_strategy": "first"}}
        as_server(self, "/models/ner", body, model("ner").entities(PEOPLE, redact=True, aggregation="first"))
        numbered = model("ner").entities(PEOPLE[0], redact=True, style="number", patterns="all")
        restored = model("ner").restore(f"Dear {numbered['text']}", numbered["mapping"])
        body = {"inputs": f"Dear {numbered['text']}", "redact_mapping": numbered["mapping"]}
        as_server(self, "/restore", body, restored)
        self.assertEqual(restored["text"], f"Dear {PEOPLE[0]}")
        # More texts than one call of the native module runs otherwise.
        mails, known = [f"Ask {index % 2}@example.org" for index in range(1100)], {"[EMAIL_ADDRESS_7]": "1@example.org"}
        counted = model("ner").entities(mails, redact=True, style="number", scope="request", mapping=known, patterns="all")
        self.assertEqual([found["text"][-17:] for found in counted[-2:]], ["[EMAIL_ADDRESS_8]", "[EMAIL_ADDRESS_7]"])
        numbers = {"redact": True, "redact_style": "number", "redact_scope": "request", "redact_mapping": known}
        body = {"inputs": mails[:2], "parameters": {**numbers, "patterns": "all"}}
        as_server(self, "/models/ner", body, counted[:2])
        with self.assertRaisesRegex(errors.InvalidError, "do not mark ends of entities"):
            model("ner").entities(PEOPLE, transition_biases={"background_stay": -1})
        body = {"inputs": PEOPLE, "parameters": {"labels": ["person", "city"], "threshold": 0.1}}
        as_server(self, "/models/ner-labels", body, model("ner-labels").entities(PEOPLE, ["person", "city"], threshold=0.1))

    def test_extraction(self):
        """The order of names is kept, in all forms of a schema."""
        structures = {"trip": ["who::str", "from::list::Where it begins", "mode::[train|ferry]::str"], "act": ["verb"]}
        schema = {"structures": structures, "entities": ["place", "animal"], "relations": ["lives_in"]}
        schema["structures"] = {"trip": {"fields": [{"name": "who", "dtype": "str"}, {"name": "place"}]}}
        for form, own in [("extract_json", structures), ("schema", schema), ("extract_entities", ["place", "animal"])]:
            body = {"text": PEOPLE, "task": form, "schema": own, "model": "extract", "threshold": 0.3}
            expected = post("/gliner-2", {**body, "include_spans": True})["result"]
            found = model("extract").extract(PEOPLE, own, form=form, threshold=0.3, spans=True)
            self.assertEqual(json.dumps(found), json.dumps(expected), form)
        single = model("extract").extract(PEOPLE[0], {"entities": ["place"]}, confidence=True)
        body = {"text": PEOPLE[0], "schema": {"entities": ["place"]}, "model": "extract", "include_confidence": True}
        self.assertEqual(single, post("/gliner-2", body)["result"])
        for call, words in [
            (lambda: model("ner").extract("a", {"entities": ["b"]}), "`schema` is not supported: `ner` has labels"),
            (lambda: model("extract").extract("a", {"entity": ["b"]}), "unknown field in `schema`: `entity`"),
            (lambda: model("extract").extract("a", 5), "expected an object in `schema`"),
            (lambda: model("extract").extract("a", ["b"], form="other"), "expected `task` to be one of `schema`"),
        ]:
            with self.assertRaisesRegex(ValueError, re.escape(words)):
                call()

    def test_tasks(self):
        tasks = model("tasks")
        self.assertEqual(tasks.tasks[:2], ["retrieval.query", "retrieval.passage"])
        self.assertEqual((tasks.query_prompt, tasks.document_prompt), tuple(tasks.tasks[:2]))
        self.assertEqual(model("prompts").tasks, [])
        for task in [None, *tasks.tasks]:
            body = {"inputs": TEXTS[:4], "model": "tasks", **({"task": task} if task else {})}
            expected = np.array(post("/embed", body), np.float32)
            np.testing.assert_array_equal(tasks.encode(TEXTS[:4], task=task), expected)
        with self.assertRaisesRegex(ValueError, "among `retrieval.query`.*, but found `other`"):
            tasks.encode("a", task="other")
        with self.assertRaisesRegex(ValueError, "the model has no tasks"):
            model("prompts").encode("a", task="retrieval.query")

    def test_ranking(self):
        for name in ("rank", "minilm"):
            found = model(name).rank("When does the ferry leave?", TEXTS, top_k=2, return_documents=True)
            body = {"query": "When does the ferry leave?", "texts": TEXTS, "model": name, "return_text": True}
            self.assertEqual(post("/rerank", body)[:2], found)
        ranked = [model("rank-cross").rank("ferry", TEXTS, prompt=prompt) for prompt in (None, "query: ")]
        body = {"query": "ferry", "texts": TEXTS, "model": "rank-cross"}
        self.assertEqual([post("/rerank", {**body, "prompt": prompt}) for prompt in (None, "query: ")], ranked)
        self.assertNotEqual(*ranked)
        with self.assertRaisesRegex(errors.InvalidError, "`prompt` is not supported: the model compares vectors"):
            model("rank").rank("ferry", TEXTS, prompt="query: ")
        with self.assertRaisesRegex(errors.InvalidError, "`instruction` is not supported: the model compares vectors"):
            model("rank").rank("ferry", TEXTS, instruction="Find ships")
        with self.assertRaisesRegex(errors.InvalidError, "`instruction` is not supported"):
            model("minilm").encode(TEXTS, instruction="Find ships")

    def test_texts_to_texts(self):
        found = model("translate-en-pt").translate(["Good morning.", "The cat sleeps. It is late."], source="en", target="pt")
        served = post("/translate", {"inputs": ["Good morning.", "The cat sleeps. It is late."], "model": "translate-en-pt"})
        self.assertEqual([text["text"] for text in served["translations"]], found)
        found = model("summary").summarize(TEXTS[:2], max_new_tokens=8)
        body = {"inputs": TEXTS[:2], "parameters": {"generate_parameters": {"max_new_tokens": 8}}}
        as_server(self, "/models/summary", body, [{"summary_text": text} for text in found])
        self.assertEqual(model("summary").summarize(TEXTS[0], max_new_tokens=8), found[0])
        # More texts than one call of the native module runs otherwise.
        options = {"do_sample": True, "num_beams": 1, "seed": 1, "temperature": 3.0, "max_new_tokens": 4}
        sampled = model("summary").summarize(["cat"] * 70, **options)
        self.assertNotEqual(sampled[64:], sampled[:6])
        body = {"inputs": ["cat"] * 70, "parameters": {"generate_parameters": options}}
        as_server(self, "/models/summary", body, [{"summary_text": text} for text in sampled])
        with self.assertRaisesRegex(errors.InvalidError, "`num_return_sequences` 2 is not supported"):
            model("summary").summarize(TEXTS[0], num_beams=2, num_return_sequences=2)

    def test_tokens(self):
        for name in ("minilm", "translate-en-pt"):
            as_server(self, "/tokenize", {"inputs": TEXTS, "model": name}, model(name).tokenize(TEXTS))
        for task in model("tasks").tasks:
            body = {"inputs": TEXTS, "model": "tasks", "task": task}
            as_server(self, "/tokenize", body, model("tasks").tokenize(TEXTS, task=task))
        body = {"inputs": TEXTS, "model": "minilm", "prompt": "query: "}
        as_server(self, "/tokenize", body, model("minilm").tokenize(TEXTS, prompt="query: "))

    def test_descriptions(self):
        minilm = model("minilm")
        self.assertEqual((minilm.name, minilm.task, minilm.dimensions), ("minilm", "feature-extraction", 384))
        self.assertEqual((model("sentiment").labels, model("sentiment").dimensions), (["negative", "neutral", "positive"], None))
        self.assertIn("minilm", repr(minilm))


class Inputs(unittest.TestCase):
    def test_lists_arrays_and_series(self):
        import pandas
        import polars
        import pyarrow

        expected = model("minilm").encode(TEXTS).tobytes()
        for texts in (
            tuple(TEXTS), iter(TEXTS), dict.fromkeys(TEXTS).keys(), np.array(TEXTS), np.array(TEXTS, object),
            pandas.Series(TEXTS), pandas.Series(TEXTS, dtype="string"), pandas.Index(TEXTS), polars.Series(TEXTS),
            pyarrow.array(TEXTS), pyarrow.chunked_array([TEXTS[:2], TEXTS[2:]]),
        ):
            self.assertEqual(model("minilm").encode(texts).tobytes(), expected, type(texts))
        with self.assertRaisesRegex(TypeError, r"`texts\[1\]` to be a string, but found `NoneType`"):
            model("minilm").encode(polars.Series(["a", None]))

    def test_lists_may_change_during_calls(self):
        minilm, texts = model("minilm"), TEXTS.copy()

        class Changing:
            description = minilm._native.description

            def run(self, *arguments):
                texts[:] = ["other"] * 9
                return minilm._native.run(*arguments)

        async def changed(run, *arguments):
            job = asyncio.ensure_future(run(*arguments))
            await asyncio.sleep(0)
            texts.clear()
            return await job

        changing, expected = kivuml.Model(Changing(), "minilm", {}), minilm.encode(TEXTS)
        for size in (1024, 2):
            texts[:] = TEXTS
            with mock.patch("kivuml._model._BATCH", size):
                np.testing.assert_array_equal(changing.encode(texts), expected)
        expected = minilm.rank("ferry", TEXTS, return_documents=True)
        texts[:] = TEXTS
        self.assertEqual(changing.rank("ferry", texts, return_documents=True), expected)
        texts[:], array = TEXTS, np.array(TEXTS, object)
        mapping = {"[PERSON_1]": "Ada"}

        async def restored():
            jobs = [asyncio.ensure_future(job) for job in (minilm.arestore("[PERSON_1]", mapping), minilm.atokenize(array))]
            await asyncio.sleep(0)
            mapping.clear()
            array[:] = "other"
            return [await job for job in jobs]

        restoration, tokens = asyncio.run(restored())
        self.assertEqual((restoration["text"], tokens), ("Ada", minilm.tokenize(TEXTS)))
        for run, arguments in ((minilm.arank, ("ferry", texts)), (minilm.atokenize, (texts,))):
            texts[:] = TEXTS
            found = asyncio.run(changed(run, *arguments))
            self.assertEqual(len(found), len(TEXTS))

    def test_bad_input_has_the_servers_words(self):
        import pandas

        minilm, endless = model("minilm"), {}
        endless["a"] = endless
        for call, kind, message in (
            (lambda: minilm.encode(None), TypeError, "expected `texts` to be a string, or a list, an array or a series of strings, but found `NoneType`"),
            (lambda: minilm.encode(7), TypeError, "expected `texts` to be a string, or a list, an array or a series of strings, but found `int`"),
            (lambda: minilm.encode(b"a"), TypeError, "expected `texts` to be a string, or a list, an array or a series of strings, but found `bytes`"),
            (lambda: minilm.encode(["a", 7]), TypeError, "expected `texts[1]` to be a string, but found `int`"),
            (lambda: minilm.encode(np.array([["a"]])), TypeError, "expected `texts` to be a string, or a list, an array or a series of strings, but found `ndarray`"),
            (lambda: minilm.encode(pandas.DataFrame({"a": ["b"]})), TypeError, "expected `texts` to be a string, or a list, an array or a series of strings, but found `DataFrame`"),
            (lambda: minilm.encode({"a": "b"}), TypeError, "expected `texts` to be a string, or a list, an array or a series of strings, but found `dict`"),
            (lambda: minilm.encode({"a"}), TypeError, "expected `texts` to be a string, or a list, an array or a series of strings, but found `set`"),
            (lambda: minilm.encode([["a"]]), TypeError, "expected `texts[0]` to be a string, but found `list`"),
            (lambda: minilm.encode([("a", "b")]), TypeError, "expected `texts[0]` to be a string, but found `tuple`"),
            (lambda: minilm.encode(["a"] * 1500 + [None]), TypeError, "expected `texts[1500]` to be a string, but found `NoneType`"),
            (lambda: minilm.encode([]), errors.InvalidError, "expected at least one text in `texts`, but found none"),
            (lambda: minilm.encode(["a", ""]), errors.InvalidError, "expected a text in `texts[1]`, but found an empty one"),
            (lambda: minilm.encode("\ud800"), errors.InvalidError, "expected Unicode text in `texts[0]`, but found half of a surrogate pair"),
            (lambda: minilm.encode("a", precision="int4"), ValueError, "expected `precision` among `float32`, `int8`, `uint8`, `binary`, `ubinary`, but found 'int4'"),
            (lambda: minilm.encode("a", precision=["int8"]), ValueError, "expected `precision` among `float32`, `int8`, `uint8`, `binary`, `ubinary`, but found ['int8']"),
            (lambda: minilm.encode("a", show_progress="no"), errors.InvalidError, "expected `show_progress` to be a boolean, but found 'no'"),
            (lambda: minilm.encode("a", prompt="\ud800"), errors.InvalidError, "expected Unicode text in `parameters`, but found half of a surrogate pair"),
            (lambda: minilm.encode("a", dimensions=10**400), errors.InvalidError, "cannot read the parameters: number out of range at line 1 column 416"),
            (lambda: minilm.encode("a", dimensions="many"), errors.InvalidError, "expected `dimensions` to be an integer from 0 on, but found a string"),
            (lambda: minilm.encode("a", normalize=object()), TypeError, "expected a parameter of a plain type, but found `object`"),
            (lambda: model("ner").entities("a", stride=float("nan")), ValueError, "expected finite numbers as parameters, but found another value"),
            (lambda: minilm.rank("a", ["b"], top_k=0), ValueError, "expected `top_k` above 0, but found 0"),
            (lambda: minilm.rank("a", ["b"], return_documents="no"), errors.InvalidError, "expected `return_documents` to be a boolean, but found 'no'"),
            (lambda: minilm.rank(None, ["b"]), TypeError, "expected `query` to be a string, but found `NoneType`"),
            (lambda: minilm.rank("a", ["b", None]), TypeError, "expected `documents[1]` to be a string, but found `NoneType`"),
            (lambda: model("ner-labels").entities("a"), ValueError, "expected `labels` for `ner-labels`, which finds entities with labels that you choose, but found none"),
            (lambda: model("ner").entities("a", patterns=[]), ValueError, "expected at least one text in `patterns`, but found none"),
            (lambda: model("ner").restore("a", mapping={1: "b"}), TypeError, "expected a string as a parameter's key, but found `int`"),
            (lambda: model("ner").restore("a", mapping=[("a", "b")]), ValueError, "expected `redact_mapping` to be an object with originals by placeholder, but found a list"),
            (lambda: model("ner").restore("a", mapping="ab"), ValueError, "expected `redact_mapping` to be an object with originals by placeholder, but found a string"),
            (lambda: model("extract").extract("a", {"entities": {True: "b"}}), TypeError, "expected a string as a parameter's key, but found `bool`"),
            (lambda: model("extract").extract("a", endless), ValueError, "expected parameters with at most some hundred levels, but found more"),
            (lambda: model("ner").entities("a", ["b"]), ValueError, "`labels` is not supported: `ner` has labels of its own; omit them"),
            (lambda: model("sentiment").classify([("a", "b", "c")]), ValueError, "expected a text or a pair in `texts[0]`, but found 3 texts"),
            (lambda: minilm._native.run("nothing", ["a"], 0, "{}"), errors.InvalidError, "unknown task `nothing`"),
            (lambda: load(7), TypeError, "expected `name` to be a string or a path, but found `int`"),
            (lambda: load(BUNDLES / "minilm", threads=0), ValueError, None),
            (lambda: load(BUNDLES / "minilm", engine="fast"), ValueError, None),
        ):
            with self.assertRaises(kind) as raised:
                call()
            if message:
                self.assertEqual(str(raised.exception), message)

    def test_messages_equal_the_servers(self):
        for call, path, body in (
            (lambda: model("minilm").encode("a", dimensions=385), "/embed", {"inputs": "a", "model": "minilm", "dimensions": 385}),
            (lambda: model("minilm").encode("a", prompt_name="x"), "/embed", {"inputs": "a", "model": "minilm", "prompt_name": "x"}),
            (lambda: model("minilm").sparse("a"), "/embed_sparse", {"inputs": "a", "model": "minilm"}),
            (lambda: model("minilm").encode("a " * 600, truncate=False), "/embed", {"inputs": "a " * 600, "model": "minilm", "truncate": False}),
            (lambda: model("minilm").classify("a"), "/predict", {"inputs": "a", "model": "minilm"}),
            (lambda: model("sentiment").encode("a"), "/embed", {"inputs": "a", "model": "sentiment"}),
            (lambda: model("sentiment").rank("a", ["b"]), "/rerank", {"query": "a", "texts": ["b"], "model": "sentiment"}),
            (lambda: model("sentiment").translate("a"), "/translate", {"inputs": "a", "model": "sentiment"}),
            (lambda: model("translate-en-pt").translate("a", source="xx"), "/translate", {"inputs": "a", "model": "translate-en-pt", "src_lang": "xx"}),
        ):
            with self.assertRaises(errors.KivuError) as raised:
                call()
            self.assertEqual(str(raised.exception), refusal(path, body))
        # These have an effect with the other kind of model.
        for name, call in {
            "threshold": lambda: model("ner").entities("a", threshold=0.9),
            "aggregation_strategy": lambda: model("ner-labels").entities("a", ["city"], aggregation="first"),
            "transition_biases": lambda: model("ner-labels").entities("a", ["city"], transition_biases={"background_stay": 1}),
        }.items():
            with self.assertRaisesRegex(errors.InvalidError, f"`{name}` has an effect only with"):
                call()

    def test_random_arguments_raise_exceptions(self):
        chance = random.Random(7)
        values = [None, 7, -1, 1.5, float("nan"), "", "a", b"a", [], ["a"], [None], {}, {"a": 1}, (1, 2), object, "\ud800", 1 << 70, True]
        pick = lambda: chance.choice(values)  # noqa: E731
        kinds = set()
        for _ in range(2000):
            opened = chance.choice([model("minilm"), model("sentiment"), model("ner"), model("vectors-splade")])
            call = chance.choice([
                lambda: opened.encode(pick(), prompt_name=pick(), dimensions=pick(), normalize=pick(), truncate=pick()),
                lambda: opened.rank(pick(), pick(), top_k=pick(), raw_scores=pick()),
                lambda: opened.classify(pick(), top_k=pick(), function_to_apply=pick()),
                lambda: opened.entities(pick(), pick(), stride=pick(), threshold=pick()),
                lambda: opened.sparse(pick(), max_active_dims=pick(), words=pick()),
                lambda: opened.zero_shot(pick(), pick(), template=pick()),
                lambda: opened.tokenize(pick(), add_special_tokens=pick()),
                lambda: opened._native.run("encode", pick(), pick(), pick()),
                lambda: load("a", task=pick(), threads=pick(), precision=pick()),
            ])
            try:
                call()
            except Exception as error:  # noqa: BLE001 - a panic or an abort is no Exception
                kinds.add(type(error))
        known = {kind for kind in vars(errors).values() if isinstance(kind, type)}
        self.assertLessEqual(kinds, known | {TypeError, ValueError, OverflowError})

    def test_closed_and_unknown_models(self):
        with load(BUNDLES / "minilm") as opened:
            opened.encode("a")
        with self.assertRaisesRegex(errors.ClosedError, "is closed; load it again"):
            opened.encode("a")
        opened.close()
        with self.assertRaisesRegex(errors.ConfigError, "expected a bundle, a recipe .* but found `nothing`"):
            load("nothing")
        with self.assertRaisesRegex(errors.ConfigError, "expected the task `translation` .* but found `feature-extraction`"):
            load(BUNDLES / "minilm", task="translation")
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(errors.KivuError):
            load(folder)
        with self.assertRaisesRegex(errors.KivuError, f"`{Path('org/name').absolute()}`"):
            load(Path("org/name"))


class Processes(unittest.TestCase):
    def in_child(self, work):
        """The text that `work` returns in a forked child."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writing, work().encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as output:
            found = output.read()
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        return found

    def test_forked_children_open_models_again(self):
        expected = model("minilm").encode(TEXTS).tobytes()
        self.assertEqual(self.in_child(lambda: model("minilm").encode(TEXTS).tobytes().hex()), expected.hex())
        # ONNX Runtime has threads of its own.
        by_runtime = model("prompts").encode(TEXTS).tobytes()
        self.assertEqual(self.in_child(lambda: model("prompts").encode(TEXTS).tobytes().hex()), by_runtime.hex())
        # Grandchildren, and models that are closed in the child.
        self.assertEqual(self.in_child(lambda: self.in_child(lambda: model("minilm").encode(TEXTS).tobytes().hex())), expected.hex())
        self.assertEqual(self.in_child(lambda: str(model("minilm").close())), "None")
        self.assertEqual(model("minilm").encode(TEXTS).tobytes(), expected)

    def test_a_fork_during_a_call_is_refused(self):
        def work():
            try:
                model("minilm").encode("a")
            except errors.ForkError as error:
                return str(error)
            return "no error"

        with ThreadPoolExecutor(1) as pool:
            long = pool.submit(model("minilm").encode, TEXTS * 200)
            found = ["no error"]
            while not long.done() and found[-1] == "no error":
                found.append(self.in_child(work))
        self.assertIn("the process was forked during a call in another thread", found[-1])

    def test_models_are_pickled_by_reference(self):
        data = pickle.dumps(model("minilm"))
        self.assertLess(len(data), 1000)
        self.assertTrue((pickle.loads(data).encode("a") == model("minilm").encode("a")).all())
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.apply(kivuml.Model.encode, (model("minilm"), TEXTS))
        self.assertTrue((found == model("minilm").encode(TEXTS)).all())

    def test_threads_share_a_model(self):
        expected = [model("minilm").encode(text).tobytes() for text in TEXTS]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda text: model("minilm").encode(text).tobytes(), TEXTS * 20))
        self.assertEqual(found, expected * 20)

    def test_async_variants(self):
        async def all_texts():
            return await asyncio.gather(*(model("minilm").aencode(text) for text in TEXTS), model("rank").arank("a", TEXTS))

        *vectors, ranks = asyncio.run(all_texts())
        self.assertEqual(np.stack(vectors).tobytes(), model("minilm").encode(TEXTS).tobytes())
        self.assertEqual(ranks, model("rank").rank("a", TEXTS))

    def test_control_c_ends_a_call(self):
        def interrupt(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with self.assertRaises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                # Minutes without the signal.
                model("minilm").rank("a", TEXTS * 20_000)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        self.assertEqual(model("minilm").encode("a").shape, (384,))

    def test_control_c_ends_a_download(self):
        code = """
import os, signal, socket
from kivuml import load

def interrupt(*_):
    raise KeyboardInterrupt

# Accepts connections, and never answers.
hub = socket.create_server(("127.0.0.1", 0))
os.environ.update(HF_ENDPOINT=f"http://127.0.0.1:{hub.getsockname()[1]}", KIVU_HOME=os.environ["TEST_HOME"])
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    load("org/name")
except KeyboardInterrupt:
    print("interrupted")
"""
        with tempfile.TemporaryDirectory() as home, mock.patch.dict(os.environ, TEST_HOME=home, HF_HUB_OFFLINE=""):
            done = run(code=code)
        self.assertEqual((done.stdout, done.returncode), ("interrupted\n", 0), done.stderr)

    def test_calls_leave_nothing_behind(self):
        static = model("vectors-static")

        def state():
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            return resident, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

        def calls(count):
            for _ in range(count):
                static.encode(TEXTS)
                static.tokenize(TEXTS[0])
                try:
                    static.classify("a")
                except errors.InvalidError:
                    pass

        calls(500)
        memory, files, threads = state()
        calls(1500)
        resident, open_files, _ = state()
        self.assertEqual(open_files, files)
        self.assertLess(resident - memory, 4e6)
        # A model has a file and at least one thread, which ends soon after `close`.
        for _ in range(20):
            load(BUNDLES / "minilm").close()
        self.assertLess(state()[1], files + 10)
        self.assertLess(state()[2], threads + 15)


class Package(unittest.TestCase):
    def test_the_command(self):
        version = run("--version").stdout
        self.assertEqual(version, subprocess.run([KIVU, "--version"], capture_output=True, text=True).stdout)
        self.assertEqual(run("nothing").returncode, 2)
        done = run("run", BUNDLES / "minilm", "a")
        self.assertEqual(done.stdout, subprocess.run([KIVU, "run", BUNDLES / "minilm", "a"], capture_output=True, text=True).stdout)
        self.assertEqual((done.returncode, run("show", "nothing").returncode), (0, 1))

    def test_stubs_have_all_methods(self):
        from kivuml import _native

        stub = (Path(kivuml.__file__).parent / "_native.pyi").read_text()
        declared = set(re.findall(r"def (\w+)\(", stub))
        found = {name for name in [*dir(_native), *dir(_native.Model)] if not name.startswith("_") and name != "Model"}
        self.assertEqual(declared, found)

    def test_types_of_results_have_the_keys_that_all_results_have(self):
        self.assertEqual(kivuml.Rank.__required_keys__, {"index", "score"})
        self.assertEqual(kivuml.Entity.__required_keys__, {"score", "word", "start", "end"})

    def test_imports_are_few(self):
        # The command needs no numpy, and models need neither asyncio nor pathlib, which take longer than the package.
        code = """
import sys, kivuml
print([name for name in ("numpy", "json", "asyncio") if name in sys.modules])
import numpy
before = set(sys.modules)
kivuml.load
print([name for name in ("asyncio", "pathlib", "urllib") if name in {*sys.modules} - before])
"""
        self.assertEqual(run(code=code).stdout, "[]\n[]\n")

    def test_the_examples_in_the_docs(self):
        page = (ROOT / "docs/python.md").read_text()
        blocks = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "# not run" not in block]
        self.assertGreater(len(blocks), 5)
        names = {"sentence-transformers/all-MiniLM-L6-v2": "minilm", "BAAI/bge-small-en-v1.5": "minilm"}
        program = "\n".join(blocks)
        for name in re.findall(r'"([\w/.-]+)"', program):
            bundle = BUNDLES / names.get(name, name)
            if bundle.exists():
                program = program.replace(f'"{name}"', repr(str(bundle)))
        done = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class Frameworks(unittest.TestCase):
    """Adapters return what `encode` returns, with the prompts for queries and documents."""

    def setUp(self):
        tiny = model("prompts")
        self.assertEqual((tiny.query_prompt, tiny.document_prompt), ("query", "document"))
        self.documents = tiny.encode(TEXTS, prompt_name="document").tolist()
        self.query = tiny.encode(TEXTS[0], prompt_name="query").tolist()
        self.assertNotEqual(self.documents[0], self.query)

    def test_langchain(self):
        from kivuml.langchain import KivuEmbeddings
        from langchain_core.vectorstores import InMemoryVectorStore

        embeddings = KivuEmbeddings(model("prompts"))
        self.assertEqual(embeddings.embed_documents(TEXTS), self.documents)
        self.assertEqual(asyncio.run(embeddings.aembed_query(TEXTS[0])), self.query)
        found = InMemoryVectorStore.from_texts(TEXTS, embeddings).similarity_search(TEXTS[0], k=5)
        self.assertEqual({document.page_content for document in found}, set(TEXTS))
        prompted = KivuEmbeddings(model("prompts"), prompt="query: ")
        self.assertEqual(prompted.embed_documents(TEXTS[:1]), [prompted.embed_query(TEXTS[0])])
        self.assertEqual(prompted.embed_query(TEXTS[0]), self.query)
        # A task has a prompt of its own, and an instruction is for queries.
        matching = KivuEmbeddings(model("tasks"), task="text-matching")
        expected = model("tasks").encode(TEXTS[0], task="text-matching").tolist()
        self.assertEqual([matching.embed_documents(TEXTS[:1]), matching.embed_query(TEXTS[0])], [[expected], expected])
        with self.assertRaisesRegex(errors.InvalidError, "`instruction` is for queries"):
            KivuEmbeddings(model("prompts"), instruction="Find ships").embed_documents(TEXTS)
        # Vectors of another depth would be stored.
        with self.assertRaisesRegex(TypeError, "list of strings, but found `str`"):
            embeddings.embed_documents(TEXTS[0])
        with self.assertRaisesRegex(TypeError, "a string, but found `list`"):
            embeddings.embed_query(TEXTS[:1])

    def test_llama_index(self):
        from kivuml.llama_index import KivuEmbedding
        from llama_index.core.schema import TextNode

        embedding = KivuEmbedding(model("prompts"), embed_batch_size=2)
        self.assertEqual(embedding.get_text_embedding_batch(TEXTS), self.documents)
        self.assertEqual(asyncio.run(embedding.aget_query_embedding(TEXTS[0])), self.query)
        nodes = embedding([TextNode(text=text) for text in TEXTS[:2]])
        self.assertEqual(len(nodes[0].embedding), len(self.query))
        with self.assertRaisesRegex(TypeError, "a string, but found `list`"):
            embedding.get_text_embedding(TEXTS[:1])

    def test_haystack(self):
        from haystack import Document, Pipeline
        from kivuml.haystack import KivuDocumentEmbedder, KivuTextEmbedder

        pipeline = Pipeline()
        pipeline.add_component("embedder", KivuTextEmbedder(str(BUNDLES / "prompts")))
        again = Pipeline.loads(pipeline.dumps(), allowed_modules=["kivuml.haystack"])
        self.assertEqual(again.run({"embedder": {"text": TEXTS[0]}})["embedder"]["embedding"], self.query)
        embedder = KivuDocumentEmbedder(str(BUNDLES / "prompts"))
        found = embedder.run([Document(content=text) for text in TEXTS])["documents"]
        self.assertEqual([document.embedding for document in found], self.documents)
        self.assertEqual(embedder.run([]), {"documents": []})
        with self.assertRaisesRegex(TypeError, "a string, but found `list`"):
            KivuTextEmbedder(str(BUNDLES / "prompts")).run(TEXTS[:1])

    def test_sentence_transformers(self):
        from kivuml.sentence_transformers import SentenceTransformer

        model_of = SentenceTransformer(model("prompts"))
        self.assertEqual(model_of.encode_document(TEXTS).tolist(), self.documents)
        self.assertEqual(model_of.encode_query(TEXTS[0]).tolist(), self.query)
        self.assertEqual(model_of.encode([]).shape, (0, model_of.get_sentence_embedding_dimension()))
        self.assertEqual(model_of.similarity(self.documents, self.query).shape, (5, 1))
        self.assertEqual(model_of.similarity([[0.0, 0.0], [2.0, 0.0]], [[3.0, 0.0]]).tolist(), [[0.0], [1.0]])
        for name, expected in {"dot": [0.0, 18.0], "euclidean": [-5.0, -3.0], "manhattan": [-7.0, -3.0]}.items():
            with mock.patch.object(type(model_of.model), "similarity", name):
                found = model_of.similarity([3.0, 0.0], [[0.0, 4.0], [6.0, 0.0]])
            self.assertEqual(found.tolist(), [expected], name)
        refused = {"convert_to_tensor": True, "device": "cuda", "pool": {}, "chunk_size": 8, "output_value": None, "x": 1}
        for name, value in refused.items():
            with self.assertRaisesRegex(errors.InvalidError, f"`{name}`"):
                model_of.encode("a", **{name: value})

    def test_sentence_transformers_names_and_positions(self):
        from kivuml.sentence_transformers import SentenceTransformer

        names = (
            "inputs prompt_name prompt batch_size show_progress_bar output_value precision convert_to_numpy "
            "convert_to_tensor device normalize_embeddings truncate_dim pool chunk_size options"
        )
        parameters = inspect.signature(SentenceTransformer.encode).parameters
        self.assertEqual([name for name in parameters if name != "self"], names.split())
        tiny = model("prompts")
        model_of = SentenceTransformer(tiny)
        prompted = tiny.encode(TEXTS, prompt="query: ").tolist()
        self.assertEqual(model_of.encode(TEXTS, None, "query: ").tolist(), prompted)
        self.assertEqual(model_of.encode(sentences=TEXTS, prompt="query: ", device="cpu").tolist(), prompted)
        self.assertEqual(model_of.encode_query(TEXTS, None, "query: ", 8).tolist(), prompted)
        # A role's prompt has its name; see `encode_document` in sentence-transformers 6.2, which has an empty one by default.
        bare = tiny.encode(TEXTS, prompt="").tolist()
        with mock.patch.object(type(tiny), "prompts", ["passage", "search_query"]):
            self.assertEqual(model_of.encode_document(TEXTS).tolist(), bare)
            self.assertEqual(model_of.encode_query(TEXTS).tolist(), bare)
            self.assertEqual(model_of.encode(TEXTS, "query").tolist(), bare)
            with self.assertRaisesRegex(errors.InvalidError, "unknown prompt 'search_document'.*: `passage`, `search_query`"):
                model_of.encode(TEXTS, "search_document")
        with self.assertRaisesRegex(errors.InvalidError, "`sentences`"):
            model_of.encode(TEXTS, sentences=TEXTS)
        self.assertEqual(model_of.encode("a", convert_to_numpy=False, precision=None).shape, (tiny.dimensions,))
        # Truncated vectors are normalized again only on request.
        whole = tiny.encode(TEXTS)
        self.assertEqual(model_of.encode(TEXTS, truncate_dim=8).tolist(), whole[:, :8].tolist())
        self.assertEqual(model_of.encode(TEXTS[0], truncate_dim=8).tolist(), whole[0, :8].tolist())
        short = SentenceTransformer(tiny, truncate_dim=8)
        self.assertEqual(short.get_embedding_dimension(), 8)
        self.assertEqual(short.encode(TEXTS).tolist(), whole[:, :8].tolist())
        scaled = short.encode(TEXTS, normalize_embeddings=True)
        self.assertEqual(scaled.tolist(), tiny.encode(TEXTS, dimensions=8, normalize=True).tolist())


if __name__ == "__main__":
    unittest.main()
