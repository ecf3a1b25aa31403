"""Mesh: the ranks of a world arranged on named axes.

Ranks are laid out in row-major order: the axis named first is the outer one, and ranks that differ only in the last
axis are neighbours. Operations name an axis, or a tuple of axes, which is flattened in the mesh's order.
"""

from __future__ import annotations

import json
import math
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from autograd.arrays.device import dtype_named, is_bfloat16
from autograd.doors import door, is_there
from autograd.engine.deferred import refuse_pending
from autograd.engine.state import state
from autograd.engine.tensor import Tensor
from autograd.errors import ArgumentError, CaptureError, MeshError, shorten, typed_errors
from autograd.layouts.layout import Grid, Layout
from autograd.layouts.rank_values import RankInt
from autograd.layouts.sizes import size_of

from .checks import dropped, modes, numbers, parts, sanitizer
from .checks.channel import Checks, QuietChecks
from .declaration.call import Call, keep
from .job.failure import process
from .replicas import compare_end, compare_objective, compare_replicas, compare_step, is_due, note_numbers
from .transports.protocol import Communicator
from .world import World, is_rank_thread, world

__all__ = ["USUAL", "Axis", "Mesh", "check_replicas", "current_mesh"]

_FIRST_TAPES = 8  # whose scale is examined


class Axis:
    """One mesh axis, or several flattened into one.

    Attributes
    ----------
    names : tuple of str
    size : int
        The number of ranks: an integer that remembers its axes through ``*`` and ``/`` (`autograd.layouts.sizes`).
    rank : RankInt
        This rank's index along the axis: an integer that carries the names of the axes along which it differs.
    group : Communicator
        The ranks along the axis, in order, with the algorithm that the mesh chose for the axis.
    """

    __slots__ = ("_channel", "_groups", "_prepared", "_topology", "group", "kept", "names", "rank", "size")

    def __init__(
        self, names: tuple[str, ...], group: Communicator, algorithm: str, prepared: dict[Any, Any], topology: Any
    ):
        self.names = group.axes = names
        self._topology = topology
        self._channel: Any = None  # shared by the algorithms, and made with the first of them
        self._groups: dict[str, Communicator] = {"native": group}
        self.group = self.using(algorithm)
        self.size = size_of(group.size, *names)
        self.rank = RankInt(group.index, names)
        self._prepared = prepared  # that of the mesh
        self.kept: dict[Any, Any] = {}  # the channel of nonblocking calls, and pending receives

    @property
    def axes(self) -> tuple[str, ...]:
        return self.names

    def __repr__(self) -> str:
        return f"Axis({'*'.join(self.names)}, rank {int(self.rank)} of {self.size})"

    def call(self, group: Communicator | None = None, **fields: Any) -> Call:
        """A `Call` along this axis. The same fields give the same object, so cached preparations are found again.

        `group` defaults to the group of the axis.
        """
        group = self.group if group is None else group
        if fields.get("like") is not None:  # an array is not hashable
            return Call(self.names, group, **fields)
        key = (group, self.names, *fields.items())
        found: Call | None = self._prepared.get(key)
        return keep(self._prepared, key, Call(self.names, group, **fields)) if found is None else found

    def using(self, algorithm: str, operation: str | None = None) -> Communicator:
        """The ranks along the axis, with an algorithm for sums and copies; see `collectives.algorithms`.

        If `operation` is given and the algorithm does not support it, raises MeshError.
        """
        if operation is not None:
            algorithm = check_name(algorithm, operation)
        found = self._groups.get(algorithm)
        if found is None:
            if algorithm == "shared":  # replaces the transport; an algorithm's steps would cost more
                found = door("shared memory").shared_memory(self._groups["native"])
            else:
                selected = door("algorithm")
                if self._channel is None:
                    self._channel = selected.Channel(self._groups["native"], topology=self._topology)
                found = selected.Selected(self._channel, check_name(algorithm))
            found.axes = self.names
            self._groups[algorithm] = found
        return found

    def choice(self, size_bytes: int, operation: str = "all_reduce", algorithm: str | None = None) -> str:
        """The algorithm that a call with an operand of `size_bytes` runs along this axis.

        With ``auto`` the first use reads the table of choices, so all ranks of the axis must call it.

        Parameters
        ----------
        size_bytes : int
            The size of the operand in bytes.
        operation : str
            The collective, for example ``all_reduce``.
        algorithm : str, optional
            The algorithm to ask about. The default is the algorithm of the axis.

        Returns
        -------
        str
            A name of `collectives.algorithms.table`.

        Examples
        --------
        >>> import collectives as cc
        >>> cc.run(lambda: cc.Mesh(dp=2, algorithm="ring").axis("dp").choice(4096), ranks=2)
        ['ring', 'ring']
        """
        group = self.group if algorithm is None else self.using(algorithm)
        if self.size == 1:
            return "native"
        choice = getattr(group, "choice", None)
        return group.algorithm if choice is None else str(choice(operation, size_bytes))


