"""Measures Kivu against plain ONNX Runtime and writes the figures to a JSON file, which figures.py draws.

    python3 benches/bench.py KIVU LABORATORY BUNDLES --baseline BUNDLE --weights FOLDER --compare BUNDLE … --json .kivu/bench.json

KIVU is the program, LABORATORY that of benches/laboratory.rs, BUNDLES a folder with minilm, zero-shot and
translate-en-pt. Each figure is measured together with its baseline.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import struct
import subprocess
import tempfile
import time
import tomllib
import urllib.request

SHORT = "What is deep learning?"
LABELS = 10
STARTS = 25
TURNS = 3
ROWS = 100_000
# The native engine's instructions on Lambda, with which encoders are measured, too.
ON_LAMBDA = {"x86_64": "avx2", "aarch64": "neon-dotprod"}[platform.machine()]
LIMITED = {"KIVU_INSTRUCTIONS": ON_LAMBDA}
PATTERN = re.compile(r"http://([\d.:]+)")
SENTENCES = pathlib.Path(__file__).parent.parent / "compiler/src/sentences.txt"


class Server:
    """`kivu serve` on a free port."""

    def __init__(self, kivu, variables, *bundles):
        command = [kivu, "serve", *bundles, "--listen", "127.0.0.1:0", "--until-stdin-closes"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | variables)
        self.address = PATTERN.search(self.process.stdout.readline())[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def post(self, path, body):
        request = urllib.request.Request(f"http://{self.address}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def resident_mb(self):
        return memory_mb(self.process.pid, "VmRSS")


def memory_mb(pid, name):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+)", status)[1]) * 1024 / 1e6


def request(path, body, header="content-type: application/json"):
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{header}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def as_json(path, body):
    return request(path, json.dumps(body).encode())


def tensors(ids):
    """A KServe v2 request for one row with binary tensors."""
    tensor = lambda name: {"name": name, "shape": [1, len(ids)], "datatype": "INT64", "parameters": {"binary_data_size": 8 * len(ids)}}
    head = {"inputs": [tensor("input_ids"), tensor("attention_mask")], "parameters": {"binary_data_output": True}}
    head = json.dumps(head).encode()
    data = b"".join(value.to_bytes(8, "little") for value in [*ids, *[1] * len(ids)])
    return request("/v2/models/minilm/infer", head + data, f"inference-header-content-length: {len(head)}")


def figure(name, value, baseline, unit, against, on_lambda=None):
    return {"name": name, "value": value, "baseline": baseline, "unit": unit, "against": against, "on_lambda": on_lambda}


def write_table(source, target):
    """Writes the table of words of a BERT model as that of a StaticEmbedding module."""
    with source.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        head = json.loads(file.read(length))
        (entry,) = (entry for name, entry in head.items() if name.endswith("word_embeddings.weight"))
        start, end = entry["data_offsets"]
        file.seek(start, 1)
        values = file.read(end - start)
    head = json.dumps({"embedding.weight": {**entry, "data_offsets": [0, len(values)]}}).encode()
    target.write_bytes(struct.pack("<Q", len(head)) + head + values)


class Measurement:
    def __init__(self, arguments, folder):
        self.kivu, self.laboratory, self.bundles = arguments.kivu, arguments.laboratory, arguments.bundles
        self.compare, self.weights, self.folder = arguments.compare, arguments.weights, folder
        self.minilm, self.baseline = self.bundles / "minilm", arguments.baseline

    def lab(self, *arguments):
        output = subprocess.run([self.laboratory, *map(str, arguments)], check=True, stdout=subprocess.PIPE)
        return json.loads(output.stdout)

    def bench(self, bundle, variables):
        path = self.folder / "figures.json"
        command = [self.kivu, "bench", bundle, "--baseline", self.baseline, "--json", path]
        subprocess.run(command, check=True, env=os.environ | variables)
        return {entry["name"]: entry for entry in json.loads(path.read_text())}

    def latency(self, name, server, requests, against, runs=1):
        """The median latency of requests, in turns with that of the session."""
        files = [self.folder / f"{number}" for number, _ in enumerate(requests)]
        for file, content in zip(files, requests):
            file.write_bytes(content)
        pairs = [(self.lab("ask", server.address, *files), self.lab("single", self.baseline)) for _ in range(TURNS)]
        http, session = map(statistics.median, zip(*pairs))
        return figure(name, http, session * runs, "ms", against)

    def cold_start(self, first_response_ms, on_lambda):
        parts = [self.lab("parts", self.baseline) for _ in range(STARTS)]
        serial = {name: statistics.median(part[name] for part in parts) for name in ("library", "session", "first run")}
        against = "load the library, create a session, run it once"
        found = figure("process start to first response", first_response_ms, sum(serial.values()), "ms", against, on_lambda)
        return found | {"parts": serial}

    def precisions(self):
        for bundle in [self.minilm, *self.compare]:
            manifest = tomllib.loads((bundle / "manifest.toml").read_text())
            quality = manifest["weights"].get("quality", {})
            size = sum(file["size"] for file in manifest["files"]) / 1e6
            yield {"name": manifest["weights"]["precision"], "mb": size, "cosine": quality.get("mean_cosine", 1.0)}

    def process(self, rows, variables):
        """Rows per second and peak memory of a job."""
        source, target = self.folder / "rows.jsonl", self.folder / "output.jsonl"
        report_file = target.with_name(f"{target.name}.report.json")
        texts = SENTENCES.read_text().splitlines()
        with source.open("w") as file:
            for number in range(rows):
                file.write(json.dumps({"id": number, "text": texts[number % len(texts)]}) + "\n")
        process = subprocess.Popen([self.kivu, "batch", source, target, "--model", self.minilm], env=os.environ | variables)
        peak = 0
        while process.poll() is None:
            try:
                peak = max(peak, memory_mb(process.pid, "VmHWM"))
            except (OSError, TypeError):
                pass
            time.sleep(0.05)
        assert process.returncode == 0
        report = json.loads(report_file.read_text())
        target.unlink()
        report_file.unlink()
        return report["rows"] / report["seconds"], peak

    def batch(self, best):
        # Fewer rows with the slower instructions.
        (rate, peak), (limited, _) = self.process(ROWS, {}), self.process(ROWS // 5, LIMITED)
        return [
            figure(f"`kivu batch`, JSON Lines with {ROWS:,} rows", rate, best, "texts/s", "plain ONNX Runtime, best schedule", limited),
            figure("peak memory of `kivu batch`", peak, None, "MB", None),
            figure("reading and writing a row", self.lab("rows"), None, "µs", None),
        ]

    def static(self):
        """Static embeddings with minilm's table of words."""
        model = self.folder / "static"
        model.mkdir()
        shutil.copy(self.weights / "tokenizer.json", model)
        write_table(self.weights / "model.safetensors", model / "model.safetensors")
        (model / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.StaticEmbedding"}]))
        bundle, source, target = (self.folder / name for name in ("table", "short.jsonl", "vectors.jsonl"))
        subprocess.run([self.kivu, "build", model, "--out", bundle], check=True)
        words = SENTENCES.read_text().split()
        texts = [" ".join(words[at : at + 12]) for at in range(0, len(words) - 11, 12)]
        with source.open("w") as file:
            file.writelines(json.dumps({"text": texts[number % len(texts)]}) + "\n" for number in range(ROWS))
        report_file = target.with_name(f"{target.name}.report.json")
        batch = [self.kivu, "batch", source, target, "--model", bundle]
        pairs = []
        for _ in range(TURNS):
            subprocess.run(batch, check=True, env=os.environ | {"KIVU_THREADS": "1"})
            report = json.loads(report_file.read_text())
            target.unlink()
            report_file.unlink()
            pairs.append((report["rows"] / report["seconds"], self.lab("table", model)))
        rate, table = map(statistics.median, zip(*pairs))
        return figure("static embeddings of 12 words, `kivu batch` with JSON Lines, one thread for the model", rate, table, "texts/s", "the `tokenizers` crate and the means of the table's rows")

    def served(self, variables):
        """Latencies of a server with two models, and its memory."""
        with Server(self.kivu, variables, self.minilm, self.bundles / "zero-shot") as server:
            ids = [token["id"] for token in server.post("/tokenize", {"inputs": SHORT})[0]]
            words = sorted({word for word in re.findall(r"[^\W\d_]+", SENTENCES.read_text()) if len(word) > 3})
            groups = [words[at : at + LABELS] for at in range(0, len(words) - LABELS, LABELS)]
            zero_shot = [as_json("/models/zero-shot", {"inputs": SHORT, "parameters": {"candidate_labels": labels}}) for labels in groups]
            against = f"{LABELS} runs of plain ONNX Runtime"
            figures = [
                self.latency("the same over KServe v2 with binary tensors", server, [tensors(ids)], "plain ONNX Runtime"),
                self.latency(f"zero-shot, {LABELS} labels, all in the cache", server, zero_shot[:1], against, LABELS),
                # More labels than the cache holds.
                self.latency(f"zero-shot, {LABELS} labels, none in the cache", server, zero_shot, against, LABELS),
            ]
            return figures, server.resident_mb()

    def figures(self):
        product, limited = self.bench(self.minilm, {}), self.bench(self.minilm, LIMITED)
        throughput, latency, start = "throughput, 32 texts, 4 clients", "one short text, median", "start to first response, median"
        best = product[throughput]["baseline"]
        name = "32 texts of mixed length per request, 4 clients, tokenization included"
        yield figure(name, product[throughput]["value"], best, "texts/s", "plain ONNX Runtime, best schedule", limited[throughput]["value"])
        yield figure("plain ONNX Runtime, best schedule", best, self.lab("unsorted", self.baseline, 8), "texts/s", "plain ONNX Runtime, batches of 32 texts in input order")
        found = product[latency]
        yield figure("one short text over HTTP, median", found["value"], found["baseline"], "ms", "plain ONNX Runtime", limited[latency]["value"])
        (served, memory), (limited_served, _) = self.served({}), self.served(LIMITED)
        for found, other in zip(served, limited_served):
            yield found | {"on_lambda": other["value"]}
        yield self.cold_start(product[start]["value"], limited[start]["value"])
        yield from self.batch(best)
        yield self.static()
        yield figure("resident memory, serving two models with the same weights", memory, None, "MB", None)
        for decoded in self.lab("decode", self.bundles / "translate-en-pt"):
            beams = "greedily" if decoded["beams"] == 1 else f"with {decoded['beams']} beams"
            yield figure(f"decoding {beams}", decoded["loop"], decoded["session"], "tokens/s", "the decoder's session alone")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kivu", type=pathlib.Path)
    parser.add_argument("laboratory", type=pathlib.Path)
    parser.add_argument("bundles", type=pathlib.Path)
    parser.add_argument("--baseline", type=pathlib.Path, required=True, help="minilm, built with --engine onnx")
    parser.add_argument("--weights", type=pathlib.Path, required=True, help="the folder with the weights of minilm")
    parser.add_argument("--compare", type=pathlib.Path, nargs="*", default=[])
    parser.add_argument("--json", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measurement = Measurement(arguments, pathlib.Path(folder))
        found = {"on_lambda": ON_LAMBDA, "figures": list(measurement.figures()), "precisions": list(measurement.precisions())}
    arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
