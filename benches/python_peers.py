"""Compares the Python package with fastembed, sentence-transformers and llama.cpp: throughput, a short text, memory and
exactness.

    python benches/python_peers.py WEIGHTS BUNDLE FOLDER [--package FOLDER] [--chunks 5] [--texts 2000] [--avx2]

WEIGHTS is all-MiniLM-L6-v2 as sentence-transformers writes it, and BUNDLE its bundle. FOLDER has a model for llama.cpp
in Q8_0, made by its converter. The first run exports the weights to ONNX and OpenVINO there, and quantizes both. Each
library runs in a process of its own, with the same texts in chunks: the libraries take turns, so that ratios are of
neighbouring runs. --package is the folder with `kivuml`, if it is not installed. --avx2 hides later instruction sets
from kivuml and OpenVINO, as Lambda does, and compares only these: ONNX Runtime cannot be limited, and llama.cpp is
compiled for this processor.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

CORES = 2
INT8 = "model_qint8_avx512_vnni.onnx"
VINO = "openvino/openvino_model_qint8_quantized.xml"
VINO_FP32 = "openvino/openvino_model.xml"
GGUF = "model-q8_0.gguf"
AVX2 = {"KIVU_INSTRUCTIONS": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
SHORT = "The ferry leaves at seven."
SENTENCES = (
    "The ferry leaves at seven.", "A cat sat on the mat.", "The app crashes when I log in, and support does not answer.",
    "Trains to Hamburg are late because of the snow that fell during the night.", "Refund, please!",
    "Please send the invoice to the new address, which is at the end of this mail.", "We moved the meeting to Tuesday.",
    "Tomatoes need a warm place and much water; put them outside after the last frost.",
)


def mixed(count, seed):
    """From a sentence to some 200 tokens, as comments, tickets and paragraphs are."""
    source = random.Random(seed)
    lengths = source.choices((1, 2, 4, 8, 14), weights=(30, 30, 20, 15, 5), k=count)
    return [f"{number}: {' '.join(source.choices(SENTENCES, k=length))}" for number, length in enumerate(lengths)]


def export(weights, folder, samples=300):
    import nncf
    import openvino
    from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

    onnx = SentenceTransformer(str(weights), backend="onnx", model_kwargs={"export": True, "provider": "CPUExecutionProvider"})
    onnx.save_pretrained(str(folder))
    export_dynamic_quantized_onnx_model(onnx, "avx512_vnni", str(folder))
    vino = SentenceTransformer(str(weights), backend="openvino", model_kwargs={"export": True})
    vino.save_pretrained(str(folder))
    # What `export_static_quantized_openvino_model` does with texts from the hub.
    model = openvino.Core().read_model(folder / "openvino/openvino_model.xml")
    rows = [dict(vino.tokenizer(text, return_tensors="np")) for text in mixed(samples, 1)]
    names = {name for port in model.inputs for name in port.names}
    rows = [{name: value for name, value in row.items() if name in names} for row in rows]
    quantized = nncf.quantize(model, nncf.Dataset(rows), model_type=nncf.ModelType.TRANSFORMER, preset=nncf.QuantizationPreset.PERFORMANCE)
    openvino.save_model(quantized, folder / VINO)


def fastembed(folder, file):
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="local/minilm", pooling=PoolingType.MEAN, normalization=True, sources=ModelSource(hf="local/minilm"), dim=384, model_file=f"onnx/{file}"
    )
    model = TextEmbedding("local/minilm", specific_model_path=str(folder), threads=CORES)
    return lambda texts: list(model.embed(texts))


def sentence_transformers(folder, **options):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", **options).encode


def llama_cpp(file, tokens=256):
    from llama_cpp import Llama

    # By default, attention computes scores between all texts of a batch, and takes 2.5 times as long with these texts. A
    # batch has room for the longest text that the model takes.
    model = Llama(str(file), embedding=True, n_threads=CORES, n_threads_batch=CORES, n_ctx=tokens, n_batch=tokens, n_ubatch=tokens, flash_attn=True, verbose=False)
    return lambda texts: model.embed(texts, normalize=True)


def kivuml(bundle):
    from kivuml import load

    return load(bundle, threads=CORES).encode


# The vectors that all are compared with.
REFERENCE = "sentence-transformers fp32"
# Functions that make a library's function from texts to vectors.
LIBRARIES = {
    "kivuml": lambda options: kivuml(options.bundle),
    "fastembed fp32": lambda options: fastembed(options.folder, "model.onnx"),
    "fastembed int8": lambda options: fastembed(options.folder, INT8),
    "sentence-transformers ONNX int8": lambda options: sentence_transformers(
        options.folder, backend="onnx", model_kwargs={"file_name": f"onnx/{INT8}", "provider": "CPUExecutionProvider"}
    ),
    "sentence-transformers OpenVINO int8": lambda options: sentence_transformers(
        options.folder, backend="openvino", model_kwargs={"file_name": VINO}
    ),
    "llama.cpp Q8_0": lambda options: llama_cpp(options.folder / GGUF),
}


def openvino_with_avx2(folder, file):
    # OpenVINO chooses bfloat16 if the processor has it, and fails without the instructions.
    config = {"INFERENCE_PRECISION_HINT": "f32"}
    return sentence_transformers(folder, backend="openvino", model_kwargs={"file_name": file, "ov_config": config})


LIBRARIES_WITH_AVX2 = {
    "kivuml": LIBRARIES["kivuml"],
    "sentence-transformers OpenVINO fp32": lambda options: openvino_with_avx2(options.folder, VINO_FP32),
    "sentence-transformers OpenVINO int8": lambda options: openvino_with_avx2(options.folder, VINO),
}
OPENERS = LIBRARIES | LIBRARIES_WITH_AVX2 | {REFERENCE: lambda options: sentence_transformers(options.weights)}


def serve(open_library):
    """Answers requests on standard input until it ends."""
    import numpy as np

    answers, sys.stdout = sys.stdout, sys.stderr
    embed = open_library()
    for line in sys.stdin:
        request = json.loads(line)
        answer = None
        if request["do"] == "embed":
            began = time.perf_counter()
            embed(request["texts"], **request.get("options", {}))
            answer = time.perf_counter() - began
        elif request["do"] == "short":
            times = []
            for _ in range(request["count"]):
                began = time.perf_counter()
                embed([SHORT])
                times.append(time.perf_counter() - began)
            answer = statistics.median(times) * 1e3
        elif request["do"] == "memory":
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            answer = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
        else:
            vectors = np.stack([*embed(request["texts"])]).astype(np.float32)
            answer = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).tolist()
        print(json.dumps(answer), file=answers, flush=True)


class Library:
    def __init__(self, name, variables=(), arguments=None):
        environment = os.environ | dict(variables) | {"OMP_NUM_THREADS": str(CORES), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
        # By default, those of this program.
        arguments = sys.argv[1:] if arguments is None else arguments
        command = [sys.executable, sys.argv[0], *map(str, arguments), "--serve", name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def ask(self, do, **values):
        self.process.stdin.write(json.dumps({"do": do} | values) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.process.args}: ended with status {self.process.wait()}")
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--package")
    parser.add_argument("--chunks", type=int, default=5)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--avx2", action="store_true")
    parser.add_argument("--serve")
    options = parser.parse_args()
    if options.package:
        sys.path.insert(0, options.package)
    if options.serve:
        return serve(lambda: OPENERS[options.serve](options))
    import numpy as np

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    if not (options.folder / VINO).exists():
        export(options.weights, options.folder)
    sample = mixed(300, 2)
    reference = Library(REFERENCE)
    exact = np.array(reference.ask("vectors", texts=sample))
    reference.end()
    libraries = {name: Library(name, AVX2 if options.avx2 else ()) for name in (LIBRARIES_WITH_AVX2 if options.avx2 else LIBRARIES)}
    report = {name: {} for name in libraries}
    for name, library in libraries.items():
        cosines = (np.array(library.ask("vectors", texts=sample)) * exact).sum(1)
        report[name]["cosine to fp32, mean and worst"] = [round(float(cosines.mean()), 5), round(float(cosines.min()), 5)]
        # With the 300 above, 1,000 texts; in batches of 32.
        for first in range(300, 1000, 32):
            library.ask("embed", texts=mixed(min(32, 1000 - first), first))
        report[name]["MB resident after 1,000 texts"] = round(library.ask("memory"), 1)
    seconds, short = {name: [] for name in libraries}, {name: [] for name in libraries}
    for chunk in range(options.chunks):
        texts = mixed(options.texts, 10 + chunk)
        for name, library in libraries.items():
            seconds[name].append(library.ask("embed", texts=texts))
        for name, library in libraries.items():
            short[name].append(library.ask("short", count=200))
        print(f"chunk {chunk + 1} of {options.chunks}", file=sys.stderr, flush=True)
    for name in libraries:
        report[name]["texts per second"] = round(options.texts / statistics.median(seconds[name]), 1)
        report[name]["kivuml's texts per second, of this"] = round(statistics.median(theirs / ours for theirs, ours in zip(seconds[name], seconds["kivuml"])), 2)
        report[name]["short text, ms"] = round(statistics.median(short[name]), 2)
        report[name]["kivuml's time for it, of this"] = round(statistics.median(ours / theirs for theirs, ours in zip(short[name], short["kivuml"])), 2)
        libraries[name].end()
    print(json.dumps({"texts": options.chunks * options.texts, "load": os.getloadavg()} | report, indent=2))


if __name__ == "__main__":
    main()