def check_name(algorithm: Any, operation: str | None = None) -> str:
    """Check the name of an algorithm and return it; see `algorithms.table.check_name`."""
    if not isinstance(algorithm, str):
        raise MeshError(f"algorithm={algorithm!r} was given; needed: the name of an algorithm")
    if algorithm == "native":
        return "native"
    checked: str = door("algorithms").check_name(algorithm, operation)
    return checked


def _complete(sizes: dict[str, int], ranks: int) -> tuple[int, ...]:
    """The sizes of a mesh's axes, with the number that -1 stands for. Their product is the number of ranks."""
    shape = list(sizes.values())
    shown = ", ".join(f"{k}={v}" for k, v in sizes.items())
    if any(not isinstance(n, int) or n == 0 or n < -1 for n in shape) or shape.count(-1) > 1:
        raise MeshError(f"Mesh({shown}): sizes must be positive integers, and at most one -1")
    known = math.prod(n for n in shape if n != -1)
    if -1 in shape and ranks % known == 0:
        shape[shape.index(-1)] = ranks // known
    if -1 in shape or math.prod(shape) != ranks:
        raise MeshError(
            f"Mesh({shown}) was given in a world of {ranks} ranks; needed: sizes whose product is "
            f"{ranks}. Fix: start {known} ranks, or give one axis the size -1"
        )
    return tuple(shape)


USUAL = ("pp", "dp", "ep", "cp", "tp")
"""The axes of `Mesh.fit`, from the outermost."""


