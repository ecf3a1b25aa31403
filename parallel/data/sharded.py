"""Sharded parameters (ZeRO): every rank owns a part of each parameter, with its gradient and optimizer state.

A parameter is divided along its first dimension, as `numpy.array_split` divides: its label is ``Shard(0)``. If another
axis of the mesh divides that, the next dimension takes its place: see `division`. A parameter enters a computation by
an all-gather (Shard -> R), whose adjoint is the reduce-scatter of its gradient (P -> Shard). So the optimizer, norms
and checkpoints see ordinary sharded parameters. The stages differ in what is kept, not in what is computed:

=======  =============================================  =============================================
stage    whole parameters                               whole gradients
=======  =============================================  =============================================
1        kept; the owned rows are a view of them        kept in the buckets until the next sweep
2        kept; the owned rows are a view of them        until their bucket is summed
3        gathered for a layer's forward and backward    until their bucket is summed
=======  =============================================  =============================================

A bucket has one section for each rank, with that rank's rows of all its parameters, padded to equal lengths, and one
flag per parameter. So one all-gather or reduce-scatter of equal counts moves all of them.

Source: Rajbhandari et al., ZeRO (SC 2020), sections 5 and 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from autograd.arrays.device import move, to_host
from autograd.engine.leaves import Parameter
from autograd.engine.state import state
from autograd.engine.sweep import Sweep
from autograd.errors import LayoutError
from autograd.layouts.layout import I, Shard
from autograd.layouts.messages import describe
from autograd.layouts.partition import labels_of_parts, nested_parts
from collectives.mesh import Axis, Mesh
from collectives.ops.joint import Joint
from collectives.ops.parts import ALL_GATHER
from collectives.transports.probe import Probe
from collectives.transports.protocol import Communicator, Request

from .buckets import Bucket, Buckets, lay_out

__all__ = ["SHARDED_ENTRY", "ShardedBuckets", "division", "shard_parameter"]

SHARDED_ENTRY = Joint("sharded parameter entry", ALL_GATHER)


def division(p: Parameter, on: Axis) -> int | None:
    """The dimension along which a parameter is divided: the first that no other axis divides.

    None if there is none, as for a number, or for a bias that tensor parallelism divides: every rank has a copy.
    """
    others = [] if p.layout is None else [label for axis, label in p.layout.items() if axis not in on.names]
    taken = {label.dim for label in others if isinstance(label, Shard)}
    return next((dim for dim in range(p.array.ndim) if dim not in taken), None)


def shard_parameter(p: Parameter, mesh: Mesh, on: Axis, whole: Any = None) -> Parameter:
    """This rank's part of an Invariant parameter along its `division`, as a parameter with the label Shard.

    With `whole`, an array of the parameter's shape and dtype, its part is a view of `whole`.

    Raises
    ------
    LayoutError
        The parameter is not I on the axis.
    """
    layout = p.labelled(mesh.grid)
    dim = division(p, on)
    assert dim is not None
    for axis in on.names:
        label = layout[axis]
        if label is not I:
            raise LayoutError(
                f"DataParallel(zero=...) of {p.name or 'a parameter'}: {describe(p.array, p.array.shape, layout)}\n"
                f"  axis {axis!r}: the parameter is {label.word}; needed: Invariant\n  fix: leave the label of "
                f"{axis!r} out of its layout"
            )
    sizes = [mesh.grid.sizes[mesh.grid.axis(name)] for name in on.names]
    places = [mesh.grid.place[mesh.grid.axis(name)] for name in on.names]
    extents = nested_parts(p.array.shape[dim], sizes)
    mine = _part(dim, extents, on.group.index)
    made = Parameter(p.array[mine], name=p.name, requires_grad=p.requires_grad)
    for name, label in zip(on.names, labels_of_parts(dim, extents, sizes, places), strict=True):
        layout = layout.replace((name,), label)
    made.layout = layout
    made.is_transposed = p.is_transposed
    if whole is not None:
        if not state.dry:
            whole[...] = p.array
        made.array = whole[mine]
    return made


def _part(dim: int, extents: Sequence[int], rank: int) -> tuple[slice, ...]:
    """The index of one rank's part along a dimension."""
    start = sum(extents[:rank])
    return (slice(None),) * dim + (slice(start, start + extents[rank]),)


def _rows_first(x: Any, dim: int) -> Any:
    """A view in which the divided dimension comes first, as in the buckets."""
    return x if dim == 0 else np.moveaxis(x, dim, 0)


class _Block(NamedTuple):
    """Ranks that follow each other and own equally many rows of a parameter."""

    first: int
    last: int
    row: int  # the first row of the first rank
    rows: int  # of each rank


def _blocks(extents: Sequence[int]) -> list[_Block]:
    found: list[_Block] = []
    row = 0
    for r, n in enumerate(extents):
        if found and found[-1].rows == n:
            found[-1] = found[-1]._replace(last=r + 1)
        else:
            found.append(_Block(r, r + 1, row, n))
        row += n
    return found


