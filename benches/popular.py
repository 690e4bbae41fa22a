"""Builds and serves the shapes of the most downloaded models, with random weights, and tells their memory.

    python benches/popular.py KIVU FOLDER [--shapes SHAPE…] [--minutes 5] [--reduced | --docs docs/memory.md]

For each shape that FOLDER/results.json lacks: makes the model, builds it in int8, serves the bundle, sends it texts, and
deletes both. With --docs, it replaces what the page has between `<!-- popular -->` and `<!-- end -->`, also with
`--minutes 0`, which measures nothing. With --reduced, it checks with narrow models and few layers that every shape is
built and served. Needs Linux and only Python's standard library.
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
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benches")]

import shapes

# Ten or more of the most downloaded models per task, by common knowledge (November 2026) without a hub's counts.
MODELS = {
    "embedding": {
        "all-MiniLM-L6-v2": "minilm-l6",
        "all-MiniLM-L12-v2": "minilm-l12",
        "bge-small-en-v1.5": "minilm-l12",
        "paraphrase-multilingual-MiniLM-L12-v2": "minilm-l12-multilingual",
        "multilingual-e5-small": "minilm-l12-multilingual",
        "all-mpnet-base-v2": "mpnet-base",
        "bge-base-en-v1.5": "bert-base",
        "nomic-embed-text-v1.5": "nomic-base",
        "multilingual-e5-base": "xlm-roberta-base",
        "gte-multilingual-base": "gte-multilingual-base",
        "embeddinggemma-300m": "gemma3-300m",
        "bge-large-en-v1.5": "bert-large",
        "bge-m3": "xlm-roberta-large",
        "multilingual-e5-large": "xlm-roberta-large",
        "Qwen3-Embedding-0.6B": "qwen3-0.6b",
    },
    "reranking": {
        "ms-marco-TinyBERT-L2-v2": "bert-tiny-rank",
        "ms-marco-MiniLM-L6-v2": "minilm-l6-rank",
        "ms-marco-MiniLM-L12-v2": "minilm-l12-rank",
        "gte-reranker-modernbert-base": "modernbert-base-rank",
        "bge-reranker-base": "xlm-roberta-base-rank",
        "jina-reranker-v2-base-multilingual": "jina-reranker-base",
        "mxbai-rerank-base-v1": "deberta-base-rank",
        "bge-reranker-large": "xlm-roberta-large-rank",
        "bge-reranker-v2-m3": "xlm-roberta-large-rank",
        "Qwen3-Reranker-0.6B": "qwen3-0.6b-rank",
    },
    "classification": {
        "distilbert-base-uncased-finetuned-sst-2-english": "distilbert",
        "emotion-english-distilroberta-base": "distilroberta",
        "finbert": "bert-base-classes",
        "toxic-bert": "bert-base-classes",
        "twitter-roberta-base-sentiment-latest": "roberta-base",
        "xlm-roberta-base-language-detection": "xlm-roberta-base-classes",
        "twitter-xlm-roberta-base-sentiment": "xlm-roberta-base-classes",
        "DeBERTa-v3-base-mnli-fever-anli": "deberta-base",
        "deberta-v3-base-prompt-injection-v2": "deberta-base",
        "bart-large-mnli": "bart-large",
    },
    "entities": {
        "distilbert-NER": "distilbert-ner",
        "bert-base-NER": "bert-base-ner",
        "camembert-ner": "camembert-base-ner",
        "gliner_small-v2.1": "gliner-small",
        "gliner_medium-v2.1": "gliner-medium",
        "gliner_multi-v2.1": "gliner-multi",
        "gliner2-base-v1": "gliner2-base",
        "bert-large-NER": "bert-large-ner",
        "gliner_large-v2.1": "gliner-large",
        "xlm-roberta-large-finetuned-conll03-english": "xlm-roberta-large-ner",
    },
}
KINDS = {shape: kind for kind, models in MODELS.items() for shape in models.values()}
TASKS = {
    "embedding": "feature-extraction", "reranking": "text-ranking", "classification": "text-classification",
    "entities": "token-classification",
}
# Texts for the build, and tokens per text with the measured requests.
TEXTS, LENGTHS = 20, {12: 30, 128: 10}
INTRODUCTION = """## Popular models by shape
Ten or more of the most downloaded models per task, chosen from common knowledge (November 2026), not from a hub's counts. \
`make measure-popular` makes each distinct shape with the published dimensions and vocabulary size and random weights, \
builds it in `int8` and serves the bundle: {machine}, {threads} threads, {arithmetic}. The quality floors are off, since \
random weights say nothing about quality; a trained model below a floor is built in `int8-blocks` or `fp32` instead.

- Private, resident: the server's memory after the requests. Private memory excludes, and resident memory includes, the \
program and the pages of the weights file that were read.
- Peak: the server's, measured by `kivu build` with the longest text. All shapes are limited to {longest} tokens, also where \
the published model reads more.
- Times: median of one request with one text. Rerankers get a query of one token in addition, GLiNER models two labels.
- Build: with {texts} texts for the quality gate instead of 300, without a download.
- Tokenizers have some 300 tokens: a real one takes more private memory, and real texts read more rows of the word \
embeddings, at most all, so resident memory is at most the private memory, the bundle and 25 MB of program.
- Reranking models that are decoders put the query and the text into a prompt, whose tokens come on top.
- Classifiers have up to 20 labels and entity models 5, whatever the published number is.
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
        rows = [[kind, "shape", "build, s", "bundle", "precision", "private", "resident", "peak", *lengths]]
        rows.append(["---"] * len(rows[0]))
        for shape in dict.fromkeys(models.values()):
            names = ", ".join(model for model, its in models.items() if its == shape)
            found = results.get(shape)
            if not found or "error" in found:
                cells = ["failed" if found else "not measured"] + ["–"] * (len(rows[0]) - 3)
            else:
                longest = found["serving"]["longest"]
                megabytes = [f"{size:.0f} MB" for size in (found["private"], found["resident"], longest["peak_mb"])]
                times = [f"{median:.2f}" if median < 10 else f"{median:.1f}" for median in found["medians"]]
                cells = [f"{found['seconds']:.0f}", f"{found['megabytes']:.0f} MB", f"`{found['precision']}`", *megabytes, *times]
            rows.append([names, f"`{shape}`", *cells])
        lines += [f"| {' | '.join(row)} |" for row in rows] + [""]
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
            arithmetic=", ".join(sorted(arithmetic)), texts=TEXTS, longest=shapes.TOKENS,
        )
        marked = r"(<!-- popular -->\n).*?(<!-- end -->)"
        page = options.docs.read_text()
        section = introduction + (UNMEASURED if "not measured" in text else "") + "\n" + text
        options.docs.write_text(re.sub(marked, lambda marks: marks[1] + section + marks[2], page, flags=re.DOTALL))
    if failed:
        sys.exit("some shapes failed: see the messages above")


if __name__ == "__main__":
    main()
