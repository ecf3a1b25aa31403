"""Dropout, by keys that know layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import random
from ..engine.parameter import tensor
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import RingtapeError
from .module import Module

__all__ = ["Dropout", "dropout"]


def dropout(x: Any, p: float = 0.5, key: random.Key | None = None, training: bool = True) -> Any:
    """Zeros in the place of elements, each with probability p; the others divided by 1 - p. Any layout, kept.

    Which elements follows from the key and the element's place in the logical tensor, so that any number of ranks drop
    the same ones: each its part of a sharded x, all the same ones of equal copies, and of addends.

    Parameters
    ----------
    x : Tensor or array
    p : float
        0 <= p <= 1.
    key : random.Key, optional
        One for each draw; the thread's next one without it. See `random`.
    training : bool
        If False, x itself.

    Raises
    ------
    LayoutError
        x is Varying on an axis that the key is not along: its ranks would drop the same elements of different values.

    Notes
    -----
    Adjoint: the same elements dropped. Source: Srivastava et al., "Dropout", JMLR 15 (2014), section 4; scaled in
    training as torch does.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn, random
    >>> y = nn.dropout(numpy.ones(8), 0.5, random.Key(0, "dropout"))
    >>> sorted(set(y.tolist()))
    [0.0, 2.0]
    """
    if not 0 <= p <= 1:
        raise RingtapeError(f"dropout: p={p!r} was given; needed: a probability, 0 <= p <= 1")
    if not training or p == 0:
        return x
    key = random.next_key("dropout") if key is None else key
    raw = x.__class__ not in TENSORS
    if raw:
        x = tensor(x)
    keep = random.bernoulli(key, x, 1.0 - p)
    scale = x.dtype.type(0.0 if p == 1 else 1.0 / (1.0 - p))
    y = x * (Tensor(keep.array * scale, keep.layout) if keep.__class__ in TENSORS else Tensor(keep * scale))
    return y.array if raw and state.grid is None else y


class Dropout(Module):
    """`dropout` with the thread's next key at every call.

    Parameters
    ----------
    p : float
    along : str or sequence of str
        Mesh axes on which the ranks hold values of their own (Varying), and drop elements of their own.
    """

    def __init__(self, p: float = 0.5, *, along: str | Sequence[str] = ()):
        self.p = p
        self.along = (along,) if isinstance(along, str) else tuple(along)

    def forward(self, x: Any) -> Any:
        if not self.training:
            return x
        return dropout(x, self.p, random.next_key("dropout").along(*self.along))
