"""Runs rails of NeMo Guardrails, unmodified, against a running server; docs/clients.md has their settings.

    pip install --require-hashes -r tests/frameworks/requirements.txt
    pip install --require-hashes --no-deps -r tests/frameworks/guards.txt
    TEST_URL=http://127.0.0.1:8080 python tests/frameworks/test_guards.py

The server serves `entities`, which finds entities by the request's labels, and the classifier `guard`. No model generates
texts: rails on the input decide by themselves whether it passes.
"""

import json
import os
import sys
import unittest
import urllib.request
import warnings

sys.dont_write_bytecode = sys.pycache_prefix is None  # no __pycache__ among the sources
warnings.simplefilter("ignore")
for name in list(os.environ):
    if name.lower().endswith("_proxy") or name.endswith(("_API_KEY", "_BASE_URL")):
        os.environ.pop(name)
os.environ.update(NO_PROXY="*", HF_HUB_OFFLINE="1", NEMO_GUARDRAILS_NO_USAGE_STATS="1")

from nemoguardrails import LLMRails, RailsConfig  # noqa: E402

URL = os.environ["TEST_URL"].rstrip("/")
TEXT = "My name is Wolfgang and I live in Berlin"
LABELS = ["person", "city"]
REFUSAL = "I'm sorry, I can't respond to that."
GLINER = """
models: []
rails:
  input:
    flows: ["gliner {action} pii on input"]
  config:
    gliner:
      server_endpoint: {url}/v1/chat/completions
      model: entities
      threshold: {threshold}
      chunk_length: 12
      overlap: 4
      flat_ner: true
      input:
        entities: [person, city]
"""
CLASSIFIER = """
models: []
rails:
  input:
    flows: ['hf classifier check input $classifier="own"']
  config:
    hf_classifier:
      own:
        engine: vllm
        base_url: {url}
        model: guard
        task: text-classification
        blocked_labels: [{label}]
        threshold: {threshold}
"""


def post(path, body):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def passed(config, text):
    """What a text becomes after the rails on the input."""
    rails = LLMRails(RailsConfig.from_content(yaml_content=config))
    messages = [{"role": "user", "content": text}]
    [message] = rails.generate(messages=messages, options={"rails": ["input"]}).response
    return message["content"]


class Entities(unittest.TestCase):
    def found(self, threshold):
        parameters = {"labels": LABELS, "threshold": threshold, "flat_ner": True, "stride": 4}
        return post("/models/entities", {"inputs": TEXT, "parameters": parameters})

    def gliner(self, action, threshold):
        return passed(GLINER.format(action=action, threshold=threshold, url=URL), TEXT)

    def test_texts_with_entities_are_refused(self):
        self.assertTrue(self.found(0.3))
        self.assertEqual(self.gliner("detect", 0.3), REFUSAL)
        self.assertEqual(self.found(0.999), [])
        self.assertEqual(self.gliner("detect", 0.999), TEXT)

    def test_entities_are_masked(self):
        expected = TEXT
        for entity in sorted(self.found(0.3), key=lambda entity: -entity["start"]):
            label = f"[{entity['entity_group'].upper()}]"
            expected = expected[: entity["start"]] + label + expected[entity["end"] :]
        self.assertNotEqual(expected, TEXT)
        self.assertEqual(self.gliner("mask", 0.3), expected)


class Labels(unittest.TestCase):
    def test_blocked_labels_are_refused(self):
        [own] = post("/classify", {"input": TEXT, "model": "guard"})["data"]
        score = max(own["probs"])
        other = post("/predict", {"inputs": TEXT, "model": "guard"})[-1]["label"]
        self.assertNotEqual(own["label"], other)
        for label, threshold, expected in [
            (own["label"], score - 0.01, REFUSAL),
            (own["label"], score + 0.01, TEXT),
            (other, score - 0.01, TEXT),
        ]:
            config = CLASSIFIER.format(label=label, threshold=threshold, url=URL)
            self.assertEqual(passed(config, TEXT), expected, label)


if __name__ == "__main__":
    unittest.main(verbosity=1)
