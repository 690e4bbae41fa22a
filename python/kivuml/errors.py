"""Exceptions. Each is a `KivuError`, and also the built-in exception that describes it best.

Messages are the same as those of `kivu serve`: expected X, but found Y; what to do. Arguments of a wrong type raise
`TypeError`.
"""


class KivuError(Exception):
    """A call that failed."""


class InvalidError(KivuError, ValueError):
    """An argument has an invalid value, or does not fit the model."""


class TooLargeError(KivuError, ValueError):
    """An argument exceeds a limit."""


class ClosedError(KivuError, ValueError):
    """The model is closed."""


class UnknownModelError(KivuError, LookupError):
    """There is no model with this name."""


class ConfigError(KivuError, ValueError):
    """The configuration or a model's name is invalid."""


class ModelError(KivuError, RuntimeError):
    """A model is damaged or unsupported, or cannot be built."""


class InferenceError(KivuError, RuntimeError):
    """A model failed to run."""


class UnavailableError(KivuError, ConnectionError):
    """A model cannot be reached at the moment."""


class DeadlineExceededError(KivuError, TimeoutError):
    """There was no result in time."""


class ForkError(KivuError, RuntimeError):
    """The process was forked while a call was in progress in another thread."""


class KivuOSError(KivuError, OSError):
    """An operating system call failed."""