class Mesh:
    """Named axes over the ranks of a world; ``with mesh:`` makes the mesh current.

    Parameters
    ----------
    over : Communicator, optional
        The ranks. The default is the whole world.
    **sizes : int
        The axes in order, outermost first. One size may be -1: it is computed from the number of ranks.
    algorithm : str or mapping from axis to str
        The algorithm for sums and copies along the axes, used where it supports the call: see
        `collectives.algorithms`. The default is ``native``, the transport's own; ``auto`` chooses by a table or a
        fixed rule, in each run the same. Several axes flattened into one use it if it is the same on all of them.
    topology : Topology, optional
        The levels of ``hierarchical``, and the links from whose predicted times ``auto`` chooses where it has no table.
        Without one, the levels are the hosts, and what the launcher tells about them (``RINGTAPE_PLACE``).

    Raises
    ------
    MeshError
        The sizes do not multiply to the number of ranks, or an algorithm is unknown.

    Examples
    --------
    >>> import collectives as cc
    >>> mesh = cc.Mesh(dp=1, tp=1)
    >>> mesh.axis("dp").size
    1
    """

    # -- what autograd asks of the ranks, see `autograd.engine.distribution` ------------------------------------------
    note_constant = numbers.note
    note_beside = parts.expect_different_beside

    def note_declaration(self, how: str, x: Any) -> None:
        """Record a value that the program has declared, for the next calls along its axes."""
        if how == "scalar":
            self.scalars.append(x.array)
            return
        sanitizer.declared(how, x)
        parts.expect_different(how, x)

    def examine(self, operation: Any, layouts: Sequence[Layout], arrays: Sequence[Any], options: Any) -> None:
        """Test the declaration of an operation of the user; see `collectives.checks.declarations`."""
        from .checks import declarations  # loaded with the first such operation

        declarations.examine(operation, layouts, arrays, options)

    def compare_objective(self, outputs: Any, recording: Any) -> None:
        """Compare the objective of a sweep; see `collectives.replicas`. Warn of values that a broadcast has dropped."""
        verdict = None
        if recording.scale is not False and modes.limit and is_there("addends"):
            verdict = door("addends").verdict_of(outputs, recording, self)
        if self.microbatches is not None:
            self.microbatches.note(outputs, recording)
        if verdict is not None and verdict.has_findings:
            recording.scale = False  # what the program does with these gradients may mend them
        axes = compare_objective(outputs, recording, self, verdict)
        if verdict is not None:
            verdict.tell(axes)
        for axis in self.known_axes:
            if noted := axis.kept.get("dropped"):
                dropped.warn(noted, recording)

    @typed_errors
    def __init__(
        self, over: Communicator | None = None, /, *, algorithm: Any = "native", topology: Any = None, **sizes: int
    ):
        ranks = world() if over is None else over
        if not sizes:
            raise MeshError("Mesh() was given no axes; needed: at least one, for example Mesh(dp=-1)")
        self.names = tuple(sizes)
        shape = _complete(sizes, int(ranks.size))
        self.sizes = tuple(size_of(n, name) for n, name in zip(shape, self.names, strict=True))
        place, rest = [], ranks.index
        for n in reversed(self.sizes):
            rest, at = divmod(rest, n)
            place.append(at)
        place.reverse()
        self.place = tuple(RankInt(at, (name,)) for name, at in zip(self.names, place, strict=True))
        self.ranks = ranks
        self.is_alone = ranks.size == 1  # then there is nothing to compare
        self.progress, self.in_flight = None if self.is_alone else ranks.poke, ranks.in_flight
        self.grid = Grid.of(self.names, shape, place)
        self._algorithms = algorithm if isinstance(algorithm, Mapping) else dict.fromkeys(self.names, algorithm)
        for name, chosen in self._algorithms.items():
            self.grid.axis(name)
            check_name(chosen)
        if topology is not None and not hasattr(topology, "domains"):
            raise MeshError(f"Mesh: topology={topology!r} was given; needed: a collectives.Topology")
        self._topology = topology
        self._axes: dict[Any, Axis] = {}
        self.known_axes: list[Axis] = []  # single and flattened, that have a communicator
        self.optimizers: WeakKeyDictionary[Any, tuple[int, frozenset[str]]] = WeakKeyDictionary()
        self.optimizers_so_far = 0
        """For each optimizer, the axes along which its hyperparameters are the same on all ranks."""
        self.recordings = 0  # the number of tapes with a sum over ranks, see `collectives.scale`
        self.notes_lines = not self.is_alone
        self.microbatches: Any = None  # of the open block of `accumulate`, if it is examined
        self.blocks = 0  # the number of such blocks
        self.norms_of_gradients: dict[int, Any] = {}  # after an examined sweep, see `scale.by_hand`
        self.scalars: deque[Any] = deque(maxlen=64)  # the numbers of the latest leaves that are one, see `scale.walk`
        self.told: set[Any] = set()  # of which faults of scale, at which lines, a warning was given
        self.norms = 0  # the number of norms that functions of the program have computed, see `autograd.optim.norms`
        self.stage_axes: tuple[str, ...] = ()
        """The axes along which the ranks have different lists of parameters: those of pipelines, which set it."""
        self.numbered: set[str] = set()  # the axes of all optimizers, also of those that are no longer alive
        # Prepared collectives by the arguments of their calls, see `ops.arguments`; and calls by their fields, for
        # operands that are no Tensors. At most 1,000 (`keep`). A sum on one rank takes 2 us with it, and 15 us without.
        self.prepared: dict[Any, Any] = {}
        self._outer: list[tuple[Any, ...]] = []
        self._thread = threading.get_ident()
        _meshes.add(self)
        for name in self.names:
            axis = self.axis(name)
            if axis.group.algorithm == "auto" and axis.size > 1 and not axis.group.dry:
                group: Any = axis.group
                group.agree(f"{self!r}")
                _ = group.choices  # read here, so that a wrong table is told before the program begins

    @classmethod
    @typed_errors
    def fit(
        cls, over: Communicator | None = None, /, *, algorithm: Any = "native", topology: Any = None, **sizes: int
    ) -> Mesh:
        """A mesh of the usual axes of parallel training, in the order that keeps frequent messages on one host.

        Parameters
        ----------
        over : Communicator, optional
            The ranks. The default is the whole world.
        **sizes : int
            Of any of the axes pp (pipeline stages), dp (parts of the batch), ep (experts), cp (parts of the sequence)
            and tp (parts of a layer). One may be -1; without one, ``dp`` is -1 if it is not given.
        algorithm : str or mapping from axis to str
            As for `Mesh`.
        topology : Topology, optional
            As for `Mesh`.

        Returns
        -------
        Mesh
            The axes that were given, and dp, from the outermost: pp, dp, ep, cp, tp. Neighbouring ranks, which
            launchers put on one host, differ in tp, which communicates in every layer.

        Raises
        ------
        MeshError
            Another name was given, or the sizes do not multiply to the number of ranks.

        Notes
        -----
        Source of the order: Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters*,
        section 3.

        Examples
        --------
        >>> import collectives as cc
        >>> cc.run(lambda: print(cc.Mesh.fit(tp=2)) if cc.world().rank == 0 else None, ranks=4)
        Mesh(dp=2, tp=2)
        [None, None, None, None]
        """
        unknown = [name for name in sizes if name not in USUAL]
        if unknown:
            raise MeshError(
                f"Mesh.fit({unknown[0]}=...) was given; needed: the names {', '.join(USUAL)}\n  fix: cc.Mesh(...), "
                "which takes any names, the outermost first"
            )
        if "dp" not in sizes and -1 not in sizes.values():
            sizes["dp"] = -1
        given = {name: sizes[name] for name in USUAL if name in sizes}
        return cls(over, algorithm=algorithm, topology=topology, **given)

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{k}={v}' for k, v in zip(self.names, self.sizes, strict=True))})"

    def _repr_html_(self) -> str:
        """The same for notebooks: the size of each axis, and this rank's place."""
        from autograd import notebook  # loaded when a notebook shows a mesh

        rows = [(k, n, int(at)) for k, n, at in zip(self.names, self.sizes, self.place, strict=True)]
        note = f"{int(self.ranks.size)} rank" + ("s" if self.ranks.size != 1 else "")
        return notebook.sheet("Mesh", note, notebook.table(rows, ("axis", "size", "this rank")))

    def normal(self, axes: str | Sequence[str]) -> tuple[str, ...]:
        """Axis names as a tuple in the mesh's order."""
        named = (axes,) if isinstance(axes, str) else tuple(axes) if isinstance(axes, tuple | list) else (axes,)
        for name in named:
            if not isinstance(name, str):
                raise MeshError(
                    f"axis {axes!r} was given; needed: one of the names {', '.join(map(repr, self.names))}, or a tuple "
                    "of them"
                )
            self.grid.axis(name)
        if not named or len(set(named)) != len(named):
            raise MeshError(f"axes {named} were given; needed: each axis once, and at least one")
        return tuple(n for n in self.names if n in named)

    def axis(self, axes: str | Sequence[str]) -> Axis:
        """An axis by name, or a tuple of axes flattened into one.

        At the first use of an axis, the ranks along it make its communicator together.

        Parameters
        ----------
        axes : str or sequence of str

        Returns
        -------
        Axis

        Raises
        ------
        MeshError
            The mesh has no such axis, or an axis is given twice.
        """
        try:
            found = self._axes.get(axes if isinstance(axes, str) else tuple(axes))
        except TypeError:
            found = None  # `normal` raises
        if found is None:
            names = self.normal(axes)
            found = self._axes.get(names)
            if found is None:
                members = self._members(names)
                group = self.ranks.subgroup(members, f"{'*'.join(names)}@{members[0]}")
                chosen = {self._algorithms.get(name, "native") for name in names}
                algorithm = chosen.pop() if len(chosen) == 1 else "native"
                found = Axis(names, group, algorithm, self.prepared, self._topology)
                self.known_axes.append(found)
            self._axes[names] = found
            self._axes[axes if isinstance(axes, str) else tuple(axes)] = found
        return found

    def _members(self, names: Sequence[str]) -> list[int]:
        """Ranks at this rank's position on all other axes, in row-major order of the given axes."""
        strides = [math.prod(self.sizes[i + 1 :]) for i in range(len(self.sizes))]
        members = [sum(p * s for n, p, s in zip(self.names, self.grid.place, strides, strict=True) if n not in names)]
        for name in names:
            k = self.grid.axis(name)
            members = [m + i * strides[k] for m in members for i in range(self.sizes[k])]
        return members

    def __enter__(self) -> Mesh:
        if threading.get_ident() != self._thread:
            raise MeshError(
                "a mesh was entered on another thread (rank) than the one that made it. Fix: make it inside run(...)"
            )
        self._outer.append((state.distribution, state.grid, state.unstated))
        state.distribution, state.grid, state.unstated = self, self.grid, {}
        if state.recording is not None:  # so that its leaves enter again, with labels of this mesh
            state.recording.leaves.clear()
        return self

    def __exit__(self, *error: Any) -> None:
        state.distribution, state.grid, state.unstated = self._outer.pop()
        if state.pending and not self._outer:
            mine = [x for x in state.pending if x.mesh is self]
            refuse_pending(mine, f"the block of {self!r} ends", error[0] is not None)
        if error[0] is not None and self.is_alone and not self._outer:
            shorten(error[1])
        for axis in () if error[0] is not None else self.known_axes:
            if axis.group.checks is not None:
                axis.group.checks.tell_part(axis.group)
        if error[0] is None and modes.limit and self.ranks.size > 1 and not process.is_child:
            if modes.watching or not World.current().raises:  # else ranks go on without those that have failed
                compare_end(self)

    @typed_errors
    def shapes(self, axes: Sequence[str], shape: Sequence[int]) -> tuple[list[tuple[int, ...]], int]:
        """The shape of a value on each rank along some axes, and this rank's index. All these ranks must call it."""
        on = self.axis(axes)
        on.group.agree(lambda: f"shapes of a value that is Varying (axis={'*'.join(on.names)!r})")
        gathered = self.exchange(on.group, json.dumps([int(n) for n in shape]).encode())
        return [tuple(json.loads(data)) for data in gathered], on.group.index

    @typed_errors
    def begin_walk(self, recording: Any) -> None:
        """Count a tape at its first sum over ranks. The first 8 are examined, and the 16th, 32nd, ...

        So each of several losses in turn is examined, as those of two players; and the tapes of an examined block of
        microbatches, which are compared with each other. See `collectives.scale`.
        """
        self.recordings = n = self.recordings + 1
        recording.scale = False
        if (n <= _FIRST_TAPES or is_due(n) or self.microbatches is not None) and is_there("factors of sums"):
            recording.scale = door("factors of sums").Walk(recording, self.grid)
        self.notes_lines = recording.scale is not False or n < _FIRST_TAPES or is_due(n + 1)

    @typed_errors
    def begin_run(self, recording: Any, run: Any) -> None:
        """The run shares the walk of the tape; a tape without one is counted, as at its first sum."""
        if recording.scale is None and modes.limit and not self.is_alone:
            self.begin_walk(recording)
        run.scale = recording.scale
        if run.scale:
            run.scale.begin_run(run)

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """A block whose sweeps are those of microbatches. The 1st, 2nd, 4th, ... is examined: see `scale.microbatches`.

        The outermost one counts.
        """
        self.blocks += 1
        is_examined = not self.is_alone and modes.limit and is_due(self.blocks) and is_there("factors of microbatches")
        if self.microbatches is not None or not is_examined:
            yield
            return
        self.microbatches = door("factors of microbatches").Microbatches(self)
        try:
            yield
            self.microbatches.tell()
        finally:
            self.microbatches = None

    @typed_errors
    def note_gradients(self, leaves: Sequence[Any]) -> None:
        """Keep the norms of the gradients of a sweep over an examined tape, for the optimizer's step."""
        self.norms_of_gradients = door("factors of gradients").norms_of(leaves)

    def is_norm_due(self) -> bool:
        """Count a norm that a function of the program has computed: whether it is compared, as the 1st, 2nd, 4th."""
        if not modes.limit:
            return False
        self.norms += 1
        return is_due(self.norms)

    @typed_errors
    def quiet(self, is_quiet: bool, together: Sequence[str] = ()) -> None:
        """Begin, or end, that the ranks compare nothing but their calls, as in replays of a captured step.

        Along the axes `together` no rank replays, so that they may be asked for values.
        """
        self.together = frozenset(together)
        self.__class__ = _QuietMesh if is_quiet else Mesh
        for group in (self.ranks, *(axis.group for axis in self._axes.values())):
            if group.checks is not None:
                group.checks.__class__ = QuietChecks if is_quiet else Checks

    def ask(self, group: Communicator) -> None:
        """The ranks of a group are about to tell each other values, as extents, which replays know: see `quiet`."""

    @typed_errors
    def exchange(self, group: Communicator, data: bytes) -> list[bytes]:
        """The bytes of all ranks of a group, in order."""
        self.ask(group)
        return group.exchange(data)

    def group(self, axes: Sequence[str] | None = None) -> Communicator:
        """The ranks along some axes; all ranks of the mesh without them."""
        return self.ranks if axes is None else self.axis(axes).group

    @typed_errors
    def numbers_of_all(self, number: float, axes: Sequence[str], call: str) -> list[float]:
        """The numbers of all ranks along some axes, in order, as a control message. All these ranks call it."""
        group = self.axis(axes).group
        group.agree(lambda: str(call))
        gathered = self.exchange(group, np.float64(number).tobytes())
        return [float(np.frombuffer(data, np.float64)[0]) for data in gathered]

    @typed_errors
    def combinations_of_stages(self, found: set[tuple[str, ...]], call: str) -> set[tuple[str, ...]]:
        """The combinations of axes that occur on any rank along `stage_axes`, given those that occur on this one.

        All ranks along these axes call it if their combinations contain such an axis, or if they have none. It costs
        one small control message. Without such axes nothing is sent.
        """
        for axis in self.stage_axes:
            if self.axis(axis).size > 1 and (not found or any(axis in axes for axes in found)):
                group = self.axis(axis).group
                group.agree(partial("axes of a {} (axis={!r})".format, call, axis))
                data = json.dumps(sorted(found)).encode()
                found = {tuple(axes) for each in self.exchange(group, data) for axes in json.loads(each)}
        return found

    @typed_errors
    def arrays_of_all(self, array: Any, axes: str | Sequence[str], call: str) -> list[Any]:
        """The host arrays of all ranks along some axes, in order; None for a rank that gives None.

        All these ranks call it. `call` describes the call to the other ranks.
        """
        group = self.axis(axes).group
        group.agree(lambda: str(call))
        return [_array_in(data) if data else None for data in self.exchange(group, _bytes_of(array))]

    @typed_errors
    def gathered(self, array: Any, dim: int, axis: str, call: str) -> Any:
        """The ranks' host arrays, concatenated along a dimension; None if every rank gives None.

        All ranks of the axis call it. `call` describes the call to the other ranks.
        """
        found = self.arrays_of_all(array, axis, call)
        arrays = [part for part in found if part is not None]
        if arrays and len(arrays) < len(found):
            raise MeshError(f"{call}: {len(arrays)} of {len(found)} ranks have a part; needed: all of them, or none")
        return np.concatenate(arrays, dim) if arrays else None

    def plan(self, tape: Any) -> Any:
        """Merge the ranks' tapes into one graph; see `autograd.Tape.plan`. All ranks of the mesh must call it.

        Parameters
        ----------
        tape : Tape

        Returns
        -------
        Plan
        """
        return door("plans").plan(tape, self.ranks, self.sizes)

    def compare_step(self, optimizer: Any) -> None:
        """Compare an optimizer's parameters, gradients, state and numbers before a step; see `collectives.replicas`.

        `Optimizer.step` calls it.

        Parameters
        ----------
        optimizer : Optimizer
        """
        if modes.limit:
            if optimizer.has_new_numbers() and optimizer.calls > 1:
                note_numbers(optimizer, self)
            if modes.watching or is_due(optimizer.calls, optimizer.digest_every):
                compare_step(optimizer, self)
            if self.norms_of_gradients:  # after the comparison, so that gradients of one rank alone are no longer here
                norms, self.norms_of_gradients = self.norms_of_gradients, {}
                door("factors of gradients").tell_scaled(optimizer, norms, self)

    @typed_errors
    def check_replicas(self, tensors: Iterable[Tensor]) -> None:
        """Compare the copies of every tensor along the axes on which it is I or R.

        All ranks of the mesh must call it, with the same tensors in the same order. It costs one small all-gather per
        axis.

        Parameters
        ----------
        tensors : iterable of Tensor

        Raises
        ------
        ReplicaMismatch
            Raised on every rank of the axis. It names the tensor and the ranks that differ from the first.
        """
        tensors = list(tensors) if isinstance(tensors, Iterable) else [tensors]
        for x in tensors:
            if not isinstance(x, Tensor):
                raise ArgumentError(f"check_replicas: {type(x).__name__} was given; needed: Tensors")
        if self.ranks.size > 1:
            compare_replicas(tensors, self.grid, lambda axis: self.axis(axis).group)


