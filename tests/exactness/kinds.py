"""The kinds of models: what each reads, the requests to Kivu, and the values of its responses."""

import json
import math
import tomllib

LONG = " ".join(f"number {place} of the words, and one more: straße" for place in range(40))
TEXTS = [
    "The cat sits on the mat.",
    "HELLO, wOrLd! ÀÉÎÕÜ ŞİĞ ẞ ß cafe\u0301 x² ½ ﬁ",
    LONG,
    "猫坐在垫子上，狗在阳光下睡觉。今日は 12",
    "  two  spaces\tand\nlines, don't: 1,250.50 ",
    "[CLS] <s> written </s> [SEP] out [MASK]<mask> <unk> [UNK]x",
]
PAIRS = [
    ["Where is the train station?", "The next train leaves at nine."],
    ["猫坐在垫子上", "O gato dorme ao sol, não é?"],
    ["A query with [SEP] in it", LONG],
    ["the cat", "Le chat ² est là</s>"],
]
# Texts that models read with labels; texts beyond a limit are not compared.
SHORT = [text for text in TEXTS if text != LONG]
# Token classifiers with windows in all layers, which read texts of any length. Rounding of late positions differs.
LOCAL = ["tiny-privacy-filter", "tiny-ultrabert-ner"]
LABELS = ["travel", "city life", "e-mail address"]
THRESHOLD = 0.3
# Models on others' classes, with code of their own.
JINA_V5 = {"tiny-jina-v5-nano": "EuroBert", "tiny-jina-v5-small": "Qwen3"}
# Generators that rank by two tokens' logits.
BY_LOGITS = ["tiny-mxbai-rerank-base-v2", "tiny-bge-reranker-v2-gemma", "tiny-qwen3-rank"]
SOURCES = ["The cat sits on the mat.", "Where is the nearest train station, and when does the next train leave?", "x² [MASK] ½ 猫"]

# The options of generation in requests; without any, the model's settings decide.
OPTIONS = [{}, {"num_beams": 1, "max_new_tokens": 20}, {"num_beams": 3, "max_new_tokens": 20}]

LANGUAGES = {
    "tiny-m2m100": ("en", "fr"), "tiny-nllb": ("eng_Latn", "fra_Latn"), "tiny-mbart50": ("en_XX", "fr_XX"),
    "tiny-mbart": ("en_XX", "fr_XX"),
}


def tagged(name):
    """The texts of a token classifier."""
    return [text[:400] if name in LOCAL else text for text in TEXTS]


# What selects the target language in texts.
TAGS = {"tiny-marian-multi": ">>fra<<", "tiny-madlad": "<2pt> "}


def sources(name):
    """The texts of a generator, some of which read the target language from them."""
    return [f"{TAGS.get(name, '')}{text}" for text in SOURCES]


def read(path):
    return json.loads(path.read_text()) if path.is_file() else None


def kind_of(folder):
    """The kind of a fixture, or nothing for those that the references cannot load."""
    types = [module["type"] for module in read(folder / "modules.json") or []]
    modules = [name.rpartition(".")[2] for name in types]
    config = read(folder / "config.json") or {}
    head = (config.get("architectures") or [""])[0]
    if "SpladePooling" in modules or "Router" in modules:
        return "sparse"
    if any(name.startswith("pylate.") for name in types):
        # sentence-transformers reads some settings of these otherwise than PyLate, which needs an older version of it.
        return None
    if (folder / "artifact.metadata").is_file() or "MultiVectorMask" in modules:
        return "multi-vector"
    if "LogitScore" in modules or folder.name in BY_LOGITS:
        return "ranker"
    if modules:
        return "embedder"
    if (folder / "gliner_config.json").is_file():
        return "gliner"
    if not (folder / "config.json").is_file():
        return None
    if config.get("model_type") in ("GLiClass", "extractor"):
        return "labels" if config["model_type"] == "GLiClass" else "entities"
    if head == "JinaForRanking":
        return "ranker"
    if head.endswith("ForSequenceClassification"):
        return "ranker" if len(config.get("id2label", {0: 0, 1: 1})) == 1 else "classifier"
    if head.endswith("ForTokenClassification"):
        return "tagger"
    if head.endswith(("ForConditionalGeneration", "MTModel")):
        return "generator"
    return "embedder"


def task_of(name):
    """The task of a generator."""
    if name.startswith(("tiny-t5", "tiny-flan", "tiny-mt5")):
        return "text2text-generation"
    return "summarization" if name.startswith(("tiny-bart", "tiny-pegasus")) else "translation"


