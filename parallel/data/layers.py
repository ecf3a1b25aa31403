"""Layers whose parameters are gathered where they are called, and freed afterwards (stage 3 of ZeRO).

The whole parameters of all layers lie in the same memory, the *arena*, which is as large as the largest layer. It
holds the parameters of a layer during its forward pass. On the tape a `Gather` step follows the layer: a backward sweep
gathers the parameters again when it reaches the layer, into the same memory, so the arrays that the layer's operations
have saved are right again. While a layer runs, the all-gathers of the next one have started, in the order of an earlier
pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from autograd.arrays.capture import Whole, recorded
from autograd.engine.pytree import tree_map
from autograd.engine.recording import Node, Recording, Step, options_of
from autograd.engine.state import state
from autograd.engine.sweep import Sweep
from autograd.engine.tensor import TENSORS, Tensor
from autograd.errors import TapeError
from autograd.nn.module import Module, ModuleList, Sequential
from autograd.nn.substitution import interceptable, intercepted, substituted
from collectives.mesh import current_mesh

from .entry import Entry
from .sharded import ShardedBuckets

__all__ = ["Arena", "Layer", "Layers", "layers_of"]

Owner = tuple[dict[str, Any], str, int]
"""The attributes of a module, the name of one that holds a parameter, and the index of the parameter."""


class Layer(NamedTuple):
    """A module whose parameters are freed between its calls, and the parameters that it alone has."""

    module: Module
    owners: list[Owner]
    indices: list[int]


def layers_of(module: Module, owners: Sequence[Owner]) -> list[Layer]:
    """The elements of the outermost lists of modules (`ModuleList`, `Sequential`) that have parameters of their own.

    A parameter that belongs to several of them, or to a module outside of them, belongs to no layer.
    """
    modules = list(_elements(module))
    holders: dict[int, set[int]] = {}  # a module may be in several elements
    for n, element in enumerate(modules):
        for m in element.modules():
            holders.setdefault(id(vars(m)), set()).add(n)
    of: dict[int, set[int]] = {}
    for attributes, _, k in owners:
        of.setdefault(k, set()).update(holders.get(id(attributes), {-1}))
    found = []
    for n, element in enumerate(modules):
        mine = [owner for owner in owners if of[owner[2]] == {n} and owner[0][owner[1]].array.ndim]
        if mine:
            found.append(Layer(element, mine, list(dict.fromkeys(k for _, _, k in mine))))
    return found


def _elements(module: Module) -> Iterator[Module]:
    for child in module.children():
        if isinstance(module, ModuleList | Sequential):
            yield child
        else:
            yield from _elements(child)


class Arena:
    """Memory for the whole parameters of one layer at a time.

    Parameters
    ----------
    layers : list of list of array
        Arrays of the shapes and dtypes of each layer's parameters.
    """

    def __init__(self, layers: list[list[Any]]):
        self._layers = layers
        sizes: dict[Any, int] = {}
        for arrays in layers:
            mine: dict[Any, int] = {}
            for a in arrays:
                mine[a.dtype] = mine.get(a.dtype, 0) + _padded(a)
            for dtype, n in mine.items():
                sizes[dtype] = max(sizes.get(dtype, 0), n)
        like = {a.dtype: a for arrays in layers for a in arrays}
        self._flat = {dtype: np.empty_like(like[dtype], shape=n) for dtype, n in sizes.items()}

    @property
    def buffers(self) -> list[Any]:
        """One flat array for each dtype."""
        return list(self._flat.values())

    def arrays(self, n: int) -> list[Any]:
        """The places of the n-th layer's parameters."""
        ends: dict[Any, int] = {}
        found = []
        for a in self._layers[n]:
            at = ends.get(a.dtype, 0)
            found.append(self._flat[a.dtype][at : at + a.size].reshape(a.shape))
            ends[a.dtype] = at + _padded(a)
        return found

    def copied(self, x: Any) -> Any:
        """A Tensor with an array of its own, if its array is a part of the arena."""
        if x.__class__ in TENSORS and isinstance(x.array, np.ndarray):
            for flat in self._flat.values():
                if np.may_share_memory(x.array, flat):
                    return Tensor(x.array.copy(), x.layout, x.tape, x.node)
        return x


