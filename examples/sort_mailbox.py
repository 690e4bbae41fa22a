#!/usr/bin/env python3
"""Sorts the messages of a mailbox by topics that are chosen here, without training.

    python examples/sort_mailbox.py examples/mails.mbox "billing" "delivery" "a software error"

Needs only Python and a server: `make run`, or the URL of another one in SERVER_URL. Prints a line per message: the best
topic, its score and the subject.
"""

import json
import mailbox
import os
import sys
import urllib.request
from email.header import decode_header, make_header

URL = os.environ.get("SERVER_URL", "http://127.0.0.1:8080")
MODEL = "zero-shot"
BATCH_SIZE = 16


def text(message):
    """The subject, and the text of the first part that is plain text."""
    parts = [part for part in message.walk() if part.get_content_type() == "text/plain"]
    body = parts[0].get_payload(decode=True).decode(parts[0].get_content_charset("utf-8"), "replace") if parts else ""
    return f"{subject(message)}\n{body}".strip()


def subject(message):
    return str(make_header(decode_header(message["subject"] or "")))


def topics(texts, labels):
    """The best label of each text, with its score."""
    body = json.dumps({"inputs": texts, "parameters": {"candidate_labels": labels}}).encode()
    headers = {"content-type": "application/json"}
    if "API_KEY" in os.environ:
        headers["authorization"] = f"Bearer {os.environ['API_KEY']}"
    with urllib.request.urlopen(urllib.request.Request(f"{URL}/models/{MODEL}", body, headers)) as answer:
        return [(best["label"], best["score"]) for best, *_ in json.load(answer)]


def main():
    if len(sys.argv) < 4:
        sys.exit("usage: sort_mailbox.py FILE.mbox TOPIC TOPIC ...")
    _, path, *labels = sys.argv
    messages = [message for message in mailbox.mbox(path, create=False) if text(message)]
    for start in range(0, len(messages), BATCH_SIZE):
        some = messages[start : start + BATCH_SIZE]
        for message, (label, score) in zip(some, topics([text(message) for message in some], labels)):
            print(f"{label:20} {score:.2f}  {subject(message)}")


if __name__ == "__main__":
    main()