def requests(kind, name):
    """The requests to Kivu."""
    if kind == "embedder":
        tensor = {"name": "TEXT", "datatype": "BYTES", "shape": [len(TEXTS)], "data": TEXTS}
        infer = {"inputs": [tensor], "outputs": [{"name": "embedding"}]}
        roles = [
            {"path": "/embed", "body": {"inputs": TEXTS[:2], "model": f"model:{role}"}} for role in ("query", "document")
        ]
        return [{"path": "/v2/models/model/infer", "body": infer}, *roles]
    if kind == "sparse":
        return [
            {"path": "/embed_sparse", "body": {"inputs": TEXTS, "model": f"model:{role}"}} for role in ("query", "document")
        ]
    if kind == "multi-vector":
        return [{"path": "/embed_all", "body": {"inputs": TEXTS, "model": f"model:{role}"}} for role in ("query", "document")]
    if kind == "classifier":
        pairs = [{"text": first, "text_pair": second} for first, second in PAIRS]
        parameters = [{}, {"function_to_apply": "none"}]
        return [
            {"path": "/models/model", "body": {"inputs": inputs, "parameters": options}}
            for inputs in (TEXTS, pairs) for options in parameters
        ]
    if kind == "ranker":
        return [
            {"path": "/rerank", "body": {"query": query, "texts": [text, query], "raw_scores": True}}
            for query, text in PAIRS
        ]
    if kind == "tagger":
        options = {"aggregation_strategy": "none", "ignore_labels": []}
        return [{"path": "/models/model", "body": {"inputs": tagged(name), "parameters": options}}]
    if kind == "labels":
        return [
            {"path": "/models/model", "body": {"inputs": SHORT, "parameters": {"candidate_labels": LABELS, "multi_label": is_multi}}}
            for is_multi in (False, True)
        ]
    if kind in ("entities", "gliner"):
        parameters = {"labels": LABELS, "threshold": THRESHOLD}
        return [{"path": "/models/model", "body": {"inputs": SHORT, "parameters": parameters}}]
    source, target = LANGUAGES.get(name, (None, None))
    languages = {"src_lang": source, "tgt_lang": target} if source else {}
    return [
        {"path": "/models/model", "body": {"inputs": sources(name), "parameters": {**languages, "generate_parameters": options}}}
        for options in OPTIONS
    ]


def values(kind, bodies):
    """The values of Kivu's responses by name, in the form of those of the reference."""
    if kind == "embedder":
        infer, query, document = bodies
        if infer is not None:
            tensor = next(output for output in infer["outputs"] if output["name"] == "embedding")
            width = tensor["shape"][1]
            infer = [tensor["data"][start:start + width] for start in range(0, len(tensor["data"]), width)]
        return {"vectors": infer, "query": query, "document": document}
    if kind == "sparse":
        weights = lambda rows: rows and [{str(entry["index"]): entry["value"] for entry in row} for row in rows]
        return {role: weights(rows) for role, rows in zip(("query", "document"), bodies)}
    if kind == "multi-vector":
        return dict(zip(("query", "document"), bodies))
    if kind == "classifier":
        names = ("texts", "logits", "pairs", "logits of pairs")
        scores = lambda rows: rows and [{entry["label"]: entry["score"] for entry in row} for row in rows]
        return {name: scores(rows) for name, rows in zip(names, bodies)}
    if kind == "ranker":
        scores = lambda rows: [row["score"] for row in sorted(rows, key=lambda row: row["index"])]
        return {f"pair {place}": rows and scores(rows) for place, rows in enumerate(bodies)}
    if kind == "tagger":
        return {"entities": bodies[0]}
    if kind == "labels":
        scores = lambda rows: rows and [{entry["label"]: entry["score"] for entry in row} for row in rows]
        return {name: scores(rows) for name, rows in zip(("single", "multi"), bodies)}
    if kind in ("entities", "gliner"):
        return {"entities": bodies[0] and [ordered(row) for row in bodies[0]]}
    # Of several texts, the first. Slow tokenizers strip texts.
    texts = lambda rows: rows and [next(iter(first(row).values())).strip() for row in rows]
    return {json.dumps(options): texts(rows) for options, rows in zip(OPTIONS, bodies)}


def ordered(entities):
    """Entities by place and label, in the form of Kivu's."""
    return sorted(entities, key=lambda entity: (entity["start"], entity["end"], entity["entity_group"]))


def first(row):
    return row[0] if isinstance(row, list) else row


def normalized(vector):
    length = math.sqrt(sum(value * value for value in vector)) or 1.0
    return [value / length for value in vector]


def is_normalized(manifest):
    return tomllib.loads(manifest).get("embedding", {}).get("normalize", False)


def task(kind, name):
    """The task that Kivu is told, as the references are."""
    tasks = {
        "classifier": "text-classification", "ranker": "text-ranking", "tagger": "token-classification",
        "gliner": "token-classification", "entities": "token-classification", "labels": "zero-shot-classification",
    }  # fmt: skip
    return task_of(name) if kind == "generator" else tasks.get(kind, "feature-extraction")
