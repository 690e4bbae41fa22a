"""The results of `transformers` and sentence-transformers for a model, by its kind."""

import json
import tomllib
from pathlib import Path

import own_code
import torch
import transformers
from kinds import JINA_V5, LABELS, LANGUAGES, OPTIONS, PAIRS, SHORT, SOURCES, TEXTS, THRESHOLD, first, normalized, ordered, sources, tagged, task_of
from own_code import PRECISION
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from transformers import (
    AutoModel, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoProcessor, AutoTokenizer,
    pipeline,
)

IS_OLD = transformers.__version__.startswith("4.")
KEYS = tomllib.loads((Path(__file__).parents[2] / "compiler/src/keys/keys.toml").read_text())["encoder"]


class Doubled(torch.overrides.TorchFunctionMode):
    """Double precision also where models ask for single: in normalizations, softmax and rotary positions."""

    WIDENED = (torch.Tensor.to, torch.softmax, torch.nn.functional.softmax, torch.arange)

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = options or {}
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        elif function in self.WIDENED:
            wide = lambda value: torch.float64 if value is torch.float32 else value
            arguments, options = map(wide, arguments), {key: wide(value) for key, value in options.items()}
        return function(*arguments, **options)


# Models with towers, whose processors need packages that the environment leaves out.
TOWERS = ["tiny-embedding-gemma2"]


def with_code(folder):
    """Options for models with code of their own, which is Kivu's in fixtures."""
    return {"trust_remote_code": True} if any(Path(folder).glob("*.py")) else {}


def embedder(folder, name):
    if not IS_OLD:
        from sentence_transformers.base.modules import transformer

        transformer.AutoProcessor = AutoTokenizer if name in TOWERS else AutoProcessor
    if name in JINA_V5:
        model = own_code.jina_v5(folder, name)
    else:
        model = SentenceTransformer(folder, device="cpu", model_kwargs=PRECISION, **with_code(folder)).to(PRECISION["dtype"])
    rows = lambda vectors: [[float(value) for value in vector] for vector in vectors]
    unit = lambda vectors: [normalized(vector) for vector in rows(vectors)]
    one_by_one = {"batch_size": 1, "show_progress_bar": False}
    return {
        "vectors": rows(model.encode(TEXTS, **one_by_one)),
        "query": unit(model.encode_query(TEXTS[:2], **one_by_one)),
        "document": unit(model.encode_document(TEXTS[:2], **one_by_one)),
    }


def sparse(folder, name):
    model = SparseEncoder(folder, device="cpu", model_kwargs=PRECISION).to(PRECISION["dtype"])

    def weights(rows):
        rows = [row.coalesce() for row in rows]
        pairs = [zip(row.indices()[0].tolist(), row.values().tolist()) for row in rows]
        return [{str(index): value for index, value in row if value != 0} for row in pairs]

    one_by_one = {"batch_size": 1, "show_progress_bar": False}
    return {
        "query": weights(model.encode_query(TEXTS, **one_by_one)),
        "document": weights(model.encode_document(TEXTS, **one_by_one)),
    }


def multi_vector(folder, name):
    """Vectors for late interaction; only one environment has the class."""
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(folder, device="cpu", model_kwargs=PRECISION, **with_code(folder)).to(PRECISION["dtype"])
    if (Path(folder) / "artifact.metadata").is_file() and model[2].skiplist_words:
        # Stanford's and PyLate's code skip the unknown token in place of punctuation without a token.
        model[2].skiplist_words.append(model.tokenizer.unk_token)
        model[2].resolve_with_tokenizer(model.tokenizer)
    rows = lambda texts: [[[float(value) for value in vector] for vector in vectors] for vectors in texts]
    one_by_one = {"batch_size": 1, "show_progress_bar": False}
    return {
        "query": rows(model.encode_query(TEXTS, **one_by_one)),
        "document": rows(model.encode_document(TEXTS, **one_by_one)),
    }


# Models whose fast tokenizer does not spell unknown characters as bytes.
SLOW = ["tiny-mt5"]


