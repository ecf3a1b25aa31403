"""`MixtureOfExperts`, a layer of which each token uses a few parts, and `Experts`, the style that divides it."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

import collectives as cc
from autograd import ops, random
from autograd.arrays.capture import refuse_recorded
from autograd.engine.leaves import Parameter, tensor
from autograd.engine.state import state
from autograd.engine.tensor import TENSORS, Tensor
from autograd.errors import ArgumentError, LayoutError, OptionError
from autograd.layouts.layout import I, R, Shard, V
from autograd.layouts.messages import describe
from autograd.layouts.partition import extents_of_parts
from autograd.nn import GELU, Module
from autograd.nn.arguments import count
from autograd.ops.arguments import labelled, raw

from ..plan import Shards
from .dispatch import combine, dispatch, plan_dispatch
from .load import Load
from .router import Router, balance_loss, z_loss
from .side_losses import add_side_loss, is_collecting

__all__ = ["Experts", "MixtureOfExperts"]

_PARTS = ("up", "up_bias", "down", "down_bias")
"""The parameters that the experts have parts of."""


class MixtureOfExperts(Module):
    """A sum of the `top_k` experts that a router chooses for each token, each a layer of two matrices.

    ``y = sum_e weight_e (gelu(x @ up[e] + up_bias[e]) @ down[e] + down_bias[e])`` over the token's experts. It takes
    the place of an MLP, [..., width] -> [..., width], and is an ordinary module: it runs on one process without a mesh.
    Under a mesh the tokens may be divided along any dimension but the last, and `Experts` divides the experts.

    Parameters
    ----------
    width, hidden : int
        The width of the tokens, and that of the experts' hidden layer.
    experts, top_k : int
    capacity : float, optional
        Each expert takes at most ``ceil(capacity * top_k * tokens / experts)`` tokens of a call. Those beyond are
        dropped: the expert adds nothing to them. The queue of an expert is in the order of the global batch (by index:
        batch, then sequence; then by preference), so the same tokens are dropped on any number of ranks. By default no
        token is dropped.
    balance : float
        The factor of the load-balance loss, `balance_loss`, which `side_losses` collects.
    z : float
        The factor of the router's z-loss, `z_loss`.
    renormalize : bool, optional
        Whether the weights of a token's experts sum to 1. By default they do where `top_k` is more than 1.
    dtype : dtype
    key : random.Key, optional
        Key of the initial weights, uniform in +-1 / sqrt(inputs). By default the thread's next key.

    Attributes
    ----------
    up, up_bias, down, down_bias : Parameter
        [experts, width, hidden], [experts, hidden], [experts, hidden, width], [experts, width].
    router : Router
        Its `weight` is [width, experts].
    load : Load or None
        The load of the last call.

    Raises
    ------
    OptionError
        `top_k` is not from 1 to `experts`, or `capacity` is not positive.
    LayoutError
        At a call: the width of the tokens is divided, or with a capacity their places in the global batch are unknown.

    Notes
    -----
    Along an axis that divides the tokens, parameters enter by the cast I -> R, whose adjoint sums their gradients over
    its ranks (`DataParallel`). Where they have not entered, as along "tp" with sequence parallelism, the layer casts
    them itself, and its side loss is then summed over that axis. An axis along which the router's weight is Varying is
    none that divides tokens: its ranks have other layers, as the stages of a pipeline.

    A call exchanges the counts of all experts between the ranks, ``8 (2 + experts)`` bytes of each (with a capacity and
    a divided sequence, of each row of the batch). Sources: Shazeer et al. 2017; Lepikhin et al. 2020, *GShard*.

    Examples
    --------
    >>> import numpy
    >>> from parallel.expert import MixtureOfExperts
    >>> layer = MixtureOfExperts(4, 16, experts=3, top_k=2)
    >>> layer(numpy.ones((2, 5, 4), "float32")).shape
    (2, 5, 4)
    >>> print(layer.load)
    20 tokens for 3 experts on 1 rank, 0 dropped; busiest / mean: experts 1.50, ranks 1.00
    ...
    """

    def __init__(
        self, width: int, hidden: int, experts: int, top_k: int = 2, capacity: float | None = None,
        balance: float = 0.01, *, z: float = 0.0, renormalize: bool | None = None, dtype: Any = np.float32,
        key: random.Key | None = None,
    ):  # fmt: skip
        width, hidden = count(width, "MixtureOfExperts: width"), count(hidden, "MixtureOfExperts: hidden")
        experts = count(experts, "MixtureOfExperts: experts")
        if capacity is not None and not capacity > 0:
            raise OptionError(
                f"MixtureOfExperts: capacity={capacity!r} was given; needed: a positive factor, such as 1.25, or None"
            )
        key = random.next_key("MixtureOfExperts") if key is None else key
        renormalize = top_k > 1 if renormalize is None else renormalize

        def drawn(name: str, inputs: int, *shape: int) -> Parameter:
            bound = 1.0 / max(inputs, 1) ** 0.5
            return Parameter(random.uniform(key.fold(name), (experts, *shape), low=-bound, high=bound, dtype=dtype))

        self.router = Router(width, experts, top_k, renormalize, dtype=dtype, key=key.fold("router"))
        self.up, self.up_bias = drawn("up", width, width, hidden), drawn("up bias", width, hidden)
        self.down, self.down_bias = drawn("down", hidden, hidden, width), drawn("down bias", hidden, width)
        self.activation = GELU("tanh")
        self.experts, self.capacity, self.balance, self.z = experts, capacity, balance, z
        self.axis: str | None = None
        self.load: Load | None = None

    def forward(self, x: Any) -> Tensor:
        refuse_recorded(
            "MixtureOfExperts, whose routing depends on values,",
            "the step itself, without capture; Trainer(capture=False)",
        )
        x = x if x.__class__ in TENSORS else tensor(x)
        is_whole = state.mesh is None and len(raw(self.up)) == self.experts  # a run of one process
        axis = None if is_whole else self.axis
        axes, own = self._axes(x, axis)
        extents: tuple[int, ...] = (self.experts,)
        if axis is not None:
            assert self.up.layout is not None
            label = self.up.layout[axis]
            assert isinstance(label, Shard)
            extents = extents_of_parts(label, cc.current_mesh().axis(axis).size)
        routing = self.router(x, _entered(self.router.weight, own))
        plan = plan_dispatch(routing.choice, self.experts, self.capacity, axes, axis, extents)
        self.load = plan.load
        if is_collecting() and (self.balance or self.z):
            loss: Any = 0
            if self.balance:
                loss = balance_loss(routing.probabilities, plan.counts, self.router.top_k) * self.balance
            if self.z:
                loss = z_loss(routing.logits) * self.z + loss
            for each in own:
                loss = cc.all_reduce(loss, each, to=I)
            add_side_loss(loss)

        up, up_bias, down, down_bias = (_entered(getattr(self, name), own, axis) for name in _PARTS)
        weights = ops.reshape(_varying(routing.weights, axes), (-1,))
        rows = dispatch(ops.reshape(_varying(x, axes), (-1, x.array.shape[-1])), plan, axis)
        groups = labelled(plan.groups, rows)
        rows = ops.grouped_linear(rows, up, up_bias, groups)
        rows = ops.grouped_linear(self.activation(rows), down, down_bias, groups)
        y = ops.reshape(combine(rows, weights, plan, axis), raw(x).shape)
        for name in reversed(axes):  # the inner axes first
            assert x.layout is not None
            y = cc.cast(y, name, to=x.layout[name])
        return y

    def _axes(self, x: Tensor, along: str | None) -> tuple[list[str], list[str]]:
        """The axes that divide the tokens, and those of them along which the parameters have not entered."""
        if along is None and state.grid is None:
            return [], []
        grid = cc.current_mesh().grid
        layout, weight = x.layout or x.labelled(grid), self.router.weight.labelled(grid)
        if x.layout is None:
            x.layout = layout
        for axis, label in layout.items():
            if isinstance(label, Shard) and label.dim == raw(x).ndim - 1:
                raise LayoutError(
                    f"MixtureOfExperts({describe(raw(x), raw(x).shape, layout)})\n  axis {axis!r}: the width of the "
                    f"tokens is divided; needed: whole tokens\n  fix: all_gather(x, {axis!r}, dim=-1)"
                )
        axes = [a for a, label in layout.items() if (type(label) is Shard or label is V) and weight[a] is not V]
        if along is not None and along not in axes:
            raise LayoutError(
                f"MixtureOfExperts({describe(raw(x), raw(x).shape, layout)}), whose experts {along!r} divides\n"
                f"  axis {along!r}: the tokens are {layout[along].word}, so each of its ranks would send the same "
                f"ones. Needed: the batch divided over {along!r} too\n  fix: cc.shard(x, {along!r}), or the rows of "
                "this rank where the batch is read"
            )
        return axes, [a for a in axes if weight[a] is I]

    def extra_repr(self) -> str:
        width, hidden = self.up.array.shape[1:]
        along = "" if self.axis is None else f", along {self.axis!r}"
        return f"{width}, {hidden}, experts={self.experts}, top_k={self.router.top_k}{along}"


def _entered(p: Any, own: list[str], axis: str | None = None) -> Any:
    """A parameter as Replicated along some axes, where it is Invariant, and as Varying along the axis of its parts."""
    for name in own:
        if p.labelled(cc.current_mesh().grid)[name] is I:
            p = cc.cast(p, name, to=R)
    return p if axis is None else cc.cast(p, axis, to=V)


def _varying(x: Tensor, axes: list[str]) -> Tensor:
    """A value whose parts are taken as separate values."""
    for axis in axes:
        x = cc.cast(x, axis, to=V)
    return x


class Experts:
    """The style of a `MixtureOfExperts` whose experts are divided along a mesh axis, for `parallelize`.

    Each rank of the axis has some of the experts: their parameters are ``Shard(0)``. The batch is divided over this
    axis too, and tokens go to the ranks of their experts and back. The router stays whole: its weight, as all other
    parameters, enters along the axis too, with ``DataParallel(model, ("dp", "ep"))``.

    Parameters
    ----------
    axis : str

    Raises
    ------
    ArgumentError
        The module is no `MixtureOfExperts`.

    Notes
    -----
    The gradient of an expert is summed over the ranks by the all_to_all itself, for tokens from all ranks of the axis
    come to it. It is not summed over the axis again, and not divided by its size.
    """

    def __init__(self, axis: str):
        self.axis = axis

    def __repr__(self) -> str:
        return f"Experts({self.axis!r})"

    def apply(self, module: Module, path: str, shards: Shards) -> Module:
        """The module with this rank's experts."""
        if not isinstance(module, MixtureOfExperts):
            raise ArgumentError(
                f"{self!r} was given for {path!r}, a {type(module).__name__}; needed: a MixtureOfExperts"
            )
        if module.axis is not None:
            raise ArgumentError(
                f"{self!r} was given for {path!r}, whose experts {module.axis!r} divides already; needed: one axis"
            )
        made = copy(module)
        for name in _PARTS:
            setattr(made, name, shards.divide(getattr(module, name), self.axis, 0))
        made.axis = self.axis
        return made
