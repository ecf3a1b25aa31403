"""Stages of a model: which layers each stage has, balanced by their costs, and which parameters several ranks use."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from autograd.arrays.shape_only import Shaped
from autograd.engine.leaves import Leaf, Parameter
from autograd.engine.state import no_grad, state
from autograd.errors import AbsentError, LayoutError, OptionError, short, typed_errors
from autograd.layouts.layout import I, Shard, V
from autograd.layouts.messages import describe
from autograd.layouts.partition import global_shape
from autograd.nn import Module

__all__ = [
    "Borrowed", "Tie", "find_ties", "layers_of_stages", "measured_costs", "name_parameters", "parameter_costs",
    "partition", "place", "release",
]  # fmt: skip

_MOST_REPEATS = 1_000_000


@typed_errors
def partition(costs: Sequence[float], stages: int) -> list[range]:
    """Divide layers into contiguous stages so that the most expensive stage is as cheap as possible.

    Parameters
    ----------
    costs : sequence of float
        Of each layer, at least 0.
    stages : int
        Each gets at least one layer.

    Returns
    -------
    list of range
        The layers of each stage.

    Raises
    ------
    OptionError
        There are fewer layers than stages, or a cost is negative.

    Notes
    -----
    Dynamic programming over the first n layers in k stages, in time n^2 k.

    Examples
    --------
    >>> partition([1, 1, 1, 5, 1, 1], 3)
    [range(0, 3), range(3, 4), range(4, 6)]
    """
    n = len(costs)
    if n < stages:
        raise OptionError(
            f"a model of {n} layer{'s' * (n != 1)} was given for {stages} stages; needed: at least one layer for each "
            "stage\n  fix: fewer ranks on the pipeline's axis, or fewer chunks; or a Sequential of more, smaller layers"
        )
    if any(not c >= 0 for c in costs):
        raise OptionError(f"costs={list(costs)} were given; needed: numbers of at least 0")
    sums = [0.0]
    for c in costs:
        sums.append(sums[-1] + float(c))
    # best[j]: the smallest possible (largest cost, sum of squares) of the first j layers in the stages so far, and the
    # first layer of the last of them. The squares decide between equal maxima for the more even division.
    best: list[tuple[float, float]] = [(0.0, 0.0) if j == 0 else (float("inf"), 0.0) for j in range(n + 1)]
    begins: list[list[int]] = []
    for k in range(1, stages + 1):
        following = [(float("inf"), 0.0)] * (n + 1)
        begin = [0] * (n + 1)
        for j in range(k, n + 1):
            for i in range(k - 1, j):
                cost = sums[j] - sums[i]
                found = max(best[i][0], cost), best[i][1] + cost * cost
                if found < following[j]:
                    following[j], begin[j] = found, i
        best = following
        begins.append(begin)
    bounds = [n]
    for begin in reversed(begins):
        bounds.append(begin[bounds[-1]])
    bounds.reverse()
    return [range(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]


@typed_errors
def parameter_costs(layers: Sequence[Module], axis: str | None = None) -> list[float]:
    """The number of elements of each layer's parameters, a tied one in each layer that uses it; at least 1.

    Of a parameter in parts the whole one counts, so that ranks with parts of different extents divide the layers alike.
    All ranks along an axis other than `axis`, that of the pipeline, call it if a parameter is Varying there, or Shard
    without agreed extents.

    Examples
    --------
    >>> from autograd import nn
    >>> parameter_costs([nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)])
    [40.0, 1.0, 18.0]
    """
    return [max(1.0, sum(_elements(p, axis) for p in layer.parameters())) for layer in layers]


def _elements(p: Parameter, axis: str | None) -> float:
    """The number of elements of the whole parameter, or of what all ranks along an axis hold, if that is not known."""
    if state.grid is None:
        return float(p.array.size)
    layout = p.labelled(state.grid)
    layout = layout if axis is None else layout.replace((axis,), I)
    unknown = [a for a, label in layout.items() if label is V or type(label) is Shard and label.extent is None]
    if not unknown:
        return float(math.prod(global_shape(layout, p.array.shape)))
    return sum(state.mesh.numbers_of_all(p.array.size, unknown, f"elements of {p.name or 'a parameter'} (Pipeline)"))


@typed_errors
def measured_costs(layers: Sequence[Module], x: Any, *, axis: str | None = None, repeats: int = 3) -> list[float]:
    """The seconds that each layer's forward pass takes, the shortest of some runs, without recording it.

    Parameters
    ----------
    layers : sequence of Module
    x : Tensor or array
        The input of the first layer, a microbatch.
    axis : str, optional
        The mesh axis of the pipeline: all its ranks must call this, and get the longest time of any of them.
    repeats : int
        The number of runs of each layer.

    Returns
    -------
    list of float
    """
    if isinstance(repeats, bool) or not isinstance(repeats, int) or not 1 <= repeats <= _MOST_REPEATS:
        raise OptionError(
            f"measured_costs: repeats={short(repeats)} was given; needed: an int from 1 to {_MOST_REPEATS:,}"
        )
    found = []
    with no_grad():
        for layer in layers:
            times = []
            for _ in range(repeats):
                begin = time.perf_counter()
                y = layer(x)
                times.append(time.perf_counter() - begin)
            x = y
            found.append(min(times))
    if axis is None or state.mesh is None:
        return found
    return [max(state.mesh.numbers_of_all(t, (axis,), "costs of the layers")) for t in found]


def layers_of_stages(layers: Sequence[Module], stages: int, costs: Any, axis: str | None = None) -> list[range]:
    """The layers of each stage by `costs`: one number for each layer, or None for the parameters."""
    if costs is None:
        return partition(parameter_costs(layers, axis), stages)
    costs = list(costs)
    if len(costs) != len(layers):
        raise OptionError(f"{len(costs)} costs were given for {len(layers)} layers; needed: one for each layer")
    return partition(costs, stages)


# -- parameters ------------------------------------------------------------------------------------------------------
class Borrowed(Leaf):
    """The value of a parameter that another rank owns, for one step. No optimizer sees it."""

    __slots__ = ()


class Tie(NamedTuple):
    """A parameter that layers on several ranks use.

    Attributes
    ----------
    name : str
    parameter : Parameter
    owner : int
        The rank of the first stage that uses it. It keeps the parameter, and gets the cotangents of the others.
    borrowers : tuple of int
        The other ranks, which get its value at the beginning of each step.
    """

    name: str
    parameter: Parameter
    owner: int
    borrowers: tuple[int, ...]


def find_ties(named: Sequence[tuple[str, Module, int]]) -> list[Tie]:
    """The parameters that modules on several ranks use, in order, given (name, module, rank) of all modules."""
    users: dict[int, tuple[str, Parameter, list[int]]] = {}
    for name, module, rank in named:
        for path, _, _, p in module.named_owners(f"{name}."):
            ranks = users.setdefault(id(p), (path, p, []))[2]
            if rank not in ranks:
                ranks.append(rank)
    return [Tie(path, p, ranks[0], tuple(ranks[1:])) for path, p, ranks in users.values() if len(ranks) > 1]


def name_parameters(named: Iterable[tuple[str, Module]]) -> None:
    """Give parameters without a name their path in the whole model."""
    for name, module in named:
        for path, _, _, p in module.named_owners(f"{name}."):
            p.name = p.name or path


def place(named: Sequence[tuple[str, Module]], axis: str | None) -> None:
    """Give the parameters of this rank's modules the label Varying on the pipeline's axis."""
    for name, module in named:
        for path, each in module.named_modules(prefix=name):
            for attribute, value in vars(each).items():
                if isinstance(value, Borrowed):
                    raise AbsentError(_divided_before(f"{path}.{attribute}", "another rank owns it"))
        for path, _, _, p in module.named_owners(f"{name}."):
            if isinstance(p.array, Shaped) and p.array.absent:
                raise AbsentError(_divided_before(path, p.array.why))
            if axis is None or state.grid is None:
                continue
            layout = p.labelled(state.grid)
            if layout[axis] is not I and layout[axis] is not V:
                raise LayoutError(
                    f"Pipeline({path}: {describe(p.array, p.array.shape, layout)}, axis {axis!r})\n  axis {axis!r}: "
                    f"the parameter is {layout[axis].word}; needed: Invariant, of which the pipeline makes a value of "
                    f"one rank\n  fix: leave the label of axis {axis!r} out of the Parameter's layout"
                )
            p.layout = layout.replace((axis,), V)


def _divided_before(name: str, why: str) -> str:
    return (
        f"Pipeline: {name} has no values here: {why}. A model can be divided once, and ranks that are threads of one "
        "process need a model each\n  fix: make the model in the function that runs on the ranks, once for each "
        "Pipeline"
    )


def release(parameters: Iterable[Parameter], where: str) -> None:
    """Free the memory of parameters that another rank has; `where` tells errors which one."""
    for p in parameters:
        if not isinstance(p.array, Shaped):
            p.array = Shaped(p.array.shape, p.array.dtype, where)
