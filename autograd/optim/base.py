"""`Optimizer`, the base class of optimizers, and the check that a gradient has its parameter's layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import numpy as np

from ..arrays.device import is_inexact, move, to_host
from ..arrays.shape_only import is_absent
from ..engine.parameter import Leaf
from ..engine.saved_arrays import step_check
from ..engine.state import state
from ..errors import ArgumentError, DtypeError, LayoutError, OptionError, ShapeError, call_site
from ..layouts.layout import C, may_relabel
from ..layouts.messages import describe
from .hyperparameters import check_count, check_numbers

__all__ = ["Optimizer", "decrease", "refuse_foreign_gradient"]


class Optimizer:
    """Base class of optimizers. A subclass overrides `update`, which changes one parameter.

    Parameters
    ----------
    parameters : iterable of Parameter
    lr : float or callable
        The learning rate, or a schedule: a function from the number of steps taken so far to the rate (see
        `schedules`). The attribute `lr` may be set at any time.
    digest_every : int
        On a mesh, the copies of replicated parameters are compared at the first step and every `digest_every` steps. 0
        turns this off.

    Raises
    ------
    ShapeError
        There are no parameters.
    DtypeError
        A parameter is not of a floating dtype.
    ArgumentError
        `parameters` is not a list of parameters, or a hyperparameter no number.
    OptionError
        A parameter is given twice, or a hyperparameter is NaN, infinite or out of range. The learning rate is also
        checked at each step.
    """

    schedule: Callable[[int], float] | None = None
    _saved: tuple[str, ...] = ()  # names of attributes that are lists with one array per parameter

    def __init__(self, parameters: Iterable[Leaf], lr: float | Callable[[int], float] = 0.0, digest_every: int = 100):
        caller = type(self).__name__
        try:
            self.parameters = list(parameters)
        except TypeError as error:
            text = f"{caller}: {type(parameters).__name__} was given; needed: a list of Parameters"
            raise ArgumentError(text + call_site()) from error
        if not self.parameters:
            raise ShapeError(
                f"{type(self).__name__}: no parameters were given; needed: at least one, like model.parameters()"
            )
        for p in self.parameters:
            if not isinstance(p, Leaf):
                raise ArgumentError(f"{caller}: {type(p).__name__} was given; needed: Parameters" + call_site())
            if not is_inexact(p.array.dtype):
                raise DtypeError(
                    f"{type(self).__name__}: {p.name or 'a parameter'} has dtype {p.array.dtype}; needed: a floating "
                    "dtype"
                )
        seen: dict[int, int] = {}
        for i, p in enumerate(self.parameters):
            first = seen.setdefault(id(p), i)
            if first != i:
                raise OptionError(
                    f"{caller}: {p.name or f'parameter {i}'} was given twice, at {first} and {i}; needed: each "
                    "parameter once, or a step would change it twice" + call_site()
                )
        self.schedule = lr if callable(lr) else None
        self.lr: float = lr(0) if callable(lr) else lr
        check_numbers(caller, lr=self.lr)
        check_count(caller, digest_every=digest_every)
        self.digest_every = digest_every
        self.steps = 0
        self._accepted: list[Any] = []  # layouts of the parameters when all gradients last passed `_accept`

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to None."""
        for p in self.parameters:
            p._grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient.

        Raises
        ------
        LayoutError
            A gradient's layout is not its parameter's.
        SavedArrayError
            A tape still needs the present value of a parameter.
        ReplicaMismatch
            Copies of a replicated parameter differ between ranks.
        """
        mesh = state.mesh
        if mesh is not None and self.digest_every and self.steps % self.digest_every == 0:
            mesh.check_replicas(self.parameters)
        if self.schedule is not None:
            self.lr = self.schedule(self.steps)
        if not 0.0 <= self.lr < math.inf:
            check_numbers(type(self).__name__, lr=self.lr)
        self.steps += 1
        parameters = self.parameters
        gradients = list(map(_gradient, parameters))
        if (
            any(map(_uses, parameters))
            or list(map(_layout, parameters)) != self._accepted
            or not _BARE.issuperset(map(type, gradients))
        ):
            gradients = [self._accept(i, p) for i, p in enumerate(parameters)]
            plain = all(p.owns and type(p.array) is np.ndarray for p in parameters)
            complete = plain and all(g is not None for g in gradients)
            self._accepted = [p.layout for p in parameters] if complete else []
        self.update_all(gradients)

    def _accept(self, i: int, p: Leaf) -> Any:
        """Check the gradient of the i-th parameter and return its array, or None if there is nothing to update."""
        g = p.grad
        if g is None or is_absent(p.array):
            return None
        refuse_foreign_gradient(p, i)
        step_check(p)
        return g.array

    def update_all(self, gradients: list[Any]) -> None:
        """Update all parameters. `gradients` has one entry per parameter, None for those that are not updated."""
        for i, (p, g) in enumerate(zip(self.parameters, gradients, strict=True)):
            if g is not None:
                self.update(i, p, g)

    def update(self, i: int, p: Leaf, g: Any) -> None:
        """Update the i-th parameter in place, given its gradient. Subclasses override this."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the number of steps, the learning rate and the arrays kept for each parameter.

        `load_state_dict` continues a run from them.
        """
        found: dict[str, Any] = {"steps": self.steps, "lr": self.lr}
        for name in self._saved:
            values = getattr(self, name)
            found[name] = [v if v is None or isinstance(v, int) else np.array(to_host(v)) for v in values]
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the state from the `state_dict` of an optimizer of the same class with parameters of the same shapes.

        Raises
        ------
        ShapeError
            Entries are missing or unknown, or shapes differ.
        """
        needed = {"steps", "lr", *self._saved}
        if set(state) != needed or any(len(state[name]) != len(self.parameters) for name in self._saved):
            raise ShapeError(
                f"load_state_dict: {sorted(state)} was given; needed: {sorted(needed)}, lists of "
                f"{len(self.parameters)} parameters"
            )
        for name in self._saved:
            values = []
            for p, v in zip(self.parameters, state[name], strict=True):
                if isinstance(v, np.ndarray) and v.shape != p.array.shape:
                    raise ShapeError(f"load_state_dict: {name} has shape {v.shape}; needed: {p.array.shape}")
                values.append(move(v.copy(), p.array) if isinstance(v, np.ndarray) else v)
            setattr(self, name, values)
        self.steps, self.lr = int(state["steps"]), float(state["lr"])
        self.forget()

    def forget(self) -> None:
        """Drop what was computed from the arrays of the state, which have been replaced. Subclasses may override."""


