"""`Optimizer`, the base class of optimizers, and the check that a gradient has its parameter's layout."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dis import get_instructions
from functools import cache
from inspect import unwrap
from operator import attrgetter, call, getitem
from typing import Any

import numpy as np

from .. import notebook
from ..arrays.capture import Whole, current_capture, recorded, refuse
from ..arrays.device import device_of, is_array, is_inexact, mixed_devices, move, require_one_device, runtime_of
from ..arrays.half import is_half, rounded
from ..arrays.pairs import from_pairs, pairs_of
from ..arrays.shape_only import DRY, Shaped, is_absent
from ..engine import events
from ..engine.distribution import ALONE
from ..engine.leaves import Leaf, Parameter, Used, refuse_unlabelled_update, remove_gradients
from ..engine.locks import step_check
from ..engine.state import outside_mesh, state
from ..errors import (
    AbsentError,
    ArgumentError,
    DeviceError,
    DtypeError,
    GradientWarning,
    LayoutError,
    OptionError,
    ShapeError,
    find_site,
    short,
    short_site,
    typed_errors,
)
from ..kernels import functions
from ..layouts.layout import C, V, may_relabel
from ..layouts.messages import describe
from ..layouts.rank_values import rank_axes
from ..whole import OwnedState, Stored, part_of, whole_of
from .fused import ON_HOST, Rounding
from .groups import ByParameter, Group, Members, check_names, follow, matching, names_of, split
from .hyperparameters import check_count, check_numbers

__all__ = ["Optimizer", "check_parameters", "decayed", "refuse_foreign_gradient"]


def check_parameters(caller: str, parameters: Sequence[Any], kind: type[Leaf] = Leaf) -> None:
    """Raise an error unless all are different leaves of a kind with a floating dtype that require a gradient."""
    seen: dict[int, int] = {}
    for i, p in enumerate(parameters):
        if not isinstance(p, kind):
            raise ArgumentError(f"{caller}: {type(p).__name__} was given; needed: Parameters")
        if not is_inexact(p.array.dtype):
            raise DtypeError(
                f"{caller}: {p.name or 'a parameter'} has dtype {p.array.dtype}; needed: a floating dtype"
            )
        if not (isinstance(p, Parameter) or p.requires_grad):
            raise OptionError(
                f"{caller}: {p.name or 'a tensor'} of shape {p.array.shape} requires no gradient, so "
                "nothing would be learned; needed: Parameters\n  fix: ag.Parameter(array) in place of "
                "ag.tensor(array)"
            )
        first = seen.setdefault(id(p), i)
        if first != i:
            raise OptionError(
                f"{caller}: {p.name or f'parameter {i}'} was given twice, at {first} and {i}; needed: each "
                "parameter once, or a step would change it twice"
            )


def whole_step(optimizer: Any, keep: bool) -> None:
    Optimizer.step(optimizer, keep=keep)  # what a subclass does besides in its own `step` is not part of it


@typed_errors
class Optimizer:
    """Base class of optimizers. A subclass overrides `update`, which changes one parameter, and `check_numbers`.

    Parameters
    ----------
    params : iterable of Parameter, or of dict
        A dictionary is a group of parameters with hyperparameters of its own: ``{"params": [...], "lr": 0.01}``. The
        others are those of the optimizer. A group's "lr" may be a schedule, too.
    lr : float or callable
        The learning rate, or a schedule: a function from the number of steps taken so far to the rate (see
        `schedules`).
    digest_every : int
        On a mesh, the ranks compare the replicated parameters, their gradients, the optimizer's state for them and its
        hyperparameters at the steps 1, 2, 4, 8, ... and every `digest_every` steps. 0 turns this off, as does the check
        mode ``off``.

    Attributes
    ----------
    parameters : list of Leaf
        The parameters of all groups.
    lr : float
        The learning rate of the groups without a rate of their own. With a schedule it is the rate of the latest step,
        and before the first step that of the first. It may be set at any time, for the next steps. Setting it ends the
        schedule: the rate stays what was set. The same holds for ``param_groups[i]["lr"]``.

    Raises
    ------
    ShapeError
        There are no parameters, and the rank is not in a pipeline, of which a stage may have none.
    DtypeError
        A parameter is not of a floating dtype.
    LayoutError
        A hyperparameter depends on the rank, on an axis on which a parameter is one value. A parameter is an
        ``ag.tensor`` without a label, which each rank would update with a gradient of its own.
    ArgumentError
        `parameters` is not a list of parameters, or a hyperparameter no number.
    OptionError
        A parameter is given twice, or a hyperparameter is NaN, infinite or out of range. The learning rate is also
        checked at each step.

    Notes
    -----
    A parameter of float16 or bfloat16 is updated in float32, which its state has too, and rounded at each step. Changes
    below its last bit are lost; `MasterWeights` keeps them.

    A complex parameter is updated as pairs of real numbers, along the conjugate of its gradient: ``.grad`` of
    ``z = x + iy`` is ``df/dx - i df/dy``, as in HIPS autograd and JAX, and torch's is the conjugate of it. So a step
    moves both parts downhill, an average of squares has one for each part, and the state is complex, with torch's
    values.
    """

    schedule: Callable[[int], float] | None = None
    maximize: bool = False
    """Whether steps go up the gradient: a hyperparameter of the optimizers that list it among theirs."""
    run_updates: Callable[[Iterable[int], list[Any]], None] | None = None
    """Called by a step in the place of `update_some`, where something else decides when updates run (`Offload`)."""
    _saved: tuple[str, ...] = ()  # names of attributes that are lists with one array per parameter
    _numbers: tuple[str, ...] = ()  # names of the hyperparameters besides `lr`
    _switches: tuple[str, ...] = ()  # and of those that are False by default, and shown where they are not
    _flags: tuple[str, ...] = ()  # which of `_numbers` are True or False, as all `_switches` are

    def __init__(
        self, params: Iterable[Leaf] | Iterable[dict[str, Any]], lr: float | Callable[[int], float] = 0.0,
        digest_every: int = 100,
    ):  # fmt: skip
        caller = type(self).__name__
        groups = split(caller, params)
        if len(groups) == 1:
            lr = groups[0][1].pop("lr", lr)  # the rate of the only group is the optimizer's
        self.parameters: list[Leaf] = [p for members, _ in groups for p in members]
        # A stage of a pipeline may have layers without parameters. It takes part in all comparisons of the ranks.
        if not self.parameters and not state.distribution.stage_axes:
            raise ShapeError(
                f"{type(self).__name__}: no parameters were given; needed: at least one, like model.parameters()"
            )
        check_parameters(caller, self.parameters)
        self.schedule = lr if callable(lr) else None
        self.lr: float = lr(0) if callable(lr) else lr
        self.scheduled = self.lr  # the rate that the schedule has set
        self._groups: list[Members] = []
        end = 0
        for members, own in groups:
            check_names(self, own)
            start, end = end, end + len(members)
            self._groups.append(Members(range(start, end), own))
        self._has_groups = len(groups) > 1 or bool(groups[0][1])  # whether a group has numbers of its own
        self._group: Members | None = None  # whose hyperparameters the optimizer has at present
        self.rounding: Rounding | None = None  # set by `MasterWeights` during a step
        self._checked_lr: Any = None  # is a number that `step` has found legal
        check_numbers(caller, lr=self.lr)
        check_count(caller, digest_every=digest_every)
        for group in self.param_groups:
            refuse_rank_numbers(caller, {"lr": group["lr"]}, group["params"])
        for p in self.parameters:
            refuse_unlabelled_update(caller, p)
        self.digest_every = digest_every
        self.steps = 0
        self.calls = 0  # of `step` on a mesh; unlike `steps` it is not part of the state
        self._read = attrgetter(*self.legal_names())
        self._used: Used | None = None  # the last step, if the gradients that it has used are marked
        self._marks: Used | None = None  # the last step that has marked gradients
        self._known: Any = None  # the hyperparameters at the last call of `has_new_numbers`
        self._accepted: list[Any] = []  # layouts of the parameters when all gradients last passed `_accept`

    @property
    def param_groups(self) -> list[Group]:
        """The groups, or one with all parameters."""
        return [Group(self, members) for members in self._groups]

    def check(self) -> None:
        """Raise an error for a hyperparameter that is out of range, in any group. Constructors call it at their end."""
        for group in self._groups:
            with self.using(group):
                for name in (*self._flags, *self._switches):
                    x = getattr(self, name)
                    if not isinstance(x, bool | np.bool_):  # an array or a number may belong to another argument
                        own = type(self).__name__
                        raise ArgumentError(f"{own}: {name}={short(x)} was given; needed: True or False")
                self.check_numbers()

    def check_numbers(self) -> None:
        """Raise an error for a hyperparameter that is out of range: below 0. Subclasses with others override this."""
        names = [name for name in ("lr", *self._numbers) if name not in self._flags]
        check_numbers(type(self).__name__, **{name: getattr(self, name) for name in names})

    @classmethod
    def legal_names(cls) -> tuple[str, ...]:
        """The names of all hyperparameters."""
        return "lr", *cls._numbers, *cls._switches

    def number_names(self) -> tuple[str, ...]:
        """The names of the hyperparameters, without switches that are off in all groups."""
        owns = [group.own for group in self._groups]
        on = [name for name in self._switches if getattr(self, name) or any(own.get(name) for own in owns)]
        return "lr", *self._numbers, *on

    @contextmanager
    def using(self, group: Members | None) -> Iterator[None]:
        """A block in which the optimizer has the hyperparameters of a group; None stands for its own."""
        usual = {name: getattr(self, name) for name in self.legal_names()}
        before, self._group = self._group, group
        try:
            vars(self).update(() if group is None else group.own)
            yield
        finally:
            vars(self).update(usual)
            self._group = before

    def __repr__(self) -> str:
        if self._has_groups:
            return "\n  ".join([f"{type(self).__name__}(", *map(repr, self.param_groups)]) + "\n)"
        numbers = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.number_names())
        return f"{type(self).__name__}({len(self.parameters)} parameters, {numbers})"

    def _repr_html_(self) -> str:
        """The same for notebooks: a row for each group of parameters."""
        names = self.number_names()
        rows = [
            (i, len(group["params"]), f"{sum(int(p.array.size) for p in group['params']):,}",
             *(getattr(group[name], "__name__", group[name]) for name in names))
            for i, group in enumerate(self.param_groups)
        ]  # fmt: skip
        heads = ("group", "parameters", "elements", *names)
        return notebook.sheet(type(self).__name__, "", notebook.table(rows, heads))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters to None; OptionError if `set_to_none` is not True."""
        if set_to_none is not True:
            raise OptionError(f"zero_grad: set_to_none={set_to_none!r} was given; needed: True")
        if state.recorder is not None:
            recorded(remove_gradients, *map(Whole, self.parameters), changes=True, name="zero_grad")
            return
        for p in self.parameters:
            p._grad = None

    def step(self, *, keep: bool = False) -> None:
        """Update every parameter that has a gradient.

        A gradient is used once: remove it by `zero_grad` before the next backward.

        Parameters
        ----------
        keep : bool
            Whether the gradients are meant to be used again, so that nothing is told if backward adds to them, or if
            another step uses them.

        Raises
        ------
        LayoutError
            A gradient's layout is not its parameter's, or a hyperparameter differs between ranks.
        SavedArrayError
            A tape still needs the present value of a parameter.
        DeviceError
            A parameter is on another device than its gradient, or than the state of earlier steps.
        ReplicaMismatch
            Copies of a replicated parameter, of its gradient or of its state, or hyperparameters, differ between ranks.
        CollectiveMismatch
            The ranks have taken different numbers of steps.

        Warns
        -----
        GradientWarning
            At the first step: no parameter has a gradient on this rank. At the step after the 1st, 2nd, 4th,
            8th, ... step: it uses gradients that this step has used, or sums to which a backward has added since.
        ReplicaWarning
            At the first step: all ranks hold the same values of a parameter that is Varying or sharded.
        """
        if state.recorder is not None:
            recorded(whole_step, Whole(self), keep, changes=True, name=f"{type(self).__name__}.step")
            return
        if events.spans:
            with events.span("optimizer"):
                self._step()
                if events.listeners:
                    self._tell_updates()
        else:
            self._step()
        if self._used is not None or not self.steps & (self.steps - 1):
            self._note_use(keep)

    def _note_use(self, keep: bool) -> None:
        """Warn of gradients that are used twice, and mark them as used; a step that is replayed calls it, too."""
        if self._used is not None:
            self._warn_of_use()
        if not self.steps & (self.steps - 1) and not keep and current_capture() is None:  # the 1st, 2nd, 4th, ... time
            if self._marks is None or not self._marks.told:
                self._used = self._marks = Used(f"{type(self).__name__}.step()", find_site())
                self._used.mark(self.parameters)

    def _tell_updates(self) -> None:
        """Emit an update of each parameter that had a gradient."""
        for p in self.parameters:
            if p._grad is not None:
                for edge in ("begin", "end"):
                    events.emit(edge, "update", f"{type(self).__name__} {p.name}".strip(), self, p)

    def _warn_of_use(self) -> None:
        """Warn if a gradient is still the one that the step before has used and marked."""
        mark, self._used = self._used, None
        if mark is None or mark.told or not any(map(mark.is_of, self.parameters)):
            return
        mark.told, place = True, find_site()
        who, used_by = f"{type(self).__name__}.step()", f"{mark.who} at {short_site(*mark.site)}"
        text = (
            f"{who} uses gradients that {used_by} has used already, so each of them counts twice\n"
            "  fix: optimizer.zero_grad() after step(), and tape.backward(loss) before the next one\n"
            "  or:  optimizer.step(keep=True) the first time, if that is meant"
        )
        if mark.added is not None:
            text = (
                f"backward adds to gradients that {used_by} has used already, and {who} at {short_site(*place)} uses "
                "them a second time\n"
                "  fix: optimizer.zero_grad() after step(), or before backward\n"
                "  or:  optimizer.step(keep=True), if the sum over several steps is meant"
            )
            place = mark.added
        warnings.warn_explicit(text, GradientWarning, *place)

    def _set_rates(self) -> None:
        """Set the learning rates that follow a schedule, and check all."""
        if self.schedule is not None:
            self.lr = follow(self, self.lr, self.steps)
        lr = self.lr
        if lr is not self._checked_lr:
            check_numbers(type(self).__name__, lr=lr)
            self._checked_lr = lr
        for group in self._groups if self._has_groups else ():
            if group.schedule is not None:
                lr = follow(group, group.own.get("lr"), self.steps)
                if lr is not None:  # None: it was deleted, and the group follows the optimizer
                    group.own["lr"] = lr
            lr = group.own.get("lr", self.lr)
            if callable(lr) or not 0.0 <= lr < math.inf:
                check_numbers(type(self).__name__, lr=lr)

    def _advance(self) -> None:
        """Begin another step of a program that a device has captured."""
        self._set_rates()
        self.steps += 1

    def _begin(self) -> None:
        """Begin a step: set the rates, compare what the ranks have, and count it."""
        self._set_rates()
        distribution, lr, has_groups = state.distribution, self.lr, self._has_groups
        if distribution is not ALONE:
            self.calls += 1
            if self.calls == 1 or lr.__class__ is not float or has_groups:
                names = self.number_names() if self.calls == 1 else ("lr",)
                for group in self.param_groups:
                    refuse_rank_numbers(type(self).__name__, {name: group[name] for name in names}, group["params"])
            if self.calls == 1:
                for p in self.parameters:
                    refuse_unlabelled_update(type(self).__name__, p)
            if self.digest_every and not distribution.is_alone:
                distribution.compare_step(self)
        self.steps += 1

    @classmethod
    def counts_only(cls, of: str, state: str, alone: str) -> str:
        """An expression that is true where `_begin` does no more than to count the step; for the lines of a replay.

        Its arguments are the names of the optimizer, of the state of the thread, and of `ALONE`.
        """
        if cls._begin is not Optimizer._begin:
            return "False"
        has_its_rate = f"{of}.lr is {of}._checked_lr and {of}.schedule is None and not {of}._has_groups"
        return f"{has_its_rate} and {state}.distribution is {alone}"

    def reads_of_form(self) -> list[tuple[Any, ...]]:
        """The reads of what decides how an update is made, besides rates and the forms of arrays; see `Identities`."""
        names = *self.legal_names()[1:], "run_updates", "rounding", "maximize"
        found: list[tuple[Any, ...]] = [(getattr, self, name) for name in names]
        for group in self._groups:
            found += [(getattr, group, "own"), (call, group.own.keys)]
            found += [(getitem, group.own, name) for name in group.own if name != "lr"]
        return found

    def _accept_all(self) -> list[Any]:
        """The gradients of all parameters, each checked. Layouts that need no further check are kept."""
        parameters = self.parameters
        gradients = [self._accept(i, p) for i, p in enumerate(parameters)]
        plain = all(p.owns and p.array.__class__ is np.ndarray for p in parameters)
        complete = plain and all(g is not None for g in gradients)
        self._accepted = [p.layout for p in parameters] if complete else []
        alone = state.distribution is ALONE
        is_first = (self.steps if alone else self.calls) == 1
        if is_first and all(g is None for g in gradients) and not all(is_absent(p.array) for p in parameters):
            fix = "call tape.backward(loss) before it" if alone else (
                "call tape.backward(loss) on this rank too; and where a value leaves the rank, as in send(h, ...), "
                "pass the Tensor h, and not h.numpy() or stop_gradient(h)"
            )  # fmt: skip
            warnings.warn_explicit(
                f"{type(self).__name__}.step(): none of the {len(parameters)} parameters has a gradient"
                f"{'' if alone else ' on this rank'}, so the step changes nothing\n"
                f"  fix: {fix}\n"
                "  or:  zero_grad() after step(), or before backward: between them it removes the gradients\n"
                "  or:  make the optimizer after the last parameter of the model was replaced (model.weight = "
                "ag.Parameter(...)), and of this model: it updates those that it was given",
                GradientWarning, *find_site(),
            )  # fmt: skip
        return gradients

    def _step(self) -> None:
        if (capture := current_capture()) is not None:
            capture.before_replay(advance=self._advance)
        self._begin()
        parameters = self.parameters
        if not parameters:  # a stage without any, which has taken part in the comparison
            return
        gradients = list(map(_gradient, parameters))
        if (
            any(map(_uses, parameters))
            or list(map(_layout, parameters)) != self._accepted
            or not _BARE.issuperset(map(type, gradients))
        ):
            gradients = self._accept_all()
        if self._has_groups:
            for group in self._groups:
                with self.using(group):
                    (self.run_updates or self.update_some)(group.indices, gradients)
        elif self.run_updates is None:
            self.update_all(gradients)
        else:
            self.run_updates(range(len(parameters)), gradients)

    def _accept(self, i: int, p: Leaf) -> Any:
        """Check the gradient and the state of the i-th parameter; return the gradient, or None for no update."""
        g = p.grad
        if g is None or is_absent(p.array):
            return None
        refuse_foreign_gradient(p, i)
        step_check(p)
        for name in self._saved:
            kept = getattr(self, name)[i]
            kind = kept.__class__
            if kind is p.array.__class__ or kind in _NO_ARRAYS:
                continue
            if mixed_devices("", (("p", p), ("kept", kept))):
                raise DeviceError(
                    f"{type(self).__name__}.step: {p.name or f'parameter {i}'} is on {device_of(p.array)}, and its "
                    f"{name!r} of earlier steps on {device_of(kept)}; needed: one device\n"
                    "  fix: optimizer.load_state_dict(optimizer.state_dict()) after the move of the module\n"
                    "  or:  make the optimizer after it"
                )
        return g.array

    def update_all(self, gradients: list[Any]) -> None:
        """Update all parameters. `gradients` has one entry per parameter, None for those that are not updated."""
        self.update_some(range(len(self.parameters)), gradients)

    def fused(self, indices: Iterable[int], gradients: list[Any]) -> tuple[dict[str, list[int]], list[int]]:
        """The indices of parameters that `update_fused` updates, by types of kernels, and those that `update` does.

        The first are contiguous, of float32 or float64, and on a device with a runtime; their gradients are of the same
        dtype, or of 16 bits. Parameters without a gradient are in neither.
        """
        fused: dict[str, list[int]] = {}
        others: list[int] = []
        has_kernels, rounding = self._has_kernels(), self.rounding
        for i in indices:
            p, g, kind = self.parameters[i].array, gradients[i], None
            if g is None:
                continue
            if (
                has_kernels and type(p) is type(g) and runtime_of(type(p)) is not None and p.shape == g.shape
                and p.flags.c_contiguous
            ):  # fmt: skip
                kind = functions("adam", type(p)).kind_of(p, g, None if rounding is None else rounding.copies[i])
            (others if kind is None else fused.setdefault(kind, [])).append(i)
        return fused, others

    def _has_kernels(self) -> bool:
        """Whether `update_fused` does what `update` does: a subclass may have an `update` of its own alone."""
        return "update_fused" in vars(next(cls for cls in type(self).__mro__ if "update" in vars(cls)))

    def update_fused(self, kind: str, members: list[int], gradients: list[Any]) -> None:
        """Update some parameters on a device by a kernel. A class defines it beside `update` if it has such kernels."""
        raise NotImplementedError

    def update_some(self, indices: Iterable[int], gradients: list[Any]) -> None:
        """Update the parameters of some indices that have a gradient."""
        if self.maximize:
            indices = list(indices)
            gradients = list(gradients)
            for i in indices:
                gradients[i] = None if gradients[i] is None else -gradients[i]
        if not all(type(gradients[i]) in ON_HOST for i in indices):
            fused, indices = self.fused(indices, gradients)
            for kind, members in fused.items():
                self.update_fused(kind, members, gradients)
        is_captured = current_capture() is not None
        for i in indices:
            g = gradients[i]
            if g is not None:
                p = self.parameters[i]
                if is_captured:
                    name = p.name or f"parameter {i}"
                    refuse(
                        f"{type(self).__name__}.step() updated {name} of dtype {p.array.dtype} by operations with "
                        "numbers of the host",
                        "Adam, AdamW or SGD, and contiguous parameters of float32 or float64 on a GPU",
                    )
                dtype = p.array.dtype
                if dtype.kind == "c":
                    self._update_as_pairs(i, p, g)
                elif dtype.itemsize == 2 and is_half(dtype):  # the first test costs less
                    self._update_in_float32(i, p, g)
                else:
                    self.update(i, p, g)

    def _update_as_pairs(self, i: int, p: Leaf, g: Any) -> None:
        """Update a complex parameter as pairs of real numbers, along the conjugate of its gradient.

        At ``z = x + iy`` the gradient is ``df/dx - i df/dy``, since the pairing has no conjugate; the pair that leads
        upwards is (df/dx, df/dy). The state is that of the pairs, and is kept as complex numbers between steps: so it
        has the parameter's shape and layout, for checkpoints and parts.
        """
        pairs = Leaf(pairs_of(p.array), name=p.name)
        pairs.layout, given = p.layout, pairs.array
        kept: dict[str, tuple[Any, Any]] = {}  # the state, and its pairs in the same memory
        for name in self._saved:
            values = getattr(self, name)
            if _is_state_of(values[i], p.array.shape, "c"):
                kept[name] = values[i], pairs_of(values[i])
                values[i] = kept[name][1]
        try:
            self.update(i, pairs, pairs_of(g.conj()))
        finally:
            for name in self._saved:
                values = getattr(self, name)
                if _is_state_of(values[i], given.shape, "f"):
                    whole, own = kept.get(name, (None, None))
                    is_view = values[i] is own and not isinstance(whole, np.generic)  # of a number they are a copy
                    values[i] = whole if is_view else from_pairs(values[i])
        if isinstance(p.array, np.generic):
            p.array = from_pairs(pairs.array)[()]
        elif pairs.array is not given and type(p.array) is not Shaped:
            p.array[...] = from_pairs(pairs.array)

    def _update_in_float32(self, i: int, p: Leaf, g: Any) -> None:
        """Update a parameter of 16 bits: its state is kept in float32, and the new value is rounded.

        In 16 bits the square of a gradient of 1e-4 is 0 in the state, and so is an eps of 1e-8.
        """
        wide = Leaf(p.array.astype(np.float32), name=p.name)
        wide.layout = p.layout
        self.update(i, wide, g.astype(np.float32))
        value = rounded(wide.array, p.array.dtype)
        if isinstance(p.array, np.generic):
            p.array = value
        else:
            p.array[...] = value

    def update(self, i: int, p: Leaf, g: Any) -> None:
        """Update the i-th parameter in place, given its gradient. Subclasses override this.

        For a parameter of 16 bits, `p` is its value in float32, and `g` is of float32. `p` is rounded afterwards. For a
        complex parameter, `p`, `g` and the state that `_saved` names are pairs of real numbers, in a last dimension of
        2, and ``-g`` leads downwards as for a real one.
        """
        raise NotImplementedError

    def numbers(self) -> dict[str, Any]:
        """The hyperparameters and the number of steps, by their names; those of a group with its number."""
        found = {name: getattr(self, name) for name in ("steps", *self.number_names())}
        for i, group in enumerate(self._groups):
            found |= {f"{name} of group {i}": value for name, value in group.own.items()}
        return found

    def has_new_numbers(self) -> bool:
        """Whether a hyperparameter has changed since the last call of this method."""
        before, self._known = self._known, (self._read(self), [dict(group.own) for group in self._groups])
        return bool(before != self._known)

    def own_names(self) -> list[str]:
        """The names of the attributes that not every optimizer has, without those private to ringtape."""
        kind: Any = type(self)
        return [name for name in vars(self) if name not in _names_of_ringtape(kind)]

    def state_lists(self) -> list[list[Any]]:
        """The lists that hold the state of each parameter."""
        return [getattr(self, name) for name in self._saved]

    def after_first_step(self) -> Optimizer:
        """This optimizer as a first step leaves it, for plans: its state has shapes and dtypes, and no values.

        The arrays that exist are neither changed nor copied, nothing is sent, and no gradient is needed.
        """
        made = copy.copy(self)
        for name, x in vars(self).items():
            if type(x) in (list, dict):
                setattr(made, name, x.copy())
        for name in self._saved:
            setattr(made, name, [v if isinstance(v, int | None) else _shaped(v) for v in getattr(self, name)])
        made.run_updates = made.rounding = made.schedule = None
        made.parameters, gradients = [], []
        for p in self.parameters:
            made.parameters.append(Leaf(_shaped(p.array), name=p.name))
            gradients.append(None if is_absent(p.array) else _shaped(p.array))
        with outside_mesh():
            for group in made._groups:
                with made.using(group):
                    for i in group.indices:
                        with suppress(AbsentError):  # of a step that reads values, when it has made its state
                            made.update_some([i], gradients)
        made.parameters = self.parameters
        return made

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the number of steps, the learning rate and the arrays kept for each parameter.

        `load_state_dict` continues a run from them. The state is by parameter: ``names`` has their names, a list for
        each group. A schedule is not among them: the optimizer that
        loads them continues with its own. The arrays of a sharded parameter are gathered from all ranks, so that all
        ranks along its axes call this together, and each gets the whole.

        Raises
        ------
        MeshError
            A parameter is sharded, and its mesh is not current.
        """
        names = names_of(self)
        found: dict[str, Any] = {"steps": self.steps, "lr": self.lr, "names": names}
        if self._has_groups:
            found["groups"] = [dict(group.own) for group in self._groups]
        for name in self._saved:
            found[name] = ByParameter(
                (v if isinstance(v, int) else whole_of(v, p.layout, "Optimizer.state_dict", f"{name} {i}")
                 for i, (p, v) in enumerate(zip(self.parameters, getattr(self, name), strict=True))),
                names, self.parameters,
            )  # fmt: skip
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the state from the `state_dict` of an optimizer of the same class with the same parameters.

        The parameters may be in another order: each gets the state that has its name. Without ``names``, and where the
        parameters have no names, the order counts. If it raises, nothing has been changed.

        Raises
        ------
        ShapeError
            Entries are missing or unknown, names differ, or shapes differ from those of the whole values.
        DtypeError
            A value is complex and its parameter is not.
        ArgumentError, OptionError
            A number is none, or out of range.
        """
        self.prepare_state_dict(state_dict)()

    def prepare_state_dict(self, state_dict: Mapping[str, Any]) -> Callable[[], None]:
        """Check a `state_dict`, and return the function that sets it. `nn.load` calls it."""
        state, needed, n = state_dict, {"steps", "lr", *self._saved}, len(self._groups)
        if self._has_groups:
            needed.add("groups")
        if (
            set(state) - {"names"} != needed
            or not all(isinstance(state[name], list | tuple) for name in {*needed, "names"} - {"steps", "lr"} if name in
                       state)
            or any(len(state[name]) != len(self.parameters) for name in self._saved)
            or len(state.get("groups", self._groups)) != n
        ):  # fmt: skip
            raise ShapeError(
                f"load_state_dict: {sorted(state)} was given; needed: {sorted(needed)}, lists of "
                f"{len(self.parameters)} parameters in {n} group{'s' * (n > 1)}"
            )
        check_count("load_state_dict", steps=state["steps"])
        check_numbers("load_state_dict", lr=state["lr"])
        groups, places = matching(self, state.get("names"))
        owns = [dict(state["groups"][k]) for k in groups] if "groups" in state else []
        for own in owns:
            check_names(self, own)
        lists = {
            name: [self._fitted(name, i, state[name][places[i]], state) for i in range(len(self.parameters))]
            for name in self._saved
        }

        def commit() -> None:
            vars(self).update(lists)
            self.steps, self.lr = int(state["steps"]), float(state["lr"])
            self.scheduled = self.lr  # a schedule continues
            for group, own in zip(self._groups, owns, strict=False):
                group.own.clear()  # in place: a `Group` that was taken before stays a view of it
                group.own.update(own)
                group.scheduled = group.own.get("lr")
            self.forget()

        return commit

    def _fitted(self, name: str, i: int, value: Any, state: Any) -> Any:
        """This rank's part of a value of a state, for the i-th parameter."""
        p, is_count = self.parameters[i], isinstance(getattr(self, name)[i], int)
        if is_count:
            check_count(f"load_state_dict: {name} of {p.name or i}", **{name: value})
            return int(value)
        if value is None:
            return None
        if not isinstance(value, np.ndarray | np.generic | Stored) and not is_array(value):
            raise ArgumentError(
                f"load_state_dict: {name} of {p.name or f'parameter {i}'} is a {type(value).__name__}; needed: an array"
            )
        is_wider = is_inexact(value.dtype) and value.dtype.kind != "c" and (
            is_half(value.dtype) or is_half(p.array.dtype)  # a state may be wider than they are
        )  # fmt: skip
        dtype = value.dtype if is_wider else p.array.dtype
        name = f"{name} of {p.name or f'parameter {i}'}"
        part = part_of(value, p.array, p.layout, "load_state_dict", name, dtype)
        return move(OwnedState.with_dtype(state, value, part, dtype), p.array)

    def forget(self) -> None:
        """Drop what was computed from the arrays of the state, which have been replaced. Subclasses may override."""


