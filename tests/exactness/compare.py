"""Differences between results."""

import math

TOLERANCE = 3e-5


def is_finite(value):
    if isinstance(value, float):
        return math.isfinite(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(is_finite, inner))


def largest(value):
    if isinstance(value, (int, float)):
        return abs(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(map(largest, inner), default=0.0)


def difference(left, right):
    """The largest difference of two results; infinite if they are not of one form. Absent weights are 0."""
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return abs(left - right)
    if isinstance(left, dict) and isinstance(right, dict):
        names = {*left, *right}
        is_weights = all(isinstance(value, float) for value in [*left.values(), *right.values()])
        absent = 0.0 if is_weights and all(name.isdigit() for name in names) else None
        return max((difference(left.get(name, absent), right.get(name, absent)) for name in names), default=0.0)
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return max(map(difference, left, right), default=0.0)
    return 0.0 if left == right else math.inf


def differences(found, expected, exact=None, others=()):
    """The names of results that differ, with by how much. Kivu refuses a request whose result is nothing.

    `exact` are the expected results in double precision, if they are known: results may then differ from them by as much
    more as the expected ones do, or `others`, which are from rounded weights.
    """
    found_both = [name for name in expected if found.get(name) is not None]
    measured = {name: difference(found[name], (exact or expected)[name]) for name in found_both}
    allowed = {name: TOLERANCE * max(1.0, largest(expected[name])) for name in found_both}
    if exact is not None:
        for name in found_both:
            allowed[name] += max(difference(other[name], exact[name]) for other in (expected, *others))
    return {name: by for name, by in measured.items() if not by <= allowed[name]}