_gradient, _uses, _layout = attrgetter("_grad"), attrgetter("uses"), attrgetter("layout")
_BARE = frozenset((np.ndarray,))
"""The type of a gradient that `Leaf.accumulate` stored, which has the dual layout of its parameter."""


def refuse_foreign_gradient(p: Leaf, i: int) -> None:
    """Raise LayoutError unless the gradient of a parameter has the parameter's layout."""
    g = p.grad
    assert g is not None
    if g.array.shape != p.array.shape:
        raise ShapeError(f"{p.name or f'parameter {i}'} has shape {p.array.shape}, its gradient {g.array.shape}")
    if p.layout is None or g.layout is None:
        return
    for axis, size, have, need in zip(
        p.layout.grid.names, p.layout.grid.sizes, g.layout.labels, p.layout.labels, strict=True
    ):
        if (
            have is not need
            and have != need
            and need is not C
            and not (have.letter in "VS" and may_relabel(have, need))
        ):
            name = p.name or f"parameter {i}"
            never = f": the sum over {size} ranks was never taken" if have.letter == "P" else ""
            raise LayoutError(
                f"step({name}: {describe(p.array, p.array.shape, p.layout)}, its gradient: "
                f"{describe(g.array, g.array.shape, g.layout)})\n  axis {axis!r}: the parameter is {need.word}, "
                f"its gradient {have.word}{never}\n  fix: make the parameter Invariant (leave the label out) and enter "
                f"it by cast({name}, {axis!r}, to=R), whose adjoint is the all-reduce" + call_site()
            )


def decrease(p: Leaf, change: Any) -> None:
    """Subtract `change` from the array of `p`, in place unless it is a NumPy scalar."""
    if isinstance(p.array, np.generic):
        p.array = p.array - change
    else:
        p.array -= change
