"""Loops over elements that Numba compiles to one pass each; `kernels.compiled` loads this file.

Arrays are contiguous, and those that are only read may be read-only. Numbers have the arrays' dtype, because a Python
number would make the arithmetic float64. Each loop speeds up its whole operation by a factor of 1.3 or more over NumPy.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.core.caching import FunctionCache
from numba.np.numpy_support import as_dtype

from ..files import is_as_safe

__all__ = ["address_of", "arguments_of", "compiled", "is_cached"]

f32 = np.float32


def _momentum(p: Any, v: Any, g: Any, rate: Any, keep: Any) -> None:
    for i in range(p.size):
        v[i] = keep * v[i] + g[i]
        p[i] -= rate * v[i]


def _sum_rows(xs: Any, places: Any, out: Any) -> bool:
    """Add each row to the one at its place, in their order; False if a place is out of range."""
    for row in range(xs.shape[0]):
        place = places[row]
        if place < 0:
            place += out.shape[0]
        if place < 0 or place >= out.shape[0]:
            return False
        x, y = xs[row], out[place]
        for j in range(x.size):
            y[j] += x[j]
    return True


def _relu_backward(ct: Any, y: Any, out: Any) -> None:
    for i in range(y.size):
        out[i] = ct[i] * (y[i] > 0)


def _adam(
    p: Any, first: Any, second: Any, g: Any, mean: Any, keep_mean: Any, square: Any, keep_square: Any, eps: Any,
    size: Any, decay: Any, keep: Any,
) -> None:  # fmt: skip
    """`adam.adam`: `decay` times the parameter is added to the gradient, and `keep` times the parameter is kept."""
    for i in range(p.size):
        d = g[i] + decay * p[i]
        m = keep_mean * first[i] + mean * d
        v = keep_square * second[i] + square * (d * d)
        first[i], second[i] = m, v
        p[i] = keep * p[i] - size * (m / (math.sqrt(v) + eps))


@njit(error_model="numpy", forceinline=True)
def _exp(x: Any) -> Any:
    """e^x of a float32 to its precision, in steps that a compiler can vectorize. It keeps NaN.

    It is zero below -87, where a float32 loses precision, and infinity from 89 on.

    ``2^k exp(r)`` with ``|r| <= ln(2) / 2``, where ln(2) is subtracted in two parts and exp(r) is a polynomial of
    degree 7. Source: Cody & Waite 1980; Moshier, Cephes Mathematical Library (expf).
    """
    shown = x >= f32(-87) or x != x
    x = f32(89) if x > f32(89) else x  # min and max would lose a NaN
    x = x if shown else f32(-87)
    k = np.floor(x * f32(1.44269504088896341) + f32(0.5))
    r = (x - k * f32(0.693359375)) - k * f32(-2.12194440e-4)
    e = f32(1.9875691500e-4) * r + f32(1.3981999507e-3)
    e = ((e * r + f32(8.3334519073e-3)) * r + f32(4.1665795894e-2)) * r + f32(1.6666665459e-1)
    e = (e * r + f32(5.0000001201e-1)) * (r * r) + r + f32(1)
    e = e * np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)
    return e if shown else f32(0)


def _gelu(x: Any, y: Any, d: Any) -> None:
    """`activations._gelu_tanh`."""
    for i in range(x.size):
        square = x[i] * x[i]
        u = (f32(-0.0713548162726) * square + f32(-1.59576912160573)) * x[i]  # -2 sqrt(2 / pi) (x + 0.044715 x^3)
        h = f32(1) / (f32(1) + _exp(u))
        y[i] = x[i] * h
        d[i] = h + y[i] * (f32(1) - h) * (f32(1.59576912160573) + f32(0.2140644488178) * square)


def _cross_entropy(logits: Any, labels: Any, losses: Any, exps: Any, sums: Any) -> bool:
    """Each row's loss, exp(logits - largest logit), and the sum of these; False if a label is out of range."""
    for row in range(logits.shape[0]):
        x, e, label = logits[row], exps[row], labels[row]
        if label < 0 or label >= x.size:
            return False
        top = x[0]
        for j in range(x.size):
            top = x[j] if x[j] > top else top
        total = f32(0)
        for j in range(x.size):
            e[j] = _exp(x[j] - top)
            total += e[j]
        sums[row] = total
        losses[row] = np.log(total) + top - x[label]
    return True


def _cross_entropy_backward(ct: Any, exps: Any, sums: Any, labels: Any, dx: Any) -> bool:
    """``ct (softmax - one_hot)``; False if a label is out of range."""
    for row in range(exps.shape[0]):
        e, d, label = exps[row], dx[row], labels[row]
        if label < 0 or label >= e.size:
            return False
        factor = ct[row] / sums[row]
        for j in range(e.size):
            d[j] = e[j] * factor
        d[label] -= ct[row]
    return True


