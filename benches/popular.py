"""Builds and serves the shapes of the most downloaded models, with random weights, and tells their memory.

    python benches/popular.py KIVU FOLDER [--shapes SHAPE…] [--minutes 5] [--reduced | --docs docs/sizing.md]

For each shape that FOLDER/results.json lacks: makes the model, builds it in int8, serves the bundle, sends it texts, and
deletes both. With --docs, it replaces what the page has between `<!-- popular -->` and `<!-- end -->`, and the figures in
the catalogue of `kivu models --all`, also with `--minutes 0`, which measures nothing. With --reduced, it checks with
narrow models and few layers that every shape is built and served. Needs Linux and only Python's standard library.
"""

import argparse
import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benches")]

import shapes
import page

CATALOGUE = ROOT / "cli/src/library/catalogue.toml"
KNOWN = tomllib.loads(CATALOGUE.read_text())
TASKS = {
    "embedding": "feature-extraction", "reranking": "text-ranking", "classification": "text-classification",
    "entities": "token-classification",
}
# Shapes by the names of published models, which have an organization; recipes have real weights.
MODELS = {
    kind: {name.split("/")[1]: its["shape"] for name, its in KNOWN[kind].items() if "/" in name} for kind in TASKS
}
KINDS = {shape: kind for kind, models in MODELS.items() for shape in models.values()}
# Texts for the build, and tokens per text with the measured requests.
TEXTS, LENGTHS = 20, {12: 30, 128: 10}
INTRODUCTION = """### Popular models by shape
Much downloaded models per task, chosen from common knowledge (November 2026), not from a hub's counts. Each shape has \
the published dimensions and vocabulary size and random weights, and is built in `int8` without a quality floor and served: \
{machine}, {threads} threads, {arithmetic}. A trained model below a floor is built in \
`int8-blocks` or `fp32` instead.

- Resident: the server's memory after the requests, with the program and the pages of the weights file that were read.
- Peak: with the longest text, of {longest} tokens, also where the published model reads more.
- Times: median of one request with one text. Rerankers get a query of one token in addition (decoders also a prompt), \
GLiNER models two labels.
- Tokenizers have some 300 tokens: a real one takes more memory, and real texts read more rows of the word embeddings, up to the \
bundle's size.
"""
# What the page has below it, while shapes are missing.
UNMEASURED = """- Not measured: built and served only with few layers and small widths (`benches/popular.py --reduced`, a minute for all \
shapes).
"""


def text(words):
    return " ".join(("a", "on")[place % 2] for place in range(words))


