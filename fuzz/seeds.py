"""Writes seeds in binary formats into fuzz/corpus, and those that are fixtures: python3 fuzz/seeds.py

Seeds that are texts are written by hand: a request has its path in the first line, and each route has one.
"""

import gzip
import json
import pathlib
import struct
import zipfile
import zlib

ROOT = pathlib.Path(__file__).parent.parent
FIXTURES = ROOT / "tests/fixtures"
CORPUS = ROOT / "fuzz/corpus"

def tensors(inputs, **more):
    """A message of KServe v2 with binary tensors."""
    described = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for name, datatype, shape, data in inputs
    ]
    message = json.dumps({"inputs": described, "outputs": [], **more}).encode()
    return struct.pack("<H", len(message)) + message + b"".join(data for *_, data in inputs)


def texts(*texts):
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)


def answer(outputs, behind=b""):
    message = json.dumps({"outputs": outputs}).encode()
    return struct.pack("<H", len(message)) + message + behind


def field(number, content):
    """A field of a protobuf message: a number, or bytes."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number):
    number &= 2**64 - 1
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(encoded + bytes([number]))


def parts(*parts):
    return b"".join(struct.pack("<H", len(part)) + part for part in parts[:-1]) + parts[-1]


def node(operator, inputs, outputs, *attributes):
    names = b"".join(field(1, name) for name in inputs) + b"".join(field(2, name) for name in outputs)
    return field(1, names + field(4, operator) + b"".join(field(5, attribute) for attribute in attributes))


def tensor(name, shape, kind, *more):
    return b"".join(field(1, side) for side in shape) + field(2, kind) + field(8, name) + b"".join(more)


def value(number, name):
    return field(number, field(1, name))


def onnx(graph):
    return field(1, 8) + field(2, b"seed") + field(7, graph) + field(8, field(2, 17))


def graphs():
    floats = struct.pack("<6f", *range(6))
    plain = (
        node(b"MatMul", [b"last_hidden_state", b"w"], [b"x"])
        + node(b"Add", [b"x", b"b"], [b"logits"])
        + node(b"Gather", [b"table", b"input_ids"], [b"y"])
        + field(5, tensor(b"w", [2, 3], 1, field(9, floats)))
        + field(5, tensor(b"b", [3], 1, field(9, floats[:12])))
        + value(11, b"input_ids")
        + value(12, b"logits")
        + value(12, b"last_hidden_state")
    )
    def entry(key, text):
        return field(13, field(1, key) + field(2, text))

    outside = field(5, tensor(b"w", [2, 3], 1, entry(b"location", b"encoder_model.onnx"), entry(b"offset", b"8"), entry(b"length", b"24"), field(14, 1)))
    cross = node(b"Identity", [b"encoder_hidden_states"], [b"present.0.encoder.key"]) + value(11, b"encoder_hidden_states") + value(12, b"present.0.encoder.key") + value(12, b"logits")
    later = node(b"Identity", [b"past_key_values.0.encoder.key"], [b"logits"]) + value(11, b"past_key_values.0.encoder.key") + value(12, b"logits")
    branches = [field(1, b"else_branch") + field(6, cross), field(1, b"then_branch") + field(6, later)]
    choice = node(b"If", [b"use_cache_branch"], [b"logits"], *branches) + value(12, b"logits") + value(12, b"last_hidden_state")
    circle = node(b"Identity", [b"b"], [b"a"]) + node(b"Identity", [b"a"], [b"b"]) + value(12, b"a") + value(12, b"logits")
    return {"plain": onnx(plain), "outside": onnx(plain + outside), "choice": onnx(choice), "circle": onnx(circle)}


def student():
    """A model in the format of Marian, with a shortlist."""
    options = b"\n".join(
        line.encode()
        for line in [
            "type: transformer", "dec-cell: ssru", "transformer-decoder-autoreg: rnn", "tied-embeddings-all: true",
            'transformer-preprocess: ""', "transformer-postprocess: dan", 'transformer-postprocess-top: ""',
            "transformer-ffn-activation: relu", "transformer-train-position-embeddings: false", "dim-emb: 2",
            "transformer-heads: 1", "transformer-dim-ffn: 2", "enc-depth: 1", "dec-depth: 1",
        ]
    )
    integers = bytes(range(6)) + struct.pack("<f", 2.0)
    items = [
        (b"Wemb", 0x4101, [3, 2], integers),
        (b"decoder_ff_logit_out_b", 0x0404, [1, 3], struct.pack("<3f", 1, 2, 3)),
        (b"encoder_l1_self_Wq", 0x4101, [2, 2], bytes(4) + struct.pack("<f", 1.0)),
        (b"special:model.yml", 0x0101, [len(options)], options),
    ]
    model = struct.pack("<2Q", 1, len(items))
    for name, kind, shape, data in items:
        model += struct.pack("<4Q", len(name) + 1, kind, len(shape), len(data))
    model += b"".join(name + b"\0" for name, *_ in items)
    model += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    model += struct.pack("<Q", 3) + bytes(3) + b"".join(data for *_, data in items)
    lexicon = struct.pack("<6Q", 0xF11A_48D5_0134_17F5, 7, 2, 3, 5, 3) + struct.pack("<5Q", 0, 0, 2, 3, 3) + struct.pack("<3I", 3, 2, 0)
    return parts(lexicon, model)


def pieces(names, kind):
    special = [(b"<unk>", 2), (b"<s>", 3), (b"</s>", 3)]
    listed = [field(1, name) + b"\x15" + struct.pack("<f", -place) for place, name in enumerate(names)]
    listed = [field(1, name) + field(3, kind) for name, kind in special] + listed
    return b"".join(field(1, piece) for piece in listed) + field(2, field(3, kind)) + field(3, b"")


def safetensors(tensors):
    header, data = {}, b""
    for name, (kind, shape, content) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    header = json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


def write(target, inputs):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in inputs.items():
        (folder / f"seed-{name}").write_bytes(content)


def main():
    body = (CORPUS / "request/seed-02").read_bytes().split(b"\n")[1]
    write("packed", {"gzip": b"\0/embed\n" + gzip.compress(body, mtime=0), "deflate": b"\1/embed\n" + zlib.compress(body), "plain": b"\2/embed\n" + body})
    ids = struct.pack("<2q", 7, 8)
    write(
        "tensors",
        {
            "texts": tensors([("TEXT", "BYTES", [1, 1], texts("cat"))]),
            "ids": tensors([("input_ids", "INT64", [1, 2], ids), ("attention_mask", "INT32", [1, 2], bytes([1, 0, 0, 0] * 2))], parameters={"binary_data_output": True}),
            "labels": tensors([("TEXT", "BYTES", [1], texts("cat")), ("LABELS", "BYTES", [2], texts("a", "b"))]),
            "query": tensors([("QUERY", "BYTES", [1], texts("cat")), ("TEXT", "BYTES", [1], texts("dog"))]),
        },
    )
    for name in ["json_lines", "csv"]:
        write(name, {"gzip": gzip.compress((CORPUS / name / "seed-plain").read_bytes(), mtime=0)})
    tensor_names = {"name": "m", "versions": ["1"], "platform": "onnxruntime_onnx", "inputs": [{"name": "x", "datatype": "INT64", "shape": [-1, -1]}], "outputs": [{"name": "a", "datatype": "FP32", "shape": [-1, 2]}]}
    write(
        "http",
        {
            "json": answer([{"name": "a", "datatype": "FP32", "shape": [2], "data": [[1.5], 2]}, {"name": "c", "datatype": "BYTES", "shape": [1], "data": ["x"]}]),
            "bytes": answer([{"name": "b", "datatype": "INT64", "shape": [2], "parameters": {"binary_data_size": 16}}, {"name": "c", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 7}}], ids + texts("cat")),
            "half": answer([{"name": "a", "datatype": "FP16", "shape": [1], "parameters": {"binary_data_size": 2}}], b"\x00\x3c"),
            "error": struct.pack("<H", 400) + b'{"error": "Request for unknown model: \'m\' is not found"}',
            "metadata": b"\0\0" + json.dumps(tensor_names).encode(),
            "config": b"\0\0" + json.dumps({"max_batch_size": 8, "model_transaction_policy": {"decoupled": False}}).encode(),
        },
    )
    output = field(5, field(1, b"b") + field(2, b"INT64") + field(3, 2)) + field(6, ids)
    write("grpc", {"answer": output, "metadata": field(4, field(1, b"x") + field(2, b"INT64") + field(3, -1)), "config": field(1, field(4, 8) + field(19, field(1, 1)))})
    examples = sorted((ROOT / "models").glob("*.toml")) + sorted((FIXTURES / "recipes").glob("*.toml"))
    write("recipe", {path.stem: path.read_bytes() for path in examples})
    write("fast_text", {path.stem: path.read_bytes() for path in sorted((FIXTURES / "fast_text").iterdir())})
    write("graph", graphs())
    write("student", {"small": student()})
    names = ["▁the", "▁c", "a", "t", "at", "▁cat", ">>pt<<", "__en__"]
    names = [name.encode() for name in names]
    ids = {name.decode(): place for place, name in enumerate([b"</s>", b"<unk>", *names, b"<pad>"])}
    settings = {"additional_special_tokens": ["__en__"], "unk_token": "<unk>", "source_lang": "en", "target_lang": "pt", "model_max_length": 512, "added_tokens_decoder": {"3": {"content": "__pt__", "special": True}}}
    bare = {key: content for key, content in settings.items() if key != "added_tokens_decoder"}
    write("sentencepiece", {f"{kind}-{number}": parts(json.dumps(chosen).encode(), json.dumps(ids).encode(), pieces(names, number)) for kind, chosen in [("listed", settings), ("bare", bare)] for number in (1, 2)})
    models = {"word-piece": "tiny-bert", "byte-pairs": "tiny-roberta", "unigram": "tiny-deberta-v2"}
    write("tokenizer", {kind: (FIXTURES / "models" / name / "tokenizer.json").read_bytes() for kind, name in models.items()})
    for name in ["tiny-marian", "tiny-m2m100", "tiny-nllb"]:
        write("translation_config", {name: (FIXTURES / "models" / name / "config.json").read_bytes()})
    bert = json.loads((FIXTURES / "models/tiny-bert/config.json").read_bytes())
    bert.update(hidden_size=2, num_attention_heads=1, intermediate_size=2, num_hidden_layers=1, vocab_size=3)
    weights = {"embeddings.word_embeddings.weight": ("F32", [3, 2], bytes(24)), "a": ("F16", [1], b"\x00\x3c"), "b": ("BF16", [1], b"\x80\x3f"), "c": ("I64", [1], bytes(8))}
    deberta = (FIXTURES / "models/tiny-deberta-v2/config.json").read_bytes()
    checkpoints = FIXTURES / "checkpoints"
    archive = (checkpoints / "tensors.bin").read_bytes()
    pickle = zipfile.ZipFile(checkpoints / "tensors.bin").read("tensors/data.pkl")
    legacy = (checkpoints / "tensors-legacy.bin").read_bytes()
    write("checkpoint", {"archive": archive, "legacy": legacy, "pickle": pickle})
    write("weights", {"bert": parts(json.dumps(bert).encode(), safetensors(weights)), "deberta": parts(deberta, safetensors(weights)), "index": parts(b"{}", b'{"weight_map": {"a": "model.safetensors"}}')})


if __name__ == "__main__":
    main()
