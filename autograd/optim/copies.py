"""Optimizers that update copies of the parameters: in another dtype (`MasterWeights`), or on the host (`Offload`)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..arrays.half import is_half
from ..engine.leaves import Leaf, Parameter
from .base import Optimizer, check_parameters
from .groups import split

__all__ = ["OfCopies", "copy_of", "wide_dtype"]


def wide_dtype(dtype: Any) -> Any:
    """The dtype of a copy: float32 for parameters of 16 bits."""
    return np.dtype(np.float32) if is_half(dtype) else dtype


def copy_of(p: Leaf, array: Any) -> Parameter:
    """A copy of a parameter, with an array that may be of another dtype or on another device."""
    own = Parameter(np.zeros((), wide_dtype(p.array.dtype)), name=p.name, requires_grad=p.requires_grad)
    own.array, own.layout = array, p.layout
    return own


class OfCopies:
    """Holds parameters, and an optimizer of their copies, whose hyperparameters are its own.

    The constructor calls `optimizer`, the class of the optimizer, with the copies, `args` and `kwargs`; `copy` makes
    that of a parameter, and `params` are those of an optimizer.
    """

    parameters: list[Leaf]

    def __init__(
        self, optimizer: Callable[..., Optimizer], params: Iterable[Leaf] | Iterable[dict[str, Any]],
        args: Sequence[Any], kwargs: Mapping[str, Any], copy: Callable[[Leaf], Parameter],
    ):  # fmt: skip
        groups = split(type(self).__name__, params)
        self.held = [p for members, _ in groups for p in members]  # of which the optimizer has copies
        check_parameters(type(self).__name__, self.held, Parameter)
        made: list[dict[str, Any]] = [{"params": [copy(p) for p in members], **own} for members, own in groups]
        self._copies: list[Leaf] = [m for each in made for m in each["params"]]
        is_plain = len(made) == 1 and len(made[0]) == 1
        self.optimizer = optimizer(self._copies if is_plain else made, *args, **kwargs)
        self._known = [p.array for p in self.held]  # to see that a parameter was assigned

    @property
    def lr(self) -> float:
        """The learning rate; see `Optimizer`."""
        return self.optimizer.lr

    @lr.setter
    def lr(self, value: float) -> None:
        self.optimizer.lr = value

    @property
    def param_groups(self) -> list[Any]:
        """The groups of the copies; see `Optimizer`."""
        return self.optimizer.param_groups

    @property
    def steps(self) -> int:
        """The number of steps that were taken."""
        return self.optimizer.steps

    def _take_names(self) -> None:
        """Give the copies the layouts and names of the parameters."""
        for p, own in zip(self.held, self._copies, strict=True):
            own.layout, own.name = p.layout, p.name

    def after_first_step(self) -> Any:
        """This optimizer as a first step leaves it, without values; see `Optimizer`."""
        made = copy.copy(self)
        made.optimizer = self.optimizer.after_first_step()
        return made

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters and of their copies to None."""
        self.optimizer.zero_grad(set_to_none)
        for p in self.held:
            p.zero_grad()
