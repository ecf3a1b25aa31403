"""NumPy with differentiable functions: ``import autograd.numpy as np``.

A function called on Tensors is recorded on the tape; on plain arrays NumPy's own function runs. Every public name of
NumPy is here: array creation, dtypes, constants and functions without a derivative are NumPy's own objects. NumPy's
functions called on Tensors also run the functions of this module: ``numpy.sum(x)``, ``numpy.linalg.inv(x)``,
``numpy.add.reduce(x)``.

A function whose result is discrete (``argsort``, ``isnan``, ``floor``, ``allclose``, ...) runs on the values. Any other
function without a derivative runs on the values too where no tape records its operand; where one does, it raises
`NotDifferentiable` at the call, not in backward.

``__all__`` of the files of `ops` lists what is found here. docs/reference/numpy.rst lists what is refused on purpose,
and the conventions where no derivative exists.
"""

from __future__ import annotations

import sys as _sys
import types as _types
from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

import numpy as _numpy

from ..errors import instead_of as _instead_of
from ..errors import missing_attribute as _missing_attribute
from ..ops.arguments import stack
from ..ops.correlation import *
from ..ops.creation import *
from ..ops.einsum import *
from ..ops.elementwise import *
from ..ops.manipulation import *
from ..ops.reductions import *
from ..ops.shape import *
from ..ops.sorting import *
from ..ops.statistics import *
from ..ops.ufuncs import *
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

# all other public names are NumPy's own objects; NumPy's submodules are loaded at first use, by __getattr__
globals().update({_name: vars(_numpy)[_name] for _name in {*_numpy.__all__} & {*vars(_numpy)} - {*globals()}})
__all__ = sorted({*_numpy.__all__, "builtins", "make_diagonal", "msort"})  # noqa: PLE0605
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
        if name == "builtins":
            return _import_module("autograd.builtins")
        if not hasattr(_numpy, name) and _instead_of(__name__, name):
            raise _missing_attribute(__name__, name)
        return getattr(_numpy, name)


_sys.modules[__name__].__class__ = _Module
