"""Exports a model as transformers.js takes it, with 8-bit weights (q8).

    python benches/wasm_peers/export.py WEIGHTS OUT

WEIGHTS is a folder as sentence-transformers writes it.
"""

import sys
from pathlib import Path

from onnxruntime.quantization import QuantType, quantize_dynamic
from sentence_transformers import SentenceTransformer

weights, out = map(Path, sys.argv[1:])
options = {"export": True, "provider": "CPUExecutionProvider"}
SentenceTransformer(str(weights), backend="onnx", model_kwargs=options).save_pretrained(str(out))
quantize_dynamic(out / "onnx/model.onnx", out / "onnx/model_quantized.onnx", weight_type=QuantType.QUInt8)
