"""Compares Kivu over HTTP with engines that are called directly, without a server and with texts tokenized beforehand.

    python benches/raw_engines.py WEIGHTS BUNDLE FOLDER KIVU [--seconds 3] [--rounds 5] [--avx2]

The arguments are those of python_peers.py and tei.py, whose packages and models are used. ONNX Runtime's int8 models are
quantized here, with one scale per tensor and per output. The engines get one text per call, the longest first, on one
thread per core; Kivu gets the same texts in requests of 32 from four clients, on the same cores. --avx2 hides later
instruction sets from Kivu and OpenVINO, as Lambda does, and leaves out ONNX Runtime, which cannot be limited.
"""

import argparse
import json
import os
import queue
import statistics
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnxruntime
import openvino
from onnxruntime.quantization import QuantType, quantize_dynamic
from tokenizers import Tokenizer

from python_peers import AVX2, CORES, VINO, VINO_FP32, export, mixed
from tei import Server, body

TEXTS = 960


def encoded(weights, texts):
    """Each text's model inputs, the longest first."""
    tokenizer = Tokenizer.from_file(str(weights / "tokenizer.json"))
    tokenizer.no_padding()
    # The tokenizer's own limit is 128 tokens, which sentence-transformers replaces as well.
    tokenizer.enable_truncation(json.loads((weights / "sentence_bert_config.json").read_text())["max_seq_length"])
    rows = sorted((row.ids for row in tokenizer.encode_batch(texts)), key=len, reverse=True)
    array = lambda values: np.array([values], dtype=np.int64)
    return [{"input_ids": array(ids), "attention_mask": array([1] * len(ids)), "token_type_ids": array([0] * len(ids))} for ids in rows]


def onnx_runtime(model, rows):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = {declared.name for declared in session.get_inputs()}
    rows = [{name: value for name, value in row.items() if name in names} for row in rows]

    def run():
        waiting = queue.SimpleQueue()
        for row in rows:
            waiting.put(row)

        def work():
            # Python's lock is free while a session runs.
            while True:
                try:
                    row = waiting.get_nowait()
                except queue.Empty:
                    return
                session.run(None, row)

        threads = [threading.Thread(target=work) for _ in range(CORES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


def open_vino(model, rows, is_fp32):
    config = {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": str(CORES), "INFERENCE_NUM_THREADS": str(CORES)}
    # By default, OpenVINO calculates in bfloat16 if the processor can.
    config |= {"INFERENCE_PRECISION_HINT": "f32"} if is_fp32 else {}
    compiled = openvino.Core().compile_model(model, "CPU", config)
    names = {name for port in compiled.inputs for name in port.names}
    rows = [{name: value for name, value in row.items() if name in names} for row in rows]
    requests = openvino.AsyncInferQueue(compiled, CORES)

    def run():
        for row in rows:
            requests.start_async(row)
        requests.wait_all()

    return run


def quantized(folder, per_channel):
    path = folder / f"onnx/model_dynamic_{'channel' if per_channel else 'tensor'}.onnx"
    if not path.exists():
        quantize_dynamic(folder / "onnx/model.onnx", path, per_channel=per_channel, weight_type=QuantType.QInt8)
    return path


def main():
    parser = argparse.ArgumentParser()
    for name in ("weights", "bundle", "folder", "kivu"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--avx2", action="store_true")
    options = parser.parse_args()
    # OpenVINO's library reads this when it compiles a model.
    os.environ |= AVX2 if options.avx2 else {}
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    if not (options.folder / VINO).exists():
        export(options.weights, options.folder)
    texts = mixed(TEXTS, 7)
    rows = encoded(options.weights, texts)
    vino, runtime = f"OpenVINO {openvino.__version__.split('-')[0]}", f"ONNX Runtime {onnxruntime.__version__}"
    engines = {
        # With AVX2, it would fail: it asks the processor alone.
        f"{vino}, int8": open_vino(options.folder / VINO, rows, is_fp32=options.avx2),
        f"{vino}, fp32": open_vino(options.folder / VINO_FP32, rows, is_fp32=True),
    }
    if not options.avx2:
        engines |= {
            f"{runtime}, int8, one scale per tensor": onnx_runtime(quantized(options.folder, False), rows),
            f"{runtime}, int8, one scale per output": onnx_runtime(quantized(options.folder, True), rows),
            f"{runtime}, fp32": onnx_runtime(options.folder / "onnx/model.onnx", rows),
        }
    for run in engines.values():
        run()
    bodies = [body(texts[start : start + 32]) for start in range(0, TEXTS, 32)]
    server = Server("Kivu", [options.kivu.resolve(), "serve", options.bundle, "--listen", "127.0.0.1:8291"], 8291, {})
    try:
        server.load(bodies, 4, 1)
        rates = {name: [] for name in ["Kivu over HTTP", *engines]}
        for number in range(options.rounds):
            rates["Kivu over HTTP"].append(32 * server.load(bodies, 4, options.seconds))
            for name, run in engines.items():
                began = time.perf_counter()
                run()
                rates[name].append(TEXTS / (time.perf_counter() - began))
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    finally:
        server.stop()
    ours = rates["Kivu over HTTP"]
    report = {"tokens per text": round(statistics.mean(row["input_ids"].size for row in rows), 1), "load": os.getloadavg()}
    for name, theirs in rates.items():
        ratio = statistics.median(one / other for one, other in zip(ours, theirs))
        report[name] = {"texts per second": round(statistics.median(theirs), 1), "Kivu's, of this": round(ratio, 2)}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