def _layer_norm(
    x: Any, weight: Any, bias: Any, y: Any, means: Any, scales: Any, share: Any, eps: Any, tiny: Any
) -> None:
    """Where the deviation is below `tiny` times the mean, the rounding of the mean is taken into account."""
    for row in range(x.shape[0]):
        mean = x[row, 0] * 0
        for j in range(x.shape[1]):
            mean += x[row, j]
        mean *= share
        square = mean * 0
        for j in range(x.shape[1]):
            square += (x[row, j] - mean) * (x[row, j] - mean)
        if math.sqrt(square * share) < abs(mean) * tiny:
            error = mean * 0
            for j in range(x.shape[1]):
                error += x[row, j] - mean
            mean += error * share
            square = mean * 0
            for j in range(x.shape[1]):
                square += (x[row, j] - mean) * (x[row, j] - mean)
        scale = 1 / math.sqrt(square * share + eps)
        means[row], scales[row] = mean, scale
        for j in range(x.shape[1]):
            y[row, j] = (x[row, j] - mean) * scale * weight[j] + bias[j]


def _layer_norm_backward(
    ct: Any, x: Any, weight: Any, means: Any, scales: Any, dx: Any, dw: Any, db: Any, share: Any
) -> None:
    """``dx = (g - mean(g) - xh mean(g xh)) / sigma`` with ``g = ct w``; adds to `dw` and `db`."""
    for row in range(x.shape[0]):
        mean, scale = means[row], scales[row]
        first, second = mean * 0, mean * 0
        for j in range(x.shape[1]):
            normed = (x[row, j] - mean) * scale
            dw[j] += ct[row, j] * normed
            db[j] += ct[row, j]
            g = ct[row, j] * weight[j]
            first += g
            second += g * normed
        first *= share
        second *= share
        for j in range(x.shape[1]):
            normed = (x[row, j] - mean) * scale
            dx[row, j] = (ct[row, j] * weight[j] - first - normed * second) * scale


class _Loop(NamedTuple):
    function: Callable[..., bool | None]
    arguments: str
    """One letter per argument: r, R an array of one or two dimensions that is read; w, W one that is written; i an
    array of integers that is read; n a number of the arrays' dtype."""
    sums: bool = False  # whether the compiler may change the order of a sum
    refuses: bool = False  # whether it returns False for invalid arguments


_LOOPS = {
    "momentum": _Loop(_momentum, "wwrnn"),
    "sum_rows": _Loop(_sum_rows, "RiW", refuses=True),
    "relu_backward": _Loop(_relu_backward, "rrw"),
    "adam": _Loop(_adam, "wwwrnnnnnnnn"),
    "gelu": _Loop(_gelu, "rww"),
    "cross_entropy": _Loop(_cross_entropy, "RiwWw", sums=True, refuses=True),
    "cross_entropy_backward": _Loop(_cross_entropy_backward, "rRriW", refuses=True),
    "layer_norm": _Loop(_layer_norm, "RrrWwwnnn", sums=True),
    "layer_norm_backward": _Loop(_layer_norm_backward, "RRrrrWwwn", sums=True),
}


def compiled(name: str, dtype: str) -> Callable[..., bool | None]:
    """Compile a loop for a dtype."""
    loop = _LOOPS[name]
    number = getattr(types, dtype)
    kinds = {
        letter: types.Array(number, dimensions, "C", readonly=letter in "rR")
        for letter, dimensions in {"r": 1, "w": 1, "R": 2, "W": 2}.items()
    } | {"n": number, "i": types.Array(types.int64, 1, "C", readonly=True)}
    result = types.boolean if loop.refuses else types.void
    signature = result(*(kinds[letter] for letter in loop.arguments))
    options: Any = {"error_model": "numpy", "nogil": True, "fastmath": {"reassoc"} if loop.sums else False}
    made: Callable[..., bool | None] = njit([signature], cache=is_cached(loop.function), **options)(loop.function)
    return made


def arguments_of(loop: Any) -> list[tuple[Any, int, bool]]:
    """Of each argument of a compiled loop the dtype, the dimensions (0 of a number), and whether it is written."""
    (kinds,) = loop.signatures
    return [
        (as_dtype(kind.dtype), kind.ndim, kind.mutable) if isinstance(kind, types.Array) else (as_dtype(kind), 0, False)
        for kind in kinds
    ]


def address_of(loop: Any) -> int:
    """The address of the machine code of a compiled loop, which takes arguments as Numba's own functions do."""
    (made,) = loop.overloads.values()
    found: int = made.library.get_pointer_to_function(made.fndesc.llvm_func_name)
    return found


def is_cached(function: Callable[..., Any]) -> bool:
    """Whether Numba may keep the compiled function on disk.

    Its files are pickles of machine code, so nobody may write them who cannot write this program.
    """
    try:
        folder = FunctionCache(function).cache_path
    except RuntimeError:  # no folder can be written
        return False
    if is_as_safe(folder, os.path.dirname(__file__)):
        return True
    warnings.warn(
        f"other users can write into Numba's cache {folder!r}, so ringtape's loops are compiled again in each process, "
        "which takes a second for each\n  fix: export NUMBA_CACHE_DIR=~/.cache/numba, or chmod go-w the folder",
        RuntimeWarning, stacklevel=1,
    )  # fmt: skip
    return False
