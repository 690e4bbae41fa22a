"""Models."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Union

import numpy as np

from ._package import native
from ._progress import Progress
from ._texts import as_flag, as_json, as_list
from .errors import InvalidError

if TYPE_CHECKING:
    from typing import ParamSpec

    P = ParamSpec("P")

R = TypeVar("R")
#: Texts: a list, any other iterable, a numpy or Arrow array, or a pandas or polars series.
Texts = Union[Iterable[str], Any]
Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]

DTYPES = {"float32": np.float32, "int8": np.int8, "uint8": np.uint8, "binary": np.int8, "ubinary": np.uint8}
#: Arguments that a caller may change.
_CHANGEABLE = (list, dict, np.ndarray)
#: Texts that one call to the native module runs, between which progress is shown.
_BATCH = 1024
#: The same for generated texts, which take longer.
_GENERATED = 64


class Prediction(TypedDict):
    """A label and its score."""

    label: str
    score: float


class _Ranked(TypedDict):
    index: int
    score: float


class Rank(_Ranked, total=False):
    """A document's position in the list, its score and, on request, its text."""

    text: str


class _Found(TypedDict):
    score: float
    word: str
    start: int
    end: int


class Entity(_Found, total=False):
    """An entity with its label, and its first and last character's positions, as in `transformers`."""

    entity_group: str
    entity: str
    index: int


class Token(TypedDict):
    """A token, and the part of the text that it represents."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


def _in_thread(method: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    @functools.wraps(method)
    async def run(*arguments: P.args, **options: P.kwargs) -> R:
        import asyncio

        # As they are now: the thread may begin later.
        given: Any = [each.copy() if isinstance(each, _CHANGEABLE) else each for each in arguments]
        named: Any = {name: each.copy() if isinstance(each, _CHANGEABLE) else each for name, each in options.items()}
        return await asyncio.to_thread(method, *given, **named)

    run.__name__ = f"a{method.__name__}"
    run.__qualname__ = f"Model.a{method.__name__}"
    run.__doc__ = f"`{method.__name__}` for `await`, on another thread."
    return run


def load(
    name: str | os.PathLike[str],
    *,
    task: str | None = None,
    precision: str | None = None,
    engine: Literal["auto", "native", "onnx"] | None = None,
    threads: int | None = None,
    home: str | os.PathLike[str] | None = None,
    config: str | os.PathLike[str] | None = None,
    allow: Sequence[str] | None = None,
) -> Model:
    """Loads a model: a repository of the Hugging Face hub, a recipe's name, a folder or a bundle, or `s3://…`.

    A model that is not built yet is downloaded and built first. `kivu.toml` and variables such as `KIVU_HOME` apply, as
    they do to the `kivu` command.

    Args:
        name: The model, as in `kivu serve NAME`.
        task: The task, if the model's files allow several.
        precision: The weights' number format: `int8`, `int8-blocks` or `fp32`.
        engine: The engine for local encoders.
        threads: Rows that the model runs at once; by default one per CPU.
        home: The folder for downloads and builds.
        config: A configuration file, instead of `kivu.toml`.
        allow: Keys in the model's files to ignore, although they may change results.

    Raises:
        KivuError: The model is unknown, or cannot be downloaded, built or opened.
    """
    given = {"task": task, "precision": precision, "engine": engine, "threads": threads, "home": home, "config": config}
    path, options = absolute(name, given | {"allow": allow})
    return Model(native().Model.load(path, as_json(options)), path, options)


def absolute(name: str | os.PathLike[str], options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the arguments of `load` with absolute paths, since other processes may have another working folder."""
    if not isinstance(name, (str, os.PathLike)):
        raise TypeError(f"expected `name` to be a string or a path, but found `{type(name).__name__}`")
    path = os.fspath(name)
    folders = {key: os.path.abspath(options[key]) for key in ("home", "config") if options.get(key) is not None}
    # A path that does not exist is no name in the hub.
    is_path = not isinstance(name, str) or os.path.exists(path)
    return os.path.abspath(path) if is_path else path, options | folders


def _restore(name: str, options: dict[str, Any]) -> Model:
    return load(name, **options)


def dtype_of(precision: Any) -> Any:
    """The vectors' type in numpy."""
    if not isinstance(precision, str) or precision not in DTYPES:
        raise InvalidError(f"expected `precision` among {quoted(DTYPES)}, but found {precision!r:.40}")
    return DTYPES[precision]


