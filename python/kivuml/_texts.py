"""Arguments with texts: lists, numpy and Arrow arrays, pandas and polars series."""

import json
from collections.abc import KeysView, Mapping, Set

from .errors import InvalidError

# Methods that return a list of Python objects: numpy and pandas, polars, Arrow.
_METHODS = ("tolist", "to_list", "to_pylist")


def as_list(value, argument):
    """Returns the texts as a list of their own, and whether `value` is a single text. The native module checks each text."""
    if isinstance(value, str):
        return [value], True
    found = _listed(value)
    if not isinstance(found, list):
        raise TypeError(
            f"expected `{argument}` to be a string, or a list, an array or a series of strings, but found "
            f"`{type(value).__name__}`"
        )
    if not found:
        raise InvalidError(f"expected at least one text in `{argument}`, but found none")
    return found, False


def _listed(value):
    # A copy, since other threads and tasks may change theirs during the call.
    if isinstance(value, list):
        return value.copy()
    # Iterators of tables and dictionaries yield names, and sets have no order.
    if isinstance(value, (bytes, bytearray, memoryview, Mapping, Set)) and not isinstance(value, KeysView):
        return None
    if getattr(value, "ndim", 1) != 1:
        return None
    for method in _METHODS:
        convert = getattr(value, method, None)
        if callable(convert):
            return convert()
    return list(value) if hasattr(value, "__iter__") else None


def as_json(parameters):
    """Returns the parameters that are set, as JSON."""
    given = {name: value for name, value in parameters.items() if value is not None}
    try:
        return json.dumps(given, default=_plain, allow_nan=False)
    except ValueError:
        raise InvalidError("expected finite numbers as parameters, but found another value") from None


def _plain(value):
    """A value of numpy or Arrow as Python's own."""
    for method in (*_METHODS, "item", "as_py"):
        convert = getattr(value, method, None)
        if callable(convert):
            return convert()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"expected a parameter of a plain type, but found `{type(value).__name__}`")
