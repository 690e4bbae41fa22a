"""Measures loading from S3, and the memory of jobs with large files.

    TEST_KIVU=target/release/kivu TEST_BATCH=target/release/batch TEST_LABORATORY=… TEST_ONNXRUNTIME=… TEST_TOKENIZER=…/tokenizer.json
    TEST_BUNDLE=a small bundle  python tests/s3/bench.py [--rows 1000000]

A bundle of 480 MB with random weights is pushed to SeaweedFS, and then fetched by `download_file` of `boto3` and by Kivu,
alternately.
"""

import argparse
import array
import http.client
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import BUCKET, KIVU, Weed, kivu

sys.path.append(str(Path(__file__).resolve().parents[2] / "benches"))
from on_demand import copies  # noqa: E402

HIDDEN, LAYERS, INNER, WORDS, POSITIONS = 768, 12, 3680, 30522, 512


def tensors():
    yield "embeddings.word_embeddings.weight", (WORDS, HIDDEN)
    yield "embeddings.position_embeddings.weight", (POSITIONS, HIDDEN)
    yield "embeddings.token_type_embeddings.weight", (2, HIDDEN)
    yield "embeddings.LayerNorm.weight", (HIDDEN,)
    yield "embeddings.LayerNorm.bias", (HIDDEN,)
    for layer in range(LAYERS):
        place = f"encoder.layer.{layer}"
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            yield f"{place}.{part}.weight", (HIDDEN, HIDDEN)
            yield f"{place}.{part}.bias", (HIDDEN,)
        yield f"{place}.intermediate.dense.weight", (INNER, HIDDEN)
        yield f"{place}.intermediate.dense.bias", (INNER,)
        yield f"{place}.output.dense.weight", (HIDDEN, INNER)
        yield f"{place}.output.dense.bias", (HIDDEN,)
        for part in ("attention.output", "output"):
            yield f"{place}.{part}.LayerNorm.weight", (HIDDEN,)
            yield f"{place}.{part}.LayerNorm.bias", (HIDDEN,)


