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
# A setting's names in the families' files; the first is the name here.
NAMES = [
    ["hidden_size", "dim", "n_embd", "d_model"],
    ["intermediate_size", "hidden_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"],
    ["num_hidden_layers", "n_layers", "n_layer", "encoder_layers", "decoder_layers"],
    ["num_attention_heads", "n_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads"],
    ["max_position_embeddings", "n_positions"],
]
# The texts' length limit in every shape, so that builds take no longer texts.
TOKENS = 512
# Differences to fp32 say nothing about random weights, so none is too large.
RECIPE = """name = "{shape}"
task = "{task}"
precision = "int8"

[source]
folder = "{shape}"

[quality]
mean_cosine = 0
worst_cosine = 0
neighbours = 0
agreement = 0
entity_agreement = 0
mean_difference = 1000
"""


def encoder(layers, hidden, heads, vocabulary, positions=512, inner=None, **others):
    """An encoder's settings. Others are the family's, GLiNER's `head` width, `labels`, and the width of a `dense` layer."""
    return {
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "vocab_size": vocabulary,
        "max_position_embeddings": positions, "intermediate_size": inner or 4 * hidden, **others,
    }


def base(vocabulary, positions=512, **others):
    return encoder(12, 768, 12, vocabulary, positions, **others)


def large(vocabulary, positions=512, **others):
    return encoder(24, 1024, 16, vocabulary, positions, **others)


ENGLISH, CASED, ROBERTA, XLM, DEBERTA = 30_522, 28_996, 50_265, 250_002, 128_100
BUCKETS = {"position_buckets": 256}
QWEN = encoder(28, 1024, 16, 151_669, 32_768, 3072, num_key_value_heads=8, head_dim=128)
# For each shape, from small to large: the fixture, and the settings that are not the fixture's.
SHAPES = {
    "bert-tiny-rank": ("tiny-bert-rank", encoder(2, 128, 2, ENGLISH)),
    "minilm-l6": ("tiny-bert", encoder(6, 384, 12, ENGLISH)),
    "minilm-l6-rank": ("tiny-bert-rank", encoder(6, 384, 12, ENGLISH)),
    "minilm-l12": ("tiny-bert", encoder(12, 384, 12, ENGLISH)),
    "minilm-l12-rank": ("tiny-bert-rank", encoder(12, 384, 12, ENGLISH)),
    "minilm-l12-multilingual": ("tiny-bert", encoder(12, 384, 12, 250_037)),
    "distilbert": ("tiny-distilbert-binary", encoder(6, 768, 12, ENGLISH)),
    "distilbert-ner": ("tiny-distilbert-ner", encoder(6, 768, 12, CASED)),
    "distilroberta": ("tiny-roberta-nli", encoder(6, 768, 12, ROBERTA, 514, labels=7)),
    "mpnet-base": ("tiny-mpnet", base(30_527, 514)),
    "bert-base": ("tiny-bert", base(ENGLISH)),
    "bert-base-classes": ("tiny-bert-sentiment", base(ENGLISH)),
    "bert-base-ner": ("tiny-bert-ner", base(CASED)),
    "camembert-base-ner": ("tiny-camembert-ner", base(32_005, 514)),
    "roberta-base": ("tiny-roberta-nli", base(ROBERTA, 514)),
    "nomic-base": ("tiny-nomic", base(30_528, 8192, inner=3072)),
    "modernbert-base-rank": ("tiny-modernbert-rank", encoder(22, 768, 12, 50_368, 8192, 1152, local_attention=128)),
    "xlm-roberta-base": ("tiny-xlm-roberta", base(XLM, 514)),
    "xlm-roberta-base-rank": ("tiny-xlm-roberta-multi", base(XLM, 514, labels=1)),
    "xlm-roberta-base-classes": ("tiny-xlm-roberta-multi", base(XLM, 514, labels=20)),
    "gte-multilingual-base": ("tiny-gte-types", base(250_048, 8192)),
    "jina-reranker-base": ("tiny-jina-rank", base(XLM, 1026)),
    "deberta-base": ("tiny-deberta-nli", base(DEBERTA, **BUCKETS)),
    "deberta-base-rank": ("tiny-deberta-nli", base(DEBERTA, labels=1, **BUCKETS)),
    "gliner-small": ("tiny-gliner", encoder(6, 768, 12, 128_004, head=512, **BUCKETS)),
    "gliner-medium": ("tiny-gliner", base(128_004, head=512, **BUCKETS)),
    "gliner-multi": ("tiny-gliner", base(250_105, head=512, **BUCKETS)),
    "gliner2-base": ("tiny-gliner2", base(128_011, **BUCKETS)),
    "gemma3-300m": ("tiny-gemma3", encoder(
        24, 768, 3, 262_144, 2048, 1152, num_key_value_heads=1, head_dim=256, sliding_window=512, query_pre_attn_scalar=256,
        dense=3072,
    )),
    "bert-large": ("tiny-bert", large(ENGLISH)),
    "bert-large-ner": ("tiny-bert-ner", large(CASED)),
    "bart-large": ("tiny-bart-nli", encoder(12, 1024, 16, ROBERTA, 1024)),
    "gliner-large": ("tiny-gliner", large(128_004, head=512, **BUCKETS)),
    "xlm-roberta-large": ("tiny-xlm-roberta", large(XLM, 8194)),
    "xlm-roberta-large-rank": ("tiny-xlm-roberta-multi", large(XLM, 8194, labels=1)),
    "xlm-roberta-large-ner": ("tiny-xlm-roberta-ner", large(XLM, 514)),
    "qwen3-0.6b": ("tiny-qwen3", QWEN),
    "qwen3-0.6b-rank": ("tiny-qwen3-rank", QWEN),
}
# For names of matrices: rows and columns as letters, explained in `dimensions`. Bias vectors have the rows.
RULES = {
    r"((word|tok)_embeddings|embed_tokens|shared)": "v h",
    r"(position_embeddings|embed_positions)": "p h",
    r"rel_embeddings": "b h",
    r"relative_attention_bias": ". a",
    r"q_proj": "q h",
    r"[kv]_proj": "k h",
    r"o_proj": "h q",
    r"[qk]_norm": "d",
    r"(gate_proj|up_proj|fc1[12]?)": "i h",
    r"(down_proj|fc2|mlp\.Wo)": "h i",
    r"(up_gate_proj|Wi)": "j h",
}
# Heads: the rows and columns for labels, and GLiNER2's transformer, whose inner width is the same in all sizes.
HEADS = {
    r"classifier(\.out_proj)?|classification_head\.out_proj": "l h",
    r"count_embed\.transformer\.transformer\..*": ". .",
    r"count_embed\.transformer\.in_projector": ". h",
    r"count_embed\.transformer\.out_projector\.0": "h m",
}
GLINER2_INNER = 128
NUMBERS_PER_BLOCK, BYTES_PER_PIECE = 1 << 16, 4096


