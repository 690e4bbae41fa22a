#!/usr/bin/env python3
"""Translates the HTML files of a folder, and leaves tags, scripts and code as they are.

    python examples/translate_site.py examples/site site-pt en pt

Needs only Python and a server: `make run`, or the URL of another one in SERVER_URL. Text between two tags is translated
on its own, so a sentence with a link in it becomes several parts.
"""

import html
import json
import os
import re
import sys
import urllib.request
from pathlib import Path

URL = os.environ.get("SERVER_URL", "http://127.0.0.1:8080")
BATCH_SIZE = 64
# Tags and comments, and elements whose content is no prose.
MARKUP = re.compile(r"(<!--.*?-->|<(script|style|code|pre)\b.*?</\2\s*>|<[^>]*>)", re.DOTALL | re.IGNORECASE)


def translate(texts, source, target):
    body = json.dumps({"q": texts, "source": source, "target": target}).encode()
    headers = {"content-type": "application/json"}
    if "API_KEY" in os.environ:
        headers["authorization"] = f"Bearer {os.environ['API_KEY']}"
    with urllib.request.urlopen(urllib.request.Request(f"{URL}/translate", body, headers)) as answer:
        return json.load(answer)["translatedText"]


def translated(page, source, target):
    # Of the parts, every third is text; then come the markup and the element's name.
    parts = MARKUP.split(page)
    places = [place for place in range(0, len(parts), 3) if any(map(str.isalpha, parts[place]))]
    for start in range(0, len(places), BATCH_SIZE):
        some = places[start : start + BATCH_SIZE]
        texts = [" ".join(html.unescape(parts[place]).split()) for place in some]
        for place, text in zip(some, translate(texts, source, target)):
            before, after = re.match(r"\s*", parts[place])[0], re.search(r"\s*$", parts[place])[0]
            parts[place] = before + html.escape(text, quote=False) + after
    markup = [part for place, part in enumerate(parts) if place % 3 < 2 and part]
    return "".join(markup)


def main():
    if len(sys.argv) != 5:
        sys.exit("usage: translate_site.py FOLDER OUTPUT SOURCE TARGET")
    folder, output, source, target = Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]
    for file in sorted(folder.rglob("*.html")):
        page = output / file.relative_to(folder)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(translated(file.read_text(encoding="utf-8"), source, target), encoding="utf-8")


if __name__ == "__main__":
    main()