def loaded(folder, kind, **options):
    model = kind.from_pretrained(folder, **PRECISION).eval()
    return {"model": model, "tokenizer": AutoTokenizer.from_pretrained(folder, **options), "device": "cpu"}


def limit(pipe):
    """The tokens of a text that Kivu reads. The pipelines themselves truncate only if the tokenizer has a limit."""
    config = pipe.model.config
    # The rows up to the padding's belong to no token.
    family = KEYS.get(config.model_type, {}).get("family", {})
    unused = config.pad_token_id + 1 if family.get("positions") == "after-padding" else 0
    return min(pipe.tokenizer.model_max_length, getattr(config, "max_position_embeddings", 512) - unused)


def classifier(folder, name):
    pipe = pipeline("text-classification", **loaded(folder, AutoModelForSequenceClassification))
    pairs = [{"text": first, "text_pair": second} for first, second in PAIRS]

    def scores(inputs, **options):
        rows = pipe(inputs, top_k=None, truncation=True, max_length=limit(pipe), **options)
        return [{entry["label"]: entry["score"] for entry in row} for row in rows]

    return {
        "texts": scores(TEXTS), "logits": scores(TEXTS, function_to_apply="none"),
        "pairs": scores(pairs), "logits of pairs": scores(pairs, function_to_apply="none"),
    }


def ranker(folder, name):
    if name in own_code.RANKERS:
        model = own_code.RANKERS[name](folder)
        return {f"pair {place}": [model.score(query, text), model.score(query, query)] for place, (query, text) in enumerate(PAIRS)}
    if with_code(folder):
        model = AutoModel.from_pretrained(folder, **PRECISION, **with_code(folder)).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return {f"pair {place}": model.rerank(tokenizer, query, [text, query])[0] for place, (query, text) in enumerate(PAIRS)}
    model = CrossEncoder(folder, device="cpu", model_kwargs=PRECISION)
    scores = {}
    for place, (query, text) in enumerate(PAIRS):
        pairs = [(query, text), (query, query)]
        identity = torch.nn.Identity()
        found = model.predict(pairs, activation_fn=identity, batch_size=1, show_progress_bar=False)
        scores[f"pair {place}"] = [float(score) for score in found]
    return scores


def is_local(pipe):
    """Whether all layers have windows, and a text within the limit is wider than they are: Kivu divides longer ones."""
    config = pipe.model.config
    kinds = getattr(config, "layer_types", None) or [""]
    has_windows = config.model_type == "openai_privacy_filter" or {*kinds} == {"sliding_attention"}
    special = pipe.tokenizer.num_special_tokens_to_add()
    ropes = getattr(config, "rope_parameters", None) or {}
    types = [rope.get("rope_type") for rope in (ropes, *ropes.values()) if isinstance(rope, dict)]
    has_windows &= not {*types} & {"dynamic", "longrope"}  # positions depend on the length
    return has_windows and 2 * config.num_hidden_layers * config.sliding_window < limit(pipe) - special


def tagger(folder, name):
    pipe = pipeline("token-classification", **loaded(folder, AutoModelForTokenClassification))
    pipe.tokenizer.model_max_length = 1 << 20 if is_local(pipe) else limit(pipe)
    rows = [pipe(text, aggregation_strategy="none", ignore_labels=[]) for text in tagged(name)]
    plain = lambda value: value if isinstance(value, str) else None if value is None else float(value)
    return {"entities": [[{key: plain(value) for key, value in entry.items()} for entry in row] for row in rows]}


def labels(folder, name):
    """GLiClass's scores; only one environment has the package."""
    from gliclass import GLiClassModel, ZeroShotClassificationPipeline

    model = GLiClassModel.from_pretrained(folder, **PRECISION).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    scores = {}
    for kind in ("single", "multi"):
        pipe = ZeroShotClassificationPipeline(
            model, tokenizer, max_length=tokenizer.model_max_length, classification_type=f"{kind}-label", device="cpu",
            progress_bar=False,
        )  # fmt: skip
        rows = [pipe(text, LABELS, threshold=0.0, return_hierarchical=True)[0] for text in SHORT]
        scores[kind] = [{label: float(row[label]) for label in LABELS} for row in rows]
    return scores