def with_prompt(options: dict[str, Any], model: Model, role: Literal["query", "document"]) -> dict[str, Any]:
    """Options for `encode`, with the model's prompt for a role unless the caller has chosen a prompt or a task."""
    if "prompt_name" in options or any(options.get(name) is not None for name in ("prompt", "task")):
        return options
    if role == "document" and options.get("instruction") is not None:
        raise InvalidError("`instruction` is for queries, but these texts are documents; leave it out")
    return options | {"prompt_name": model.query_prompt if role == "query" else model.document_prompt}


class Model:
    """A model in this process. `load` creates it.

    Models may be used in several threads at once, and after `os.fork`, where the child opens the model again. A copy in
    another process (`pickle`) loads the model there, by its name. `close`, or the end of a `with` block, frees the memory.
    """

    def __init__(self, opened: Any, name: str, options: dict[str, Any]) -> None:
        self._native = opened
        self._source = (name, options)
        self._description: dict[str, Any] = json.loads(opened.description())

    def __reduce__(self):
        return _restore, self._source

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kivuml.Model {self.name!r} for {self.task}>"

    def close(self) -> None:
        """Frees the model. Later calls raise `ClosedError`."""
        self._native.close()

    @property
    def name(self) -> str:
        """The model's name in requests."""
        return self._description["name"]

    @property
    def task(self) -> str:
        """The model's task, such as `feature-extraction`."""
        return self._description["task"]

    @property
    def max_tokens(self) -> int:
        """Maximum tokens per text, special tokens included."""
        return self._description["max_tokens"]

    @property
    def dimensions(self) -> int | None:
        """Values in a dense vector; `None` if the model has no dense vectors."""
        return self._description["dimensions"]

    @property
    def similarity(self) -> str | None:
        """How dense vectors are to be compared: `cosine`, `dot`, `euclidean` or `manhattan`."""
        return self._description["similarity"]

    @property
    def labels(self) -> list[str] | None:
        """The model's own labels, if it has any."""
        return self._description["labels"]

    @property
    def prompts(self) -> list[str]:
        """The names of the model's prompts."""
        return self._description["prompts"] or []

    @property
    def tasks(self) -> list[str]:
        """The tasks for which the model has adapters."""
        return self._description["tasks"] or []

    @property
    def query_prompt(self) -> str | None:
        """The prompt for queries, if the model has one."""
        return self._description["query_prompt"]

    @property
    def document_prompt(self) -> str | None:
        """The prompt for documents, if the model has one."""
        return self._description["document_prompt"]

    def encode(
        self,
        texts: str | Texts,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        instruction: str | None = None,
        task: str | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        precision: Precision = "float32",
        truncate: bool | None = None,
        show_progress: bool = False,
    ) -> np.ndarray:
        """Embeds texts: an array `[texts, dimensions]`, or `[dimensions]` for a single text.

        Args:
            texts: A text or any number of texts.
            prompt_name: The model's prompt with this name or for this role, such as `query`.
            prompt: A text to put before each text, instead of one of the model's prompts.
            instruction: Replaces the instruction in the model's prompt for queries, if it has one.
            task: One of `tasks`, whose adapters the model uses, with the prompt of this name.
            dimensions: Truncates vectors to this many values.
            normalize: Whether vectors are scaled to length 1; by default the model's setting.
            precision: The vectors' number format. `binary` and `ubinary` have eight dimensions in a value.
            truncate: Whether texts above the token limit are truncated, which is the default, or refused.
            show_progress: Whether progress is written to standard error.
        """
        dtype = dtype_of(precision)
        parameters = as_json({
            "prompt_name": prompt_name,
            "prompt": prompt,
            "instruction": instruction,
            "task": task,
            "dimensions": dimensions,
            "normalize": normalize,
            "output_dtype": None if precision == "float32" else precision,
            "outputs": ["dense"],
            "truncate": truncate,
        })
        listed, is_single = as_list(texts, "texts")
        progress = Progress(len(listed), show_progress)
        found = np.empty((0, 0), np.float32)
        for first in range(0, len(listed), _BATCH):
            batch = listed[first : first + _BATCH]
            data, _ = self._native.run("encode", batch, first, parameters)
            vectors = np.frombuffer(data, dtype).reshape(len(batch), -1)
            if len(batch) == len(listed):
                found = vectors
            else:
                found = found if first else np.empty((len(listed), vectors.shape[1]), vectors.dtype)
                found[first : first + len(batch)] = vectors
            progress.advance(len(batch))
        return found[0] if is_single else found

    def sparse(
        self,
        texts: str | Texts,
        *,
        prompt_name: str | None = None,
        max_active_dims: int | None = None,
        words: bool = False,
        truncate: bool | None = None,
        show_progress: bool = False,
    ) -> Any:
        """Embeds texts as token weights: a dictionary per text, from token ids, or `words`, to weights.

        Args:
            texts: A text or any number of texts.
            prompt_name: As in `encode`.
            max_active_dims: Keeps this many of the largest weights.
            words: Whether weights are named by word instead of token id.
            truncate: As in `encode`.
            show_progress: As in `encode`.
        """
        parameters = {
            "prompt_name": prompt_name,
            "max_active_dims": max_active_dims,
            "words": words,
            "outputs": ["sparse"],
            "truncate": truncate,
        }
        return self._each("sparse", texts, parameters, show_progress, read=iter)

    def multi_vectors(
        self,
        texts: str | Texts,
        *,
        prompt_name: str | None = None,
        normalize: bool | None = None,
        truncate: bool | None = None,
        show_progress: bool = False,
    ) -> Any:
        """Embeds texts as a vector per token: an array `[tokens, dimensions]` for each text.

        Late-interaction models return their projected vectors, all others their token vectors before pooling.
        """
        parameters = {"prompt_name": prompt_name, "normalize": normalize, "truncate": truncate}
        return self._each("multi_vectors", texts, parameters, show_progress, read=_split)

    def rank(
        self,
        query: str,
        documents: Texts,
        *,
        top_k: int | None = None,
        instruction: str | None = None,
        prompt: str | None = None,
        raw_scores: bool = False,
        return_documents: bool = False,
        truncate: bool | None = None,
    ) -> list[Rank]:
        """Ranks documents by a query, the most relevant one first.

        Args:
            query: The query.
            documents: Any number of texts.
            top_k: The number of documents to return; all by default.
            instruction: What makes a document relevant, for models whose template has an instruction.
            prompt: A text to put before the query, instead of the model's prompt.
            raw_scores: Whether scores are logits, cosines or product sums instead of numbers from 0 to 1.
            return_documents: Whether results have the documents' texts.
            truncate: As in `encode`.
        """
        listed, _ = as_list(documents, "documents")
        parameters = as_json({
            "top_k": top_k,
            "instruction": instruction,
            "prompt": prompt,
            "raw_scores": raw_scores,
            "truncate": truncate,
        })
        has_texts = as_flag(return_documents, "return_documents")
        ranks: list[Rank] = json.loads(self._native.run("rank", [query, *listed], 0, parameters))
        if has_texts:
            for rank in ranks:
                rank["text"] = listed[rank["index"]]
        return ranks

    def classify(
        self,
        texts: str | Texts,
        *,
        top_k: int | None = None,
        function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None,
        truncate: bool | None = None,
        show_progress: bool = False,
    ) -> Any:
        """Classifies texts, or tuples with two texts: labels with scores for each, the highest first.

        Args:
            texts: A text or any number of texts.
            top_k: The number of labels to return; all by default.
            function_to_apply: Maps the model's output to scores; the model's own function by default.
            truncate: As in `encode`.
            show_progress: As in `encode`.
        """
        if isinstance(texts, tuple) and len(texts) == 2:
            texts, is_pair = [texts], True
        else:
            is_pair = False
        parameters = {"top_k": top_k, "function_to_apply": function_to_apply, "truncate": truncate}
        found = self._each("classify", texts, parameters, show_progress)
        return found[0] if is_pair else found

    def zero_shot(
        self,
        texts: str | Texts,
        labels: Sequence[str] | str,
        *,
        multi_label: bool = False,
        template: str | None = None,
        prompt: str | None = None,
        truncate: bool | None = None,
        show_progress: bool = False,
    ) -> Any:
        """Classifies texts with your labels: labels with scores for each text, the highest first.

        Args:
            texts: A text or any number of texts.
            labels: The labels.
            multi_label: Whether each label is scored independently.
            template: The hypothesis, with `{}` for the label.
            prompt: Describes the task, to models that read labels and text together.
            truncate: As in `encode`.
            show_progress: As in `encode`.
        """
        parameters = {
            "candidate_labels": _labels(labels, "labels"),
            "multi_label": multi_label,
            "hypothesis_template": template,
            "prompt": prompt,
            "truncate": truncate,
        }
        return self._each("zero_shot", texts, parameters, show_progress)

    def entities(
        self,
        texts: str | Texts,
        labels: Sequence[str] | str | None = None,
        *,
        redact: bool = False,
        style: Literal["label", "number", "hash", "encrypt"] | None = None,
        scope: Literal["text", "request"] | None = None,
        mapping: Mapping[str, str] | None = None,
        key: str | None = None,
        patterns: Sequence[str] | str | None = None,
        aggregation: Literal["none", "simple", "first", "average", "max"] | None = None,
        transition_biases: Mapping[str, float] | None = None,
        threshold: float | None = None,
        stride: int | None = None,
        truncate: bool | None = None,
        show_progress: bool = False,
    ) -> Any:
        """Finds entities: a list for each text; with `redact`, a dictionary with `text` and `entities`, and with the styles
        `number` and `hash` also `mapping`, the originals by placeholder.

        Args:
            texts: A text or any number of texts.
            labels: The entities to find, with a model that takes labels.
            redact: Whether to return texts in which entities are replaced by their labels, too.
            style: What replacements have besides labels; `hash` and `encrypt` need a key.
            scope: Whether numbers are counted in each text, or in all texts of this call, which then run at once.
            mapping: Earlier results' originals by placeholder, whose numbers are continued.
            key: 64 hexadecimal digits.
            patterns: Patterns to find as well, or `all`: numbers with check digits, addresses, keys.
            aggregation: How token labels become entities.
            transition_biases: Finds more or longer entities, or fewer or shorter ones, with a model whose labels mark ends.
            threshold: The lowest score, with a model that takes labels.
            stride: Reads long texts in windows that overlap by this many tokens, or words with a model that takes labels.
            truncate: As in `encode`.
            show_progress: As in `encode`.
        """
        parameters = {
            "labels": None if labels is None else _labels(labels, "labels"),
            "patterns": None if patterns is None else _labels(patterns, "patterns"),
            "redact": redact,
            "redact_style": style,
            "redact_scope": scope,
            "redact_mapping": mapping,
            "redact_key": key,
            "aggregation_strategy": aggregation,
            "transition_biases": transition_biases,
            "threshold": threshold,
            "stride": stride,
            "truncate": truncate,
        }
        # A batch does not know the numbers of the one before.
        return self._each("entities", texts, parameters, show_progress, sys.maxsize if scope == "request" else _BATCH)

    def restore(
        self,
        texts: str | Texts,
        mapping: Mapping[str, str] | None = None,
        *,
        key: str | None = None,
        show_progress: bool = False,
    ) -> Any:
        """Puts originals back: a dictionary for each text, with `text` and the numbers of placeholders that were `restored`
        and that are `unknown`. The model does not run.

        Args:
            texts: A text or any number of texts, also of another program around the placeholders.
            mapping: The originals by placeholder, from `entities`.
            key: The key of encrypted originals.
            show_progress: As in `encode`.
        """
        parameters = {"redact_mapping": mapping, "redact_key": key}
        return self._each("restore", texts, parameters, show_progress)

    def extract(
        self,
        texts: str | Texts,
        schema: Any,
        *,
        form: Literal["schema", "extract_entities", "extract_json", "classify_text"] = "schema",
        threshold: float | None = None,
        confidence: bool = False,
        spans: bool = False,
        truncate: bool | None = None,
        show_progress: bool = False,
    ) -> Any:
        """Extracts what a schema describes, with a model that reads schemas: a dictionary for each text.

        Args:
            texts: A text or any number of texts.
            schema: What is extracted, in one of the forms of the package `gliner2`; the order of names is kept.
            form: The schema's form.
            threshold: Values have at least this score, 0.5 by default.
            confidence: Whether values have scores.
            spans: Whether values have places in the text.
            truncate: As in `encode`.
            show_progress: As in `encode`.
        """
        parameters = {
            "task": form,
            "schema": schema,
            "threshold": threshold,
            "include_confidence": confidence,
            "include_spans": spans,
            "truncate": truncate,
        }
        return self._each("extract", texts, parameters, show_progress)

    def translate(
        self,
        texts: str | Texts,
        source: str | None = None,
        target: str | None = None,
        *,
        truncate: bool | None = None,
        show_progress: bool = False,
        **generation: Any,
    ) -> Any:
        """Translates texts, sentence by sentence. Returns a text for each text.

        Args:
            texts: A text or any number of texts.
            source: The language of the texts, if the model has several.
            target: The language to translate to, if the model has several.
            truncate: Whether sentences above the token limit are truncated.
            show_progress: As in `encode`.
            generation: Generation settings, such as `num_beams=4`.
        """
        parameters = {"src_lang": source, "tgt_lang": target, "split": "sentences"}
        return self._generate("translate", texts, parameters, truncate, show_progress, generation)

    def summarize(
        self, texts: str | Texts, *, truncate: bool | None = None, show_progress: bool = False, **generation: Any
    ) -> Any:
        """Summarizes texts. Returns a text for each text.

        Args:
            texts: A text or any number of texts.
            truncate: Whether texts above the token limit are truncated.
            show_progress: As in `encode`.
            generation: Generation settings, such as `max_new_tokens=60`.
        """
        return self._generate("generate", texts, {}, truncate, show_progress, generation)

    #: Generates texts with a model for `text2text-generation`, as `summarize` does.
    generate = summarize

    def tokenize(
        self,
        texts: str | Texts,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        instruction: str | None = None,
        task: str | None = None,
        add_special_tokens: bool = True,
    ) -> Any:
        """Returns each text's tokens.

        Args:
            texts: A text or any number of texts.
            prompt_name: The prompt to put before each text.
            prompt: A text to put before each text, instead of one of the model's prompts.
            instruction: Replaces the instruction in the model's prompt for queries, if it has one.
            task: The task whose prompt to put before each text, in a model with tasks.
            add_special_tokens: Whether the model's special tokens are added.
        """
        parameters = {
            "prompt_name": prompt_name,
            "prompt": prompt,
            "instruction": instruction,
            "task": task,
            "add_special_tokens": add_special_tokens,
        }
        return self._each("tokenize", texts, parameters, False)

    def _each(
        self,
        task: str,
        texts: Any,
        parameters: dict[str, Any],
        show_progress: bool,
        size: int = _BATCH,
        read: Callable[[Any], Iterable[Any]] = json.loads,
    ) -> Any:
        """Runs batches, and returns a result per text, which `read` takes from a batch's, or that of a single text."""
        text, (listed, is_single) = as_json(parameters), as_list(texts, "texts")
        progress, found = Progress(len(listed), show_progress), []
        for first in range(0, len(listed), size):
            batch = listed[first : first + size]
            found.extend(read(self._native.run(task, batch, first, text)))
            progress.advance(len(batch))
        return found[0] if is_single else found

    def _generate(
        self, task: str, texts: Any, parameters: dict[str, Any], truncate: Any, show_progress: bool, generation: Any
    ) -> Any:
        parameters = parameters | {"truncate": truncate, "generate_parameters": generation or None}
        # A text's samples depend on the seed and on its position in the call.
        batch = sys.maxsize if generation.get("seed") is not None else _GENERATED
        return self._each(task, texts, parameters, show_progress, batch)

    aencode = _in_thread(encode)
    asparse = _in_thread(sparse)
    amulti_vectors = _in_thread(multi_vectors)
    arank = _in_thread(rank)
    aclassify = _in_thread(classify)
    azero_shot = _in_thread(zero_shot)
    aentities = _in_thread(entities)
    arestore = _in_thread(restore)
    aextract = _in_thread(extract)
    atranslate = _in_thread(translate)
    asummarize = _in_thread(summarize)
    agenerate = _in_thread(summarize)
    atokenize = _in_thread(tokenize)


def _split(found: tuple[bytearray, list[int]]) -> list[np.ndarray]:
    """Vectors per token, as an array for each text."""
    data, counts = found
    vectors = np.frombuffer(data, np.float32).reshape(sum(counts), -1) if data else np.empty((0, 0), np.float32)
    return np.split(vectors, np.cumsum(counts)[:-1])


def _labels(labels: Any, argument: str) -> Any:
    """Labels as a list, or a text with commas between them."""
    return labels if isinstance(labels, str) else as_list(labels, argument)[0]


def quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
