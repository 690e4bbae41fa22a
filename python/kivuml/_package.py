"""The native module, which finds ONNX Runtime in this package."""

# `pathlib` takes longer to import than this package.
import os

from . import _native

_LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")
if os.path.isdir(_LIBRARY):
    _native.add_package(_LIBRARY)


def native():
    """Returns the native module."""
    return _native