def _nothing(*args: Any) -> None:
    pass


_NOTHING: Any = _nothing


class _QuietMesh(Mesh):
    """A mesh while a rank records a step that other ranks may replay, which compare nothing but the calls."""

    note_constant = note_beside = note_declaration = compare_objective = check_replicas = _NOTHING

    def begin_walk(self, recording: Any) -> None:
        recording.scale = False

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        yield

    def is_norm_due(self) -> bool:
        return False

    def ask(self, group: Communicator) -> None:
        if not self.together.issuperset(group.axes):
            raise CaptureError(
                "capture: this call of a captured step is no replay on this rank, and needs to know values of the "
                f"other ranks of {group.name!r}, which may replay and give none\n  fix: call the step itself, or give "
                "arguments of the form of the other calls on all ranks"
            )


# Not `numpy.save` and `numpy.load`, which parses the header as Python text: on threads of Python 3.11 that fails at
# random (see `autograd.parsing`).
def _bytes_of(array: Any) -> bytes:
    """An array and its dtype and shape as bytes; none for None."""
    if array is None:
        return b""
    array = np.asarray(array)
    dtype = array.dtype.name if is_bfloat16(array.dtype) else array.dtype.str
    return json.dumps([dtype, array.shape]).encode() + b"\n" + array.tobytes()


