"""Dropout: the same elements are dropped whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, overload

import numpy as np

from .. import random
from ..arrays.capture import recorded
from ..arrays.device import as_array
from ..engine.leaves import tensor
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import ArgumentError, DtypeError, typed_errors
from ..kernels import find
from ..ops.nn.dropout import Mask, masked
from ..random.keys import check_key
from ..random.philox import source_of
from ..random.placement import of_tensor
from .arguments import probability, refuse_in_place
from .module import Module

__all__ = ["Dropout", "dropout"]


def _check_arguments(x: Any, training: Any, inplace: Any, key: Any) -> None:
    """Raise an error for arguments of dropout of another kind."""
    if training is not True and training is not False:
        fix = "\n  fix: key=key" if isinstance(training, random.Key) else ""
        raise ArgumentError(f"dropout: training={training!r} was given; needed: True or False{fix}")
    if inplace is not False:
        refuse_in_place(inplace, "dropout")
    if key is not None and not isinstance(key, random.Key):
        raise DtypeError(f"dropout: key={key!r} was given; needed: a random.Key, or None")
    if x.__class__ not in TENSORS and as_array(x).dtype.kind not in "biufcV":
        raise DtypeError(f"dropout: x={x!r} was given; needed: numbers")



@overload
def dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, key: random.Key | None = None
) -> Tensor: ...
@overload
def dropout(
    input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, *, key: random.Key | None = None
) -> Any: ...
@typed_errors
def dropout(
    input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, *, key: random.Key | None = None
) -> Any:
    """Set each element to zero with probability p and divide the others by 1 - p. Keeps the layout of x.

    Whether an element is dropped depends on the key and on the element's position in the logical tensor only, so the
    result is the same for any number of ranks: a rank of a Shard draws the mask of its own part, and all ranks of a
    Replicated, Invariant or Partial value draw the same mask.

    Parameters
    ----------
    input : Tensor or array
    p : float
        Probability of dropping an element, 0 <= p <= 1.
    training : bool
        If False, the input is returned unchanged.
    inplace : bool
        Only False.
    key : random.Key, optional
        Use each key once. By default the thread's next key; see `random`.

    Returns
    -------
    Tensor or array
        Of the shape, dtype and layout of x.

    Raises
    ------
    LayoutError
        x is Varying on an axis that is not an axis of the key (`Key.along`), and the key has no places on it
        (`random.placed`): the ranks would use one mask for different values.
    OptionError
        p is not a probability.
    DtypeError
        p is not a number, or key is not a Key.
    ArgumentError
        `training` is not a boolean.

    Notes
    -----
    ``y = x * mask / (1 - p)``. Adjoint: ``ct * mask / (1 - p)``, with the same mask. Source: Srivastava et al.,
    "Dropout", JMLR 15 (2014), section 4, but scaled during training, as in torch.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn, random
    >>> y = nn.dropout(numpy.ones(8), 0.5, key=random.Key(0, "dropout"))
    >>> sorted(set(y.tolist()))
    [0.0, 2.0]
    """
    p, x = probability(p, "dropout: p"), input
    _check_arguments(x, training, inplace, key)
    if not training or p == 0:
        return x
    key = random.next_key("dropout") if key is None else key
    raw = x.__class__ not in TENSORS
    if raw:
        x = tensor(x)
    if state.grid is not None:
        check_key(key, "dropout")
        of_tensor(x, (*key.axes, *key.apart), "dropout", key.places)
    scale = x.dtype.type(0.0 if p == 1 else 1.0 / (1.0 - p))
    if find("dropout.dropout", (x.array,)) is not None:
        mask = recorded(_mask, key, x, p, float(scale))
        y = masked(x, options=(mask,))
        return y.array if raw and state.grid is None else y
    keep = random.bernoulli(key, x, 1.0 - p)
    is_labelled = keep.__class__ in TENSORS
    factors = recorded(np.multiply, keep.array if is_labelled else keep, scale)
    y = x * Tensor(factors, keep.layout if is_labelled else None)
    return y.array if raw and state.grid is None else y


def _mask(key: random.Key, x: Tensor, p: float, scale: float) -> Mask:
    """The elements that are kept, as an option of `masked`."""
    return Mask(source_of(key, x, "dropout", (1.0 - p,)), ceil((1.0 - p) * 2.0**53), scale)


class Dropout(Module):
    """`dropout` with a new key at each call; the identity in evaluation mode.

    Parameters
    ----------
    p : float
        Probability of dropping an element.
    inplace : bool
        Only False.
    along : str or sequence of str
        Mesh axes on which x is Varying. The ranks of these axes use different masks.

    Raises
    ------
    LayoutError
        At a call: x is Varying on an axis that is not in `along`.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False, *, along: str | Sequence[str] = ()):
        refuse_in_place(inplace, "Dropout")
        self.p = probability(p, "Dropout: p")
        self.along = (along,) if isinstance(along, str) else tuple(along)

    def forward(self, input: Any) -> Tensor:
        if not self.training:
            return input
        key = random.next_key("dropout") if self.p else None
        return dropout(input, self.p, key=key.along(*self.along) if key is not None and self.along else key)
