"""A class with the methods of sentence-transformers' `SentenceTransformer` that return numpy arrays.

    from kivuml.sentence_transformers import SentenceTransformer
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._model import Model, load
from .errors import InvalidError


class SentenceTransformer:
    """A model with `encode` and its siblings as in sentence-transformers; tensors are not supported.

    Args:
        model_name_or_path: A model, or its name for `load`.
        truncate_dim: Truncates vectors to this many values.
        options: Options for `load`.
    """

    def __init__(self, model_name_or_path: Model | str, truncate_dim: int | None = None, **options: Any) -> None:
        if isinstance(model_name_or_path, Model):
            self.model = model_name_or_path
        else:
            self.model = load(model_name_or_path, **options)
        self.truncate_dim = truncate_dim

    @property
    def max_seq_length(self) -> int:
        return self.model.max_tokens

    def get_sentence_embedding_dimension(self) -> int | None:
        return self.truncate_dim or self.model.dimensions

    def encode(
        self,
        sentences: Any,
        prompt_name: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        precision: Any = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """Embeds texts. `batch_size` has no effect: texts are batched without padding."""
        if convert_to_tensor:
            raise InvalidError("expected `convert_to_tensor` false, but found true; make a tensor with `torch.from_numpy`")
        if output_value != "sentence_embedding":
            raise InvalidError("expected `output_value` to be `sentence_embedding`; see `Model.multi_vectors` for others")
        if not isinstance(sentences, str) and hasattr(sentences, "__len__") and not len(sentences):
            return np.empty((0, truncate_dim or self.get_sentence_embedding_dimension() or 0), np.float32)
        vectors = self.model.encode(
            sentences,
            prompt_name=prompt_name,
            dimensions=truncate_dim or self.truncate_dim,
            # As there: false leaves the model's own normalization.
            normalize=True if normalize_embeddings else None,
            precision=precision,
            show_progress=bool(show_progress_bar),
        )
        return vectors if convert_to_numpy else list(vectors)

    def encode_query(self, sentences: Any, **options: Any) -> Any:
        options.setdefault("prompt_name", self.model.query_prompt)
        return self.encode(sentences, **options)

    def encode_document(self, sentences: Any, **options: Any) -> Any:
        options.setdefault("prompt_name", self.model.document_prompt)
        return self.encode(sentences, **options)

    def similarity(self, first: Any, second: Any) -> np.ndarray:
        """Cosines between all pairs; 0 for vectors of zeros, as there."""

        def normalized(vectors: Any) -> np.ndarray:
            rows = np.atleast_2d(np.asarray(vectors, np.float32))
            return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)

        return normalized(first) @ normalized(second).T