def _padded(a: Any) -> int:
    unit = max(1, 64 // a.dtype.itemsize)  # a cache line
    return -(-math.prod(a.shape) // unit) * unit


class Gather(Step):
    """A step at both ends of a layer: sweeps in either direction have its parameters in the arena between them."""

    name = "gather of a layer"
    communicates = True
    makes_rows = True  # a captured step repeats its calls

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        layers, n, is_end = options_of(node)
        if sweep.record:
            raise TapeError(
                "a recorded backward pass through a DataParallel model with zero=3, which frees parameters: the second "
                "derivative would read others in their place\n  fix: zero=2"
            )
        if is_end:
            recorded(_gather, Whole(layers), n, changes="messages", name=self.name)

    def push(self, node: Node, carried: list[Any], start: int, record: bool, *_: Any) -> Any:
        layers, n, is_end = options_of(node)
        if record:
            raise TapeError(
                "recorded forward mode through a DataParallel model with zero=3, which frees parameters\n  fix: zero=2"
            )
        if not is_end:
            layers.gather(n, 1)


def _gather(layers: Layers, n: int) -> None:
    layers.gather(n, -1)


def _forget(layers: Layers) -> None:
    layers.drop()


_GATHER = Gather()


class Layers:
    """The layers of a module, their entries, and which of them is in the arena.

    Parameters
    ----------
    layers : list of Layer
    entries : list of Entry
    arena : Arena
    parameters : list of Parameter
        Those of the module.
    """

    def __init__(self, layers: list[Layer], entries: list[Entry], arena: Arena, parameters: list[Any]):
        self.layers, self.entries, self.arena, self.parameters = layers, entries, arena, parameters
        self._held = -1  # the layer in the arena
        self._coming: dict[int, Callable[[], None]] = {}  # by layer: waits for its all-gathers
        self._next: dict[tuple[int, int], int] = {}  # by layer and direction: the layer that followed
        self._last = -1
        self._calls = {id(layer.module): partial(self._call, n) for n, layer in enumerate(layers)}
        for layer in layers:
            interceptable(layer.module)

    @property
    def axes(self) -> tuple[str, ...]:
        """Along which its parameters are divided."""
        return tuple({name for n in range(len(self.layers)) for name in self._runs(n).axes})

    def forget(self) -> None:
        """Parameters may have changed since the last pass. A captured step forgets them, too."""
        recorded(_forget, Whole(self), changes="messages")

    def drop(self) -> None:
        """Hold no layer, and wait for the gathers that have started."""
        for finish in self._coming.values():
            finish()
        self._coming.clear()
        self._held, self._last = -1, -1

    def _runs(self, n: int) -> ShardedBuckets:
        entry = self.entries[n]
        runs = entry.plan(current_mesh(), [self.parameters[k] for k in entry.indices]).call.runs
        assert isinstance(runs, ShardedBuckets)
        return runs

    def gather(self, n: int, direction: int) -> None:
        """Let the arena hold the parameters of the n-th layer, and start the all-gathers of the next one."""
        if self._held != n:
            finish = self._coming.pop(n, None) or self._runs(n).start_gathers()
            finish()
            self._held = n
        if direction > 0:
            if self._last >= 0:
                self._next[self._last, 1], self._next[n, -1] = n, self._last
            self._last = n
        after = self._next.get((n, direction), n)
        if after != n and after not in self._coming:
            self._coming[after] = self._runs(after).start_gathers()

    def whole_arrays(self) -> dict[Any, Any]:
        """By parameter of a layer: a copy of the whole array, for which each layer is gathered once."""
        found: dict[Any, Any] = {}
        for n, layer in enumerate(self.layers):
            mine = [self.parameters[k] for k in layer.indices]
            if self._runs(n).on.group.size == 1:
                found.update((p, p.array) for p in mine)
                continue
            self.gather(n, 0)
            found.update(zip(mine, [a.copy() for a in self.arena.arrays(n)], strict=True))
        return found

    def entering(self) -> intercepted:
        """A block in which a call of a layer enters its parameters."""
        return intercepted(self._calls)

    def _call(self, n: int, *args: Any, **kwargs: Any) -> Any:
        """The forward pass of a layer."""
        layer, recording, contexts = self.layers[n], state.recording, state.contexts
        mesh, runs = current_mesh(), self._runs(n)
        runs.gathered = partial(self.gather, n, 1)
        marked = recording if runs.on.group.size > 1 else None
        self._mark(marked, n, False)
        entered = self.entries[n].record(mesh, self.parameters)
        if recording is not None:
            again = partial(self._reuse, [x.array for x in entered], ref(recording), n, entered[0].node)
            state.contexts = (*contexts, again)
        try:
            with substituted(self._values(dict(zip(layer.indices, entered, strict=True)))):
                y = type(layer.module).forward(layer.module, *args, **kwargs)
        finally:
            state.contexts = contexts
        if runs.on.group.size > 1:
            y = tree_map(self.arena.copied, y)
        self._mark(marked, n, True)
        return y

    def _mark(self, recording: Recording | None, n: int, is_end: bool) -> None:
        if recording is not None:
            recording.append((_GATHER, None, (), (), (self, n, is_end), None, None))

    @contextmanager
    def _reuse(self, arrays: list[Any], recording: Any, n: int, first: int) -> Iterator[None]:
        """Give a layer the parameters of an earlier entry, for the recomputation of a part of it."""
        with substituted(self._values(self.entries[n].again(arrays, recording(), first))):
            yield

    def _values(self, entered: dict[int, Any]) -> dict[Any, Any]:
        """By parameter: the value in its place, given those by index."""
        return {self.parameters[k]: x for k, x in entered.items()}
