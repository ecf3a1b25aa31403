"""Random calls of every function of `autograd.numpy`, with NumPy as the reference.

    python -m tests.autograd.numpy.fuzz --calls 20000 --seed 1

Each call has random operands (shapes, dtypes, NaN) and random arguments, some of which are wrong. The same call runs on
NumPy's arrays and on Tensors. The outcomes of one call:

agreed     Both return, with equal values and dtypes, and the gradient of a recorded call runs; or both refuse, ours
           with a `RingtapeError` that is also a builtin error.
internal   Ours raises anything but a `RingtapeError`.
accepted   NumPy refuses the call and ours returns.
refused    Ours refuses the call and NumPy returns.
value      The values, shapes, dtypes or the number of results differ.
gradient   The backward pass of an accepted call raises.

`DIFFERENCES` lists, with the reason, where the two differ on purpose.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import autograd as ag
import autograd.numpy as ours
from autograd.errors import RingtapeError

SHAPES = [
    (),
    (0,),
    (1,),
    (3,),
    (4,),
    (2, 3),
    (3, 3),
    (1, 3),
    (3, 1),
    (2, 0),
    (0, 3),
    (2, 3, 4),
    (3, 3, 3),
    (2, 1, 3),
    (1, 1, 1),
    (2, 0, 3),
    (2, 1, 3, 2),
    (1, 2, 2, 1, 3),
]
DTYPES = (
    ["float64"] * 12
    + ["float32"] * 5
    + ["float16"] * 2
    + ["complex128"] * 3
    + ["complex64"] * 2
    + ["int64", "int64", "int32", "int8", "uint8", "uint32", "uint64", "bool", "bool", "object"]
)
ODD = [
    None,
    "x",
    1.5,
    True,
    -100,
    7,
    [0],
    (),
    np.int64(1),
    {},
    float("nan"),
    2 + 1j,
    np.array(1),
    np.array([0, 1]),
    b"a",
    (0, 0),
    (0, 9),
    [1, "x"],
    np.datetime64("2020-01-01"),
    2**70,
    -(2**63),
    object,
    "\N{SNOWMAN}",
    0,
    -1,
    np.float64(1.0),
]


class Draw:
    """Random arguments."""

    def __init__(self, seed: Any):
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(self.random.getrandbits(32))

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def pick(self, options: Any) -> Any:
        return self.random.choice(options)

    def shape(self) -> tuple[int, ...]:
        return self.pick(SHAPES)

    def array(self, shape: Any = None, dtype: Any = None) -> Any:
        shape = self.shape() if shape is None else shape
        dtype = self.pick(DTYPES) if dtype is None else dtype
        x = self.numbers.normal(size=shape) * 2
        kind = np.dtype(dtype).kind
        if kind == "c":
            x = x + 1j * self.numbers.normal(size=shape)
        elif kind == "b":
            x = x > 0
        elif kind == "u":
            x = np.abs(np.round(x * 2))
        elif kind in "iO":
            x = np.round(x * 2)
        x = np.asarray(x).astype(dtype) if kind != "O" else np.asarray(np.asarray(x).astype(int).astype(object))
        if kind in "fc" and x.size and self.chance(0.06):
            x.reshape(-1)[self.random.randrange(x.size)] = self.pick([np.nan, np.inf, -np.inf, 0.0])
        if kind in "fc" and x.size and self.chance(0.1):
            x = np.round(x)
        return x

    def like(self, x: Any) -> Any:
        """An operand to combine with `x`: mostly one that broadcasts with it."""
        n = np.ndim(x)
        roll = self.random.random()
        if roll < 0.3:
            shape = np.shape(x)
        elif roll < 0.6:
            shape = tuple(k if self.chance(0.7) else 1 for k in np.shape(x)[self.random.randint(0, n) :])
        elif roll < 0.75:
            return self.pick([2, 0.5, -1, 0, True, 1j, 3, np.float32(0.5), np.float64(2), np.int8(3), 300, -2])
        else:
            shape = self.shape()
        dtype = np.asarray(x).dtype if self.chance(0.5) else None
        return self.array(shape, dtype)

    def axis(self, n: int, *, several: bool = True) -> Any:
        roll = self.random.random()
        if roll < 0.55 and n:
            return self.random.randrange(-n, n)
        if roll < 0.65:
            return None
        if roll < 0.75 and several:
            return tuple(self.random.randrange(-n, n) for _ in range(self.random.randint(0, max(n, 1)))) if n else ()
        if roll < 0.9:
            return self.pick([n, n + 1, -n - 1, 2 * n + 1, -5, 9])
        return self.pick(
            [np.int64(0), 1.0, "x", True, np.array(0), np.array([0]), (0, 0), (0, n), [0], [0, 1], (0.0,), 2**70]
        )

    def odd(self) -> Any:
        return self.pick(ODD)


@dataclass
class Recipe:
    """How to call one function: its operands, and generators of its optional arguments."""

    operands: Callable[[Draw], list[Any]]
    options: dict[str, Callable[[Draw, list[Any]], Any]] = field(default_factory=dict)
    required: int = 0
    """The number of options that are always given."""


# -- operands --------------------------------------------------------------------------------------------------------
def one(d: Draw) -> list[Any]:
    return [d.array()]


def two(d: Draw) -> list[Any]:
    x = d.array()
    return [x, d.like(x)] if d.chance(0.5) else [d.like(x), x]


def three(d: Draw) -> list[Any]:
    x = d.array()
    return [d.like(x) if d.chance(0.3) else d.array(np.shape(x), "bool"), x, d.like(x)]


def real_one(d: Draw) -> list[Any]:
    return [d.array(None, d.pick(["float64", "float32", "float16", None]))]


def square(d: Draw) -> list[Any]:
    return [d.array(d.pick([(3, 3), (2, 2), (2, 3, 3), (1, 1), (2, 1, 2, 2), (2, 3), (3,), (), (0, 0), (0, 3, 3)]))]


def matrix(d: Draw) -> list[Any]:
    return [d.array(d.pick([(3, 3), (2, 3), (3, 2), (2, 3, 2), (1, 1), (3,), (), (0, 2), (2, 0), (2, 2, 2)]))]


def definite(d: Draw) -> list[Any]:
    (x,) = square(d)
    if x.dtype.kind in "fc" and x.ndim > 1 and x.shape[-1] == x.shape[-2]:
        x = (x @ np.conj(np.swapaxes(x, -1, -2)) + 3 * np.eye(x.shape[-1])).astype(x.dtype)
    return [x]


def system(d: Draw) -> list[Any]:
    (a,) = square(d)
    shape = d.pick([a.shape, a.shape[-1:], (*a.shape[:-1], 2), (3,), (2, 3)])
    return [a, d.array(shape, a.dtype if d.chance(0.7) else None)]


def products(d: Draw) -> list[Any]:
    m, k, n = (d.pick([1, 2, 3]) for _ in range(3))
    one_, two_ = d.pick(
        [
            ((k,), (k,)),
            ((m, k), (k, n)),
            ((m, k), (k,)),
            ((k,), (k, n)),
            ((2, m, k), (k, n)),
            ((2, m, k), (2, k, n)),
            ((2, 1, m, k), (3, k, n)),
            ((), (k,)),
            ((m, k), (m, k)),
            ((k,), (2, k, n)),
            ((m, k), (n, k)),
            ((0, k), (k, n)),
            ((m, 0), (0, n)),
        ]
    )
    a = d.array(one_)
    return [a, d.array(two_, a.dtype if d.chance(0.7) else None)]


def several(d: Draw) -> list[Any]:
    x = d.array()
    count = d.random.randint(1, 3)
    found = [x]
    for _ in range(count - 1):
        found.append(d.array(x.shape, x.dtype if d.chance(0.6) else None) if d.chance(0.75) else d.like(x))
    return [found if d.chance(0.7) else tuple(found)]


def spread(d: Draw) -> list[Any]:
    (found,) = several(d)
    return list(found)


def vectors(d: Draw) -> list[Any]:
    n, k = d.pick([2, 3, 3, 4]), d.pick([2, 3, 3])
    lead = d.pick([(), (2,), (2, 1)])
    x = d.array((*lead, n))
    return [x, d.array((*(lead if d.chance(0.6) else ()), k), x.dtype if d.chance(0.6) else None)]


def nothing(d: Draw) -> list[Any]:
    return []


# -- options ---------------------------------------------------------------------------------------------------------
def ndim(xs: list[Any]) -> int:
    x = xs[0] if xs else 0.0
    if isinstance(x, list | tuple):
        x = x[0] if x else 0.0
    return np.ndim(x) if not isinstance(x, list) else 1


def axes(d: Draw, xs: list[Any]) -> Any:
    return d.axis(ndim(xs))


def axis(d: Draw, xs: list[Any]) -> Any:
    return d.axis(ndim(xs), several=False)


def flag(d: Draw, xs: list[Any]) -> Any:
    return d.pick([True, False, True, False, True, False, 1, 0, None, "x", np.True_])


def dtype(d: Draw, xs: list[Any]) -> Any:
    return d.pick(
        [
            "float64",
            "float32",
            float,
            int,
            complex,
            np.float16,
            "int8",
            bool,
            None,
            None,
            "nonsense",
            np.uint8,
            np.dtype("complex64"),
            object,
        ]
    )


def out(d: Draw, xs: list[Any]) -> Any:
    return d.pick([None, None, None, np.zeros(3)])  # NumPy crashes for some functions and out of 0 dimensions


def of(*options: Any) -> Callable[[Draw, list[Any]], Any]:
    return lambda d, xs: d.pick(options)


def integer(low: int, high: int) -> Callable[[Draw, list[Any]], Any]:
    return lambda d, xs: (
        d.random.randint(low, high) if d.chance(0.85) else d.pick([np.int64(1), 1.0, -7, 9, None, "x", True])
    )


def beside(d: Draw, xs: list[Any]) -> Any:
    return d.like(xs[0])


def indices(d: Draw, xs: list[Any]) -> Any:
    return (
        d.numbers.integers(-3, 4, size=d.shape())
        if d.chance(0.4)
        else d.pick(
            [
                0,
                1,
                -1,
                [0, 1],
                [0],
                [],
                (1, 0),
                [[0, 1], [1, 0]],
                9,
                -9,
                [0, 9],
                1.0,
                [0.0],
                True,
                [True, False],
                "x",
                None,
                np.uint8(1),
                np.array([0, 1], "uint8"),
                np.array(0),
            ]
        )
    )


def shape(d: Draw, xs: list[Any]) -> Any:
    n = int(np.size(xs[0])) if xs and not isinstance(xs[0], list | tuple) else 6
    return d.pick(
        [
            n,
            (n,),
            (n, 1),
            (-1,),
            -1,
            (1, -1),
            (2, -1),
            (-1, 2),
            (3, 2),
            (2, 3),
            (),
            (-1, -1),
            (0, -1),
            (2, 2),
            7,
            [n],
            (np.int64(n),),
            np.array([n]),
            (1.0, n),
            "x",
            None,
            (-2, n),
            (n, -5),
            (2, 3, 4),
            (0,),
            (3, 1),
        ]
    )


def pairs(d: Draw, xs: list[Any]) -> Any:
    n = ndim(xs)
    return d.pick(
        [
            1,
            0,
            (1, 2),
            [(1, 1)] * n,
            [(0, 2)] * n,
            ((1, 0),),
            [(1,)] * n,
            -1,
            1.5,
            "x",
            None,
            [(1, 2, 3)],
            {0: 1},
            {-1: (1, 2)},
            {9: 1},
            [1, 2],
            np.array([[1, 1]]),
        ]
    )


def mask(d: Draw, xs: list[Any]) -> Any:
    n = np.shape(xs[0])
    return d.pick(
        [np.array(True), d.array(n, "bool"), d.array(n[:1], "bool"), [True, False], True, False, d.array(n, "int64")]
    )


REDUCTION = {"axis": axes, "keepdims": flag, "out": out, "dtype": dtype}
SUMMING = {**REDUCTION, "initial": of(0, 1.0, None, 2), "where": of(True, None, np.array(True), [True, False, True])}
EXTREMUM = {"axis": axes, "keepdims": flag, "out": out, "initial": of(0, 1.0, None)}
SORTING = {
    "axis": axis,
    "kind": of(None, "stable", "quicksort", "heapsort", "x", 1),
    "order": of(None, None, None, "x"),
    "stable": of(None, True, False, None),
}
VARIANCE = {"axis": axes, "keepdims": flag, "dtype": dtype, "ddof": of(0, 1, 2, 9, 1.5, -1, "x"), "out": out}
NORM = {
    "ord": of(None, 1, 2, -1, -2, np.inf, -np.inf, 0, 3, 0.5, "fro", "nuc", "x", -3, 2.0, (1,)),
    "axis": axes,
    "keepdims": flag,
}
QUANTILE = {
    "axis": axes,
    "keepdims": flag,
    "method": of("linear", "linear", "lower", "nearest", "x", "hazen"),
    "out": out,
    "overwrite_input": flag,
}
FFT = {
    "n": of(None, 1, 2, 4, 5, 0, -1, 2.0, "x", np.int64(3)),
    "axis": axis,
    "norm": of(None, "ortho", "forward", "backward", "x", 1),
    "out": out,
}
FFTN = {
    "s": of(None, (2, 2), (3,), (2, -1), (0, 1), 3, (2, 2, 2), "x", [4, 3]),
    "axes": axes,
    "norm": of(None, "ortho", "forward", "backward", "x"),
    "out": out,
}
UFUNC = {"dtype": dtype, "out": out, "where": of(True, True, np.array(True)), "casting": of("same_kind", "safe", "x")}

_UNARY = [
    "absolute",
    "abs",
    "sin",
    "cos",
    "tan",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "sqrt",
    "square",
    "reciprocal",
    "tanh",
    "sinh",
    "cosh",
    "arcsin",
    "arccos",
    "arctan",
    "arcsinh",
    "arccosh",
    "arctanh",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "negative",
    "positive",
    "conj",
    "conjugate",
    "real",
    "imag",
    "sign",
    "floor",
    "ceil",
    "trunc",
    "rint",
    "fix",
    "isnan",
    "isinf",
    "isfinite",
    "isposinf",
    "isneginf",
    "signbit",
    "iscomplex",
    "isreal",
    "logical_not",
    "invert",
    "bitwise_not",
    "bitwise_invert",
    "cbrt",
    "deg2rad",
    "rad2deg",
    "degrees",
    "radians",
    "fabs",
    "sinc",
    "angle",
    "real_if_close",
    "modf",
]
_BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "true_divide",
    "power",
    "pow",
    "float_power",
    "mod",
    "remainder",
    "fmod",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "logaddexp",
    "logaddexp2",
    "arctan2",
    "atan2",
    "hypot",
    "copysign",
    "heaviside",
    "floor_divide",
    "divmod",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "left_shift",
    "right_shift",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "ldexp",
    "isclose",
]


def _recipes() -> dict[str, list[Recipe]]:
    r: dict[str, list[Recipe]] = {}

    def add(names: str, operands: Any, required: int = 0, **options: Any) -> None:
        for name in names.split():
            r.setdefault(name, []).append(Recipe(operands, options, required))

    for name in _UNARY:
        add(name, one, **(UFUNC if isinstance(getattr(np, name), np.ufunc) else {}))
    for name in _BINARY:
        add(name, two, **(UFUNC if isinstance(getattr(np, name), np.ufunc) else {}))
    add("angle", one, deg=flag)
    add("real_if_close", one, tol=of(100, 1, 1e9))
    add("isclose", two, rtol=of(1e-5, 1.0), atol=of(1e-8, 1.0), equal_nan=flag)
    add("nan_to_num", one, copy=flag, nan=of(0.0, 1.0, None, "x"), posinf=of(None, 9.0), neginf=of(None, -9.0))
    add("clip", one, 0, a_min=beside, a_max=beside, out=out)
    add("clip", lambda d: [*one(d), d.pick([-1, 0.0, None, 1]), d.pick([1, 0.5, None, -1])], 0, out=out)
    add("round around", one, decimals=of(0, 1, 2, -1, 1.5, None, "x", np.int64(1)), out=out)
    add("sum prod nansum nanprod", one, **SUMMING)
    add("mean nanmean", one, **REDUCTION)
    add("max min amax amin nanmax nanmin", one, **EXTREMUM)
    add("all any", one, axis=axes, keepdims=flag, out=out)
    add("count_nonzero", one, axis=axes, keepdims=flag)
    add("argmax argmin nanargmax nanargmin", one, axis=axis, keepdims=flag, out=out)
    add("var std", one, **VARIANCE, correction=of(0, 1, 2))
    add("nanvar nanstd", one, **VARIANCE)
    add("ptp", one, axis=axes, keepdims=flag, out=out)
    add("average", one, axis=axes, weights=beside, returned=flag, keepdims=flag)
    add("median nanmedian", real_one, axis=axes, keepdims=flag, out=out, overwrite_input=flag)
    add(
        "quantile nanquantile",
        real_one,
        1,
        q=of(0.5, 0, 1, [0.1, 0.9], [[0.5]], 1.5, -0.1, "x", None, np.nan, [], 1),
        **QUANTILE,
    )
    add(
        "percentile nanpercentile",
        real_one,
        1,
        q=of(50, 0, 100, [10, 90.0], [[50]], 101, -1, "x", None, np.nan, []),
        **QUANTILE,
    )
    add("cumsum cumprod nancumsum nancumprod", one, axis=axis, dtype=dtype, out=out)
    add("cumulative_sum cumulative_prod", one, axis=axis, dtype=dtype, include_initial=flag)
    add("diff", one, n=integer(0, 3), axis=axis, prepend=beside, append=beside)
    add("ediff1d", one, to_end=of(None, 1.0, [1.0, 2.0], 3), to_begin=of(None, 0.0, [1]))
    add("gradient", one, axis=axes, edge_order=of(1, 2, 3, 0))
    add(
        "gradient",
        lambda d: [*one(d), d.pick([1.0, 2, [0.0, 1.0, 3.0], np.arange(3.0), "x"])],
        axis=axes,
        edge_order=of(1, 2, 3),
    )
    add("trapezoid", one, x=beside, dx=of(1.0, 2, "x"), axis=axis)
    add("unwrap", real_one, discont=of(None, 1.0, 4), axis=axis, period=of(1.0, 6.283185307179586, 4))
    add("sort argsort", one, **SORTING)
    add("sort_complex", one)
    add("partition argpartition", one, 1, kth=integer(-2, 2), axis=axis, kind=of("introselect", "x"))
    add("take", one, 1, indices=indices, axis=axis, mode=of("raise", "wrap", "clip", "x"), out=out)
    add(
        "take_along_axis",
        lambda d: (lambda x: [x, d.numbers.integers(-1, 2, size=np.shape(x) if d.chance(0.8) else d.shape())])(
            d.array()
        ),
        0,
        axis=axis,
    )
    add(
        "compress",
        lambda d: (lambda x: [d.pick([[True, False], [1, 0, 1], d.array((2,), "bool"), True]), x])(d.array()),
        axis=axis,
        out=out,
    )
    add("extract", lambda d: (lambda x: [d.array(x.shape, "bool") if d.chance(0.8) else d.like(x), x])(d.array()))
    add(
        "choose",
        lambda d: (lambda x: [d.numbers.integers(0, 2, size=x.shape), [x, d.like(x)]])(d.array()),
        mode=of("raise", "wrap", "clip", "x"),
    )
    add("where", three)
    add("where", lambda d: three(d)[: d.pick([1, 2, 3, 3, 3, 3])])
    add(
        "select",
        lambda d: (
            lambda x: [[d.array(x.shape, "bool") if d.chance(0.9) else d.like(x)], [x] if d.chance(0.9) else [x, x]]
        )(d.array()),
        default=of(0, 1.5, None, 2),
    )
    add(
        "piecewise",
        lambda d: (
            lambda x: [x, [d.array(x.shape, "bool")], d.pick([[1.0, 2.0], [1.0], [lambda v: v * 2, 0], [1, 2, 3]])]
        )(d.array()),
    )
    add(
        "interp",
        lambda d: [
            d.array(None, "float64"),
            np.arange(3.0),
            d.array(d.pick([(3,), (3,), (3,), (2,), (4,), ()]), d.pick(["float64", "complex128", "float32"])),
        ],
        left=of(None, 0.0, 1),
        right=of(None, 0.0),
        period=of(None, None, 4.0, 0),
    )
    add("roll", one, 1, shift=of(0, 1, -1, 5, (1, 2), [1], (1, 1, 1), 1.5, None, "x", np.int64(1)), axis=axes)
    add("flip", one, axis=axes)
    add("flipud fliplr", one)
    add(
        "rot90",
        one,
        k=of(0, 1, 2, 3, -1, 5, 1.5, None),
        axes=of((0, 1), (1, 0), (0, 0), (0, 9), (1, 2), (0,), (0, -1), 1, (0, 1, 2)),
    )
    add("rollaxis", one, 1, axis=axis, start=of(0, 1, 2, -1, 9, -9, None, 1.0))
    add("moveaxis", one, 2, source=axes, destination=axes)
    add("swapaxes", one, 2, axis1=axis, axis2=axis)
    add("transpose permute_dims", one, axes=axes)
    add("matrix_transpose", one)
    add("expand_dims", one, 1, axis=axes)
    add("squeeze", one, axis=axes)
    add("reshape", one, 1, shape=shape, order=of("C", "F", "A", "x"), copy=of(None, True, False))
    add("ravel", one, order=of("C", "F", "A", "K", "x"))
    add("resize", one, 1, new_shape=shape)
    add("broadcast_to", one, 1, shape=shape, subok=flag)
    add("broadcast_arrays", spread, subok=flag)
    add("concatenate concat", several, axis=axis, dtype=dtype, casting=of("same_kind", "safe", "unsafe", "x"), out=out)
    add("stack", several, axis=axis, dtype=dtype, out=out, casting=of("same_kind", "x"))
    add("vstack hstack", several, dtype=dtype, casting=of("same_kind", "unsafe", "x"))
    add("dstack column_stack", several)
    add("block", several)
    add("append", two, axis=axis)
    add("repeat", one, 1, repeats=of(0, 1, 2, [1, 2, 0], [2], -1, 1.5, None, "x", np.array([1, 2])), axis=axis)
    add("tile", one, 1, reps=of(0, 1, 2, (2, 1), (1, 2, 2), -1, 1.5, None, (), [2]))
    add(
        "pad",
        one,
        1,
        pad_width=pairs,
        mode=of("constant", "edge", "reflect", "symmetric", "wrap", "x", "mean", "empty"),
        constant_values=of(0, 1.0, (1, 2)),
    )
    add(
        "split array_split",
        one,
        1,
        indices_or_sections=of(1, 2, 3, 0, -1, [1], [1, 2], [2, 1], [9], 1.0, None, "x", (0,)),
        axis=axis,
    )
    add("vsplit hsplit dsplit", one, 1, indices_or_sections=of(1, 2, 3, 0, -1, [1], [1, 2], 1.0, None, "x"))
    add("unstack", one, axis=axis)
    add("delete", one, 1, obj=indices, axis=axis)
    add("diagonal", one, offset=integer(-2, 2), axis1=axis, axis2=axis)
    add("diag diagflat", one, k=integer(-2, 2))
    add("trace", one, offset=integer(-2, 2), axis1=axis, axis2=axis, dtype=dtype, out=out)
    add("tril triu", one, k=integer(-2, 2))
    add("dot inner vdot", products)
    add("matmul", products, axes=of(None), dtype=dtype)
    add("matmul", products)
    add("vecdot", products, axis=axis)
    add("outer", two, out=out)
    add("outer", two)
    add("kron", two)
    add(
        "tensordot",
        products,
        axes=of(
            0,
            1,
            2,
            3,
            -1,
            (0, 0),
            (1, 0),
            ([0], [0]),
            ([0, 1], [0, 1]),
            (-1, 0),
            (9, 0),
            ([0, 0], [0, 0]),
            1.0,
            None,
            "x",
            ([0], [0, 1]),
        ),
    )
    add("cross", vectors, axisa=axis, axisb=axis, axisc=axis, axis=axis)
    add(
        "einsum",
        lambda d: [
            d.pick(
                [
                    "ij,jk",
                    "ij,jk->ik",
                    "i,i",
                    "i,i->",
                    "ij,j->i",
                    "...j,jk->...k",
                    "...,...",
                    "ij,ij->ij",
                    "ii,ij",
                    "ij,jk->iz",
                    "ij,jk->ii",
                    "i j,jk",
                    "ij,jk,kl",
                    "ij->i",
                    "ij",
                    "",
                    "->",
                    "i,j",
                    "ab,bc->ca",
                    "...i,...i->...",
                    "ij,jk->",
                    "i$,ij",
                    "ij,jk->kij",
                ]
            ),
            *products(d),
        ],
        optimize=of(False, True, "greedy", "optimal", "x", None),
    )
    add(
        "einsum",
        lambda d: [
            d.pick(
                [
                    "ii->i",
                    "ij->ji",
                    "ii",
                    "...ii->...i",
                    "ijk->kij",
                    "i->",
                    "ij->",
                    "iij",
                    "...",
                    "...i->...",
                    "i...->...",
                ]
            ),
            *one(d),
        ],
        optimize=of(False, True),
        dtype=dtype,
        order=of("K", "C"),
        casting=of("safe", "unsafe", "x"),
    )
    add(
        "linspace",
        lambda d: two(d),
        num=of(50, 3, 0, 1, -1, 2.0, None, "x", np.int64(3)),
        endpoint=flag,
        retstep=flag,
        dtype=dtype,
        axis=axis,
    )
    add(
        "logspace",
        lambda d: two(d),
        num=of(3, 0, 1, -1, 2.0),
        endpoint=flag,
        base=of(10.0, 2, 0.5),
        dtype=dtype,
        axis=axis,
    )
    add(
        "full",
        lambda d: [shape(d, [d.array()]), d.array(d.pick([(), (1,), (3,)]))],
        dtype=dtype,
        order=of("C", "F", "x"),
    )
    add(
        "full_like",
        lambda d: [d.array(), d.array(d.pick([(), (1,), (3,)])) if d.chance(0.5) else d.pick([1, 2.5, None, "x"])],
        dtype=dtype,
        shape=shape,
    )
    add("zeros_like ones_like", one, dtype=dtype, shape=shape)
    add(
        "meshgrid",
        lambda d: [d.array(d.pick([(2,), (3,), (), (0,), (2, 2)])) for _ in range(d.random.randint(1, 3))],
        sparse=flag,
        indexing=of("xy", "ij", "x"),
        copy=flag,
    )
    add("array asarray", one, dtype=dtype, order=of(None, "C", "F", "x"), copy=of(None, True))
    add("array", one, dtype=dtype, ndmin=of(0, 2, 4, -1, 99, "x", None), copy=of(None, True), subok=flag)
    add("asanyarray ascontiguousarray", one, dtype=dtype)
    add("copy", one, order=of("K", "C", "x"))
    add("atleast_1d atleast_2d atleast_3d", spread)
    add("astype", one, 1, dtype=dtype, copy=flag)
    add("linalg.norm", one, **NORM)
    add("linalg.vector_norm", one, **NORM)
    add("linalg.matrix_norm", matrix, keepdims=flag, ord=NORM["ord"])
    add("linalg.inv linalg.det linalg.slogdet linalg.eig linalg.eigvals linalg.matrix_transpose linalg.svdvals", square)
    add("linalg.eigh linalg.eigvalsh", definite, UPLO=of("L", "U", "l", "x", None, 1))
    add("linalg.cholesky", definite, upper=flag)
    add("linalg.svd", matrix, full_matrices=flag, compute_uv=flag, hermitian=of(False, False, True))
    add("linalg.qr", matrix, mode=of("reduced", "r", "complete", "raw", "x", None))
    add("linalg.pinv", matrix, rcond=of(None, 1e-10, 0.5, "x", [1e-3]), hermitian=of(False, True), rtol=of(None, 1e-5))
    add("linalg.cond", square, p=NORM["ord"])
    add("linalg.matrix_power", square, 1, n=of(0, 1, 2, 3, 5, -1, -2, 1.0, None, "x"))
    add("linalg.solve", system)
    add("linalg.multi_dot", lambda d: [products(d)])
    add(
        "linalg.tensorinv",
        lambda d: [d.array(d.pick([(4, 2, 2), (2, 2, 4), (2, 3, 6), (3, 3), (2, 3)]), "float64")],
        ind=of(1, 2, 0, -1, 1.0, "x"),
    )
    add(
        "linalg.tensorsolve",
        lambda d: [d.array((2, 3, 6), "float64"), d.array(d.pick([(2, 3), (6,), (2,)]), "float64")],
        axes=of(None, (0,), (1, 0), (9,)),
    )
    add("linalg.diagonal", one, offset=integer(-2, 2))
    add("linalg.trace", one, offset=integer(-2, 2), dtype=dtype)
    add("linalg.cross", vectors, axis=axis)
    add("linalg.outer linalg.matmul", two)
    add("linalg.vecdot", products, axis=axis)
    add("linalg.tensordot", products, axes=of(0, 1, 2, (0, 0), (-1, 0), (9, 0)))
    add("linalg.matrix_rank", matrix, tol=of(None, 1e-3))
    add("fft.fft fft.ifft fft.rfft fft.irfft fft.hfft fft.ihfft", one, **FFT)
    add("fft.fftn fft.ifftn fft.rfftn fft.irfftn fft.fft2 fft.ifft2 fft.rfft2 fft.irfft2", one, **FFTN)
    add("fft.fftshift fft.ifftshift", one, axes=axes)
    add("argwhere flatnonzero nonzero", one)
    add(
        "searchsorted",
        lambda d: [np.sort(d.array((4,), "float64")), d.array(None, "float64")],
        side=of("left", "right", "x"),
        sorter=of(None, [0, 1, 2, 3]),
    )
    add("digitize", lambda d: [d.array(None, "float64"), np.arange(3.0)], right=flag)
    add("unique", real_one, return_index=flag, return_counts=flag, axis=axis)
    add("unique_all unique_counts unique_inverse unique_values", real_one)
    add("union1d", two)
    add("array_equal allclose", two, equal_nan=flag)
    add("size", one, axis=axis)
    add("shape ndim iscomplexobj isrealobj", one)
    add("isin", two, invert=flag)
    add("histogram", real_one, bins=of(2, 3, 0, "x"))
    add("convolve correlate", lambda d: [d.array((3,)), d.array((2,))], mode=of("full", "same", "valid", "x"))
    add("cov corrcoef", real_one)
    add("i0", real_one)
    add("polyval", lambda d: [d.array((3,)), d.array((2,))])
    add("bincount", lambda d: [d.numbers.integers(0, 3, size=4)])
    add("insert", one, 2, obj=indices, values=beside, axis=axis)
    add("trim_zeros", real_one)
    return r


RECIPES = _recipes()
METHODS = [
    "all",
    "any",
    "argmax",
    "argmin",
    "argpartition",
    "argsort",
    "astype",
    "choose",
    "clip",
    "compress",
    "conj",
    "conjugate",
    "cumprod",
    "cumsum",
    "diagonal",
    "dot",
    "max",
    "mean",
    "min",
    "nonzero",
    "prod",
    "ptp",
    "ravel",
    "repeat",
    "reshape",
    "round",
    "searchsorted",
    "squeeze",
    "std",
    "sum",
    "swapaxes",
    "take",
    "trace",
    "transpose",
    "var",
]


# -- one call --------------------------------------------------------------------------------------------------------
@dataclass
class Call:
    """One call: the function's name, the way to call it, and its arguments, in which `Wrapped` marks Tensors."""

    name: str
    way: str  # "function", "numpy" (NumPy's function called on Tensors) or "method"
    args: list[Any]
    words: dict[str, Any]
    recorded: bool

    def __str__(self) -> str:
        shown = [_text(x) for x in self.args] + [f"{k}={_text(x)}" for k, x in self.words.items()]
        return f"{self.name}({', '.join(shown)})  [{self.way}{', recorded' if self.recorded else ''}]"