def entities(folder, name):
    """GLiNER2's entities; only one environment has the package."""
    from gliner2.inference.engine import SpanExtractor

    model = SpanExtractor.from_pretrained(folder).eval()
    rows = []
    for text in SHORT:
        found = model.extract_entities(text, LABELS, THRESHOLD, include_confidence=True, include_spans=True)
        # The package adds a full stop to a text, which Kivu leaves out.
        ends = [(label, entity, min(entity["end"], len(text.rstrip()))) for label in LABELS for entity in found["entities"].get(label, [])]
        rows.append(ordered([
            {"entity_group": label, "word": text[entity["start"]:end], "start": entity["start"], "end": end, "score": entity["confidence"]}
            for label, entity, end in ends if entity["start"] < end
        ]))  # fmt: skip
    return {"entities": rows}


def gliner(folder, name):
    """GLiNER's entities; only one environment has the package."""
    from gliner import GLiNER

    model = GLiNER.from_pretrained(folder, local_files_only=True).to(PRECISION["dtype"]).eval()
    rows = [model.predict_entities(text, LABELS, threshold=THRESHOLD) for text in SHORT]
    own = lambda entity: {
        "entity_group": entity["label"], "word": entity["text"], "start": entity["start"], "end": entity["end"],
        "score": float(entity["score"]),
    }  # fmt: skip
    return {"entities": [ordered([own(entity) for entity in row]) for row in rows]}


# Translators whose settings Kivu takes from the pipelines, as for other texts.
BY_PIPELINE = ["tiny-madlad"]


def generator(folder, name):
    """Most translations as by `generate`, other texts as by the pipelines."""
    parts = loaded(folder, AutoModelForSeq2SeqLM, use_fast=name not in SLOW)
    task = task_of(name)
    if task == "translation" and name not in BY_PIPELINE:
        return generated(parts, OPTIONS, {}, name)
    if not IS_OLD:
        # The library has no pipelines for texts any more: the settings that they take are given here.
        of_task = (getattr(parts["model"].config, "task_specific_params", None) or {}).get(task, {})
        return generated(parts, OPTIONS[1:], of_task, name)
    pipe = pipeline(task, **parts)
    key = {"summarization": "summary_text", "translation": "translation_text"}.get(task, "generated_text")
    # Each text alone, as padding is no part of the comparison.
    return {json.dumps(options): [first(row)[key].strip() for row in pipe(sources(name), batch_size=1, **options)] for options in OPTIONS}


def generated(parts, all_options, of_task, name):
    """Texts by `generate`."""
    model, tokenizer = parts["model"], parts["tokenizer"]
    target = target_of(model, tokenizer, name)
    # Pipelines do not put it before texts with language tokens.
    prefix = "" if target else of_task.get("prefix", getattr(model.config, "prefix", None)) or ""
    of_task = {key: value for key, value in of_task.items() if key != "prefix"}
    texts = {}
    for options in all_options:
        rows = []
        for text in sources(name):
            encoding = tokenizer(prefix + text, return_tensors="pt")
            encoding.pop("token_type_ids", None)
            ids = model.generate(**encoding, **target, **{**of_task, **options})
            text = tokenizer.decode(ids[0], skip_special_tokens=True, clean_up_tokenization_spaces=False)
            rows.append(text.strip())
        texts[json.dumps(options)] = rows
    return texts


def target_of(model, tokenizer, name):
    """The option of `generate` for the target language."""
    source, target = LANGUAGES.get(name, (None, None))
    if source is None:
        return {}
    tokenizer.src_lang = source
    is_named = hasattr(tokenizer, "get_lang_id")
    token = tokenizer.get_lang_id(target) if is_named else tokenizer.convert_tokens_to_ids(target)
    return {"decoder_start_token_id" if name == "tiny-mbart" else "forced_bos_token_id": token}


KINDS = {
    "embedder": embedder, "sparse": sparse, "multi-vector": multi_vector, "classifier": classifier, "ranker": ranker, "tagger": tagger,
    "generator": generator, "labels": labels, "entities": entities, "gliner": gliner,
}
