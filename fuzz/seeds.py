"""Writes the initial corpus of every reader into fuzz/corpus, from the fixtures: python3 fuzz/seeds.py"""

import gzip
import json
import pathlib
import struct
import zipfile
import zlib

ROOT = pathlib.Path(__file__).parent.parent
FIXTURES = ROOT / "tests/fixtures"
CORPUS = ROOT / "fuzz/corpus"

# Paths and bodies: at least one for each route.
REQUESTS = [
    ("/", {"inputs": "the cat"}),
    ("/", {"inputs": {"source_sentence": "cat", "sentences": ["dog", "fish"]}}),
    ("/embed", {"inputs": ["the cat", [101, 7]], "truncate": True, "normalize": False, "prompt_name": "query", "dimensions": 1}),
    ("/embed_all", {"inputs": "the cat", "truncation_direction": "left"}),
    ("/similarity", {"inputs": {"source_sentence": "cat", "sentences": ["dog"]}, "parameters": {"truncate": True}}),
    ("/predict", {"inputs": [["the cat", "a dog"]], "raw_scores": True}),
    ("/rerank", {"query": "cat", "texts": ["dog", "fish"], "return_text": True, "raw_scores": False}),
    ("/translate", {"inputs": ["the cat"], "split": "never", "generate_parameters": {"num_beams": 2, "max_new_tokens": 3, "num_return_sequences": 2, "bad_words_ids": [[7]], "no_repeat_ngram_size": 2}}),
    ("/tokenize", {"inputs": "the cat", "add_special_tokens": False}),
    ("/decode", {"ids": [[101, 7, 102]], "skip_special_tokens": False}),
    ("/models/embedding", {"inputs": ["the cat"], "normalize": True}),
    ("/models/classification", {"inputs": [{"text": "the cat", "text_pair": "a dog"}], "parameters": {"function_to_apply": "sigmoid", "top_k": 2}}),
    ("/models/zero-shot", {"inputs": "the cat", "parameters": {"candidate_labels": ["cat", "dog"], "hypothesis_template": "It is {}.", "multi_label": True}}),
    ("/models/ranking", {"inputs": {"query": "cat", "texts": ["dog"]}}),
    ("/models/translation", {"inputs": "the cat. the dog", "parameters": {"src_lang": "en", "tgt_lang": "pt", "generate_parameters": {"num_beams": 2, "early_stopping": "never", "length_penalty": 0.5, "repetition_penalty": 1.5}}}),
    ("/v1/rerank", {"model": "ranking", "query": "cat", "documents": [{"text": "dog"}], "top_n": 1, "return_documents": True}),
    ("/v2/rerank", {"query": "cat", "documents": ["dog"], "top_n": 1}),
    ("/v1/embeddings", {"input": [[101, 7, 102]], "model": "embedding", "encoding_format": "base64", "dimensions": 2}),
    ("/v2/repository/index", {}),
    ("/v2/models/embedding/infer", {"id": "1", "inputs": [{"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["cat"]}], "outputs": [{"name": "embedding"}]}),
    ("/v2/models/zero-shot/infer", {"inputs": [{"name": "TEXT", "shape": [1], "datatype": "BYTES", "data": ["cat"]}, {"name": "LABELS", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}], "parameters": {"multi_label": True}}),
    ("/v2/models/translation/versions/1/infer", {"inputs": [{"name": "input_ids", "shape": [1, 2], "datatype": "INT64", "data": [[7, 8]]}, {"name": "attention_mask", "shape": [1, 2], "datatype": "INT32", "data": [1, 0]}], "parameters": {"num_beams": 2}}),
    ("/models/token-classification", {"inputs": ["the cat", "a dog sat on the mat e\u0301"], "parameters": {"aggregation_strategy": "max", "ignore_labels": ["O"], "stride": 3, "redact": True}}),
    ("/embed_sparse", {"inputs": "the cat", "max_active_dims": 2, "words": True}),
    ("/invocations", {"inputs": ["the cat"]}),
    ("/embeddings", {"input": [{"text": "the cat"}], "late_chunking": True}),
    ("/v1/embed", {"texts": ["the cat"], "truncate": "END"}),
    ("/v2/embed", {"inputs": [{"content": [{"type": "text", "text": "the cat"}]}], "embedding_types": ["float", "base64"]}),
    ("/v2/translate", {"text": ["the cat"], "source_lang": "EN", "target_lang": "PT", "split_sentences": "0"}),
    ("/translate", {"q": ["the cat"], "source": "en", "target": "pt", "alternatives": "2"}),
    ("/api/embed", {"input": ["the cat"], "truncate": False, "keep_alive": "5m"}),
    ("/api/embeddings", {"prompt": "the cat"}),
    ("/api/show", {"name": "embedding:latest"}),
    ("/model/embedding/invoke", {"inputText": "the cat", "dimensions": 1, "normalize": False, "embeddingTypes": ["float", "binary"]}),
    ("/model/embedding/invoke", {"texts": ["the cat"], "input_type": "search_query", "embedding_types": ["float", "int8"], "truncate": "LEFT", "max_tokens": 128000}),
    ("/model/ranking/invoke", {"query": "cat", "documents": ["dog", {"text": "fish"}], "top_n": 1, "return_documents": True, "api_version": 2}),
    ("/model/arn:/embedding/invoke", {"inputText": "the cat"}),
    ("/vertex", {"instances": [{"inputs": "the cat"}, {"query": "cat", "texts": ["dog"], "model": "ranking"}]}),
    ("/api/pull", {"model": "embedding", "stream": False}),
    ("/v2/repository/models/embedding/load", {}),
    ("/v2/repository/models/embedding/unload", {}),
    ("/detect", {"q": "the cat"}),
    ("/v1/chat/completions", {"model": "entities", "messages": [{"role": "user", "content": "the cat"}], "labels": ["animal"], "threshold": 0.5}),
    ("/classify", {"model": "classification", "input": ["the cat", "a dog"]}),
    ("/gliner-2", {"text": ["the cat"], "schema": {"entities": ["animal"], "structures": {"order": ["size::[small|large]::str"]}, "relations": ["near"], "classifications": [{"task": "mood", "labels": ["good", "bad"]}]}, "include_spans": True}),
    ("/tokenize", {"inputs": "the cat", "prompt": "query: "}),
    ("/tokenize", {"inputs": "the cat", "task": "separation"}),
    ("/v1/classify", {"input": "the cat", "use_activation": False, "truncate_prompt_tokens": -1}),
    ("/score", {"model": "ranking", "queries": ["cat", "dog"], "documents": ["the cat", "a dog"], "truncation_side": "left"}),
    ("/v1/score", {"model": "ranking", "text_1": "cat", "text_2": ["the cat", "a dog"]}),
    ("/rerank", {"query": "cat", "documents": ["dog", {"text": "fish"}], "top_n": 1, "truncate": "END"}),
    ("/embedding", {"content": ["the cat", [101, 7, 102]], "embd_normalize": -1}),
    ("/reranking", {"query": "cat", "documents": ["dog"], "top_n": 1}),
    ("/v1/reranking", {"query": "cat", "texts": ["dog"]}),
    ("/restore", {"inputs": ["Dear [PERSON_1]"], "redact_mapping": {"[PERSON_1]": "Ann"}}),
    ("/models/arn:/embedding", {"inputs": ["the cat"]}),
    ("/v1/ranking", {"query": {"text": "cat"}, "passages": [{"text": "dog"}], "truncate": "END"}),
]


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


def s3_record(key):
    return {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": {"key": key, "eTag": "1", "versionId": "2"}}}


def events():
    plain = {"Records": [s3_record("in/a+b%2Bc.jsonl")]}
    queued = {"Records": [{"eventSource": "aws:sqs", "messageId": "1", "body": json.dumps(plain)}]}
    topic = {"Records": [{"EventSource": "aws:sns", "Sns": {"Message": json.dumps(plain)}}]}
    bridge = {"source": "aws.s3", "detail-type": "Object Created", "detail": {"bucket": {"name": "b"}, "object": {"key": "in/a b", "etag": "1", "version-id": "2"}}}
    notice = {"Type": "Notification", "Message": json.dumps(bridge)}
    nested = {"Records": [{"eventSource": "aws:sqs", "messageId": "1", "body": json.dumps(notice)}]}
    index = {"input": "s3://b/in/a.csv", "run": "1", "job": "2", "layout": {"column": "text"}, "second_row": 9, "ranges": 2, "bucket": "b", "key": "k"}
    rows = {"range": {"first": 64, "rows": 64, "start": 9, "end": 99}, "of": index}
    listing = {"BatchInput": {"bucket": "b"}, "Items": [{"Key": "in/a"}]}
    join = {"join": {"of": index, "results": {"Bucket": "b", "Key": "k"}}}
    recorded = [json.loads(path.read_text()) for path in sorted((ROOT / "tests/lambda").glob("rows_*.json"))]
    return [plain, queued, topic, bridge, nested, rows, listing, join, {"Event": "s3:TestEvent"}, *recorded]


def write(target, inputs):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in inputs.items():
        (folder / f"seed-{name}").write_bytes(content)


def numbered(contents):
    return {f"{number:02}": content for number, content in enumerate(contents)}


def tokenizer():
    """A word-level tokenizer with a component of every kind."""
    pattern, behavior = {"Regex": "o+"}, "Isolated"
    token = {"id": 2, "content": "<s>", "single_word": False, "lstrip": True, "rstrip": False, "normalized": False, "special": True}
    sequence = lambda name, parts: {"type": "Sequence", name: [{"type": part} if isinstance(part, str) else part for part in parts]}
    special = {"<s>": {"id": "<s>", "ids": [2], "tokens": ["<s>"]}}
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    return {
        "version": "1.0",
        "added_tokens": [token],
        "normalizer": sequence("normalizers", [
            {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
            {"type": "Strip", "strip_left": True, "strip_right": True}, "StripAccents", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt",
            {"type": "Prepend", "prepend": "_"}, {"type": "Replace", "pattern": pattern, "content": "o"},
        ]),
        "pre_tokenizer": sequence("pretokenizers", [
            "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts", {"type": "Digits", "individual_digits": True},
            {"type": "Punctuation", "behavior": behavior}, {"type": "CharDelimiterSplit", "delimiter": "x"},
            {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False},
            {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True},
        ]),
        "post_processor": sequence("processors", [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special},
        ]),
        "decoder": sequence("decoders", [
            "ByteFallback", "Fuse", {"type": "Strip", "content": "_", "start": 1, "stop": 0}, {"type": "Replace", "pattern": pattern, "content": " "},
            {"type": "WordPiece", "prefix": "##", "cleanup": True}, {"type": "BPEDecoder", "suffix": "</w>"},
            {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
        ]),
        "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "hello": 1, "<s>": 2, "_hello": 3}, "unk_token": "<unk>"},
    }


def main():
    write("request", numbered(f"{path}\n{json.dumps(body)}".encode() for path, body in REQUESTS))
    body = json.dumps(REQUESTS[2][1]).encode()
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
    hashed = "alice:" + "0" * 64
    write("keys", {"ring": f"# keys\n{hashed}\n".encode(), "bearer": b"authorization\nBearer kivu_0", "trace": b"traceparent\n00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "x-ray": b"x-amzn-trace-id\nRoot=1-5759e988-bd862e3fe1be46a994272793;Sampled=1", "id": b"x-request-id\nabc"})
    write("event", numbered(json.dumps(event).encode() for event in events()))
    write("key", {"encoded": b"in/a+b%2Bc.jsonl", "url": b"s3://bucket/in/a b", "checkpoint": b'{"job":"j"}\nrest'})
    rows = b'{"text": "the cat", "n": [1, {"a": null}]}\n{"text": 7}\nno\n{"other": "dog"}\n\n{"text":"\\u00e9","error":1}\n'
    write("json_lines", {"plain": rows, "gzip": gzip.compress(rows, mtime=0)})
    rows = b'id;text\n1;the cat\n2;"a ""dog""\nand more"\n3\n4;x;y\n'
    write("csv", {"plain": rows, "gzip": gzip.compress(rows, mtime=0), "mark": "\ufefftext,b\nc,d\n".encode()})
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
    config = b'listen = "127.0.0.1:0"\nmodels = ["a", { name = "b", path = "s3://b/k", policy = "auto", urls = ["grpc://h:1"] }]\n[limits]\ntexts = 3\n[fleet]\nurls = ["http://h:8000"]\n[auth]\nmode = "keys"\nkeys = ["a:0"]\n[batch]\nsave_ms = 1\n[[batch.rules]]\ninput = "in/x/"\noutput = "out/"\nask = { labels = "a, b" }\n'
    write("config", {"file": config, "environment": b"\n---\nLIMITS__TEXTS=2\nMODELS=a,b\nAUTH__KEYS=a:0,b:1\nLOG=json\nPREFIX=/a"})
    write("fast_text", {path.stem: path.read_bytes() for path in sorted((FIXTURES / "fast_text").iterdir())})
    write("graph", graphs())
    texts_with_labels = ["person\nMail Ann_B@Mail.example.org or @ann, see https://example.org/a_b-c.", "e-mail address\nJose\u0301-Mari\u0301a \u0130stanbul \U0001f469\u200d\U0001f467 [E] [P] a--b "]
    write("schema", {str(number): text.encode() for number, text in enumerate(texts_with_labels)})
    fields = ["size::[small|large]::str", "item::list::What is ordered", "colour", {"name": "place", "dtype": "str", "choices": ["a", "b"], "threshold": 0.2, "description": "Where"}]
    moods = {"task": "mood", "labels": {"good": "A good one", "bad": ""}, "multi_label": True, "cls_threshold": 0.2, "examples": [["yes", "good"]], "prompt": "How?", "top_k": 1}
    schemas = [
        {"entities": {"animal": "A beast", "city": {"dtype": "str", "threshold": 0.3}}, "entity_dtype": "list", "entity_threshold": 0.4},
        {"structures": {"order": fields, "act": {"fields": fields}}, "relations": {"near": "Next to", "in": {"threshold": 1}}, "relation_threshold": 0},
        {"classifications": [moods, {"task": "kind", "labels": ["a", "b"]}]},
        {"categories": ["good", "bad"]},
        ["animal", "city"],
        "animal",
        {"order": fields},
    ]
    write("extraction", numbered(json.dumps(schema).encode() for schema in schemas))
    write("student", {"small": student()})
    names = ["▁the", "▁c", "a", "t", "at", "▁cat", ">>pt<<", "__en__"]
    names = [name.encode() for name in names]
    ids = {name.decode(): place for place, name in enumerate([b"</s>", b"<unk>", *names, b"<pad>"])}
    settings = {"additional_special_tokens": ["__en__"], "unk_token": "<unk>", "source_lang": "en", "target_lang": "pt", "model_max_length": 512, "added_tokens_decoder": {"3": {"content": "__pt__", "special": True}}}
    bare = {key: content for key, content in settings.items() if key != "added_tokens_decoder"}
    write("sentencepiece", {f"{kind}-{number}": parts(json.dumps(chosen).encode(), json.dumps(ids).encode(), pieces(names, number)) for kind, chosen in [("listed", settings), ("bare", bare)] for number in (1, 2)})
    models = {"word-piece": "tiny-bert", "byte-pairs": "tiny-roberta", "unigram": "tiny-deberta-v2"}
    write("tokenizer", {kind: (FIXTURES / "models" / name / "tokenizer.json").read_bytes() for kind, name in models.items()})
    write("tokenizer", {"parts": json.dumps(tokenizer()).encode()})
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
    file = {"rfilename": "config.json", "size": 7, "blobId": "0" * 40}
    large = {**file, "rfilename": "model.safetensors", "lfs": {"sha256": "0" * 64, "size": 9, "pointerSize": 134}}
    listing = {"id": "org/name", "sha": "0" * 40, "siblings": [file, large]}
    write("hub", {"list": json.dumps(listing).encode()})
    write("weights", {"bert": parts(json.dumps(bert).encode(), safetensors(weights)), "deberta": parts(deberta, safetensors(weights)), "index": parts(b"{}", b'{"weight_map": {"a": "model.safetensors"}}')})


if __name__ == "__main__":
    main()
