#!/usr/bin/env python3
"""Searches a folder of texts by meaning.

    python examples/search.py examples/texts "I forgot my password"

Needs `pip install openai` and a server: `make run`, or the URL of another one in SERVER_URL. Embeds every paragraph of
every `.txt` file and prints those nearest to the question. The vectors have length 1, so the cosine of two is their
dot product.
"""

import os
import sys
from pathlib import Path

from openai import OpenAI

URL = os.environ.get("SERVER_URL", "http://127.0.0.1:8080")
MODEL = "minilm"
BATCH_SIZE = 256
SHOWN = 3

client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("API_KEY", "none"))


def embed(texts):
    vectors = []
    for start in range(0, len(texts), BATCH_SIZE):
        answer = client.embeddings.create(model=MODEL, input=texts[start : start + BATCH_SIZE])
        vectors += [item.embedding for item in answer.data]
    return vectors


def paragraphs(folder):
    """The paragraphs of all texts, with the names of their files."""
    for file in sorted(Path(folder).rglob("*.txt")):
        for paragraph in file.read_text(encoding="utf-8").split("\n\n"):
            if paragraph.strip():
                yield file.name, " ".join(paragraph.split())


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: search.py FOLDER QUESTION")
    _, folder, question = sys.argv
    texts = list(paragraphs(folder))
    if not texts:
        sys.exit(f"expected texts in {folder}, but found none; texts are .txt files")
    query, *vectors = embed([question, *(text for _, text in texts)])
    scores = [sum(a * b for a, b in zip(query, vector)) for vector in vectors]
    best = sorted(zip(scores, texts), reverse=True)[:SHOWN]
    for score, (name, text) in best:
        print(f"{score:.2f}  {name}: {text}")


if __name__ == "__main__":
    main()
