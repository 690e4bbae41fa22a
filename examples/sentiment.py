#!/usr/bin/env python3
"""Adds the sentiment of a column to a CSV file and prints the result.

    python examples/sentiment.py examples/reviews.csv review > scored.csv

Needs only Python and a server: `make run`, or the URL of another one in SERVER_URL. Rows are processed in batches, so the
file may be larger than memory.
"""

import csv
import itertools
import json
import os
import sys
import urllib.request

URL = os.environ.get("SERVER_URL", "http://127.0.0.1:8080")
MODEL = "sentiment"
BATCH_SIZE = 256


def best_labels(texts):
    """The best label of each text with its score."""
    body = json.dumps({"inputs": texts, "parameters": {"top_k": 1}}).encode()
    headers = {"content-type": "application/json"}
    if "API_KEY" in os.environ:
        headers["authorization"] = f"Bearer {os.environ['API_KEY']}"
    request = urllib.request.Request(f"{URL}/models/{MODEL}", body, headers)
    with urllib.request.urlopen(request) as answer:
        return [(labels[0]["label"], labels[0]["score"]) for labels in json.load(answer)]


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: sentiment.py FILE.csv COLUMN")
    _, path, column = sys.argv
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if column not in (rows.fieldnames or []):
            sys.exit(f"expected a column `{column}` in {path}, but found {rows.fieldnames}")
        table = csv.DictWriter(sys.stdout, [*rows.fieldnames, "sentiment", "score"], lineterminator="\n")
        table.writeheader()
        while some := list(itertools.islice(rows, BATCH_SIZE)):
            # The server does not accept empty texts.
            filled = [row for row in some if row[column].strip()]
            labels = best_labels([row[column] for row in filled]) if filled else []
            for row, (label, score) in zip(filled, labels):
                row.update(sentiment=label, score=f"{score:.3f}")
            table.writerows(some)


if __name__ == "__main__":
    main()
