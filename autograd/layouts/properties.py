"""Numerical tests of what a declaration states about its function, and layouts rely on.

==========  ====================================================================================================
property    what is tested
==========  ====================================================================================================
linear      a letter other than N and S: ``f(r a + s b) = r f(a) + s f(b)`` in the operands of that letter
dims        the function of two parts of a dimension gives the two parts, or the addends, of its result
repeatable  two calls give the same result, and leave the operands as they were
==========  ====================================================================================================

The tests use NumPy arrays of the shapes and dtypes of a call. They find functions that are wrong for random values; a
function that differs only at rare values, such as beyond a bound, passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .layout import Mix, Sum

__all__ = ["dims_fault", "is_testable", "linear_fault", "repeatable_fault"]


def is_testable(arrays: Sequence[Any]) -> bool:
    """Whether all operands are NumPy arrays or numbers: not on a device, and with values."""
    return all(isinstance(a, np.ndarray | np.generic | int | float | complex) for a in arrays)


def linear_fault(op: Any, letter: str, arrays: Sequence[Any], options: tuple[Any, ...], seed: int = 0) -> str | None:
    """Test that an operation is linear in the operands of a letter, at random values of them.

    The other operands have the given values.

    Returns
    -------
    str or None
        Where it is not linear; None if it is, or if the function takes no random values.
    """
    at = [i for i, one in enumerate(op.letters(len(arrays))) if one == letter]
    if any(np.asarray(arrays[i]).dtype.kind not in "iufc" for i in at):
        return None
    rng = np.random.default_rng(seed)
    r, s = (2, 3) if any(np.asarray(arrays[i]).dtype.kind in "iu" for i in at) else (-1.5, 0.75)
    xs, zs, sums = list(arrays), list(arrays), list(arrays)
    for i in at:
        a = np.asarray(arrays[i])
        xs[i], zs[i] = _random_like(a, rng), _random_like(a, rng)
        sums[i] = (r * xs[i] + s * zs[i]).astype(a.dtype)
    with np.errstate(all="ignore"):
        fx, fz, f = (_outputs(op, operands, options) for operands in (xs, zs, sums))
    if fx is None or fz is None or f is None:
        return None
    for x, z, y in zip(fx, fz, f, strict=True):
        if x.dtype.kind not in "biufc" or not x.shape == z.shape == y.shape:
            continue
        with np.errstate(all="ignore"):
            fault = _difference(y, r * x.astype(y.dtype) + s * z.astype(y.dtype), np.abs(x) + np.abs(z))
        if fault:
            names = _names(op, at)
            return (
                f"it is not linear in {names}: for random a and b in its place, f({r:g}*a + {s:g}*b) and "
                f"{r:g}*f(a) + {s:g}*f(b) {fault}"
            )
    return None


def dims_fault(op: Any, arrays: Sequence[Any], options: tuple[Any, ...]) -> str | None:
    """Test what `dims` states about each dimension, by the function's results on two parts of the given operands.

    Returns
    -------
    str or None
        Which dimension does not become what `dims` states; None if all do, or if the function takes no such parts.
    """
    if op.dims is None:
        return None
    shapes = [tuple(np.shape(a)) for a in arrays]
    with np.errstate(all="ignore"):
        whole = _outputs(op, arrays, options)
    if whole is None:
        return None
    stated = op.dims(shapes, options)
    for number, y in enumerate(whole):
        maps = stated if len(whole) == 1 and not hasattr(op, "outputs") else stated[number]
        for place, along in _places(maps).items():
            parts = list(_parts(arrays, along))
            for cuts in parts[:1]:
                with np.errstate(all="ignore"):
                    found = [_outputs(op, operands, options) for operands in cuts]
                if found[0] is None or found[1] is None:
                    continue
                a, b = found[0][number], found[1][number]
                i, d, _ = along[0]
                if isinstance(place, Sum):
                    fault = _fault_of_parts(y, a, b, None, options)
                    states = f"dimension {d} of {op.operand_name(i)} is summed over"
                else:
                    fault = _fault_of_parts(y, a, b, place, options)
                    states = f"dimension {d} of {op.operand_name(i)} becomes dimension {place} of the result"
                if fault:
                    return f"dims states that {states}, and the results on two parts of it {fault}"
    return None


def repeatable_fault(op: Any, arrays: Sequence[Any], options: tuple[Any, ...]) -> str | None:
    """Test that two calls give the same result, as copies on the ranks must, and that the operands are not changed."""
    given = [np.array(a) if isinstance(a, np.ndarray) else a for a in arrays]
    with np.errstate(all="ignore"):
        first, second = _outputs(op, given, options), _outputs(op, given, options)
    if first is None or second is None:
        return None
    for i, (a, b) in enumerate(zip(given, arrays, strict=True)):
        if not np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind in "fc"):
            return f"it changes its operand {op.operand_name(i)}"
    for x, y in zip(first, second, strict=True):
        if x.shape != y.shape or not np.array_equal(x, y, equal_nan=x.dtype.kind in "fc"):
            return "two calls with the same operands give different results, so copies on the ranks would differ"
    return None


def _outputs(op: Any, arrays: Sequence[Any], options: tuple[Any, ...]) -> list[np.ndarray] | None:
    """The results of the function; None if it does not take these operands, which it then refuses in a call too."""
    try:
        y = op.function(*arrays, *options)
    except Exception:  # a user's function may raise anything for operands that it does not take
        return None
    if y is NotImplemented:
        return None
    return [np.asarray(one) for one in (y if hasattr(op, "outputs") else (y,))]


def _random_like(a: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Random values of several magnitudes; small positive ones for integers."""
    if a.dtype.kind in "iu":
        return np.asarray(rng.integers(0, 8, a.shape)).astype(a.dtype)
    largest = 1 if np.finfo(a.dtype).eps < 1e-4 else 0  # for float16, whose rounding hides small differences
    z = rng.standard_normal(a.shape) * 10.0 ** rng.uniform(-1, largest, a.shape)
    if a.dtype.kind == "c":
        z = z + 1j * rng.standard_normal(a.shape)
    return np.asarray(z).astype(a.dtype)


