"""Runs Hugging Face transformer models in this process, without PyTorch.

    from kivuml import load

    model = load("sentence-transformers/all-MiniLM-L6-v2")
    model.encode(["The ferry leaves at seven.", "A cat sat on the mat."])
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._model import Entity, Model, Prediction, Rank, Token, load
    from .errors import KivuError

__all__ = ["Entity", "KivuError", "Model", "Prediction", "Rank", "Token", "load"]


def __getattr__(name: str) -> Any:
    # The `kivu` command imports this package, too, and does not need numpy.
    if name not in __all__:
        raise AttributeError(f"module `kivuml` has no attribute `{name}`")
    from . import _model, errors

    module = errors if name == "KivuError" else _model
    return globals().setdefault(name, getattr(module, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
