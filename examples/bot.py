#!/usr/bin/env python3
"""A bot that translates each line of the input.

    python examples/bot.py

Needs `pip install huggingface_hub` and a server: `make run`, or the URL of another one in SERVER_URL. `/pt-en` and
`/en-pt` change the direction; the end of the input (Ctrl+D) exits.
"""

import json
import os
import sys
import urllib.request

from huggingface_hub import InferenceClient

URL = os.environ.get("SERVER_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("API_KEY")


def translators():
    """Clients of the models that translate a single pair of languages, by pair, such as `en-pt`."""
    request = urllib.request.Request(f"{URL}/models", headers={"authorization": f"Bearer {KEY}"} if KEY else {})
    with urllib.request.urlopen(request) as answer:
        models = json.load(answer)["models"]
    found = {}
    for model in models:
        languages = model.get("languages", {"from": [], "to": []})
        if len(languages["from"]) == len(languages["to"]) == 1:
            pair = f"{languages['from'][0]}-{languages['to'][0]}"
            found[pair] = InferenceClient(f"{URL}/models/{model['name']}", token=KEY)
    return found


def main():
    known = translators()
    if not known:
        sys.exit(f"expected a model that translates at {URL}, but found none")
    pair = next(iter(known))
    print(f"I translate {', '.join(known)}. Now: {pair}; /PAIR changes it.")
    for line in map(str.strip, sys.stdin):
        if line.startswith("/"):
            pair = line[1:] if line[1:] in known else pair
            print(f"Now: {pair}")
        elif line:
            print(known[pair].translation(line).translation_text, flush=True)


if __name__ == "__main__":
    main()
