#!/usr/bin/env python3
"""A Presidio recognizer for personal data that a model on a Kivu server finds.

    echo "My name is Sarah and I live in London" | python examples/presidio/kivu_recognizer.py MODEL

Needs `pip install presidio-analyzer`, and a server with a model for `token-classification`: `kivu serve nvidia/gliner-pii`
on this machine, or the URL of another one in SERVER_URL. No spaCy model is needed: Presidio's own recognizers that use
patterns run next to the model.
"""

import json
import os
import sys
import urllib.error
import urllib.request

from presidio_analyzer import AnalyzerEngine, RecognizerRegistry, RecognizerResult, RemoteRecognizer
from presidio_analyzer.nlp_engine import NoOpNlpEngine

URL = os.environ.get("SERVER_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("API_KEY")

# Presidio's names of entities, and the labels for which the model is asked.
LABELS = {
    "PERSON": "person",
    "LOCATION": "location",
    "ORGANIZATION": "organization",
    "PHONE_NUMBER": "phone number",
    "EMAIL_ADDRESS": "email address",
}
STRIDE = 12  # words that windows of a long text share


class KivuRecognizer(RemoteRecognizer):
    """Finds entities by a model on a Kivu server: one that takes labels, such as GLiNER, or one with its own."""

    def __init__(self, model, labels=None, url=URL, key=KEY, takes_labels=True, threshold=0.5, language="en", timeout=30):
        self.labels = dict(LABELS if labels is None else labels)
        self.address = f"{url.rstrip('/')}/models/{model}"
        self.key, self.takes_labels, self.threshold, self.timeout = key, takes_labels, threshold, timeout
        super().__init__(list(self.labels), name=f"Kivu {model}", supported_language=language, version="1.0")

    def get_supported_entities(self):
        return list(self.labels)

    def analyze(self, text, entities=None, nlp_artifacts=None):
        """The entities among `entities`, Presidio's names; all supported ones if there are none."""
        # In the order of `self.labels`, since results may depend on it.
        wanted = {label: name for name, label in self.labels.items() if not entities or name in entities}
        if not wanted or not text.strip():
            return []
        parameters = {"stride": STRIDE}
        if self.takes_labels:
            parameters |= {"labels": list(wanted), "threshold": self.threshold}
        found = self.ask({"inputs": text, "parameters": parameters})
        return [
            RecognizerResult(
                wanted[entity["entity_group"]], entity["start"], entity["end"], entity["score"],
                recognition_metadata={
                    RecognizerResult.RECOGNIZER_NAME_KEY: self.name,
                    RecognizerResult.RECOGNIZER_IDENTIFIER_KEY: self.id,
                },
            )
            for entity in found
            if entity["entity_group"] in wanted and entity["score"] > self.threshold
        ]  # fmt: skip

    def ask(self, body):
        headers = {"content-type": "application/json"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(self.address, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            # Without the text: the server's messages name positions and labels only.
            raise RuntimeError(f"{self.address} answered {error.code}: {json.load(error).get('error')}") from None


def analyzer(recognizer):
    """Presidio's engine with a recognizer and with Presidio's own that need no spaCy model."""
    registry = RecognizerRegistry(supported_languages=["en"])
    registry.load_predefined_recognizers(languages=["en"])
    registry.remove_recognizer("SpacyRecognizer")
    registry.add_recognizer(recognizer)
    engine = NoOpNlpEngine([{"lang_code": "en", "model_name": "none"}])
    engine.load()
    return AnalyzerEngine(registry=registry, nlp_engine=engine, supported_languages=["en"])


def main():
    if len(sys.argv) != 2:
        sys.exit(f"expected the name of a model, but found {len(sys.argv) - 1} arguments")
    engine = analyzer(KivuRecognizer(sys.argv[1]))
    for line in map(str.rstrip, sys.stdin):
        for result in sorted(engine.analyze(line, language="en"), key=lambda result: result.start):
            print(f"{result.start}-{result.end} {result.entity_type} {result.score:.2f}")


if __name__ == "__main__":
    main()
