"""The module `autograd.builtins` of HIPS autograd: Python's containers, `isinstance` and `type` for traced values.

A container argument of a traced function is a plain tuple, list or dictionary with traced values inside. So `tuple`,
`list` and `dict` are Python's own; `isinstance` and `type` look at the array of a traced value.
"""

from __future__ import annotations

import builtins
from typing import Any

from .custom.boxes import DictBox, SequenceBox
from .errors import typed_errors
from .extend import getval

dict, list, tuple = builtins.dict, builtins.list, builtins.tuple

__all__ = ["DictBox", "SequenceBox", "dict", "isinstance", "list", "tuple", "type"]


@typed_errors
def isinstance(x: Any, kinds: Any) -> bool:
    """Return whether the value of `x`, or `x` itself, is an instance of `kinds`.

    Examples
    --------
    >>> import autograd as ag, numpy
    >>> from autograd.builtins import isinstance
    >>> isinstance(ag.tensor([1.0, 2.0]), numpy.ndarray), isinstance([1.0], list)
    (True, True)
    """
    return builtins.isinstance(getval(x), kinds) or builtins.isinstance(x, kinds)


def type(x: Any) -> Any:
    """Return the type of the value of `x`."""
    return builtins.type(getval(x))