def make(folder):
    """A Hugging Face model of the BERT family."""
    folder.mkdir()
    shutil.copy(os.environ["TEST_TOKENIZER"], folder / "tokenizer.json")
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["BertModel"], "model_type": "bert", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": 12, "intermediate_size": INNER, "vocab_size": WORDS, "type_vocab_size": 2,
        "max_position_embeddings": POSITIONS, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "pad_token_id": 0,
    }))
    generator = random.Random(1)
    noise = array.array("f", (generator.gauss(0, 0.02) for _ in range(1 << 18))).tobytes()
    header, offset = {}, 0
    sizes = []
    for name, shape in tensors():
        size = 4
        for side in shape:
            size *= side
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        sizes.append(size)
        offset += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for size in sizes:
            start = generator.randrange(0, 1 << 18) & ~3
            while size:
                piece = noise[start: start + size]
                file.write(piece)
                size -= len(piece)
                start = 0
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({
        "word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True}))


def peak_mb(process):
    """The peak memory of a process."""
    peak = 0
    while process.poll() is None:
        try:
            for line in open(f"/proc/{process.pid}/status"):
                if line.startswith("VmHWM:"):
                    peak = max(peak, int(line.split()[1]) * 1024 / 1e6)
        except OSError:
            pass
        time.sleep(0.02)
    assert process.returncode == 0, process.args
    return peak


def loading(weed, folder, env):
    make(folder / "source")
    kivu(weed.endpoint, "build", folder / "source", "--out", folder / "large", "--precision", "fp32", "--name", "large", env=env, timeout=900)
    size = sum(file.stat().st_size for file in (folder / "large").iterdir()) / 1e6
    weights = (folder / "large/weights.bin").stat().st_size / 1e6
    started = time.monotonic()
    kivu(weed.endpoint, "push", folder / "large", f"s3://{BUCKET}/models", env=env, timeout=600)
    print(f"bundle {size:.0f} MB, weights {weights:.0f} MB, pushed in {time.monotonic() - started:.2f} s")
    key = next(key for key in weed.keys("models/large/") if key.endswith("weights.bin"))
    shutil.rmtree(folder / "source")
    url = f"s3://{BUCKET}/models/large"
    theirs, ours, peaks = [], [], []
    for turn in range(6):
        started = time.monotonic()
        weed.s3.download_file(BUCKET, key, str(folder / "downloaded"))
        theirs.append(time.monotonic() - started)
        fetch = [os.environ["TEST_LABORATORY"], "fetch", url]
        done = json.loads(subprocess.run(fetch, env=os.environ | env | {"AWS_ENDPOINT_URL": weed.endpoint}, check=True, stdout=subprocess.PIPE).stdout)
        ours.append(done["seconds"])
        peaks.append(done["peak_mb"])
    middle = lambda values: sorted(values[1:])[len(values[1:]) // 2]
    print(f"boto3 download_file {middle(theirs):.3f} s, kivu {middle(ours):.3f} s: {middle(theirs) / middle(ours):.2f} times as fast")
    print(f"  all: boto3 {[round(value, 3) for value in theirs]}, kivu {[round(value, 3) for value in ours]}")
    print(f"memory while fetching {max(peaks):.0f} MB: size + {max(peaks) - size:.0f} MB")
    for name, model in (("S3", url), ("a folder", folder / "large")):
        started = time.monotonic()
        process = subprocess.Popen([KIVU, "serve", str(model), "--listen", "127.0.0.1:0"], text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, env=os.environ | env | {"AWS_ENDPOINT_URL": weed.endpoint})
        process.stdout.readline()
        took = time.monotonic() - started
        about = {line.split(":")[0]: int(line.split()[1]) * 1024 / 1e6 for line in open(f"/proc/{process.pid}/status")
                 if line.startswith(("VmHWM", "VmRSS"))}
        print(f"kivu serve from {name}: ready after {took:.2f} s, at most {about['VmHWM']:.0f} MB, then {about['VmRSS']:.0f} MB")
        process.kill()
        process.wait()


def memory(weed, folder, env, rows):
    found = {}
    for count in (10_000, rows):
        source = folder / f"{count}.jsonl"
        with open(source, "w") as file:
            for number in range(count):
                file.write(json.dumps({"id": number, "text": f"row number {number} of many"}) + "\n")
        started = time.monotonic()
        process = subprocess.Popen(
            [KIVU, "batch", str(source), f"s3://{BUCKET}/out/{count}.jsonl", "--model", os.environ["TEST_BUNDLE"]],
            env=os.environ | env | {"AWS_ENDPOINT_URL": weed.endpoint}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found[count] = peak_mb(process)
        print(f"{count} rows to S3: at most {found[count]:.0f} MB, {time.monotonic() - started:.1f} s")
        source.unlink()
    print(f"memory at {rows} rows: {found[rows] / found[10_000]:.3f} times that at 10000")


def on_demand(weed, folder, env, count=20):
    """First requests to models that are fetched, checked and loaded for them."""
    (folder / "many").mkdir()
    copies(Path(os.environ["TEST_BUNDLE"]), folder / "many", count)
    for bundle in (folder / "many").iterdir():
        kivu(weed.endpoint, "push", bundle, f"s3://{BUCKET}/many", env=env)
    process = subprocess.Popen(
        [KIVU, "serve", f"s3://{BUCKET}/many", "--load", "on-demand", "--listen", "127.0.0.1:0"], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | env | {"AWS_ENDPOINT_URL": weed.endpoint})
    times = []
    try:
        connection = http.client.HTTPConnection(process.stdout.readline().split("http://")[1].strip(), timeout=60)
        for number in range(count):
            started = time.monotonic()
            body = json.dumps({"model": f"m{number}", "inputs": "What is deep learning?"})
            connection.request("POST", "/embed", body, {"content-type": "application/json"})
            response = connection.getresponse()
            assert response.status == 200, response.read()
            response.read()
            times.append((time.monotonic() - started) * 1000)
    finally:
        process.kill()
        process.wait()
    print(f"first request to a model in S3: median {statistics.median(times):.0f} ms, at most {max(times):.0f} ms")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--only", choices=["loading", "memory", "on-demand"])
    arguments = arguments.parse_args()
    weed, folder = Weed(), Path(tempfile.mkdtemp(prefix="kivu-bench-"))
    env = {"KIVU_ONNXRUNTIME": os.environ["TEST_ONNXRUNTIME"], "KIVU_HOME": str(folder / "home")}
    try:
        if arguments.only in (None, "loading"):
            loading(weed, folder, env)
        if arguments.only in (None, "memory"):
            memory(weed, folder, env, arguments.rows)
        if arguments.only in (None, "on-demand"):
            on_demand(weed, folder, env)
    finally:
        weed.stop()
        shutil.rmtree(folder)
