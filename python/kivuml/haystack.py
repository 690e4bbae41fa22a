"""Embedders for Haystack: `pip install haystack-ai`.

    from kivuml.haystack import KivuDocumentEmbedder, KivuTextEmbedder

    pipeline.add_component("embedder", KivuTextEmbedder("BAAI/bge-small-en-v1.5"))
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from haystack import Document, component, default_from_dict, default_to_dict

from ._model import Model, load, with_prompt


class _Embedder:
    """A model that is loaded by its name once it is used, so that pipelines can be written to files."""

    def __init__(self, model: str, options: dict[str, Any] | None = None) -> None:
        self.model = model
        self.options = options or {}
        self._opened: Model | None = None

    def warm_up(self) -> None:
        """Loads the model."""
        if self._opened is None:
            self._opened = load(self.model)

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self, model=self.model, options=self.options)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        return default_from_dict(cls, data)

    def _encode(self, texts: Any, role: Literal["query", "document"]) -> Any:
        self.warm_up()
        assert self._opened is not None
        return self._opened.encode(texts, **with_prompt(self.options, self._opened, role)).tolist()


@component
class KivuTextEmbedder(_Embedder):
    """Embeds a query.

    Args:
        model: The model's name for `load`.
        options: Options for `encode`, such as `{"dimensions": 256}`.
    """

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, Any]:
        return {"embedding": self._encode([text], "query")[0]}


@component
class KivuDocumentEmbedder(_Embedder):
    """Embeds documents.

    Args:
        model: The model's name for `load`.
        options: Options for `encode`, such as `{"dimensions": 256}`.
    """

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        documents = list(documents)  # Other threads may change theirs.
        if not documents:
            return {"documents": []}
        vectors = self._encode([document.content for document in documents], "document")
        return {"documents": [replace(document, embedding=vector) for document, vector in zip(documents, vectors)]}
