#!/usr/bin/env python3
"""Measures how results depend on the processor.

    python tests/processors/measure.py BUNDLES PRECISIONS PROCESSOR... [--texts 60] [--json FILE]

A PROCESSOR is `NAME=COMMAND`, with the command that runs `kivu`, possibly with an emulator. The first one is the
reference. BUNDLES has minilm, translate-en-pt and translate-pt-en; PRECISIONS has minilm as `int8-blocks` and `fp32`.

For each processor and precision, prints the cosines of the same texts to the fp32 vectors of the reference, and to
those of the reference in the same precision; fp32 runs on the first processor only. For each translator, prints how
many translations are identical to the reference. The arithmetic that `/info` reports is printed too. Needs only the
standard library.
"""

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 1800
# Sentences per translator.
SENTENCES = 12


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bundles", type=Path)
    parser.add_argument("precisions", type=Path)
    parser.add_argument("processors", nargs="+", metavar="NAME=COMMAND")
    parser.add_argument("--texts", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    texts = spread((ROOT / "compiler/src/sentences.txt").read_text().splitlines(), options.texts)
    portuguese = (ROOT / "compiler/src/sentences-pt.txt").read_text().splitlines()
    embedding = {
        "fp32": options.precisions / "fp32",
        "int8": options.bundles / "minilm",
        "int8-blocks": options.precisions / "int8-blocks",
    }
    translating = {
        "translate-en-pt": spread(texts, SENTENCES),
        "translate-pt-en": spread(portuguese, SENTENCES),
    }
    reference, rows = {}, []
    for processor in options.processors:
        name, command = processor.split("=", 1)
        for precision, bundle in embedding.items():
            # fp32 is the same everywhere.
            if precision == "fp32" and precision in reference:
                continue
            arithmetic, vectors, seconds = ask(command, bundle, "/embed", texts)
            reference.setdefault(precision, vectors)
            row = {"processor": name, "model": f"minilm, {precision}", "arithmetic": arithmetic, "seconds": seconds}
            row["to_fp32"] = cosines(reference["fp32"], vectors)
            row["to_reference"] = cosines(reference[precision], vectors)
            rows.append(row)
            print(json.dumps(row, ensure_ascii=False), flush=True)
        for model, sentences in translating.items():
            arithmetic, translations, seconds = ask(command, options.bundles / model, "/translate", sentences)
            reference.setdefault(model, translations)
            same = sum(a == b for a, b in zip(reference[model], translations, strict=True))
            row = {"processor": name, "model": model, "arithmetic": arithmetic, "seconds": seconds}
            row.update(same=same, of=len(translations))
            rows.append(row)
            print(json.dumps(row, ensure_ascii=False), flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"texts": len(texts), "rows": rows}, ensure_ascii=False, indent=1) + "\n")
    return 0


def spread(lines, count):
    """At most `count` lines, evenly spaced."""
    lines = [line for line in lines if line]
    return [lines[index * len(lines) // count] for index in range(min(count, len(lines)))]


def cosines(expected, found):
    """The mean and the worst cosine."""
    pairs = zip(expected, found, strict=True)
    values = [sum(map(float.__mul__, a, b)) / math.hypot(*a) / math.hypot(*b) for a, b in pairs]
    return {"mean": round(statistics.fmean(values), 5), "worst": round(min(values), 5)}


def ask(command, bundle, path, texts):
    """The arithmetic of a server of `bundle`, its results for the texts, and the seconds of the request."""
    variables = {**os.environ, "KIVU_LIMITS__TIMEOUT_MS": str(TIMEOUT_S * 1000)}
    command = [*shlex.split(command), "serve", str(bundle), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        if "http://" not in line:
            raise SystemExit(f"error: {shlex.join(command)} did not start: {process.stderr.read()}")
        url = "http://" + line.split("http://")[1].strip()
        # The response waits until the model is loaded.
        arithmetic = exchange(f"{url}/info").get("arithmetic")
        started = time.monotonic()
        answer = exchange(url + path, {"inputs": texts})
        seconds = time.monotonic() - started
        if isinstance(answer, dict):
            answer = [translation["text"] for translation in answer["translations"]]
        return arithmetic, answer, round(seconds, 1)
    finally:
        process.kill()
        process.communicate()


def exchange(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(main())
