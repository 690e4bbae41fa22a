#!/usr/bin/env python3
"""Measures what a processor's arithmetic does to answers.

    python tests/processors/measure.py BUNDLES PRECISIONS PROCESSOR... [--texts 60] [--json FILE]

A PROCESSOR is `NAME=COMMAND`: the command that runs `kivu` there, an emulator before it where that is needed. The
first one is the reference, this machine's own. BUNDLES has minilm, translate-en-pt and translate-pt-en; PRECISIONS has
minilm as `int8-blocks` and as `fp32`.

For each processor and precision it embeds the same texts and tells their cosines to the reference's fp32 and to the
reference in the same precision, fp32 on the first processor alone; for each translator, how many translations are the
reference's word by word. The arithmetic
that `/info` reports is printed as well. Only Python's standard library is needed.
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
ANSWER_S = 1800
# Sentences of a translator.
SENTENCES = 12


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bundles", type=Path)
    parser.add_argument("precisions", type=Path)
    parser.add_argument("processors", nargs="+", metavar="NAME=COMMAND")
    parser.add_argument("--texts", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    texts = spread((ROOT / "src/build/sentences.txt").read_text().splitlines(), options.texts)
    portuguese = (ROOT / "src/build/sentences-pt.txt").read_text().splitlines()
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
            # Of fp32 there is one way only.
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
            arithmetic, answers, seconds = ask(command, options.bundles / model, "/translate", sentences)
            reference.setdefault(model, answers)
            same = sum(a == b for a, b in zip(reference[model], answers, strict=True))
            row = {"processor": name, "model": model, "arithmetic": arithmetic, "seconds": seconds}
            row.update(same=same, of=len(answers))
            rows.append(row)
            print(json.dumps(row, ensure_ascii=False), flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"texts": len(texts), "rows": rows}, ensure_ascii=False, indent=1) + "\n")
    return 0


def spread(lines, count):
    """So many lines, from all of the file."""
    lines = [line for line in lines if line]
    return [lines[place * len(lines) // count] for place in range(min(count, len(lines)))]


def cosines(expected, found):
    """The mean and the worst cosine."""
    pairs = zip(expected, found, strict=True)
    values = [sum(map(float.__mul__, a, b)) / math.hypot(*a) / math.hypot(*b) for a, b in pairs]
    return {"mean": round(statistics.fmean(values), 5), "worst": round(min(values), 5)}


def ask(command, bundle, path, texts):
    """What a server of `bundle` says of its arithmetic and answers to each text, and how long the answers took."""
    variables = {**os.environ, "KIVU_LIMITS__TIMEOUT_MS": str(ANSWER_S * 1000)}
    command = [*shlex.split(command), "serve", str(bundle), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        if "http://" not in line:
            raise SystemExit(f"error: {shlex.join(command)} did not start: {process.stderr.read()}")
        url = "http://" + line.split("http://")[1].strip()
        # Requests are answered once the model is loaded.
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
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(main())
