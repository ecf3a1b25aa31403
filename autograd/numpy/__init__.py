"""NumPy with differentiable functions: ``import autograd.numpy as np``.

A function called on Tensors is recorded on the tape; on plain arrays NumPy's own function runs. Every public name of
NumPy is here: array creation, dtypes, constants and functions without a derivative are NumPy's own objects. NumPy's
functions called on Tensors also run the functions of this module: ``numpy.sum(x)``, ``numpy.linalg.inv(x)``,
``numpy.add.reduce(x)``.

A function whose result is discrete (``argsort``, ``isnan``, ``floor``, ``allclose``, ...) runs on the values. Any other
function without a derivative runs on the values too where no tape records its operand; where one does, it raises
`NotDifferentiable` at the call, not in backward.

docs/reference/numpy.rst lists what is refused on purpose, and the conventions where no derivative exists.
"""

from __future__ import annotations

import sys as _sys
import types as _types
from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

import numpy as _numpy

from ..ops.arguments import stack
from ..ops.correlation import convolve, corrcoef, correlate, cov, polyval
from ..ops.creation import (
    append,
    arange,
    array,
    asanyarray,
    asarray,
    ascontiguousarray,
    atleast_1d,
    atleast_2d,
    atleast_3d,
    block,
    broadcast_arrays,
    column_stack,
    copy,
    dstack,
    empty_like,
    eye,
    full,
    full_like,
    hstack,
    identity,
    linspace,
    logspace,
    meshgrid,
    ones,
    ones_like,
    row_stack,
    tri,
    vstack,
    zeros,
    zeros_like,
)
from ..ops.einsum import cross, dot, einsum, inner, kron, outer, tensordot, vdot, vecdot
from ..ops.elementwise import (
    absolute,
    conj,
    cos,
    equal,
    exp,
    expm1,
    greater,
    greater_equal,
    imag,
    isfinite,
    less,
    less_equal,
    log,
    log1p,
    logical_not,
    maximum,
    minimum,
    not_equal,
    real,
    reciprocal,
    sign,
    sin,
    sqrt,
    square,
    tanh,
)
from ..ops.manipulation import (
    array_split,
    delete,
    diag,
    diagflat,
    diagonal,
    diff,
    dsplit,
    ediff1d,
    flip,
    fliplr,
    flipud,
    gradient,
    hsplit,
    make_diagonal,
    pad,
    repeat,
    resize,
    roll,
    rollaxis,
    rot90,
    split,
    tile,
    trace,
    trapezoid,
    tril,
    triu,
    unstack,
    vsplit,
)
from ..ops.reductions import all, any, argmax, argmin, count_nonzero, max, mean, min, sum
from ..ops.shape import (
    broadcast_to,
    concatenate,
    expand_dims,
    matrix_transpose,
    moveaxis,
    ravel,
    reshape,
    shape,
    size,
    squeeze,
    swapaxes,
    transpose,
)
from ..ops.sorting import (
    argpartition,
    argsort,
    choose,
    compress,
    extract,
    interp,
    median,
    msort,
    nanmedian,
    partition,
    percentile,
    piecewise,
    quantile,
    select,
    sort,
    sort_complex,
    take,
    take_along_axis,
    union1d,
    unique,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
    where,
)
from ..ops.statistics import (
    average,
    cumprod,
    cumsum,
    cumulative_prod,
    cumulative_sum,
    nancumprod,
    nancumsum,
    nanmax,
    nanmean,
    nanmin,
    nanprod,
    nanstd,
    nansum,
    nanvar,
    prod,
    std,
    var,
)
from ..ops.ufuncs import (
    angle,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    cbrt,
    ceil,
    clip,
    copysign,
    cosh,
    deg2rad,
    divmod,
    exp2,
    fabs,
    fix,
    float_power,
    floor,
    floor_divide,
    fmax,
    fmin,
    fmod,
    heaviside,
    hypot,
    i0,
    invert,
    isclose,
    iscomplex,
    isinf,
    isnan,
    isneginf,
    isposinf,
    isreal,
    ldexp,
    left_shift,
    log2,
    log10,
    logaddexp,
    logaddexp2,
    logical_and,
    logical_or,
    logical_xor,
    modf,
    nan_to_num,
    positive,
    ptp,
    rad2deg,
    real_if_close,
    right_shift,
    rint,
    round,
    signbit,
    sinc,
    sinh,
    tan,
    trunc,
    unwrap,
)
from .arithmetic import add, divide, matmul, mod, multiply, negative, power, subtract
from .constructors import astype, c_, r_

