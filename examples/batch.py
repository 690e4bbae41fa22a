#!/usr/bin/env python3
"""Embeds the paragraphs of a folder of texts in the background, as one batch.

    python examples/batch.py examples/texts vectors.jsonl

Needs `pip install openai` and a server with a folder for files: `KIVU_FILES__FOLDER=.kivu/files make run`, or the URL of
another one in SERVER_URL. Writes a line per paragraph, with its file, its text and its vector.
"""

import json
import os
import sys
import time
from pathlib import Path

from openai import OpenAI

URL = os.environ.get("SERVER_URL", "http://127.0.0.1:8080")
MODEL = "minilm"

client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("API_KEY", "none"))


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: batch.py FOLDER OUTPUT")
    _, folder, output = sys.argv
    texts = {}
    for file in sorted(Path(folder).rglob("*.txt")):
        for number, paragraph in enumerate(file.read_text(encoding="utf-8").split("\n\n")):
            if paragraph.strip():
                texts[f"{file.name}:{number}"] = " ".join(paragraph.split())
    requests = [
        {"custom_id": name, "method": "POST", "url": "/v1/embeddings", "body": {"model": MODEL, "input": text}}
        for name, text in texts.items()
    ]
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    file = client.files.create(file=("texts.jsonl", lines.encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    while batch.status in ("validating", "in_progress", "finalizing"):
        time.sleep(1)
        batch = client.batches.retrieve(batch.id)
    print(f"{batch.status}: {batch.request_counts.completed} of {batch.request_counts.total}")
    if batch.error_file_id:
        print(client.files.content(batch.error_file_id).text, file=sys.stderr)
    with open(output, "w", encoding="utf-8") as results:
        for line in client.files.content(batch.output_file_id).text.splitlines():
            response = json.loads(line)
            name, vector = response["custom_id"], response["response"]["body"]["data"][0]["embedding"]
            results.write(json.dumps({"name": name, "text": texts[name], "embedding": vector}) + "\n")


if __name__ == "__main__":
    main()