def _is_state_of(value: Any, shape: tuple[int, ...], kind: str) -> bool:
    """Whether a value of the state is an array of the parameter's shape, and of a kind of dtype."""
    return getattr(value, "shape", None) == shape and value.dtype.kind == kind


def _shaped(array: Any) -> Any:
    """An array of the same shape and dtype without values, as in a dry world."""
    return Shaped(array.shape, array.dtype, DRY)


_NO_ARRAYS = frozenset((int, type(None)))  # in the state: numbers of steps, and what is not made yet
_gradient, _uses, _layout = attrgetter("_grad"), attrgetter("uses"), attrgetter("layout")
_BARE = frozenset((np.ndarray,))
"""The type of a gradient that `Leaf.accumulate` stored, which has the dual layout of its parameter."""


def refuse_rank_numbers(caller: str, numbers: dict[str, Any], parameters: list[Leaf]) -> None:
    """Raise LayoutError if a number depends on the rank on an axis on which a parameter is one value, not Varying."""
    for name, value in numbers.items():
        for axis in sorted(rank_axes(value)):
            for i, p in enumerate(parameters):
                label = p.layout[axis] if p.layout is not None and axis in p.layout.grid.names else p._default
                if label is not V:
                    raise LayoutError(
                        f"{caller}({name}={value!r})\n  axis {axis!r}: {name} differs between the ranks, and "
                        f"{p.name or f'parameter {i}'} is {label.word}: one value, which the ranks would update "
                        f"differently\n  fix: the same {name} on every rank"
                    )