def dimensions(name, shape, old, new):
    """A tensor's dimensions in the new model."""
    hidden, inner = new["hidden_size"], new["intermediate_size"]
    matrix, _, _ = name.rpartition(".")
    letters = next((rule for pattern, rule in HEADS.items() if re.fullmatch(pattern, matrix)), None)
    if not letters:
        if name.startswith(("prompt_rep_layer.", "rnn.", "span_rep_layer.")):
            return [size * new["head"] // old["head"] for size in shape]
        if name.startswith(("classifier.0", "classifier.2", "count_", "span_rep.")):
            return [size // old["hidden_size"] * hidden if size % old["hidden_size"] == 0 else size for size in shape]
        letters = next((rule for pattern, rule in RULES.items() if re.search(rf"(^|\.){pattern}$", matrix)), None)
    if letters:
        heads = new["num_attention_heads"]
        width = new.get("head_dim", hidden // heads)
        values = {
            "h": hidden, "i": inner, "j": 2 * inner, "m": hidden + GLINER2_INNER, "v": new["vocab_size"],
            # Some families have more rows than positions.
            "p": shape[0] - old["max_position_embeddings"] + new["max_position_embeddings"],
            "b": 2 * new.get("position_buckets", 0), "l": new.get("labels", shape[0]),
            "a": heads, "d": width, "q": heads * width, "k": new.get("num_key_value_heads", heads) * width,
        }
        return [values.get(letter, size) for letter, size in zip(letters.split(), shape)]
    sizes = {old.get("head"): new.get("head"), old["intermediate_size"]: inner}
    sizes |= {times * old["hidden_size"]: times * hidden for times in (1, 3)}
    return [sizes.get(size, size) for size in shape]


def settle(settings, new):
    """Changes a model's settings, in the file's own names, and returns the old ones."""
    old = {}
    for first, *others in NAMES:
        for name in [first, *others]:
            if name in settings:
                old.setdefault(first, settings[name])
                settings[name] = new[first]
    settings |= {name: value for name, value in new.items() if name in settings and name not in old}
    if "pooler_hidden_size" in settings:
        settings["pooler_hidden_size"] = new["hidden_size"]
    if "layer_types" in settings:
        # Every sixth layer of Gemma's is a full one, and all of Qwen's.
        full = settings.get("_sliding_window_pattern", 1)
        last = [layer % full == full - 1 for layer in range(new["num_hidden_layers"])]
        settings["layer_types"] = ["full_attention" if layer else "sliding_attention" for layer in last]
    if "labels" in new:
        labels = {str(label): f"LABEL_{label}" for label in range(new["labels"])}
        settings |= {"id2label": labels, "label2id": {label: int(number) for number, label in labels.items()}}
        settings |= {"problem_type": None} if "problem_type" in settings else {}
    return old


def reduced(settings):
    """Few layers and rows, and narrow ones: for checks that a shape is built and served, in a second or two."""
    hidden = 8 * settings["num_attention_heads"]
    small = {
        # NomicBERT's inner width is a multiple of 256.
        "hidden_size": hidden, "intermediate_size": 256, "num_hidden_layers": min(5, settings["num_hidden_layers"]),
        "vocab_size": 512, "max_position_embeddings": 600, "head_dim": 16, "dense": 4 * hidden, "head": 48,
    }
    return settings | {name: size for name, size in small.items() if name in settings}


def make(shape, folder, small=False):
    fixture, new = SHAPES[shape]
    new = reduced(new) if small else new
    shutil.copytree(FIXTURES / fixture, folder)
    old = {}
    for file in folder.rglob("*.json"):
        settings = json.loads(file.read_text())
        if not isinstance(settings, dict):
            continue
        inner = settings.get("encoder_config", settings)
        if any(name in inner for name in NAMES[2]):
            old |= settle(inner, new)
            if "head" in new:
                old["head"] = settings["hidden_size"]
                settings |= {"hidden_size": new["head"], "max_width": 12, "max_len": 384, "vocab_size": new["vocab_size"]}
        others = {"word_embedding_dimension": new["hidden_size"], "embedding_dimension": new["hidden_size"]}
        settings |= {name: value for name, value in others.items() if name in settings}
        limit = {"sentence_bert_config.json": "max_seq_length", "tokenizer_config.json": "model_max_length"}.get(file.name)
        settings |= {limit: TOKENS} if limit else {}
        file.write_text(json.dumps(settings, indent=2) + "\n")
    tensors = {}
    for name, size in read(folder / "model.safetensors").items():
        tensors[name] = dimensions(name, size, old, new)
    write(folder / "model.safetensors", layers(tensors, new["num_hidden_layers"]))
    for file in folder.glob("*_Dense/model.safetensors"):
        settings = json.loads((file.parent / "config.json").read_text())
        features = {name: settings[name] for name in ("in_features", "out_features")}
        sizes = {size: new["dense"] for size in features.values()} | {old["hidden_size"]: new["hidden_size"]}
        settings |= {name: sizes[size] for name, size in features.items()}
        (file.parent / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
        write(file, {name: [sizes[size] for size in shape] for name, shape in read(file).items()})


def read(path):
    """The shapes of a file's tensors."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return {name: tensor["shape"] for name, tensor in header.items() if name != "__metadata__"}


def layers(tensors, count):
    """The tensors of a model with this many layers per stack: more are like the last."""
    others, stacks = {}, {}
    for name, shape in tensors.items():
        found = None if name.startswith("count_embed.") else re.match(r"(.*?(?<!\w)layers?\.)(\d+)(\..*)", name)
        if found:
            stacks.setdefault(found[1], {}).setdefault(int(found[2]), {})[found[3]] = shape
        else:
            others[name] = shape
    for prefix, stack in stacks.items():
        for layer in range(count):
            for name, shape in stack[min(layer, max(stack))].items():
                others[f"{prefix}{layer}{name}"] = shape
    return others


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
            if re.search(r"(norm\w*|_ln)\.weight$", name, re.IGNORECASE):
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