# aliases
abs = absolute
acos, acosh, asin, asinh, atan, atan2, atanh = arccos, arccosh, arcsin, arcsinh, arctan, arctan2, arctanh
amax, amin, around = max, min, round
bitwise_invert = bitwise_not = invert
bitwise_left_shift, bitwise_right_shift = left_shift, right_shift
concat, conjugate = concatenate, conj
degrees, radians = rad2deg, deg2rad
permute_dims, pow, remainder, true_divide = transpose, power, mod, divide

from . import fft, linalg, random

__all__ = [
    "abs", "absolute", "acos", "acosh", "add", "all", "amax", "amin", "angle", "any", "append", "arange", "arccos",
    "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "argmax", "argmin", "argpartition", "argsort",
    "around", "array", "array_split", "asanyarray", "asarray", "ascontiguousarray", "asin", "asinh", "astype",
    "atan", "atan2", "atanh", "atleast_1d", "atleast_2d", "atleast_3d", "average", "bitwise_and", "bitwise_invert",
    "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "block",
    "broadcast_arrays", "broadcast_to", "c_", "cbrt", "ceil", "choose", "clip", "column_stack", "compress",
    "concat", "concatenate", "conj", "conjugate", "convolve", "copy", "copysign", "corrcoef", "correlate", "cos",
    "cosh", "count_nonzero", "cov", "cross", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "deg2rad",
    "degrees", "delete", "diag", "diagflat", "diagonal", "diff", "divide", "divmod", "dot", "dsplit", "dstack",
    "ediff1d", "einsum", "empty_like", "equal", "exp", "exp2", "expand_dims", "expm1", "extract", "eye", "fabs",
    "fft", "fix", "flip", "fliplr", "flipud", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod",
    "full", "full_like", "gradient", "greater", "greater_equal", "heaviside", "hsplit", "hstack", "hypot", "i0",
    "identity", "imag", "inner", "interp", "invert", "isclose", "iscomplex", "isfinite", "isinf", "isnan",
    "isneginf", "isposinf", "isreal", "kron", "ldexp", "left_shift", "less", "less_equal", "linalg", "linspace",
    "log", "log10", "log1p", "log2", "logaddexp", "logaddexp2", "logical_and", "logical_not", "logical_or",
    "logical_xor", "logspace", "make_diagonal", "matmul", "matrix_transpose", "max", "maximum", "mean", "median",
    "meshgrid", "min", "minimum", "mod", "modf", "moveaxis", "msort", "multiply", "nan_to_num", "nancumprod",
    "nancumsum", "nanmax", "nanmean", "nanmedian", "nanmin", "nanprod", "nanstd", "nansum", "nanvar", "negative",
    "not_equal", "ones", "ones_like", "outer", "pad", "partition", "percentile", "permute_dims", "piecewise",
    "polyval", "positive", "pow", "power", "prod", "ptp", "quantile", "r_", "rad2deg", "radians", "random", "ravel",
    "real", "real_if_close", "reciprocal", "remainder", "repeat", "reshape", "resize", "right_shift", "rint",
    "roll", "rollaxis", "rot90", "round", "row_stack", "select", "shape", "sign", "signbit", "sin", "sinc", "sinh",
    "size", "sort", "sort_complex", "split", "sqrt", "square", "squeeze", "stack", "std", "subtract", "sum",
    "swapaxes", "take", "take_along_axis", "tan", "tanh", "tensordot", "tile", "trace", "transpose", "trapezoid",
    "tri", "tril", "triu", "true_divide", "trunc", "union1d", "unique", "unique_all", "unique_counts", "unique_inverse",
    "unique_values", "unstack", "unwrap", "var", "vdot", "vecdot", "vsplit", "vstack", "where", "zeros", "zeros_like",
]  # fmt: skip

# all other public names are NumPy's own objects; NumPy's submodules are loaded at first use, by __getattr__
globals().update({_name: vars(_numpy)[_name] for _name in {*_numpy.__all__} & {*vars(_numpy)} - {*globals()}})
globals()["__all__"] = sorted({*__all__, *_numpy.__all__, "builtins"})
__version__ = _numpy.__version__

_OF_HIPS = ("numpy_boxes", "numpy_vjps", "numpy_vspaces", "numpy_wrapper")

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


class _Module(_types.ModuleType):
    """Finds submodules of HIPS autograd's module and of NumPy, and NumPy's names outside ``__all__``.

    A class, because programs that wrap all functions in ``vars(autograd.numpy)`` would wrap a `__getattr__` there, too.
    """

    def __getattr__(self, name: str) -> Any:
        if name in _OF_HIPS:
            return _import_module(f".{name}", __name__)
        return _import_module("autograd.builtins") if name == "builtins" else getattr(_numpy, name)


_sys.modules[__name__].__class__ = _Module
