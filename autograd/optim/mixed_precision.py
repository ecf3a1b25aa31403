"""Mixed precision: float16 or bfloat16 parameters with float32 master weights, and dynamic loss scaling.

A float16 number has 11 significant bits and lies between 6e-8 and 65504. Updates of a weight are often below its last
bit, so the optimizer updates a float32 copy of it, the master weight, and the parameter is that copy rounded. Small
gradients would become zero, so the loss is multiplied by a large number, the loss scale, and gradients are divided by
it in float32. If a gradient overflows, all ranks skip the step, and the scale is reduced.

On a GPU one pass over the gradients finds infinite and NaN ones, one copy of three numbers to the host tells whether to
skip the step, and one launch divides the gradients by the scale, updates the master weights and rounds them. On the
CPU, products and sums of float16 are computed in float32 and rounded once, and so are sums over the ranks.
Source: Micikevicius et al. 2018, section 3.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..arrays.capture import Whole, recorded
from ..arrays.device import device_of, move, require_one_device, to_host
from ..arrays.half import is_half, rounded
from ..arrays.shape_only import Shaped, is_absent
from ..engine.leaves import Leaf, constant, remove_gradients
from ..engine.locks import step_check
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import AnomalyError, ArgumentError, LayoutError, OptionError, typed_errors
from ..layouts.rank_values import rank_axes
from ..whole import part_of, whole_of
from .base import Optimizer
from .copies import OfCopies, copy_of, wide_dtype
from .fused import Rounding, is_supported, squares
from .groups import ByParameter, matching, names_of
from .hyperparameters import check_count, check_numbers
from .norms import axes_of_parts, masters

__all__ = ["LossScaler", "MasterWeights"]

_LARGEST_HALF = float(np.finfo(np.float16).max)


@typed_errors
class LossScaler:
    """Dynamic loss scaling: the number by which a loss is multiplied so that float16 gradients do not underflow.

    The scale is multiplied by `growth_factor` after `growth_interval` steps in a row without an overflow, and by
    `backoff_factor` after each step with one. Powers of two scale exactly.

    Parameters
    ----------
    init_scale : float
        The first scale; the same on all ranks.
    growth_factor, backoff_factor : float
        Above 1, and below 1.
    growth_interval : int
        A number of steps.
    min_scale, max_scale : float
        The limits of the scale.

    Attributes
    ----------
    value : float
        The present scale.

    Raises
    ------
    OptionError
        A number is out of range.
    LayoutError
        A number depends on the rank.

    Notes
    -----
    The defaults are those of torch's GradScaler, but for `init_scale`: 2**16 is above the largest float16, so the
    cotangent of a float16 loss would overflow in the first step. `MasterWeights.step` calls `update`, and
    nothing else changes the scale, so it is the same for all backward passes whose gradients are added in one step.

    Examples
    --------
    >>> from autograd import optim
    >>> scaler = optim.LossScaler(init_scale=8.0, growth_interval=2)
    >>> for finite in (True, True, True, False):
    ...     scaler.update(finite)
    ...     print(scaler.value)
    8.0
    16.0
    16.0
    8.0
    """

    def __init__(
        self, init_scale: float = 2.0**15, growth_factor: float = 2.0, backoff_factor: float = 0.5,
        growth_interval: int = 2000, *, min_scale: float = 1.0, max_scale: float = 2.0**24,
    ):  # fmt: skip
        for name, number in (("init_scale", init_scale), ("growth_interval", growth_interval)):
            if axes := rank_axes(number):
                raise LayoutError(
                    f"LossScaler({name}={number!r})\n  axis {min(axes)!r}: it depends on the rank; needed: one number"
                )
        tiny = np.finfo(np.float32).tiny
        check_numbers("LossScaler", 1.0, growth_factor=growth_factor)
        check_numbers("LossScaler", float(tiny), 1.0, backoff_factor=backoff_factor)
        check_numbers("LossScaler", float(tiny), min_scale=min_scale)
        check_numbers("LossScaler", min_scale, max_scale=max_scale)
        check_numbers("LossScaler", min_scale, math.nextafter(max_scale, math.inf), init_scale=init_scale)
        check_count("LossScaler", 1, growth_interval=growth_interval)
        self.value = float(init_scale)
        self.growth_factor, self.backoff_factor, self.growth_interval = growth_factor, backoff_factor, growth_interval
        self.min_scale, self.max_scale = min_scale, max_scale
        self.good_steps = 0  # since the scale last changed
        self.was_used = False  # whether a loss was scaled since the last step
        self.owner: Callable[[], Any] = lambda: None

    def scale(self, loss: Tensor) -> Tensor:
        """Return ``loss * value``, recorded on the tape; a float16 or bfloat16 loss in float32.

        Call it inside the tape's block, and `backward` on the result.

        Raises
        ------
        ArgumentError
            `loss` is no Tensor.
        """
        if loss.__class__ not in TENSORS:
            raise ArgumentError(f"LossScaler.scale: {type(loss).__name__} was given; needed: a Tensor")
        loss = loss.astype(np.float32) if is_half(loss.dtype) else loss
        if state.recorder is not None:
            value = recorded(_value_of, Whole(self), loss.dtype, changes="keys", name="LossScaler.scale")
            return loss * constant(value)
        self.was_used = True
        return loss * self.value

    def update(self, finite: bool) -> None:
        """Change the scale after a step; `finite` tells whether all gradients were, on all ranks.

        Raises
        ------
        AnomalyError
            Gradients are not finite, and the scale is `min_scale` already.
        """
        if finite:
            self.good_steps += 1
            if self.good_steps >= self.growth_interval:
                self.value, self.good_steps = min(self.value * self.growth_factor, self.max_scale), 0
            return
        if self.value <= self.min_scale:
            raise AnomalyError(
                f"LossScaler: gradients are not finite at loss scale {self.value:g}, the least one, so that scaling "
                "has not caused it\n  fix: look for NaN or infinity in the data, the model or the loss, as with "
                "autograd.detect_anomaly\n  or:  LossScaler(min_scale=...), if gradients are that large"
            )
        self.value, self.good_steps = max(self.value * self.backoff_factor, self.min_scale), 0

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and the number of steps since it last changed."""
        return {"value": self.value, "good_steps": self.good_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the state from a `state_dict`."""
        self.prepare_state_dict(state_dict)()

    def prepare_state_dict(self, state_dict: Mapping[str, Any]) -> Callable[[], None]:
        """Check a `state_dict`, and return the function that sets it. `nn.load` calls it."""
        if set(state_dict) != {"value", "good_steps"}:
            raise OptionError(
                f"LossScaler.load_state_dict: {sorted(state_dict)} was given; needed: ['good_steps', 'value']"
            )
        check_numbers("LossScaler", value=state_dict["value"])
        check_count("LossScaler", good_steps=state_dict["good_steps"])

        def commit() -> None:
            self.value, self.good_steps = float(state_dict["value"]), int(state_dict["good_steps"])

        return commit

    def __repr__(self) -> str:
        return f"LossScaler(value={self.value:g}, good_steps={self.good_steps})"


@typed_errors
class MasterWeights(OfCopies):
    """An optimizer of float16 or bfloat16 parameters: it updates float32 copies, the master weights, and rounds these.

    Multiply the loss by the loss scale with `scale`. `step` divides the gradients by it in float32, updates the master
    weights, and copies them to the parameters. If a gradient is infinite or NaN on any rank, the step changes nothing
    on all ranks, and the scale is reduced.

    Parameters
    ----------
    optimizer : callable
        The class of the optimizer, such as `optim.AdamW`; called with the master weights.
    params : iterable of Parameter, or of dict
        Parameters, or groups of them: see `Optimizer`. Those of float32 and float64 are updated directly.
    *args, **kwargs
        Further arguments of the optimizer.
    scaler : LossScaler, optional
        Of this optimizer alone. By default ``LossScaler()``.

    Attributes
    ----------
    optimizer : Optimizer
        The optimizer of the master weights.
    parameters : list of Parameter
        The master weights, of the layouts of the parameters.
    scaler : LossScaler
    skipped : int
        The number of steps that were skipped.

    Raises
    ------
    ArgumentError
        `params` are no Parameters.
    OptionError
        A parameter has master weights already, or `scaler` belongs to another optimizer.

    Notes
    -----
    On a GPU a step reads three numbers together: whether all gradients are finite, and whether a weight was rounded to
    infinity in the step before. So `step` reports a weight beyond the largest float16 one step later than on the CPU.
    Gradients are multiplied by the reciprocal of the loss scale, which is exact for powers of two.

    `clip_grad_norm_` and `clip_grad_value_` may be given the parameters or the master weights: both clip the unscaled
    float32 gradients, to which they move the gradients of all parameters first, as `unscale` does. Between `unscale`
    and `step` ``p.grad`` is None, and the gradient is that of the master weight.

    The ranks agree along the axes on which a parameter is Varying, sharded or rooted, by one control message of a
    number per rank. Where all parameters are Invariant there is none: an infinite or NaN addend makes the sum infinite
    or NaN, so all ranks see it.

    A parameter that is assigned (``p.data = ...``, ``module.load_state_dict``) gives its master weight the new value.

    Examples
    --------
    >>> import autograd as ag, numpy
    >>> from autograd import optim
    >>> w = ag.Parameter(numpy.ones(2, "float16"))
    >>> opt = optim.MasterWeights(optim.SGD, [w], lr=2.0**-12)
    >>> for _ in range(2):
    ...     with ag.Tape() as tape:
    ...         loss = opt.scale(w.sum())
    ...     tape.backward(loss); _ = opt.step()
    >>> w.numpy(), opt.parameters[0].numpy()
    (array([0.9995, 0.9995], dtype=float16), array([0.9995117, 0.9995117], dtype=float32))
    """

    def __init__(
        self, optimizer: Callable[..., Optimizer], params: Iterable[Leaf] | Iterable[dict[str, Any]], *args: Any,
        scaler: LossScaler | None = None, **kwargs: Any,
    ):  # fmt: skip
        super().__init__(optimizer, params, args, kwargs, lambda p: copy_of(p, _widened(p.array)))
        self.parameters = self._copies
        for i, p in enumerate(self.held):
            if id(p) in masters:
                raise OptionError(
                    f"MasterWeights: {p.name or f'parameter {i}'} has a master weight of another optimizer; needed: "
                    "one, or the parameter would follow the one that was updated last\n"
                    "  fix: give model.parameters() to one optimizer"
                )
        self.scaler = LossScaler() if scaler is None else scaler
        if not isinstance(self.scaler, LossScaler):
            raise ArgumentError(f"MasterWeights: scaler={scaler!r} was given; needed: a LossScaler")
        if self.scaler.owner() is not None:
            raise OptionError(
                "MasterWeights: the LossScaler belongs to another optimizer, whose step would change the scale of "
                "these gradients\n  fix: a LossScaler for each, or one optimizer with groups of parameters"
            )
        self.scaler.owner = weakref.ref(self)
        self.skipped = 0
        self._is_finite = True
        self._found: Any = None  # on a GPU: the sum of squares and two flags, infinite gradients and rounded weights
        self._flags: list[Any] = []  # on a device without kernels: whether gradients are finite, read once a step
        self._places = {id(p): i for each in (self.held, self.parameters) for i, p in enumerate(each)}
        masters.update(dict.fromkeys(self._places, self))

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the loss scale, recorded on the tape; see `LossScaler.scale`."""
        return self.scaler.scale(loss)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters and master weights to None."""
        recorded(_begin, Whole(self), set_to_none, changes="keys", name="zero_grad")
        recorded(remove_gradients, *map(Whole, self.held), changes=True, name="zero_grad")

    def unscale(self) -> None:
        """Move the gradients of the parameters, divided by the loss scale, to the master weights, in float32.

        They are added to what is there; the parameters' gradients are then None. It needs no communication, and calling
        it twice is harmless. `step` and the clipping functions call it.
        """
        if state.recorder is not None:
            recorded(MasterWeights.unscale, Whole(self), changes=True, name="MasterWeights.unscale")
            return
        self._take_assigned()
        self._unscale_on_device()
        for p, master in zip(self.held, self.parameters, strict=True):
            g = p.grad
            if g is None or is_absent(g.array):
                continue
            p.zero_grad()
            if g.array.__class__ is not master.array.__class__:
                require_one_device("MasterWeights.unscale", gradient=g, master_weight=master)
            wide = _widened(g.array)
            wide = wide / wide.dtype.type(self.scaler.value)
            if type(wide) is not Shaped:
                is_finite = np.isfinite(wide).all()
                if isinstance(is_finite, np.bool_):
                    self._is_finite = self._is_finite and bool(is_finite)
                else:
                    self._flags.append(is_finite)
            known = master.grad
            master.grad = Tensor(wide if known is None else known.array + wide, g.layout)

    def _take_assigned(self) -> None:
        """Give the master weights the values of parameters that were assigned, and their layouts and names."""
        for i, (p, master) in enumerate(zip(self.held, self.parameters, strict=True)):
            if p.array is not self._known[i]:
                self._known[i], master.array = p.array, _widened(p.array)
        self._take_names()

    def _unscale_on_device(self) -> None:
        """`unscale` of gradients on a device for master weights without a gradient, in one pass for each dtype."""
        by_dtype: dict[Any, list[tuple[Leaf, Leaf, Tensor]]] = {}
        for p, master in zip(self.held, self.parameters, strict=True):
            g = p.grad
            if g is not None and master.grad is None and type(g.array) is type(master.array) and is_supported(g.array):
                by_dtype.setdefault(g.array.dtype, []).append((p, master, g))
        for dtype, members in by_dtype.items():
            given = [g.array for _, _, g in members]
            wide = [np.empty_like(x, wide_dtype(dtype)) for x in given]
            self._is_finite = self._check_finite(given, wide) and self._is_finite
            for (p, master, g), array in zip(members, wide, strict=True):
                p.zero_grad()
                master.grad = Tensor(array, g.layout)

    def _check_finite(self, gradients: list[Any], outs: list[Any] | None = None) -> bool:
        """Whether gradients on a device, divided by the loss scale, are finite. `outs` are set to the quotients.

        It reads three numbers on the host. The third tells whether the last step has rounded a weight to infinity.
        """
        if self._found is None:
            self._found = np.zeros_like(gradients[0], np.float64, shape=(3,))
        squares(gradients, outs, 1 / self.scaler.value, result=self._found)
        _, is_lost, was_rounded_to_infinity = to_host(self._found).tolist()
        if was_rounded_to_infinity:
            self._found = None
            raise OptionError(
                "MasterWeights.step: in the last step a weight has grown beyond the largest float16, "
                f"{_LARGEST_HALF:g}\n  fix: a smaller learning rate or more weight decay\n  or:  keep this parameter "
                "in float32"
            )
        return not is_lost

    def _join(self) -> bool:
        """Give the optimizer the gradients of 16 bits as they are, where its kernels take them, and return whether so.

        All parameters with a gradient are on a device. The optimizer divides them by the scale in the pass in which it
        updates the weights.
        """
        gradients = [p.grad for p in self.held]
        arrays = [None if g is None or is_absent(g.array) else g.array for g in gradients]
        given = [x for x in arrays if x is not None]
        if (
            not given or any(m.grad is not None for m in self.parameters) or len({x.dtype for x in given}) > 1
            or not all(map(is_supported, given)) or self.optimizer.fused(range(len(arrays)), arrays)[1]
        ):  # fmt: skip
            return False
        self._is_finite = self._check_finite(given)
        for p, master, g in zip(self.held, self.parameters, gradients, strict=True):
            if g is not None:
                master._grad = Tensor(g.array, g.layout)
                p.zero_grad()
        return True

    def master_of(self, p: Leaf) -> Leaf:
        """Return the master weight of a parameter, with the unscaled gradient."""
        self.unscale()
        return self.parameters[self._places[id(p)]]

    def step(self) -> bool:
        """Update the parameters, or skip the step on all ranks. All ranks of the mesh call it.

        Returns
        -------
        bool
            Whether the parameters were updated. The gradients are removed in both cases. In a step that is captured it
            is a Tensor, which the step may return.

        Raises
        ------
        OptionError
            The loss was not scaled, or a weight has grown beyond the largest float16.
        AnomalyError
            Gradients are not finite at the least loss scale.

        See also `Optimizer.step`.
        """
        if state.recorder is not None:
            scaled = self.scaler.was_used
            updated = recorded(_whole_step, Whole(self), scaled, changes=True, name="MasterWeights.step")
            return Tensor(updated)  # type: ignore[return-value]  # a replay has no value for the program to read
        self._take_assigned()
        scale = 1 / self.scaler.value if self._join() else 1.0
        self.unscale()
        has_gradient = any(m.grad is not None for m in self.parameters)
        if self._flags:
            self._is_finite = bool(to_host(np.stack(self._flags).all())) and self._is_finite
        finite, scaled = self._agreed(self._is_finite, self.scaler.was_used or not has_gradient)
        if not scaled:
            raise OptionError(
                "MasterWeights.step: the loss of these gradients was not scaled, and they would be divided by the loss "
                f"scale {self.scaler.value:g}\n  fix: loss = opt.scale(loss), inside the tape's block"
            )
        if finite:
            for p in self.held:
                step_check(p)
            rounded_by_kernels = self._step_with_copies(scale)
            for i, (p, master) in enumerate(zip(self.held, self.parameters, strict=True)):
                if i not in rounded_by_kernels:
                    self._known[i] = _copy(master, p)
        else:
            self.skipped += 1
        self.zero_grad()
        self.scaler.was_used = False
        self.scaler.update(finite)
        return finite

    def _step_with_copies(self, scale: float) -> set[int]:
        """Let the optimizer step, and return the indices of the parameters whose rounded values its kernels wrote."""
        if self._found is None:  # nothing on a device
            self.optimizer.step()
            return set()
        copies = [p.array if p.array.dtype != m.array.dtype and p.array.flags.c_contiguous else None
                  for p, m in zip(self.held, self.parameters, strict=True)]  # fmt: skip
        self.optimizer.rounding = Rounding(copies, scale, self._found[2:])
        try:
            gradients = [None if m.grad is None else m.grad.array for m in self.parameters]
            fused, _ = self.optimizer.fused(range(len(copies)), gradients)
            self.optimizer.step()
        finally:
            self.optimizer.rounding = None
        return {i for members in fused.values() for i in members if copies[i] is not None}

    def _agreed(self, finite: bool, scaled: bool) -> tuple[bool, bool]:
        """Whether the gradients are finite on all ranks, and the loss was scaled on any rank."""
        grid = state.grid
        if grid is None:
            return finite, scaled
        combinations = {axes_of_parts("MasterWeights.step", p.labelled(grid)) for p in self.held}
        combinations = state.distribution.combinations_of_stages(combinations, "agreement on an overflow")
        found = {axis for axes in combinations for axis in axes}
        axes = [name for name in grid.names if name in found]
        if not axes:
            return finite, scaled
        call = f"agreement on an overflow (axis={'*'.join(axes)!r})"
        codes = [int(code) for code in state.distribution.numbers_of_all(finite + 2 * scaled, axes, call)]
        return all(code & 1 for code in codes), any(code & 2 for code in codes)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer, the master weights and the state of the scaler; see `Optimizer`."""
        self._take_assigned()
        whole = ByParameter(
            (None if is_absent(m.array) else whole_of(m.array, p.layout, "MasterWeights.state_dict", p.name)
             for p, m in zip(self.held, self.parameters, strict=True)),
            names_of(self.optimizer), self.held,
        )  # fmt: skip
        return {"optimizer": self.optimizer.state_dict(), "masters": whole, "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the state, and the parameters from the master weights.

        Raises
        ------
        OptionError, ShapeError
            Entries are missing or unknown, or shapes differ.
        """
        self.prepare_state_dict(state_dict)()

    def prepare_state_dict(self, state_dict: Mapping[str, Any]) -> Callable[[], None]:
        """Check a `state_dict`, and return the function that sets it. `nn.load` calls it."""
        if set(state_dict) != {"optimizer", "masters", "scaler"} or len(state_dict["masters"]) != len(self.held):
            raise OptionError(
                f"MasterWeights.load_state_dict: {sorted(state_dict)} was given; needed: ['masters', 'optimizer', "
                f"'scaler'], with {len(self.held)} masters"
            )
        self._take_names()
        steps = [self.optimizer.prepare_state_dict(state_dict["optimizer"]),
                 self.scaler.prepare_state_dict(state_dict["scaler"])]  # fmt: skip
        _, places = matching(self.optimizer, state_dict["optimizer"].get("names"))
        arrays: dict[int, Any] = {}
        for i, p in enumerate(self.held):
            value = state_dict["masters"][places[i]]
            if value is not None and not is_absent(p.array):
                step_check(p)
                wide = wide_dtype(p.array.dtype)
                part = part_of(value, p.array, p.layout, "MasterWeights.load_state_dict", p.name, wide).astype(wide)
                if is_half(p.array.dtype):
                    _refuse_infinite(rounded(part, p.array.dtype), part, p)
                arrays[i] = move(part, p.array)

        def commit() -> None:
            for step in steps:
                step()
            for i, array in arrays.items():
                self.parameters[i].array = array
                self._known[i] = _copy(self.parameters[i], self.held[i])
            self.zero_grad()

        return commit

    def __repr__(self) -> str:
        return f"MasterWeights({self.optimizer!r}, {self.scaler!r})"


def _value_of(scaler: LossScaler, dtype: Any) -> Any:
    """The loss scale for a loss of a dtype, which is scaled."""
    scaler.was_used = True
    return dtype.type(scaler.value)


def _begin(weights: MasterWeights, set_to_none: bool) -> None:
    """Remove what the last gradients have left. Like a draw of a key it may be done again."""
    weights.optimizer.zero_grad(set_to_none)
    weights._is_finite, weights._flags = True, []


def _whole_step(weights: MasterWeights, was_scaled: bool) -> Any:
    weights.scaler.was_used = was_scaled
    return np.array(weights.step())


def _widened(array: Any) -> Any:
    """A 16-bit array in float32; an array of another dtype itself, which the optimizer updates in place."""
    return array.astype(np.float32) if is_half(array.dtype) else array


def _refuse_infinite(value: Any, wide: Any, p: Leaf) -> None:
    """Raise OptionError if a weight of 16 bits, the value of the float32 `wide`, is not finite."""
    if not np.isfinite(value).all():
        raise OptionError(
            f"MasterWeights.step: {p.name or 'a parameter'} of shape {p.array.shape} has a weight of "
            f"{float(to_host(np.abs(wide).max())):g}; the largest float16 is {_LARGEST_HALF:g}\n  fix: a "
            "smaller learning rate or more weight decay\n  or:  keep this parameter in float32"
        )


def _copy(master: Leaf, p: Leaf) -> Any:
    """Give a parameter the value of its master weight, rounded, and return its array."""
    if p.array is master.array or is_absent(p.array) or type(p.array) is Shaped:
        return p.array
    value = master.array
    if is_half(p.array.dtype):
        value = rounded(value, p.array.dtype)
        if device_of(value) == "cpu":  # on a GPU the next gradients tell
            _refuse_infinite(value, master.array, p)
    if isinstance(p.array, np.generic):
        p.array = value
    else:
        p.array[...] = value
    return p.array
