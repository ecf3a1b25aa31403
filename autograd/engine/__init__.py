"""The engine: Tensors, the tape, and the calls and derivatives of declared operations.

It can be imported alone: `Tape`, `Tensor`, `Parameter`, `constant`, and `op`, by which operations are declared;
`tensor` is in `leaves`. Tensors take their operators and methods, which are operations, from `autograd.ops` at use.

In order of dependence the files are `locks` (read-only arrays), `recording` (the list of nodes), `distribution` (the
door to the ranks), `state` (the state of a thread), `tensor`, `deferred`, `promotion`, `objective` (where a sweep may
start), `sweep` (one replay), `deferral`, `tape` (what users open), `leaves`, `checked_pull` (recorded sweeps, and the
check of a rule's layouts), `dispatch` (one call, and one step of a sweep), `forward_mode`, `primitive` (the declaration
of an operation), and `multi_output`. Helpers are `events`, `pytree` and `whole`.

Examples
--------
>>> import numpy as np
>>> from autograd.engine import Parameter, Tape, op
>>> rules = lambda ct, y, a, b: times(ct, b), lambda ct, y, a, b: times(ct, a)
>>> times = op("times (example)", "a b", np.multiply, rules, saves="01")
>>> total = op("total (example)", "a", np.sum, lambda ct, y, x: np.full(x.shape, ct), saves="0")
>>> w = Parameter([1.0, 2.0])
>>> with Tape() as tape:
...     y = total(times(w, w))
>>> tape.backward(y)
>>> w.grad.numpy()
array([2., 4.])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .leaves import Parameter, constant
    from .primitive import op
    from .tape import Tape
    from .tensor import Tensor

__all__ = ["Parameter", "Tape", "Tensor", "constant", "op"]

_HOME = {"Parameter": "leaves", "Tape": "tape", "Tensor": "tensor", "constant": "leaves", "op": "primitive"}


def __getattr__(name: str) -> Any:
    """Load a name at first use: several threads could not import a package at once that imports its own files."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    """The names of the package, with those that are loaded at first use, for completion."""
    return sorted({*globals(), *__all__})
