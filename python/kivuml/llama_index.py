"""Embeddings for LlamaIndex: `pip install llama-index-core`.

    from kivuml.llama_index import KivuEmbedding

    Settings.embed_model = KivuEmbedding("BAAI/bge-small-en-v1.5")
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from ._model import Model, load, with_prompt


class KivuEmbedding(BaseEmbedding):
    """A model as LlamaIndex's embedding model, with its prompts for queries and documents.

    Args:
        model: A model, or its name for `load`.
        options: Options for `encode`, such as `dimensions=256`.
        settings: LlamaIndex's settings, such as `embed_batch_size=256`.
    """

    _model: Model = PrivateAttr()
    _options: dict[str, Any] = PrivateAttr()

    def __init__(self, model: Model | str, options: dict[str, Any] | None = None, **settings: Any) -> None:
        opened = model if isinstance(model, Model) else load(model)
        super().__init__(**{"model_name": opened.name} | settings)
        self._model, self._options = opened, options or {}

    @classmethod
    def class_name(cls) -> str:
        return "KivuEmbedding"

    def _encode(self, texts: list[str], role: Literal["query", "document"]) -> Any:
        return self._model.encode(texts, **with_prompt(self._options, self._model, role)).tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._encode([query], "query")[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._encode([text], "document")[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._encode(texts, "document")

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)
