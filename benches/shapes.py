"""Makes models with published dimensions and random weights, from the tiny ones in tests/fixtures/models.

    python benches/shapes.py SHAPE FOLDER

Their speed and memory are those of trained models, except for the tokenizers, which have some 280 tokens. Needs only
Python's standard library.
"""

import argparse
import json
import random
import re
import shutil
import struct
from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "tests/fixtures/models"
# The dimensions in the fixtures, by setting.
TINY = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64, "position_buckets": 16}
BASE = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "max_position_embeddings": 512,
}
LARGE = BASE | {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
}
DEBERTA = {"position_buckets": 256, "vocab_size": 128_100}
# For each shape: the fixture, its encoder's dimensions, and the width of GLiNER's head.
SHAPES = {
    "bert-base": ("tiny-bert", BASE | {"vocab_size": 30_522}, None),
    "deberta-base": ("tiny-deberta-nli", BASE | DEBERTA, None),
    "gliner-large": ("tiny-gliner", LARGE | DEBERTA, 512),
}
TINY_HEAD = 16
NUMBERS_PER_BLOCK, BYTES_PER_PIECE = 1 << 16, 4096


def dimensions(name, shape, config, head):
    """A tensor's dimensions in the new model."""
    if name.startswith(("prompt_rep_layer.", "rnn.", "span_rep_layer.")):
        return [size * head // TINY_HEAD for size in shape]
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    sizes = {TINY["hidden_size"]: hidden, TINY["intermediate_size"]: inner, TINY_HEAD: head}
    match name.split(".")[-2:]:
        case ["word_embeddings", _]:
            return [config["vocab_size"], hidden]
        case ["position_embeddings", _]:
            return [config["max_position_embeddings"], hidden]
        case ["rel_embeddings", _]:
            return [2 * config["position_buckets"], hidden]
        case _:
            return [sizes.get(size, size) for size in shape]


def make(shape, folder):
    fixture, sizes, head = SHAPES[shape]
    shutil.copytree(FIXTURES / fixture, folder)
    for file in folder.rglob("*.json"):
        settings = json.loads(file.read_text())
        if not isinstance(settings, dict):
            continue
        encoder = settings.get("encoder_config", settings)
        if "num_hidden_layers" in encoder:
            encoder |= {name: value for name, value in sizes.items() if name in encoder}
            encoder |= {name: sizes["hidden_size"] for name in ["pooler_hidden_size"] if name in encoder}
            if head:
                settings |= {"hidden_size": head, "max_width": 12, "max_len": 384, "vocab_size": sizes["vocab_size"]}
        others = {"word_embedding_dimension": sizes["hidden_size"], "max_seq_length": 512, "model_max_length": 512}
        settings |= {name: value for name, value in others.items() if name in settings}
        file.write_text(json.dumps(settings, indent=2) + "\n")
    with (FIXTURES / fixture / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    tensors = {}
    for name, tensor in header.items():
        layer = re.search(r"\.layer\.(\d+)\.", name)
        if name == "__metadata__" or layer and layer[1] != "0":
            continue
        for number in range(sizes["num_hidden_layers"] if layer else 1):
            new = name.replace(".layer.0.", f".layer.{number}.")
            tensors[new] = dimensions(name, tensor["shape"], sizes, head)
    write(folder / "model.safetensors", tensors)


def write(path, tensors):
    """Writes normally distributed weights, and neutral normalizations, as half-precision numbers."""
    source = random.Random(1)
    numbers = [source.gauss(0, 0.04) for _ in range(NUMBERS_PER_BLOCK)]
    block = struct.pack(f"<{len(numbers)}e", *numbers)
    header, start = {}, 0
    for name, shape in tensors.items():
        count = 1
        for size in shape:
            count *= size
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [start, start + 2 * count]}
        start += 2 * count
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in header.items():
            first, end = tensor["data_offsets"]
            left = end - first
            if name.endswith("LayerNorm.weight"):
                file.write(struct.pack("<e", 1.0) * (left // 2))
                continue
            while left:
                place = 2 * source.randrange(NUMBERS_PER_BLOCK - BYTES_PER_PIECE // 2)
                left -= file.write(block[place : place + min(left, BYTES_PER_PIECE)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    make(options.shape, options.folder)


if __name__ == "__main__":
    main()