class Wrapped:
    """An array that becomes a Tensor in our call."""

    def __init__(self, array: Any):
        self.array = array


def _text(x: Any) -> str:
    if isinstance(x, Wrapped):
        return "T:" + _text(x.array)
    if isinstance(x, list | tuple):
        return f"{'[' if isinstance(x, list) else '('}{', '.join(map(_text, x))}{']' if isinstance(x, list) else ')'}"
    if isinstance(x, np.ndarray):
        small = f" {x.tolist()}" if x.size <= 4 else ""
        return f"{x.dtype}{list(x.shape)}{small}"
    return f"{x!r}:{x.dtype}" if isinstance(x, np.generic) else repr(x)


def _wrap(d: Draw, args: list[Any], p: float) -> list[Any]:
    """Mark arrays as Tensors, each with probability `p`; a few others become nested lists."""
    found: list[Any] = []
    for x in args:
        if isinstance(x, list | tuple) and any(isinstance(v, np.ndarray) for v in x):
            found.append(type(x)(_wrap(d, list(x), p)))
        elif isinstance(x, np.ndarray) and d.chance(p):
            found.append(Wrapped(x))
        elif isinstance(x, np.ndarray) and d.chance(0.15):
            found.append(x.tolist())
        else:
            found.append(x)
    return found


