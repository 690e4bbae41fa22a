"""A class with the methods of sentence-transformers' `SentenceTransformer` that return numpy arrays.

    from kivuml.sentence_transformers import SentenceTransformer
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._model import Model, load, quoted
from .errors import InvalidError


class SentenceTransformer:
    """A model with `encode` and its siblings as in sentence-transformers 5; tensors are not supported.

    Args:
        model_name_or_path: A model, or its name for `load`.
        truncate_dim: Truncates vectors to this many values.
        options: Options for `load`.
    """

    def __init__(self, model_name_or_path: Model | str, *, truncate_dim: int | None = None, **options: Any) -> None:
        if isinstance(model_name_or_path, Model):
            self.model = model_name_or_path
        else:
            self.model = load(model_name_or_path, **options)
        self.truncate_dim = truncate_dim

    @property
    def max_seq_length(self) -> int:
        return self.model.max_tokens

    def get_embedding_dimension(self) -> int | None:
        dimensions = self.model.dimensions
        return min(dimensions, self.truncate_dim or dimensions) if dimensions else dimensions

    def get_sentence_embedding_dimension(self) -> int | None:
        return self.get_embedding_dimension()

    def encode(
        self,
        inputs: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: Any = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: Any = None,
        chunk_size: int | None = None,
        **options: Any,
    ) -> Any:
        """Embeds texts. `batch_size` has no effect: texts are batched without padding."""
        if inputs is None:
            inputs = options.pop("sentences", None)  # Its name before version 5.4.
        if options:
            raise InvalidError(f"expected options of `encode` in sentence-transformers, but found `{min(options):.40}`")
        for name, value in {"pool": pool, "chunk_size": chunk_size}.items():
            if value is not None:
                raise InvalidError(f"expected no `{name}`, but found one; the model runs in this process, on all CPUs")
        if device is not None and str(device) != "cpu":
            raise InvalidError("expected `device` to be `cpu`, but found another one")
        if convert_to_tensor:
            raise InvalidError("expected `convert_to_tensor` false, but found true; make a tensor with `torch.from_numpy`")
        if output_value != "sentence_embedding":
            raise InvalidError("expected `output_value` to be `sentence_embedding`; see `Model.multi_vectors` for others")
        if truncate_dim is None:
            truncate_dim = self.truncate_dim
        precision = precision or "float32"
        if not isinstance(inputs, str) and hasattr(inputs, "__len__") and not len(inputs):
            return np.empty((0, truncate_dim or self.get_embedding_dimension() or 0), np.float32)
        # There, truncated vectors are not normalized again unless the call asks for it.
        is_cut = truncate_dim is not None and not normalize_embeddings and precision == "float32"
        vectors = self.model.encode(
            inputs,
            **self._prompt(prompt_name, prompt),
            dimensions=None if is_cut else truncate_dim,
            # As there: false leaves the model's own normalization.
            normalize=True if normalize_embeddings else None,
            precision=precision,
            show_progress=bool(show_progress_bar),
        )
        if is_cut:
            vectors = vectors[..., :truncate_dim]
        return vectors if convert_to_numpy or vectors.ndim == 1 else list(vectors)

    def encode_query(
        self, inputs: Any = None, prompt_name: str | None = None, prompt: str | None = None, *others: Any, **options: Any
    ) -> Any:
        name = "query" if prompt_name is None and prompt is None else prompt_name
        return self.encode(inputs, name, prompt, *others, **options)

    def encode_document(
        self, inputs: Any = None, prompt_name: str | None = None, prompt: str | None = None, *others: Any, **options: Any
    ) -> Any:
        name = "document" if prompt_name is None and prompt is None else prompt_name
        return self.encode(inputs, name, prompt, *others, **options)

    def _prompt(self, name: str | None, prompt: str | None) -> dict[str, str | None]:
        """The prompt for `encode`. As there, names are no aliases: without a prompt of this name, queries and documents
        have neither the default prompt nor one with another name such as `passage`."""
        if name is None or prompt is not None or name in self.model.prompts:
            return {"prompt_name": name, "prompt": prompt}
        if name not in ("query", "document"):
            raise InvalidError(f"unknown prompt {name!r:.40}; the model's prompts: {quoted(self.model.prompts)}")
        if self.model.tasks:
            return {"prompt_name": self.model.query_prompt if name == "query" else self.model.document_prompt}
        return {"prompt": ""}

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """The model's similarity between all pairs; distances are negated, and cosines of zeros are 0, as there."""
        left, right = (np.atleast_2d(np.asarray(vectors, np.float32)) for vectors in (embeddings1, embeddings2))
        match self.model.similarity:
            case "dot":
                return left @ right.T
            # A row at a time: all differences at once would take the memory of many matrices.
            case "euclidean":
                return np.stack([-np.linalg.norm(right - row, axis=1) for row in left])
            case "manhattan":
                return np.stack([-np.abs(right - row).sum(axis=1) for row in left])
        left, right = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12) for rows in (left, right))
        return left @ right.T