class Server:
    """The bundle's server: `ask` returns a response and the milliseconds until it came."""

    def __init__(self, kivu, bundle, port, log):
        self.process = subprocess.Popen([kivu, "serve", bundle, "--port", str(port)], stdout=log, stderr=log)
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for _ in range(600):
            try:
                self.connection.request("GET", "/health")
                self.connection.getresponse().read()
                return
            except OSError:
                self.connection.close()
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        self.stop()
        raise RuntimeError("the server did not start")

    def ask(self, method, path, body=None):
        start = time.perf_counter()
        self.connection.request(method, path, json.dumps(body) if body else None, {"content-type": "application/json"})
        response = self.connection.getresponse()
        content = response.read()
        taken = 1000 * (time.perf_counter() - start)
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {content.decode()[:300]}")
        return json.loads(content), taken

    def memory(self):
        """Private and resident memory, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return [int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) * 1024 / 1e6 for name in ("RssAnon", "VmRSS")]

    def stop(self):
        self.process.terminate()
        self.process.wait()


def request(shape, words):
    match KINDS[shape]:
        case "embedding":
            return "/embed", {"inputs": text(words)}
        case "reranking":
            return "/rerank", {"query": "a", "texts": [text(words)]}
        case "classification":
            return "/predict", {"inputs": text(words)}
        case _:
            labels = {"parameters": {"labels": ["a", "on"]}} if shape.startswith("gliner") else {}
            return f"/models/{shape}", {"inputs": text(words)} | labels


def measure(kivu, folder, shape, port, small):
    source, bundle, recipe = folder / shape, folder / "bundle", folder / f"{shape}.toml"
    texts = folder / "texts.txt"
    texts.write_text("".join((ROOT / "compiler/src/sentences.txt").read_text().splitlines(keepends=True)[:TEXTS]))
    for old in (source, bundle):
        shutil.rmtree(old, ignore_errors=True)
    try:
        shapes.make(shape, source, small)
        recipe.write_text(shapes.RECIPE.format(shape=shape, task=TASKS[KINDS[shape]]))
        start = time.perf_counter()
        command = [kivu, "build", recipe, "--out", bundle, "--texts", texts, "--json"]
        built = subprocess.run(command, capture_output=True, text=True)
        seconds = time.perf_counter() - start
        if built.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}: {built.stderr.strip()[-1000:]}")
        shutil.rmtree(source)
        report = json.loads(built.stdout)
        with (folder / "server.log").open("w") as log:
            server = Server(kivu, bundle, port, log)
        try:
            info, _ = server.ask("GET", "/info")
            # Tokenizers take a different number of tokens per word.
            count = len(server.ask("POST", "/tokenize", {"inputs": text(100)})[0][0])
            medians = []
            for tokens, requests in LENGTHS.items():
                path, body = request(shape, round(tokens * 100 / count))
                times = [server.ask("POST", path, body)[1] for _ in range(requests)]
                # The first response warms up.
                medians.append(statistics.median(times[1:]))
            private, resident = server.memory()
        finally:
            server.stop()
        return {
            "seconds": seconds, "megabytes": report["bytes"] / 1e6, "precision": report["precision"],
            "arithmetic": info["arithmetic"], "private": private, "resident": resident, "medians": medians,
            "serving": report["serving"], "quality": report["quality"],
        }
    finally:
        for old in (source, bundle):
            shutil.rmtree(old, ignore_errors=True)


def table(results):
    lengths = [f"{tokens} tokens, ms" for tokens in LENGTHS]
    lines = []
    for kind, models in MODELS.items():
        rows = [[kind, "bundle, MB", "resident, MB", "peak, MB", *lengths]]
        for shape in dict.fromkeys(models.values()):
            names = ", ".join(model for model, its in models.items() if its == shape)
            found = results.get(shape)
            if not found or "error" in found:
                cells = ["failed" if found else "not measured"] + ["–"] * (len(rows[0]) - 2)
            else:
                longest = found["serving"]["longest"]
                megabytes = [f"{size:.0f}" for size in (found["megabytes"], found["resident"], longest["peak_mb"])]
                times = [f"{median:.2f}" if median < 10 else f"{median:.1f}" for median in found["medians"]]
                cells = [*megabytes, *times]
            rows.append([names, *cells])
        lines += [page.table(rows), ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kivu", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shapes", nargs="+", choices=KINDS, metavar="SHAPE", help="shapes to measure [default: all]")
    parser.add_argument("--minutes", type=float, default=600, help="begin no shape after this time; the next run goes on")
    parser.add_argument("--reduced", action="store_true", help="check narrow models with few layers, in a minute")
    parser.add_argument("--port", type=int, default=8091)
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ("reduced.json" if options.reduced else "results.json")
    results = json.loads(file.read_text()) if file.exists() else {}
    known = {shape for shape, found in results.items() if "error" not in found}
    wanted = [shape for shape in options.shapes or shapes.SHAPES if shape not in known]
    end = time.monotonic() + 60 * options.minutes
    failed = False
    for shape in wanted:
        if time.monotonic() >= end:
            break
        try:
            results[shape] = measure(options.kivu.resolve(), folder, shape, options.port, options.reduced)
        except (RuntimeError, OSError, ValueError, LookupError, http.client.HTTPException) as error:
            results[shape], failed = {"error": f"{type(error).__name__}: {error}"}, True
        print(shape, json.dumps(results[shape]), file=sys.stderr, flush=True)
        file.write_text(json.dumps(results, indent=2) + "\n")
    text = table(results)
    print(text)
    if options.docs and not options.reduced:
        machine = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        arithmetic = {found["arithmetic"] or "unknown arithmetic" for found in results.values() if "error" not in found}
        introduction = INTRODUCTION.format(
            machine=machine[1] if machine else "unknown processor", threads=len(os.sched_getaffinity(0)),
            arithmetic=", ".join(sorted(arithmetic)), longest=shapes.TOKENS,
        )
        section = introduction + (UNMEASURED if "not measured" in text else "") + "\n" + text
        page.write(options.docs, "popular", section, options.folder / "results.json")
        measured = {
            shape: {"megabytes": round(found["megabytes"]), "memory": round(found["resident"])}
            for shape, found in results.items() if "error" not in found
        }
        lines = [
            f'"{shape}" = {{ megabytes = {its["megabytes"]}, memory = {its["memory"]} }}\n'
            for shape, its in (KNOWN["shapes"] | measured).items()
        ]
        start, _ = CATALOGUE.read_text().split("[shapes]\n")
        CATALOGUE.write_text(start + "[shapes]\n" + "".join(lines))
    if failed:
        sys.exit("some shapes failed: see the messages above")


if __name__ == "__main__":
    main()
