"""The native module, which finds ONNX Runtime in this package."""

from pathlib import Path

from . import _native

_LIBRARY = Path(__file__).parent / "lib"
if _LIBRARY.is_dir():
    _native.add_package(str(_LIBRARY))


def native():
    """Returns the native module."""
    return _native
