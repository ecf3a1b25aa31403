"""What all optimizers share.

`step` refuses a gradient whose layout is not its parameter's (Partial is "never reduced"), and compares the copies of
replicated parameters at the first step and every so often, so that replicas that drifted apart are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import numpy as np

from ..arrays.device import is_inexact, move, to_host
from ..arrays.shape_only import is_absent
from ..engine.parameter import Leaf
from ..engine.saved_arrays import step_check
from ..engine.state import state
from ..errors import DtypeError, LayoutError, RingtapeError, ShapeError, call_site
from ..layouts.layout import C, may_relabel
from ..layouts.messages import describe

__all__ = ["Optimizer", "decrease", "refuse_foreign_gradient"]


class Optimizer:
    """What optimizers share: the parameters, the checks, `zero_grad`.

    Parameters
    ----------
    parameters : iterable of Parameter
    lr : float, or function from the count of steps taken to a float
        The learning rate; `schedules` has such functions. It may be set at any time, as the attribute `lr`.
    digest_every : int
        Under a mesh, replicas are compared at the first step and every so many; 0 for never.
    """

    schedule: Callable[[int], float] | None = None
    _saved: tuple[str, ...] = ()  # the attributes that hold a list of arrays, one a parameter

    def __init__(self, parameters: Iterable[Leaf], lr: float | Callable[[int], float] = 0.0, digest_every: int = 100):
        self.parameters = list(parameters)
        if not self.parameters:
            raise ShapeError("an optimizer of no parameters; needed: at least one, like model.parameters()")
        for p in self.parameters:
            if not isinstance(p, Leaf):
                raise RingtapeError(f"an optimizer was given {type(p).__name__}; needed: Parameters")
            if not is_inexact(p.array.dtype):
                raise DtypeError(
                    f"an optimizer was given a parameter of dtype {p.array.dtype}; needed: a floating dtype"
                )
        self.schedule = lr if callable(lr) else None
        self.lr: float = lr(0) if callable(lr) else lr
        self.digest_every = digest_every
        self.steps = 0
        self._accepted: list[Any] = []  # the parameters' layouts, where the dual ones were found to fit

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for p in self.parameters:
            p._grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient.

        Raises
        ------
        LayoutError
            A gradient whose layout is not its parameter's.
        SavedArrayError
            A tape still needs a parameter.
        ReplicaMismatch
            Copies of a replicated parameter differ between ranks.
        """
        mesh = state.mesh
        if mesh is not None and self.digest_every and self.steps % self.digest_every == 0:
            mesh.check_replicas(self.parameters)
        if self.schedule is not None:
            self.lr = self.schedule(self.steps)
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
        """The gradient of the i-th parameter as an array, None where there is nothing to do; refused if unfit."""
        g = p.grad
        if g is None or is_absent(p.array):
            return None
        refuse_foreign_gradient(p, i)
        step_check(p)
        return g.array

    def update_all(self, gradients: list[Any]) -> None:
        """Change the parameters that have a gradient; one entry per parameter."""
        for i, (p, g) in enumerate(zip(self.parameters, gradients, strict=True)):
            if g is not None:
                self.update(i, p, g)

    def update(self, i: int, p: Leaf, g: Any) -> None:
        """Change the i-th parameter in place, given its gradient."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Copies of what a run that goes on needs: the count of steps, the rate, and the arrays of each parameter."""
        found: dict[str, Any] = {"steps": self.steps, "lr": self.lr}
        for name in self._saved:
            values = getattr(self, name)
            found[name] = [v if v is None or isinstance(v, int) else np.array(to_host(v)) for v in values]
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned of an optimizer of the same kind and parameters."""
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
        """Drop what is derived from the arrays of the state, which are others now."""


_gradient, _uses, _layout = attrgetter("_grad"), attrgetter("uses"), attrgetter("layout")
_BARE = frozenset((np.ndarray,))  # what `Leaf.accumulate` leaves: of the dual layout


def refuse_foreign_gradient(p: Leaf, i: int) -> None:
    """Raise LayoutError unless the gradient of a parameter has the parameter's own layout."""
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
                f"its gradient "
                f"{have.word}{never}\n  fix: make the parameter Invariant (leave the label out) and enter it by "
                f"cast({name}, "
                f"{axis!r}, to=R), whose adjoint is the all-reduce" + call_site()
            )


def decrease(p: Leaf, change: Any) -> None:
    """``p -= change``, in place where the array can be changed."""
    if isinstance(p.array, np.generic):
        p.array = p.array - change
    else:
        p.array -= change
