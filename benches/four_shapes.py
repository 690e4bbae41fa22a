"""Compares CPU engines by the shapes and text lengths of sentence-transformers' published benchmark.

    python benches/four_shapes.py KIVU WEIGHTS BUNDLE LLAMA_CPP FOLDER [--shapes SHAPE…] [--seconds 1] [--rounds 5] [--threads 2] [--docs docs/benchmarks.md]

WEIGHTS, BUNDLE and the packages are those of python_peers.py, and LLAMA_CPP is the source of llama.cpp's package, with its
converter. Other shapes have random weights, so figures are for speed only. FOLDER has results.json, which later runs
complete, and up to 8 GB of models while a shape is measured. Engines take turns in processes of their own with the same
texts, from text to vector: through sentence-transformers with the fastest of BATCHES, llama.cpp with its Python package,
and Kivu over HTTP. The second table limits engines to AVX2, except those that cannot be limited. With --docs, tables
replace what the page has between `<!-- four-shapes -->` and `<!-- end -->`, also with `--rounds 0`, which measures nothing.
"""

import argparse
import datetime
import http.client
import itertools
import json
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import bench
import page
import python_peers
import shapes
import tei
from python_peers import AVX2, CORES, GGUF, INT8, VINO, VINO_FP32, Library, sentence_transformers

# Published models, the names of their shapes, and their length limits in tokens; bge-m3 reads 8,192.
MODELS = {
    "all-MiniLM-L6-v2": ("minilm-l6", 256),
    "bge-base-en-v1.5": ("bert-base", 512),
    "mxbai-embed-large-v1": ("bert-large", 512),
    "bge-m3": ("xlm-roberta-large", 512),
}
# Mean and standard deviation of characters per text, as published with the benchmark, and the least number of texts, with
# which a batch size has little padding. Texts of the last are truncated, and as there, large models get none.
WORKLOADS = {"stsb": (38.9, 13.9, 64), "natural-questions": (619.6, 345.3, 8), "imdb × 4": (9_589.3, 633.4, 8)}
LARGE = ("mxbai-embed-large-v1", "bge-m3")
MIN_CHARACTERS, MAX_TEXTS, CLIENTS = 12, 512, 4
BATCHES = (1, 8, 32)
# Speed does not depend on calibration.
CALIBRATION_TEXTS = 8


def kivu(options):
    server = bench.Server(options.kivu, {}, options.bundle)
    pool = ThreadPoolExecutor(CLIENTS)

    def ask(texts):
        # One that waited for other engines' turns might be closed by the server.
        connection = http.client.HTTPConnection(server.address)
        tei.ask(connection, json.dumps({"inputs": texts, "truncate": True}).encode())
        connection.close()

    def embed(texts):
        size = min(32, math.ceil(len(texts) / CLIENTS))
        list(pool.map(ask, [texts[start : start + size] for start in range(0, len(texts), size)]))

    return embed


def onnx_runtime(options, file):
    import onnxruntime

    session = onnxruntime.SessionOptions()
    session.intra_op_num_threads = options.threads
    arguments = {"file_name": file, "provider": "CPUExecutionProvider", "session_options": session}
    return sentence_transformers(options.folder, backend="onnx", model_kwargs=arguments)


def open_vino(options, config):
    config = config | {"INFERENCE_NUM_THREADS": str(options.threads)}
    return sentence_transformers(options.folder, backend="openvino", model_kwargs={"file_name": VINO, "ov_config": config})