def _difference(got: np.ndarray, expected: np.ndarray, terms: np.ndarray) -> str:
    """By how much two results differ beyond rounding; "" if they do not."""
    if not got.size:
        return ""
    exact = got.dtype.kind in "biu"
    rounding = 0.0 if exact else min(10 * float(np.sqrt(np.finfo(got.dtype).eps)), 0.05)
    finite = np.isfinite(got) & np.isfinite(expected)
    if not finite.any():
        return ""
    scale = float(np.max(np.abs(terms)[finite] if terms.shape == got.shape else np.abs(terms), initial=0.0))
    apart = np.where(finite, np.abs(np.subtract(got, expected, dtype=object if exact else None)), 0)
    worst = float(np.max(apart))
    return f"differ by up to {worst:.3g}" if worst > rounding * scale else ""


def _names(op: Any, at: Sequence[int]) -> str:
    return " and ".join(op.operand_name(i) for i in at) if len(at) < 4 else "its operands"


def _places(maps: Sequence[Sequence[Any]]) -> dict[Any, list[tuple[int, int, Any]]]:
    """By dimension of the result, or sum: the operands' dimensions that become it, as (operand, dimension, factor)."""
    found: dict[Any, list[tuple[int, int, Any]]] = {}
    for i, dims in enumerate(maps):
        for d, entry in enumerate(dims):
            place, factor = entry if isinstance(entry, tuple) else (entry, 1)
            if place is not Mix:
                found.setdefault(place, []).append((i, d, factor))
    return found


def _parts(arrays: Sequence[Any], along: Sequence[tuple[int, int, Any]]) -> Iterator[tuple[list[Any], list[Any]]]:
    """The operands cut in two along the dimensions; nothing where their extents have no common cut."""
    long = [(i, d, factor) for i, d, factor in along if np.shape(arrays[i])[d] != 1]
    if not long or len({np.shape(arrays[i])[d] * factor for i, d, factor in long}) != 1:
        return
    i, d, factor = long[0]
    n = np.shape(arrays[i])[d]
    for k in sorted(range(1, n), key=lambda k: abs(2 * k - n - 1)):
        cuts = [k if f == factor else k * factor / f for _, _, f in long]  # the factor of empty rows is 0
        if all(c == int(c) for c in cuts) and k * factor == int(k * factor):
            first, second = list(arrays), list(arrays)
            for (j, e, _), c in zip(long, cuts, strict=True):
                before: list[Any] = [slice(None)] * np.ndim(arrays[j])
                after = list(before)
                before[e], after[e] = slice(None, int(c)), slice(int(c), None)
                first[j], second[j] = first[j][tuple(before)], second[j][tuple(after)]
            yield first, second


def _fault_of_parts(y: Any, a: Any, b: Any, place: int | None, options: Any) -> str:
    """The difference between the results on two parts, joined, and the whole result; "" if there is none."""
    if place is None:
        fits = a.shape == b.shape == y.shape
    else:
        fits = y.ndim == a.ndim == b.ndim > place and all(
            (m + n == whole) if d == place else (m == n == whole)
            for d, (m, n, whole) in enumerate(zip(a.shape, b.shape, y.shape, strict=True))
        )
    if not fits:  # options may hold extents, which are others in a call with a part
        return "" if options else f"have shapes {list(a.shape)} and {list(b.shape)}, and {list(y.shape)} on the whole"
    if y.dtype.kind not in "biufc":
        return ""
    with np.errstate(all="ignore"):
        made = a + b if place is None else np.concatenate([a, b], axis=place)
        fault = _difference(y, made, np.abs(a) + np.abs(b) if place is None else np.abs(y))
    return f"{'added' if place is None else 'concatenated'} and the result on the whole {fault}" if fault else ""