def _array_in(data: bytes) -> Any:
    """The array that `_bytes_of` wrote."""
    header, _, values = data.partition(b"\n")
    dtype, shape = json.loads(header)
    return np.frombuffer(values, dtype_named(dtype)).reshape(shape).copy()


def check_replicas(tensors: Iterable[Tensor], mesh: Mesh) -> None:
    """Compare the copies of every tensor along the axes on which it is I or R.

    Parameters
    ----------
    tensors : iterable of Tensor
        The same tensors in the same order on all ranks of the mesh.
    mesh : Mesh

    Raises
    ------
    ReplicaMismatch
        Copies differ; see `Mesh.check_replicas`.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=2) as mesh:
    ...         w = ag.Parameter([1.0], name="w")
    ...         cc.check_replicas([w], mesh)
    >>> cc.run(program, ranks=2)
    [None, None]
    """
    if not isinstance(mesh, Mesh):
        raise MeshError(f"check_replicas: mesh={mesh!r} was given; needed: a Mesh")
    mesh.check_replicas(tensors)


_meshes: WeakSet[Mesh] = WeakSet()


def _entered_elsewhere() -> str:
    """The message for a thread that is no rank, where another thread has entered a mesh; else an empty string."""
    me = threading.get_ident()
    entered = None if is_rank_thread() else next((m for m in list(_meshes) if m._outer and m._thread != me), None)
    if entered is None:
        return ""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return (
        f"{entered!r} was entered in thread {names.get(entered._thread, entered._thread)!r}, and this is thread "
        f"{threading.current_thread().name!r}: mesh, tape and random state are per thread, so that a thread neither "
        "communicates in the order of another nor records on its tape\n"
        "  fix: call collectives, and operations that are to be differentiated, in the thread that entered the mesh; "
        "give other threads plain arrays (x.numpy())"
    )


def current_mesh() -> Mesh:
    """The current mesh.

    Returns
    -------
    Mesh

    Raises
    ------
    MeshError
        No mesh is current.

    Examples
    --------
    >>> import collectives as cc
    >>> with cc.Mesh(dp=1):
    ...     cc.current_mesh()
    Mesh(dp=1)
    """
    mesh = state.distribution
    if not isinstance(mesh, Mesh):
        raise MeshError(
            "a collective was called and no mesh is current. Needed: a mesh with named axes. "
            + (_entered_elsewhere() or "Fix: with cc.Mesh(dp=-1): around it (one axis over all ranks)")
        )
    return mesh
