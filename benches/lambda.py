"""Measures the function with the instructions, the CPU share and the memory of Lambda, by model.

    python benches/lambda.py FUNCTION KIVU MINILM FOLDER [--instructions avx2] [--megabytes 1769 3008] [--docs docs/sizing.md]

FUNCTION is the function's program, KIVU the command that builds models with published dimensions and random weights in
FOLDER, unless they are there, and MINILM a bundle. Prints a table: the time from the start of the process until it
polls for events, the median response for one text, by length, the peak memory, the cost of a million texts, and for
MiniLM, whose tokenizer is not a tiny one, the throughput with texts of mixed length. With --docs, it replaces what the
page has between `<!-- lambda -->` and `<!-- end -->`. Needs root, cgroups of version 1, and only Python's standard
library.
"""

import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benches"), str(ROOT / "tests/lambda")]

import memory
import shapes
import page

# What the page has above the table.
INTRODUCTION = """### Models by size
x86-64 functions have AVX2 only, and 1769 MB give them one CPU. The function's program runs under \
these limits, as above, with `KIVU_INSTRUCTIONS={instructions}`: one text per request, {starts} starts per length, \
medians. BERT-base and DeBERTa-base have random weights and tokenizers with 280 tokens: with real ones, the start takes \
longer. Texts per second are for requests with 32 texts, 57 tokens each on average. {processor}.
"""
# For each model in the table: the shape that is made for it, if any, and its task.
MODELS = {
    "all-MiniLM-L6-v2": (None, "feature-extraction"), "BERT-base": ("bert-base", "feature-extraction"),
    "DeBERTa-base": ("deberta-base", "text-classification"),
}
PATHS = {"feature-extraction": "embed", "text-classification": "predict"}
# Tokens per text, and requests per process.
LENGTHS = {12: 60, 128: 20}
STARTS = 5
# Texts per request with mixed lengths, every ninth of 300, with 57 tokens on average; and requests per process.
MIXED, MIXED_REQUESTS = (ROOT / "compiler/src/sentences.txt").read_text().splitlines()[::9][:32], 8


def text(tokens):
    """A text whose words are one token each, with one before and one behind them."""
    return " ".join(("a", "on")[place % 2] for place in range(tokens - 2))


def event(path, body):
    found = json.loads((ROOT / "tests/lambda/http_plain.json").read_text())
    found["rawPath"], found["pathParameters"]["proxy"] = f"/prod/{path}", path
    found["body"] = json.dumps(body)
    found["headers"]["content-length"] = str(len(found["body"]))
    return json.dumps(found).encode()


def bundle(kivu, folder, shape, task):
    out = folder / "bundles" / shape
    if not (out / "manifest.toml").exists():
        source, recipe = folder / "models" / shape, folder / "models" / f"{shape}.toml"
        shutil.rmtree(source, ignore_errors=True)
        shapes.make(shape, source)
        recipe.write_text(shapes.RECIPE.format(shape=shape, task=task))
        # Random weights say nothing about quality, so few texts suffice.
        lines = (ROOT / "compiler/src/sentences.txt").read_text().splitlines()[:20]
        (folder / "texts.txt").write_text("\n".join(lines) + "\n")
        command = [kivu, "build", recipe, "--out", out, "--texts", folder / "texts.txt"]
        subprocess.run(command, check=True, stdout=sys.stderr)
        shutil.rmtree(source)
    return out


def run(options, name, model, megabytes):
    """The table's cells for one model."""
    shape, task = MODELS[name]
    variables = {
        "KIVU_MODELS": str(model.resolve()), "KIVU_INSTRUCTIONS": options.instructions, "KIVU_HOME": os.environ.get("KIVU_HOME", str(ROOT / ".kivu")),
        "HOME": os.environ["HOME"],
    }
    starts, peaks, medians = [], [], []
    for tokens, requests in LENGTHS.items():
        memory.Api.event = event(PATHS[task], {"inputs": text(tokens)})
        runs = [memory.measure(options.function.resolve(), options.port, megabytes, requests, variables) for _ in range(STARTS)]
        starts += [started for started, _, _ in runs]
        peaks += [peak for _, _, peak in runs]
        # The first response warms up.
        medians.append(statistics.median(time for _, times, _ in runs for time in times[1:]))
    rate = "–"
    if shape is None:
        memory.Api.event = event(PATHS[task], {"inputs": MIXED})
        _, times, _ = memory.measure(options.function.resolve(), options.port, megabytes, MIXED_REQUESTS, variables)
        rate = f"{1000 * len(MIXED) / statistics.median(times[1:]):.0f}"
    cost = 1e6 * (math.ceil(medians[-1]) / 1000 * megabytes / 1024 * memory.GB_SECOND + memory.REQUEST)
    size = sum(file.stat().st_size for file in model.iterdir()) / 1e6
    times = [f"{median:.2f}" if median < 10 else f"{median:.1f}" for median in medians]
    return [name, f"{size:.0f} MB", str(megabytes), f"{statistics.median(starts):.0f}", *times, rate, f"{max(peaks):.0f} MB", f"{cost:.2f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("function", type=Path)
    parser.add_argument("kivu", type=Path)
    parser.add_argument("minilm", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--instructions", default="avx2")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1769])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    options.port = memory.serve(b"")
    lengths = [f"{tokens} tokens, ms" for tokens in LENGTHS]
    rows = [["model", "bundle", "MB", "start, ms", *lengths, "texts/s", "peak", f"US dollars per million texts with {max(LENGTHS)} tokens"]]
    models = {name: bundle(options.kivu, options.folder, *MODELS[name]) if MODELS[name][0] else options.minilm for name in options.models}
    for name, model in models.items():
        rows += [run(options, name, model, megabytes) for megabytes in options.megabytes]
    table = page.table(rows)
    print(table)
    print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    if options.docs:
        processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        processor = processor[1] if processor else "Unknown processor"
        text = INTRODUCTION.format(instructions=options.instructions, starts=STARTS, processor=processor) + "\n" + table + "\n"
        page.write(options.docs, "lambda", text)


if __name__ == "__main__":
    main()