REFERENCE, OURS = "PyTorch fp32", "Kivu int8"
ENGINES = {
    REFERENCE: lambda options: sentence_transformers(options.weights, model_kwargs={"dtype": "float32"}),
    "ONNX Runtime fp32": lambda options: onnx_runtime(options, "onnx/model.onnx"),
    "ONNX Runtime int8": lambda options: onnx_runtime(options, f"onnx/{INT8}"),
    "OpenVINO int8": lambda options: open_vino(options, {}),
    "llama.cpp Q8_0": lambda options: python_peers.llama_cpp(options.folder / GGUF, options.tokens),
    OURS: kivu,
}
WITH_AVX2 = {
    REFERENCE: ENGINES[REFERENCE],
    # By default, OpenVINO asks for bfloat16 if the processor has it, and fails.
    "OpenVINO int8": lambda options: open_vino(options, {"INFERENCE_PRECISION_HINT": "f32"}),
    OURS: kivu,
}
LIMITS = AVX2 | {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
UNBATCHED = ("llama.cpp Q8_0", OURS)


def sample(characters, count):
    """Texts from running words of sentences.txt, with normally distributed lengths."""
    mean, deviation, _ = characters
    source, words, texts = random.Random(1), bench.SENTENCES.read_text().split(), []
    for _ in range(count):
        length, place, text = max(MIN_CHARACTERS, source.gauss(mean, deviation)), source.randrange(len(words)), ""
        while len(text) < length:
            text, place = f"{text} {words[place % len(words)]}".strip(), place + 1
        texts.append(text)
    return texts


def add_words(folder, words):
    """Gives XLM-R's tokenizer BERT's words as pieces, and the published number of pieces. Texts get as few as possible."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    *pieces, mask = (piece for piece, _ in tokenizer["model"]["vocab"])
    for word in words:
        if word.startswith("##"):
            pieces.append(word.removeprefix("##"))
        elif not word.startswith("["):
            pieces += [f"▁{word}", f"▁{word.capitalize()}"]
    pieces = list(dict.fromkeys([*pieces, *(f"▁piece{number}" for number in range(shapes.XLM))]))[: shapes.XLM - 1]
    tokenizer["model"]["vocab"] = [[piece, -10.0] for piece in [*pieces, mask]]
    for added in tokenizer["added_tokens"]:
        if added["content"] == mask:
            added["id"] = shapes.XLM - 1
    # The published tokenizer has only this normalizer, which llama.cpp's converter expects.
    tokenizer["normalizer"] = tokenizer["normalizer"]["normalizers"][0]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {str(added["id"]): {key: value for key, value in added.items() if key != "id"} for added in tokenizer["added_tokens"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def prepare(model, options):
    """Makes the model for all engines, and returns the arguments of their processes."""
    shape, tokens = MODELS[model]
    home = options.folder / shape
    weights, bundle, peers = options.weights, options.bundle, home / "peers"
    home.mkdir(parents=True, exist_ok=True)
    if shape != "minilm-l6":
        weights, bundle, recipe, texts = home / shape, home / "bundle", home / "recipe.toml", home / "texts.txt"
        if not weights.exists():
            shapes.make(shape, weights)
            if shape == "xlm-roberta-large":
                add_words(weights, (options.weights / "vocab.txt").read_text().split())
            else:
                for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
                    shutil.copy(options.weights / name, weights)
        if not bundle.exists():
            recipe.write_text(shapes.RECIPE.format(shape=shape, task="feature-extraction"))
            texts.write_text("".join(bench.SENTENCES.read_text().splitlines(keepends=True)[:20]))
            subprocess.run([options.kivu, "build", recipe, "--out", bundle, "--texts", texts], check=True)
    if not (peers / "onnx" / INT8).exists():
        python_peers.export(weights, peers, CALIBRATION_TEXTS)
        for file in (peers / VINO_FP32).parent.glob(f"{(peers / VINO_FP32).stem}.*"):
            file.unlink()
    if not (peers / GGUF).exists():
        converter = options.llama_cpp / "vendor/llama.cpp/convert_hf_to_gguf.py"
        subprocess.run([sys.executable, converter, weights, "--outtype", "q8_0", "--outfile", peers / GGUF], check=True)
    return [options.kivu, weights, bundle, options.llama_cpp, peers, "--tokens", tokens, "--threads", options.threads]


def counted(weights, tokens, texts):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(weights / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(tokens)
    return round(statistics.mean(len(row.ids) for row in tokenizer.encode_batch(texts)))


def clock(library, options):
    """Seconds, or for one thread the library's processor seconds, which other processes do not change."""
    if options.threads > 1:
        return time.monotonic()
    first = library.process.pid
    processes = [first, *Path(f"/proc/{first}/task/{first}/children").read_text().split()]
    fields = [Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split() for process in processes]
    return sum(int(ticks) for its in fields for ticks in its[11:13]) / os.sysconf("SC_CLK_TCK")


def turn(library, texts, passed, options):
    """Texts per second."""
    began, passes = clock(library, options), 0
    while not passes or clock(library, options) - began < options.seconds:
        library.ask("embed", texts=texts, options=passed)
        passes += 1
    return passes * len(texts) / (clock(library, options) - began)


def fastest(library, name, texts, options):
    """What to pass with the texts: the fastest batch size."""
    sizes = [{"batch_size": size} for size in dict.fromkeys(min(size, len(texts)) for size in BATCHES)]
    if name == "OpenVINO int8":
        # It compiles kernels for the texts' lengths.
        for size in sizes:
            library.ask("embed", texts=texts, options=size)
    return max(sizes, key=lambda size: turn(library, texts, size, options))


def measure(libraries, characters, options, known):
    """For each engine, the texts per second in each round, with the texts and batch sizes of a `known` measurement, if any."""
    texts = sample(characters, MAX_TEXTS)
    libraries[REFERENCE].ask("embed", texts=texts[:8])
    if known:
        texts, passed = texts[: known["count"]], known["passed"]
    else:
        rate = turn(libraries[REFERENCE], texts[:8], {}, options)
        texts = texts[: max(characters[2], round(rate * options.seconds) // 8 * 8)]
        passed = {name: {} if name in UNBATCHED else fastest(library, name, texts, options) for name, library in libraries.items()}
    rates = {name: [] for name in libraries}
    for name, library in libraries.items():
        if name != REFERENCE:
            library.ask("embed", texts=texts, options=passed[name])
    for _ in range(options.rounds):
        for name, library in libraries.items():
            rates[name].append(turn(library, texts, passed[name], options))
    return texts, {"count": len(texts), "threads": options.threads, "passed": passed, "rates": rates, "date": str(datetime.date.today())}


def measured(found, name, other=None):
    """The median rate, or the median of its ratios to another engine's in the same round."""
    others = found["rates"][other] if other else itertools.repeat(1)
    return statistics.median(one / two for one, two in zip(found["rates"][name], others))


def table(results, limit):
    engines = [name for name in (WITH_AVX2 if limit else ENGINES) if name != REFERENCE]
    rows = [["model", "texts", "tokens", f"{REFERENCE}, texts/s", *engines, "Kivu, of the best other"]]
    for model in MODELS:
        for workload in WORKLOADS:
            found = results.get(f"{model}, {workload}{limit}")
            if not found:
                continue
            best = max((name for name in found["rates"] if name != OURS), key=lambda name: measured(found, name))
            reference = measured(found, REFERENCE)
            cells = [f"{reference:.0f}" if reference >= 10 else f"{reference:.2g}"]
            cells += [f"{measured(found, name, REFERENCE):.2f}" for name in engines]
            rows.append([model, workload, str(found["tokens"]), *cells, f"{measured(found, OURS, best):.2f}"])
    return page.table(rows)


def section(results):
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    flags = set(re.search(r"flags\s*: (.*)", Path("/proc/cpuinfo").read_text())[1].split())
    instructions = next((name for name, flag in {"AMX": "amx_int8", "AVX-512 VNNI": "avx512_vnni", "AVX2": "avx2"}.items() if flag in flags), "unknown")
    versions = ", ".join(f"{name} {version(name)}" for name in ("sentence-transformers", "torch", "onnxruntime", "openvino", "llama-cpp-python"))
    limited = any(name.endswith(" avx2") for name in results)
    heads = {"": f"With all instructions ({instructions}):", " avx2": "With AVX2, which ONNX Runtime and llama.cpp cannot be limited to when they run:"}
    tables = [f"{head}\n\n{table(results, limit)}" for limit, head in heads.items() if limited or not limit]
    rounds, threads = (sorted({entry(found) for found in results.values()}) for entry in (lambda found: len(found["rates"][OURS]), lambda found: found["threads"]))
    seconds = "texts per processor second, since the machine had other work" if threads == [1] else "texts per second"
    note = (
        f"{processor[1] if processor else 'Unknown processor'}, {max(found['date'] for found in results.values())}; {versions}. "
        f"`python benches/four_shapes.py --threads {threads[-1]}`, medians of {rounds[0]} rounds, {seconds}."
    )
    return "\n\n".join([note, *tables]) + "\n"


def main():
    parser = argparse.ArgumentParser()
    for name in ("kivu", "weights", "bundle", "llama_cpp", "folder"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--shapes", nargs="+", choices=MODELS, default=list(MODELS), metavar="SHAPE")
    parser.add_argument("--seconds", type=float, default=1, help="of an engine's turn")
    parser.add_argument("--threads", type=int, default=CORES, help="1 counts processor time, for a machine with other work")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="keep the models")
    parser.add_argument("--docs", type=Path)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--serve")
    options = parser.parse_args()
    python_peers.CORES = options.threads
    if options.serve:
        engines = WITH_AVX2 if "KIVU_INSTRUCTIONS" in os.environ else ENGINES
        return python_peers.serve(lambda: engines[options.serve](options))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    file = options.folder / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    for model in options.shapes if options.rounds else []:
        wanted = {limit: [name for name in list(WORKLOADS)[: 2 if model in LARGE else 3] if f"{model}, {name}{limit}" not in results] for limit in ("", " avx2")}
        if not any(wanted.values()):
            continue
        arguments = prepare(model, options)
        for limit, workloads in wanted.items():
            engines, variables = (WITH_AVX2, LIMITS) if limit else (ENGINES, {})
            libraries = {name: Library(name, variables, arguments) for name in engines} if workloads else {}
            for workload in workloads:
                texts, found = measure(libraries, WORKLOADS[workload], options, results.get(f"{model}, {workload}") if limit else None)
                name = f"{model}, {workload}{limit}"
                results[name] = found | {"tokens": counted(arguments[1], MODELS[model][1], texts)}
                file.write_text(json.dumps(results, indent=2) + "\n")
                print(name, {engine: round(measured(found, engine, REFERENCE), 2) for engine in engines}, file=sys.stderr, flush=True)
            for library in libraries.values():
                library.end()
        if not options.keep:
            shutil.rmtree(options.folder / MODELS[model][0])
    text = section(results)
    print(text)
    if options.docs:
        page.write(options.docs, "four-shapes", text)


if __name__ == "__main__":
    main()
