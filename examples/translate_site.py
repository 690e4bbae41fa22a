#!/usr/bin/env python3
"""Translates the HTML and Markdown files of a folder, and leaves tags, links, scripts and code as they are.

    python examples/translate_site.py examples/site site-pt en pt

Needs only Python and a server: `make run`, or the URL of another one in SERVER_URL. Markup within a text is sent as a
placeholder, such as {0}; if the model moves one, the parts around the markup are translated on their own.
"""

import html
import json
import os
import re
import sys
from itertools import count
from pathlib import Path
from urllib import error, request

URL = os.environ.get("SERVER_URL", "http://127.0.0.1:8080")
BATCH_SIZE = 64
# What divides a page into texts, and the markup within a text.
TAGS = r"(?si)(<!--.*?-->|<(script|style|pre)\b.*?</\2\s*>|</?(?!(?:a|b|code|em|i|span|strong)\b)[^>]*>)"
INNER_TAGS = r"(?si)(<code\b.*?</code\s*>|<[^>]*>|\{.*?\})"
BULLETS = r"^[ \t]*(?:(?:#+|[-*+>]|\d+\.)[ \t]+)+"
LINES = rf"(?sm)(\A---\n.*?\n---\n|^ *(```).*?^ *\2|<!--.*?-->|\n\s*\n|\0|\||^[\s:|-]+$|{BULLETS})"
SPANS = r"(?s)(`[^`]*`|!?\[|\](?:\([^)]*\))?|\*+|~~|(?<!\w)_+|_+(?!\w)|<[^>]*>|\{.*?\})"
KINDS = {".html": (TAGS, INNER_TAGS), ".md": (LINES, SPANS)}


def translate(texts, languages):
    headers = {"content-type": "application/json"}
    if "API_KEY" in os.environ:
        headers["authorization"] = f"Bearer {os.environ['API_KEY']}"
    for start in range(0, len(texts), BATCH_SIZE):
        body = json.dumps({"q": texts[start : start + BATCH_SIZE], **languages}).encode()
        with request.urlopen(request.Request(f"{URL}/translate", body, headers)) as answer:
            yield from json.load(answer)["translatedText"]


def translated(page, languages, divider, markup, is_html):
    parts = re.split(divider, page)
    del parts[2::3]  # What is left are texts, and between them what divides them.
    places = [place for place in range(0, len(parts), 2) if has_letters(re.sub(markup, "", parts[place]))]
    texts = [re.sub(markup, lambda _, number=count(): f"{{{next(number)}}}", parts[place]) for place in places]
    if is_html:
        texts = [html.unescape(text) for text in texts]
    for place, text in zip(places, translate([" ".join(text.split()) for text in texts], languages)):
        text = html.escape(text, quote=False) if is_html else text
        around, found = re.split(markup, parts[place]), re.split(r"\{(\d+)\}", text)
        before, after = re.match(r"\s*", parts[place])[0], re.search(r"\s*$", parts[place])[0]
        is_whole = [*map(has_letters, found[::2])] == [*map(has_letters, around[::2])]
        if is_whole and found[1::2] == [str(number) for number in range(len(around) // 2)]:
            found[1::2] = around[1::2]
            parts[place] = before + "".join(found) + after
        elif len(around) > 1:
            parts[place] = translated(parts[place], languages, f"{markup}()", "(?!)", is_html)
    return "".join(parts)


def has_letters(text):
    return any(map(str.isalpha, text))


def main():
    if len(sys.argv) != 5:
        sys.exit("usage: translate_site.py FOLDER OUTPUT SOURCE TARGET")
    folder, output, languages = Path(sys.argv[1]), Path(sys.argv[2]), {"source": sys.argv[3], "target": sys.argv[4]}
    if output.resolve().is_relative_to(folder.resolve()):
        sys.exit("expected OUTPUT outside of FOLDER, whose files are read")
    files = [file for file in sorted(folder.rglob("*")) if file.suffix in KINDS]
    for file in files or sys.exit(f"no HTML or Markdown files in {folder}"):
        is_html, page, text = file.suffix == ".html", output / file.relative_to(folder), file.read_text("utf-8")
        if not is_html:
            text = re.sub(r"(?m)^(#.*)$", "\\1\0", text)  # A heading ends with its line.
        text = translated(text, languages, *KINDS[file.suffix], is_html).replace("\0", "")
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except error.HTTPError as refusal:
        sys.exit(f"{refusal}: {refusal.read().decode()}")
