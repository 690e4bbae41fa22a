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


def as_flag(value, argument):
    """Returns whether an option is set that the native module does not get."""
    if value not in (True, False, None):
        raise InvalidError(f"expected `{argument}` to be a boolean, but found {value!r:.40}")
    return bool(value)


def as_json(parameters):
    """Returns the parameters that are set, as JSON."""
    try:
        given = {name: _plain(value) for name, value in parameters.items() if value is not None}
        return json.dumps(given, allow_nan=False)
    except RecursionError:
        raise InvalidError("expected parameters with at most some hundred levels, but found more") from None
    except ValueError:
        raise InvalidError("expected finite numbers as parameters, but found another value") from None


def _plain(value):
    """A value with numpy's and Arrow's as Python's own. `json` would make texts of other keys."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"expected a string as a parameter's key, but found `{type(key).__name__}`")
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    for method in (*_METHODS, "item", "as_py"):
        convert = getattr(value, method, None)
        if callable(convert):
            return _plain(convert())
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"expected a parameter of a plain type, but found `{type(value).__name__}`")
