"""Python's containers and questions about types, for programs that use them on traced values.

A container that a function is given stays a plain tuple, list or dictionary, with traced values inside; so these names
are Python's own, except that `isinstance` and `type` answer for the value, not for its place on a tape.
"""

from __future__ import annotations

import builtins
from typing import Any

from .extend import getval

dict, list, tuple = builtins.dict, builtins.list, builtins.tuple

__all__ = ["dict", "isinstance", "list", "tuple", "type"]


def isinstance(x: Any, kinds: Any) -> bool:
    """``isinstance`` of the value.

    Examples
    --------
    >>> import autograd as ag, numpy
    >>> from autograd.builtins import isinstance
    >>> isinstance(ag.tensor([1.0, 2.0]), numpy.ndarray), isinstance([1.0], list)
    (True, True)
    """
    return builtins.isinstance(getval(x), kinds) or builtins.isinstance(x, kinds)


def type(x: Any) -> Any:
    """``type`` of the value."""
    return builtins.type(getval(x))
