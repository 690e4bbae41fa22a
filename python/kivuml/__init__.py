"""Runs Hugging Face transformer models in this process, without PyTorch.

    from kivuml import load

    model = load("sentence-transformers/all-MiniLM-L6-v2")
    model.encode(["The ferry leaves at seven.", "A cat sat on the mat."])
"""

from ._model import Entity, Model, Prediction, Rank, Token, load
from .errors import KivuError

__all__ = ["Entity", "KivuError", "Model", "Prediction", "Rank", "Token", "load"]