def _mapped(x: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(x, Wrapped):
        return change(x.array)
    if isinstance(x, list | tuple) and type(x) in (list, tuple):
        return type(x)([_mapped(v, change) for v in x])
    if isinstance(x, dict):
        return {k: _mapped(v, change) for k, v in x.items()}
    return x


def _any_wrapped(x: Any) -> bool:
    return isinstance(x, Wrapped) or (isinstance(x, list | tuple) and any(map(_any_wrapped, x)))


def draw_call(d: Draw, names: list[str]) -> Call:
    """A random call of one of these functions."""
    name = d.pick(names)
    recipe = d.pick(RECIPES[name])
    xs = recipe.operands(d)
    args = list(xs)
    words = {}
    for i, (option, make) in enumerate(recipe.options.items()):
        if i < recipe.required:
            args.append(make(d, xs))
        elif d.chance(0.6 / (1 + len(recipe.options) / 4)):
            words[option] = make(d, xs)
            if d.chance(0.06) and option != "where":
                words[option] = d.odd()
    if recipe.required and len(args) > len(xs) and d.chance(0.2):  # the last required option by its keyword
        option = list(recipe.options)[len(args) - len(xs) - 1]
        if option not in words:
            words[option] = args.pop()
    if args and d.chance(0.04):
        args[d.random.randrange(len(args))] = d.odd()
    if d.chance(0.01):
        words["nonsense"] = 1
    if d.chance(0.01):
        args.append(d.odd())
    if args and d.chance(0.005):
        args.pop()
    args = [*_wrap(d, args[: len(xs)], 0.75), *args[len(xs) :]]
    for k, x in words.items():
        if (
            isinstance(x, np.ndarray)
            and k in ("weights", "a_min", "a_max", "prepend", "append", "x", "values")
            and d.chance(0.5)
        ):
            words[k] = Wrapped(x)
    if not any(map(_any_wrapped, [*args, *words.values()])):
        for i, x in enumerate(args):
            if isinstance(x, np.ndarray):
                args[i] = Wrapped(x)
                break
        else:
            args = [Wrapped(d.array((3,), "float64")), *args[1:]]
    short = name
    way = d.pick(["function", "function", "numpy", "method"])
    if way == "method" and not (short in METHODS and isinstance(args[0] if args else None, Wrapped)):
        way = "function"
    return Call(name, way, args, words, d.chance(0.6))


def _find(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


_PRECISION = {"float16": 2e-2, "float32": 1e-3, "complex64": 1e-3}


def _arrays(x: Any) -> list[Any]:
    if isinstance(x, Wrapped):
        return [x.array]
    if isinstance(x, list | tuple):
        return [a for v in x for a in _arrays(v)]
    return [x] if isinstance(x, np.ndarray | np.generic) else []


def _run(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return function(), None
        except Exception as error:
            return None, error


def _fresh(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x


def check(call: Call) -> tuple[str, str]:
    """Run one call with NumPy and with ours. Returns the outcome and what was seen."""
    theirs_function = _find(np, call.name)
    ours_function = _find(ours if call.way == "function" else np, call.name)
    if theirs_function is None or ours_function is None:
        return "absent", call.name

    def theirs() -> Any:
        args = [_fresh(_mapped(x, np.array)) for x in call.args]
        words = {k: _fresh(_mapped(x, np.array)) for k, x in call.words.items()}
        if call.way == "method":
            return getattr(args[0], call.name)(*args[1:], **words)
        return theirs_function(*args, **words)

    def wrapped(array: Any) -> Any:
        return ag.tensor(array.copy(), requires_grad=call.recorded and array.dtype.kind in "fc")

    def mine() -> Any:
        args = [_fresh(_mapped(x, wrapped)) for x in call.args]
        words = {k: _fresh(_mapped(x, wrapped)) for k, x in call.words.items()}
        if call.way == "method":
            return getattr(args[0], call.name)(*args[1:], **words)
        return ours_function(*args, **words)

    expected, refusal = _run(theirs)
    least = max((_PRECISION.get(str(x.dtype), 0.0) for x in _arrays([*call.args, *call.words.values()])), default=0.0)
    if not call.recorded:
        found, error = _run(mine)
    else:
        with ag.Tape() as tape:
            found, error = _run(mine)
            if error is None and refusal is None:
                different = compare(expected, found, least)
                if different is None:
                    problem = _backward(tape, found)
                    if problem is not None:
                        return "gradient", f"{call}: {_error_text(problem)}"
    if error is not None:
        if not isinstance(error, RingtapeError) and not (_is_of_the_call(error) and (refusal or _is_ufunc(call))):
            return "internal", f"{call}: {_error_text(error)} | numpy: {refusal!r:.100}"
        if refusal is None:
            return "refused", f"{call}: {_error_text(error)}"
        if not isinstance(error, ValueError | TypeError | IndexError | NotImplementedError):
            return "kind", f"{call}: {_error_text(error)} | numpy: {refusal!r:.150}"
        return "agreed", ""
    if refusal is not None:
        return "accepted", f"{call}: {_shown(found)} | numpy: {refusal!r:.150}"
    different = compare(expected, found, least)
    if different is not None and call.name in ("partition", "argpartition"):
        different = compare(_sides_sorted(call, expected), _sides_sorted(call, found), least)
    return ("agreed", "") if different is None else ("value", f"{call}: {different}")


def _sides_sorted(call: Call, found: Any) -> Any:
    """A partition with the elements between its cuts sorted, because their order is free."""
    given = dict(zip(("a", "kth", "axis"), call.args, strict=False)) | call.words
    x, kth, axis = _mapped(given["a"], np.array), given["kth"], given.get("axis", -1)
    y = np.asarray(_plain(found))
    x, axis = (np.ravel(x), 0) if axis is None else (np.asarray(x), int(axis))
    y = np.take_along_axis(x, y, axis) if call.name == "argpartition" else y
    y = np.moveaxis(y, axis, -1).copy()
    cuts = sorted({int(k) % y.shape[-1] for k in np.ravel(_mapped(kth, np.array))})
    for low, high in zip([0, *[k + 1 for k in cuts]], [*cuts, y.shape[-1]], strict=True):
        y[..., low:high].sort(axis=-1)
    return y


def _is_of_the_call(error: BaseException) -> bool:
    """Whether Python or NumPy refused the call before a line of ours was run, as for a wrong name of an argument."""
    frames = traceback.extract_tb(error.__traceback__)
    return not any(frame.filename.startswith(_PACKAGE) for frame in frames)


_PACKAGE = os.path.dirname(ag.__file__) + os.sep


def _error_text(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    first = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {first[:150]} ({frame.filename.rpartition('/')[2]}:{frame.lineno})"


def _shown(x: Any) -> str:
    return repr(x).replace("\n", " ")[:100]


def _tensors(x: Any) -> list[Any]:
    if isinstance(x, ag.Tensor):
        return [x]
    if isinstance(x, list | tuple):
        return [t for v in x for t in _tensors(v)]
    return []


def _backward(tape: Any, found: Any) -> BaseException | None:
    ys = [y for y in _tensors(found) if y.requires_grad and y.array.dtype.kind in "fc"]
    if not ys:
        return None

    def run() -> Any:
        total: Any = 0.0
        for y in ys:
            total = total + ours.sum(ours.real(y).astype("float64") if y.dtype.kind == "c" else y.astype("float64"))
        total.backward()

    return _run(run)[1]


def _plain(x: Any) -> Any:
    return x.array if isinstance(x, ag.Tensor) else x


def compare(expected: Any, found: Any, least: float = 0.0) -> str | None:
    """What differs between two results by more than the tolerance of their dtype, or `least`; or None."""
    if isinstance(expected, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(expected):
            return f"{_shown(expected)} expected, found {_shown(found)}"
        for a, b in zip(expected, found, strict=True):
            different = compare(a, b, least)
            if different is not None:
                return different
        return None
    found = _plain(found)
    if expected is None or isinstance(expected, str | type):
        return None if found is expected or found == expected else f"{expected!r} expected, found {_shown(found)}"
    a, b = np.asarray(expected), np.asarray(found)
    if b.dtype == object and a.dtype != object and isinstance(found, tuple):
        return f"{_shown(a)} expected, found {_shown(found)}"
    if a.shape != b.shape:
        return f"shape {a.shape} expected, found {b.shape}"
    if a.dtype != b.dtype:
        return f"dtype {a.dtype} expected, found {b.dtype}"
    if a.dtype.kind in "fc":
        size = {2: 2e-2, 4: 1e-3, 8: 1e-7 if a.dtype.kind == "f" else 1e-3, 16: 1e-7}.get(a.dtype.itemsize, 1e-7)
        size = max(size, least)
        with np.errstate(all="ignore"):
            finite = np.abs(a[np.isfinite(a)])
            scale = float(finite.max()) if finite.size else 1.0
            same = np.isclose(
                a, b, rtol=size, atol=size * min(scale, 1e30) if np.isfinite(scale) else size, equal_nan=True
            )
        if not same.all():
            at = np.argmin(same.ravel())
            return f"{a.ravel()[at]} expected, found {b.ravel()[at]}"
        return None
    return None if np.array_equal(a, b) or a.dtype.kind == "O" else f"{_shown(a)} expected, found {_shown(b)}"


# -- where the two differ on purpose --------------------------------------------------------------------------------
def _is_list(x: Any) -> bool:
    return isinstance(x, list | tuple)


def _ends_with_nothing(call: Call, seen: str) -> bool:
    last = call.args[-1]
    refused = "return arrays must be" in seen or "takes 1 positional argument" in seen
    return refused and not isinstance(last, Wrapped | np.ndarray) and not last


def _is_ufunc(call: Call) -> bool:
    return isinstance(_find(np, call.name), np.ufunc)


def _has_other_dtype(call: Call) -> bool:
    """Whether an operand holds objects, strings or dates."""

    def other(x: Any) -> bool:
        if isinstance(x, Wrapped):
            x = x.array
        if isinstance(x, list | tuple):
            return any(map(other, x))
        return isinstance(x, str | bytes | type) or (
            isinstance(x, np.ndarray | np.generic) and x.dtype.kind not in "biufc"
        )

    return any(map(other, [*call.args, *call.words.values()]))


UNDIFFERENTIABLE = [
    "histogram",
    "trim_zeros",
    "insert",
    "nanquantile",
    "nanpercentile",
    "array_equal",
    "allclose",
]
"""NumPy's functions without a derivative here: refused where a tape follows an operand."""

_WITH_INVERSE = frozenset(
    "linalg." + name for name in ("cond", "det", "inv", "pinv", "qr", "slogdet", "solve", "tensorinv", "tensorsolve")
)
DIFFERENCES: list[tuple[str, str, Callable[[Call, str], bool]]] = [
    (
        "refused",
        "objects, strings and dates are no values of Tensors",
        lambda c, e: "DtypeError" in e and (_has_other_dtype(c) or "of dtype object" in e),
    ),
    ("refused", "out= would write to an array that a tape may have saved", lambda c, e: "out" in c.words),
    (
        "refused",
        "a ufunc of autograd.numpy does not take where=, dtype= and casting=",
        lambda c, e: (
            _is_ufunc(c)
            and not {"where", "dtype", "casting"}.isdisjoint(c.words)
            and ("TypeError" in e or "no derivative here" in e or "has no differentiable form" in e)
        ),
    ),
    (
        "refused",
        "no derivative of this function",
        lambda c, e: c.recorded and c.name in UNDIFFERENTIABLE and "no derivative here" in e,
    ),
    (
        "refused",
        "numpy.array(x) of a value that a tape records would lose its gradient",
        lambda c, e: c.way == "numpy" and ("was to become a plain array" in e or "numpy.copyto" in e),
    ),
    (
        "refused",
        "other methods of quantiles have no derivative",
        lambda c, e: "needed: numbers q, method='linear'" in e,
    ),
    (
        "refused",
        "singular vectors that belong to no singular value are not determined",
        lambda c, e: c.name == "linalg.svd" and "full_matrices=True" in e,
    ),
    (
        "refused",
        "qr in its other modes has no derivative",
        lambda c, e: c.name == "linalg.qr" and "needed: 'reduced' or 'r'" in e,
    ),
    (
        "accepted",
        "the methods var and std take correction= as the functions do",
        lambda c, e: c.way == "method" and c.name in ("var", "std") and "keyword argument 'correction'" in e,
    ),
    (
        "accepted",
        "the arguments of the method swapaxes have names",
        lambda c, e: c.way == "method" and c.name == "swapaxes" and "takes no keyword" in e,
    ),
    (
        "accepted",
        "the limits of the method clip have the names of the function's, too",
        lambda c, e: c.way == "method" and c.name == "clip" and "argument 'a_m" in e,
    ),
    (
        "accepted",
        "Tensors kept the method ptp",
        lambda c, e: c.way == "method" and c.name == "ptp" and "no attribute 'ptp'" in e,
    ),
    ("accepted", "None after the operands is out=None", lambda c, e: _is_ufunc(c) and c.args[-1] is None),
    ("refused", "None is no operand", lambda c, e: "None was given" in e),
    ("refused", "indices are integers", lambda c, e: "indices must be of integer" in e),
    (
        "refused",
        "an index that is out of range, where nothing is taken",
        lambda c, e: c.name == "take" and "is out of bounds" in e and any(x.size == 0 for x in _arrays(c.args)),
    ),
    (
        "refused",
        "modes are given by name",
        lambda c, e: c.name == "take" and "needed: 'raise', 'wrap' or 'clip'" in e,
    ),
    (
        "refused",
        "one axis is given without a list",
        lambda c, e: c.name in ("linspace", "logspace") and "needed: an integer" in e,
    ),
    ("refused", "NumPy drops the imaginary part of the mean", lambda c, e: "a variance of complex numbers" in e),
    (
        "value",
        "the conjugate of booleans: NumPy's function and method differ",
        lambda c, e: c.name.startswith("conj") and "bool" in e,
    ),
    (
        "gradient",
        "the adjoint needs the inverse",
        lambda c, e: c.name in _WITH_INVERSE and "a derivative needs the inverse" in e,
    ),
    (
        "accepted",
        "out=None is the same as none",
        lambda c, e: c.words.get("out", 0) is None and "'out' must be a tuple" in e,
    ),
    (
        "value",
        "NumPy returns memory that was never written",
        lambda c, e: (
            (c.name.startswith(("fft.irfft", "fft.hfft")) and any(x.size == 0 for x in _arrays(c.args)))
            or "mode='empty'" in e
            or (c.name == "einsum" and any(x.size == 0 for x in _arrays(c.args)))
        ),
    ),
    (
        "value",
        "intermediate values between infinities",
        lambda c, e: c.name in ("linspace", "logspace") and any(not np.isfinite(x).all() for x in _arrays(c.args)),
    ),
    (
        "value",
        "products of complex infinities",
        lambda c, e: (
            c.name == "vecdot" and any(x.dtype.kind == "c" and not np.isfinite(x).all() for x in _arrays(c.args))
        ),
    ),
    ("refused", "pad in its other modes has no derivative", lambda c, e: "pad with mode=" in e),
    (
        "refused",
        "-1 is the only negative extent of reshape",
        lambda c, e: c.name == "reshape" and re.search(r" to \(.*-(?!1\b)\d", e) is not None,
    ),
    (
        "refused",
        "an empty dict is no axis and no number",
        lambda c, e: any(isinstance(x, dict) for x in [*c.args, *c.words.values()]),
    ),
    (
        "refused",
        "conditions of piecewise have the shape of x",
        lambda c, e: c.name == "piecewise" and "could not be broadcast" in e,
    ),
    (
        "refused",
        "every function of piecewise is called, also one whose condition is nowhere true",
        lambda c, e: c.name == "piecewise" and "nonsense" in c.words,
    ),
    ("refused", "numbers have no memory", lambda c, e: c.name == "nan_to_num" and "Unable to avoid copy" in e),
    (
        "value",
        "NumPy rounds the mean to float16 before it is subtracted",
        lambda c, e: c.name in ("std", "var", "nanstd", "nanvar") and c.words.get("dtype") in ("float16", np.float16),
    ),
    ("refused", "an order is a string", lambda c, e: c.name in ("ravel", "reshape") and "needed: a string" in e),
    ("accepted", "an empty container or 0 after the operands is no option", lambda c, e: _ends_with_nothing(c, e)),
    (
        "value",
        "an empty list has a dtype",
        lambda c, e: c.name in ("inner", "dot", "matmul") and any(x in ([], ()) for x in c.args if _is_list(x)),
    ),
    (
        "value",
        "quantiles between infinities",
        lambda c, e: c.name in ("quantile", "percentile", "nanquantile", "nanpercentile") and "nan expected" in e
        and "inf" in e.partition("expected")[2],
    ),
    (
        "refused",
        "one order of a norm, one cutoff of pinv",
        lambda c, e: "linalg." in c.name and ("'tuple'" in e or "'list'" in e),
    ),
    (
        "refused",
        "where= and initial= of a reduction have no derivative",
        lambda c, e: bool({"where", "initial"} & c.words.keys()) and "no differentiable form" in e,
    ),
]
"""Outcome, reason, and the calls that it covers, by the call and the text of its outcome."""


def is_listed(call: Call, outcome: str, seen: str) -> bool:
    """Whether this fault is a difference on purpose."""
    return any(kind == outcome and covers(call, seen) for kind, _, covers in DIFFERENCES)


def _is_endless(call: Call) -> bool:
    """Whether NumPy may not return: it takes as many steps as a huge `n` says, and LAPACK loops on infinities."""
    given = [*call.args, *call.words.values()]
    if call.name == "diff":
        return any(isinstance(n, int) and n > 1000 for n in given)
    if call.name.startswith("linalg."):
        return any(x.dtype.kind in "fc" and not np.isfinite(x).all() for x in _arrays(given))
    return False


# -- the run ---------------------------------------------------------------------------------------------------------
def run(
    calls: int, seed: int, names: list[str] | None = None, progress: bool = False
) -> tuple[Counter[str], list[tuple[str, str]]]:
    """Run random calls. Returns how many had each outcome, and the outcomes that are faults."""
    chosen = names or sorted(RECIPES)
    counts: Counter[str] = Counter()
    faults = []
    begun = time.process_time()
    for i in range(calls):
        call = draw_call(Draw(f"{seed}-{i}"), [chosen[i % len(chosen)]])
        outcome, seen = ("skipped", "") if _is_endless(call) else check(call)
        if outcome not in ("agreed", "internal") and is_listed(call, outcome, seen):
            outcome = "listed"
        counts[outcome] += 1
        if outcome not in ("agreed", "listed", "skipped"):
            faults.append((outcome, f"#{i} {seen}"))
        if progress and (i + 1) % 1000 == 0:
            print(f"{i + 1} calls, {time.process_time() - begun:.0f} s: {dict(counts)}", file=sys.stderr, flush=True)
    return counts, faults


def main() -> None:
    """Run random calls, print what differs, and exit with 1 if anything does."""
    parser = argparse.ArgumentParser(description="random calls of autograd.numpy beside NumPy")
    parser.add_argument("--calls", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--names", nargs="*", help="only these functions")
    options = parser.parse_args()
    counts, faults = run(options.calls, options.seed, options.names, progress=True)
    for outcome, seen in sorted(faults):
        print(f"{outcome}: {seen}")
    print(dict(counts))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
