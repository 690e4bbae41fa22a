"""Vectors for Arrow columns, in the workers of Spark, Ray, Daft, DuckDB and Polars: `pip install pyarrow`.

    from kivuml.arrow import Embedder

    embed = Embedder("sentence-transformers/all-MiniLM-L6-v2", threads=1)
    table = table.append_column("embedding", embed(table["text"]))
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import threading
from typing import Any

import numpy as np
import pyarrow as pa

from ._model import Model, absolute, dtype_of, load, with_prompt
from ._texts import as_json

_LOCK = threading.Lock()


class Embedder:
    """Embeds Arrow arrays of strings as documents. Null and empty texts have no vector, but null.

    A process opens the model once, at the first call: for all embedders with the same arguments, and also if they are
    pickled for each of its tasks. Nothing is opened in the process that only plans the work.

    Args:
        name: The model's name for `load`, which each machine has to know.
        options: Options for `encode`, such as `{"dimensions": 256}`.
        load_options: Options for `load`, such as `threads=1` where an engine runs a process per core.
    """

    def __init__(self, name: str | os.PathLike[str], options: dict[str, Any] | None = None, **load_options: Any) -> None:
        inspect.signature(load).bind(name, **load_options)
        inspect.signature(Model.encode).bind(None, [], **(options or {}))
        path, reference = absolute(name, load_options)
        self._reference, self._options = (path, as_json(reference)), options or {}
        self._dtype = dtype_of(self._options.get("precision", "float32"))

    def __call__(self, texts: pa.Array | pa.ChunkedArray) -> pa.ListArray:
        if not isinstance(texts, (pa.Array, pa.ChunkedArray)):
            raise TypeError(f"expected `texts` to be an Arrow array, but found `{type(texts).__name__}`")
        if not _has_strings(texts.type):
            raise TypeError(f"expected `texts` to be an Arrow array of strings, but found `{texts.type}`")
        listed = texts.to_pylist()
        given = [text for text in listed if text is not None and text != ""]
        if not given:
            value = pa.from_numpy_dtype(self._dtype)
            return pa.nulls(len(listed), pa.list_(value))
        model = self.model
        vectors = model.encode(given, **with_prompt(self._options, model, "document"))
        is_missing = np.fromiter((text is None or text == "" for text in listed), bool, len(listed))
        ends = np.cumsum(~is_missing) * vectors.shape[1]
        offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
        return pa.ListArray.from_arrays(offsets, pa.array(vectors.ravel()), mask=pa.array(is_missing))

    @property
    def model(self) -> Model:
        """This process's model."""
        with _LOCK:
            return _open(*self._reference)


def _has_strings(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(is_one(kind) for is_one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null))


@functools.cache
def _open(name: str, options: str) -> Model:
    return load(name, **json.loads(options))