class _Sections:
    """The layout of a bucket of whole parameters: one section for each rank, see the module.

    Parameters
    ----------
    shapes : sequence of tuple
        The shapes of the whole parameters.
    extents : sequence of sequence of int
        For each of them, the rows of each rank.
    flags : int
        The number of flags at the end of each section.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], extents: Sequence[Sequence[int]], flags: int):
        self.ranks = len(extents[0])
        self.shapes = shapes
        self.blocks = [_blocks(each) for each in extents]
        self.rows = [math.prod(shape[1:]) for shape in shapes]  # elements of a row
        self.offsets, end = [], 0
        for each, row in zip(extents, self.rows, strict=True):
            self.offsets.append(end)
            end += max(each) * row
        self.elements, self.size = end, end + flags
        self.counts = [self.size] * self.ranks

    def write(self, flat: Any, j: int, whole: Any) -> None:
        """Copy the whole value of the j-th parameter into the sections; None stands for zeros."""
        table, row, at = flat.reshape(self.ranks, self.size), self.rows[j], self.offsets[j]
        for first, last, start, rows in self.blocks[j]:
            part = table[first:last, at : at + rows * row]
            if whole is None:
                part[...] = 0
            else:
                part[...] = whole[start : start + (last - first) * rows].reshape(last - first, rows * row)

    def read(self, flat: Any, j: int, whole: Any) -> None:
        """Copy the j-th parameter from the sections into `whole`."""
        table, row, at = flat.reshape(self.ranks, self.size), self.rows[j], self.offsets[j]
        for first, last, start, rows in self.blocks[j]:
            into = whole[start : start + (last - first) * rows]
            into[...] = table[first:last, at : at + rows * row].reshape(into.shape)

    def part(self, section: Any, j: int, rows: int) -> Any:
        """The rows of the j-th parameter in one section, as a view."""
        at = self.offsets[j]
        return section[at : at + rows * self.rows[j]].reshape(rows, *self.shapes[j][1:])


def _division_of(p: Parameter, on: Axis) -> tuple[int, tuple[int, ...]]:
    """The dimension along which a parameter is divided, and the rows along it of each rank of the axis."""
    assert p.layout is not None
    grid, label = p.layout.grid, p.layout[on.names[0]]
    assert isinstance(label, Shard) and label.extent is not None
    return label.dim, nested_parts(label.extent, [grid.sizes[grid.axis(name)] for name in on.names])


class _Gathered:
    """The part of a parameter that `lay_out` reads: its name, and an array of its gathered shape, rows first."""

    def __init__(self, p: Parameter, dim: int, rows: int):
        self.name = p.name
        others = (*p.array.shape[:dim], *p.array.shape[dim + 1 :])
        one = np.empty_like(p.array, shape=(1,))  # CuPy takes shape=() for none
        self.array = np.broadcast_to(one, (rows, *others))


class ShardedBuckets(Buckets):
    """The all-gathers and reduce-scatters of an entry of sharded parameters. It is the `Runs` of a joint step.

    Parameters
    ----------
    parameters : sequence of Parameter
        Shard along the axis.
    on : Axis
    wholes : list of array
        The arrays into which the parameters are gathered.
    keeps_gradients : bool
        Whether the whole gradients stay in the buckets (stage 1).
    keeps_wholes : bool
        Whether the whole parameters stay, and the parameters are views of them (stages 1 and 2).
    **options
        Those of `Buckets`.
    """

    keeps_parts = False

    def __init__(
        self,
        parameters: Sequence[Parameter],
        on: Axis,
        wholes: list[Any],
        *,
        keeps_gradients: bool,
        keeps_wholes: bool,
        **options: Any,
    ):
        divisions = [_division_of(p, on) for p in parameters]
        shapes: list[Any] = [
            _Gathered(p, dim, sum(extents)) for p, (dim, extents) in zip(parameters, divisions, strict=True)
        ]
        super().__init__(shapes, on, **options)
        self.shards = parameters
        self.wholes = wholes
        # The gathers follow the program. A bucket may start at another place on each rank, as one whose parameters this
        # rank does not use, so it has another channel.
        self.gathers: Communicator = on.group if on.group.size == 1 else on.kept.get("gathers") or on.kept.setdefault(
            "gathers", on.group.duplicate("parameters"))
        self.keeps_gradients = keeps_gradients
        self.keeps_wholes = keeps_wholes
        self.gathered: Callable[[], None] | None = None  # takes the place of the all-gathers of `forward`
        self.dims, self.extents = [dim for dim, _ in divisions], [extents for _, extents in divisions]
        self._mine = [each[on.group.index] for each in self.extents]
        self._views = [
            whole[_part(dim, each, on.group.index)]
            for whole, (dim, each) in zip(wholes, divisions, strict=True)
        ]
        self._gathers = [
            (place.indices, self._sections(place.indices, 0))
            for place in lay_out(self._parameters, range(len(parameters)), *self._limits)
        ]
        self._by_bucket: list[_Sections] = []
        self._digest: Callable[[Any], str] | None = None  # of what is gathered, once somebody compares it
        self._own: dict[int, str] = {}  # by parameter, that of this rank's part as the last gather has left it

    def _sections(self, indices: Sequence[int], flags: int) -> _Sections:
        shapes = [self._parameters[i].array.shape for i in indices]
        return _Sections(shapes, [self.extents[i] for i in indices], flags)

    # -- forward ---------------------------------------------------------------------------------------------------
    def forward(self, arrays: list[Any]) -> list[Any]:
        if self.on.group.size == 1:
            return arrays
        if self.gathered is None:
            self.start_gathers()()
        else:
            self.gathered()
        return list(self.wholes)

    def start_gathers(self) -> Callable[[], None]:
        """Start the all-gathers. Return a function that waits for them and writes the whole arrays."""
        started = [self._start_gather(b) for b in range(len(self._gathers))]

        def finish() -> None:
            for each in started:
                each()

        return finish

    def _start_gather(self, b: int) -> Callable[[], None]:
        indices, sections = self._gathers[b]
        section = np.zeros_like(self.shards[indices[0]].array, shape=sections.size)  # a bucket has one dtype
        for j, i in enumerate(indices if not self.group.dry else ()):  # a dry run has no values
            p = self.shards[i]
            if self.keeps_wholes and p.array.base is not self.wholes[i] and not p.uses:
                self._views[i][...] = p.array  # it was loaded, or assigned: let it be a part of the whole again
                p.array = self._views[i]
            sections.part(section, j, self._mine[i])[...] = _rows_first(p.array, self.dims[i])

        pending = self.gathers.start(Request("all_gather", section, counts=sections.counts))

        def finish() -> None:
            gathered = pending.wait()
            for j, i in enumerate(indices if not self.group.dry else ()):
                sections.read(gathered, j, _rows_first(self.wholes[i], self.dims[i]))
                if self._digest is not None and self.keeps_wholes:
                    self._own[i] = self._digest(to_host(_rows_first(self._views[i], self.dims[i])))

        return finish

    def gathered_copies(self, digest: Callable[[Any], str]) -> Iterator[tuple[int, int, str]]:
        """Digests of the last gather: a parameter, the rank of the axis whose part it is, and the part's digest.

        The parts of other ranks are copies, which an optimizer's step does not change. Of its own part a rank knows the
        digest only from the second call on, because each gather has to compute it.
        """
        self._digest = digest
        if not self.keeps_wholes or self.on.size == 1 or self.group.dry:
            return
        for i, extents in enumerate(self.extents):
            for k in range(self.on.size):
                if k != self.on.group.index:
                    part = _rows_first(self.wholes[i][_part(self.dims[i], extents, k)], self.dims[i])
                    yield i, k, digest(to_host(part))
                elif i in self._own:
                    yield i, k, self._own[i]

    # -- backward --------------------------------------------------------------------------------------------------
    def _settle(self) -> None:
        assert self.places is not None
        self._by_bucket = [self._sections(place.indices, len(place.indices)) for place in self.places]

    def size_of(self, b: int) -> int:
        return self._by_bucket[b].size * self.on.group.size

    def write(self, bucket: Bucket, j: int, ct: Any) -> None:
        whole = None if ct is None else _rows_first(ct, self.dims[bucket.indices[j]])
        self._by_bucket[bucket.index].write(bucket.flat, j, whole)

    def start(self, bucket: Bucket, used: list[float]) -> Callable[[], Any]:
        sections, group = self._by_bucket[bucket.index], self.group
        if not group.dry:
            flags = move(np.array(used, bucket.flat.dtype), bucket.flat)
            bucket.flat.reshape(sections.ranks, sections.size)[:, sections.elements :] = flags
        request = Request("reduce_scatter", bucket.flat, counts=sections.counts)
        if not self.keeps_gradients:
            bucket.flat = None  # a call that is started owns a copy
        if self.memory is not None:
            section = self.memory.run(request)
            return lambda: section
        return group.start(request).wait

    def results(self, bucket: Bucket, used: list[float], section: Any) -> Iterator[tuple[int, Any]]:
        sections, group = self._by_bucket[bucket.index], self.group
        if not group.dry:
            used = to_host(section[sections.elements :]).tolist()
            if self.keeps_gradients:  # then the part of the sum needs no memory of its own
                at = group.index * sections.size
                bucket.flat[at : at + sections.size] = section
                section = bucket.flat[at : at + sections.size]
        for j, (i, is_used) in enumerate(zip(bucket.indices, used, strict=True)):
            if is_used:
                part = sections.part(section, j, self._mine[i])
                yield i, part if self.dims[i] == 0 else np.moveaxis(part, 0, self.dims[i])

    def adjoint(self, cotangents: list[Any], sweep: Sweep, step: int) -> Iterator[tuple[int, Any]]:
        if self.on.group.size > 1:
            yield from super().adjoint(cotangents, sweep, step)
            return
        for i in reversed(range(len(cotangents))):
            g = cotangents.pop()
            if g is not None:
                yield i, g

    def sent(self, group: Probe) -> None:
        for b, place in enumerate(self.places or ()):
            sections = self._by_bucket[b]
            flat = np.zeros(sections.size * self.on.group.size, place.like.dtype)
            group.run(Request("reduce_scatter", flat, counts=sections.counts))