def refuse_foreign_gradient(p: Leaf, i: int) -> None:
    """Raise LayoutError unless the gradient of a parameter has the parameter's layout."""
    g = p.grad
    assert g is not None
    if g.array.__class__ is not p.array.__class__:
        require_one_device("step", **{p.name or f"parameter {i}": p, "gradient": g})
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
                f"it by cast({name}, {axis!r}, to=R), whose adjoint is the all-reduce"
            )


@cache  # by class; to read the code takes 200 us, at each comparison of a captured step
def _names_of_ringtape(kind: type) -> frozenset[str]:
    """The attributes that every optimizer has, and those private to classes of ringtape, as their code assigns them."""
    return frozenset(
        line.argval for each in kind.__mro__ if each.__module__.startswith("autograd.") and "__init__" in vars(each)
        for line in get_instructions(unwrap(vars(each)["__init__"]))
        if line.opname == "STORE_ATTR" and (each is Optimizer or line.argval.startswith("_"))
    )  # fmt: skip


def decayed(sums: list[Any], i: int, decay: float, x: Any) -> Any:
    """Return the i-th decayed sum with another term, ``decay sum + x``, which takes its place; the first sum is `x`."""
    total = sums[i]
    if total is None:
        total = x
    else:
        total *= decay  # in place, so that a captured step finds it where it was
        total += x
    sums[i] = total  # a NumPy scalar is another one
    return total
