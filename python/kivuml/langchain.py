"""Embeddings for LangChain: `pip install langchain-core`.

    from kivuml.langchain import KivuEmbeddings

    embeddings = KivuEmbeddings("BAAI/bge-small-en-v1.5")
"""

from __future__ import annotations

from typing import Any

from langchain_core.embeddings import Embeddings

from ._model import Model, load, with_prompt


class KivuEmbeddings(Embeddings):
    """A model as LangChain's `Embeddings`, with its prompts for queries and documents.

    Args:
        model: A model, or its name for `load`.
        options: Options for `encode`, such as `dimensions=256`.
    """

    def __init__(self, model: Model | str, **options: Any) -> None:
        self.model = model if isinstance(model, Model) else load(model)
        self._options = options

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if isinstance(texts, str):
            raise TypeError("expected `texts` to be a list of strings, but found `str`; `embed_query` embeds a single text")
        if not texts:
            return []
        return self.model.encode(texts, **with_prompt(self._options, self.model, "document")).tolist()

    def embed_query(self, text: str) -> list[float]:
        # In a list, so that a list of texts is an error.
        return self.model.encode([text], **with_prompt(self._options, self.model, "query"))[0].tolist()
