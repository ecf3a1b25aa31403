"""A parameter server: ranks train at their own pace on parameters that the ranks together hold.

The server is no process of its own. The flat vector of all parameters is divided into slices, and each rank holds one
in a window (`collectives.transports.windows`), which the others read and add to while it computes. So the bytes of
reads and pushes spread over the ranks.

A worker's step is a *read*, which copies the parameters, and a *push*, which adds the change of the worker's optimizer.
The order of the reads and pushes of different workers is free within the bound of staleness, or given by a script.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from autograd.arrays.capture import refuse_recorded
from autograd.arrays.pairs import real_dtype
from autograd.engine.leaves import Leaf
from autograd.errors import ArgumentError, MeshError, OptionError
from autograd.nn import Module
from autograd.optim import Optimizer
from autograd.optim.hyperparameters import check_count
from collectives import current_mesh
from collectives.mesh import Axis
from collectives.transports.protocol import Communicator
from collectives.transports.windows import FINISHED, Clocks, Window

from .own_copies import OwnCopies, host_flat, numbers_of, put_flat, real_size, weighted_means

__all__ = ["ParameterServer", "Push"]

_BINS = 64  # of the histogram; the last one holds all that is staler


class Push(NamedTuple):
    """One push, with the version of the parameters that its gradient was computed from.

    Attributes
    ----------
    worker : int
        The rank along the axis.
    clock : int
        The number of steps that the worker had made before.
    read : tuple of int
        The version that it read: the number of pushes that each slice had received.
    version : tuple of int
        The version of each slice when the push was added.
    """

    worker: int
    clock: int
    read: tuple[int, ...]
    version: tuple[int, ...]

    @property
    def staleness(self) -> int:
        """The pushes of other workers between the read and the push, the largest number of all slices."""
        return max((now - then for now, then in zip(self.version, self.read, strict=True)), default=0)


class ParameterServer:
    """Train on parameters that the ranks of `axis` share: fully asynchronously, or with bounded staleness.

    Inside ``with ParameterServer(...) as server:`` the parameters are V along `axis`: each rank's copy of the shared
    ones, as it has read them. A step is `read`, backward of the rank's own loss, and `push`, which takes the
    optimizer's step on the copy and adds the change to the shared parameters. The ranks may make different numbers of
    steps. At the end of the block all ranks wait for each other, and the parameters are I again, with the shared value.

    Parameters
    ----------
    module : Module
        Its parameters are I along `axis`, and equal on its ranks.
    axis : str or sequence of str
        The mesh axes whose ranks are the workers.
    optimizer : Optimizer
        Of parameters of `module`; any optimizer. It runs on the worker, so that its state (momentum) is the worker's.
    staleness : int or None
        How many steps a worker may be ahead of the slowest one: it blocks while it is further ahead. 0 is synchronous
        training. None is fully asynchronous: no worker ever blocks.
    servers : int, optional
        The number of ranks that hold slices, the first ones of the axis. The default is all of them. A step of a worker
        sends messages to each, so that a large world may want fewer.
    script : sequence of int, optional
        The order of all reads and pushes, for exact tests: the rank whose turn it is, one turn for each read and each
        push. The ranks wait for their turns. The results are then those of a serial program.

    Attributes
    ----------
    clock : int
        The number of steps that this rank has made.
    last : Push or None
        This rank's latest push.
    waited_s : float
        The seconds that this rank has waited for slower ones in `read` and `push`, without those for its turns.

    Raises
    ------
    LayoutError
        At the start of the block: a parameter is not I along `axis`.
    ReplicaMismatch
        The parameters differ between the ranks at the start of the block.
    CollectiveMismatch
        The ranks give different options.
    OptionError
        An option is out of range; a script names a rank that the axis lacks, or breaks the bound of staleness. A rank
        reads or pushes out of turn.
    ArgumentError
        `module` is no Module, or `optimizer` no optimizer of its parameters.
    MeshError
        The world is dry: a dry run has no order of reads and pushes.

    See Also
    --------
    LocalSGD : Without a server; the ranks synchronise every few steps.

    Notes
    -----
    The changes of all workers are added, never averaged, as gradients are in `DataParallel`. So the loss carries the
    normalisation: divide by the rows of a *global* batch, as with `DataParallel`, or scale the learning rate. Divide
    before ``cc.declare_partial``.

    With a bound s, the read of a worker that has made c steps sees all pushes of the steps before c - s, and none of
    the steps from c + s on. So with s = 0 every worker reads the parameters after the same steps of all workers: the
    result is that of synchronous SGD up to the order of the sum. A worker that has left the block counts as infinitely
    far: nobody waits for it.

    A read or a push of one slice is atomic. A slice has a version, the number of its pushes. Reads of different slices
    may be of different versions. A push carries the worker, its clock and the versions that it read (`Push`), and its
    staleness is counted in a histogram at the first rank (`histogram`).

    Bytes: a read and a push move the parameters once each, in float32 or the parameters' wider dtype. Messages: about
    four to each server a read, five a push, and two of 8 bytes to the first rank, which holds the clocks. A worker that
    is blocked reads the clocks, 8 bytes a rank, at intervals of up to 2 ms.

    A worker that raises or is killed ends the job, as everywhere in ringtape. Buffers are each worker's own inside the
    block, and averaged at its end. The optimizer's state differs between the ranks when the block ends; see `LocalSGD`.

    Sources: Dean et al., Large scale distributed deep networks (NIPS 2012), section 4.1, asynchronous; Ho et al., More
    effective distributed ML via a stale synchronous parallel parameter server (NIPS 2013), section 2, bounded. There a
    bound of 0 lets fast workers' pushes of the same step through; here it does not.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> from autograd import nn, optim
    >>> from parallel import ParameterServer
    >>> def program():
    ...     with cc.Mesh(dp=2) as mesh:
    ...         model = nn.Linear(1, 1, bias=False)
    ...         model.weight.data = [[0.0]]
    ...         optimizer = optim.SGD(model.parameters(), lr=0.5)
    ...         x = ag.tensor([[1.0 + mesh.axis("dp").rank]], dtype="float32")  # V: the rows of this rank
    ...         with ParameterServer(model, "dp", optimizer, staleness=1) as server:
    ...             for _ in range(3):
    ...                 server.read()
    ...                 with ag.Tape() as tape:
    ...                     loss = cc.declare_partial(model(x).sum(), "dp")
    ...                 tape.backward(loss)
    ...                 server.push()
    ...         return model.weight.item()
    >>> cc.run(program, ranks=2)
    [-4.5, -4.5]
    """

    def __init__(
        self, module: Module, axis: str | Sequence[str], optimizer: Optimizer, *, staleness: int | None = None,
        servers: int | None = None, script: Iterable[int] | None = None,
    ):  # fmt: skip
        caller = type(self).__name__
        self._copies = OwnCopies(caller, module, axis, optimizer)
        if staleness is not None:
            check_count(caller, staleness=staleness)
        if servers is not None:
            check_count(caller, least=1, servers=servers)
        self.optimizer = optimizer
        self.staleness = staleness
        self.servers = servers
        self.script = None if script is None else _checked_script(caller, script)
        self.clock = 0
        self.last: Push | None = None
        self._on: Axis | None = None
        self._order: _Order | None = None

    @property
    def waited_s(self) -> float:
        """The seconds that this rank has waited for others."""
        return 0.0 if self._order is None else self._order.waited_s

    def __repr__(self) -> str:
        return f"{type(self).__name__}(axis={self._copies.axis!r}, staleness={self.staleness}): {self.clock} steps"

    # -- the block -------------------------------------------------------------------------------------------------
    def __enter__(self) -> ParameterServer:
        on = current_mesh().axis(self._copies.axis)
        script, learned = self.script, self._copies.learned
        if script is not None:
            _refuse_impossible(type(self).__name__, script, on, self.staleness)
        dtype = real_dtype(np.result_type(np.float32, *[p.array.dtype for p in learned]))
        elements = sum(map(real_size, learned))
        servers = max(1, min(on.size if self.servers is None else self.servers, on.size, elements))
        digest = "" if script is None else f" script={zlib.crc32(np.array(script, np.int64).tobytes()):08x}"
        on.group.agree(
            lambda: f"start of {type(self).__name__} (axis={'*'.join(on.names)!r} staleness={self.staleness} "
            f"servers={servers} {elements} elements of {dtype}{digest})"
        )
        if on.group.dry:
            raise MeshError(
                f"{type(self).__name__} in a dry world: the order of its reads and pushes is that of a run; needed: "
                "ranks that run"
            )
        self._on, me = on, on.group.index
        self._shared = _Shared(on.group, learned, host_flat(learned, np.empty(elements, dtype)), servers)
        turns = None if script is None else [i for i, rank in enumerate(script) if rank == me]
        self._order = _Order(on.group, self.staleness, turns)
        self._copies.part()
        self._order.begin()
        self.clock, self.last = 0, None
        self._read: tuple[int, ...] | None = None  # the version that was read and not yet pushed to
        self._calls = self.optimizer.calls
        return self

    def __exit__(self, error: Any, *_: Any) -> None:
        if error is not None:
            self._on = None
            return
        (on, order), name = self._open("the end of the block"), type(self).__name__
        if order.turns:
            raise OptionError(
                f"{name}: the script has {len(order.turns)} more turns for rank {on.group.index}, which has left the "
                f"block after {self.clock} steps; needed: one turn for each read and each push of a rank"
            )
        order.clocks.set(FINISHED)
        on.group.agree(lambda: f"the end of the block of {name} (axis={'*'.join(on.names)!r})")
        on.group.barrier()  # all workers have finished
        self._shared.fetch()
        buffers = [numbers_of(x) for x in self._copies.averaged_buffers()]
        self._copies.set_buffers(weighted_means(f"the end of the block of {name}", buffers, 1.0, on, 25 << 20), on)
        self._shared.free()
        order.free()
        self._copies.join(on)
        current_mesh().check_replicas(self._copies.all.values())
        self._on = None

    def _open(self, call: str) -> tuple[Axis, _Order]:
        """The axis, and the order of the workers. They are there in the block."""
        if self._on is None or self._order is None:
            name = type(self).__name__
            raise OptionError(f"{call} outside of the block of {name}; needed: with {name}(...) as server:")
        return self._on, self._order

    # -- steps -----------------------------------------------------------------------------------------------------
    def read(self) -> None:
        """Begin a step: replace this rank's copy by the shared parameters, and remove its gradients.

        With bounded staleness it blocks while this rank is more than `staleness` steps ahead of the slowest one.

        Raises
        ------
        OptionError
            The last read was not followed by a push; or the script has no turn left for this rank.
        SavedArrayError
            A tape still needs the value of a parameter.
        """
        refuse_recorded("ParameterServer.read")
        on, order = self._open("read")
        if self._read is not None:
            raise OptionError(
                f"read: rank {on.group.index} has read for step {self.clock + 1} and has not pushed; needed: push() "
                "after each read(), also without gradients"
            )
        order.wait("read", 2 * self.clock)
        self._read = self._shared.fetch()
        self.optimizer.zero_grad()
        self._calls = self.optimizer.calls
        order.go_on(2 * self.clock + 1)

    def push(self) -> None:
        """End a step: take the optimizer's step on this rank's copy, and add the change to the shared parameters.

        A rank without rows pushes without gradients, so that its clock goes on. With bounded staleness it blocks until
        every rank has begun the step `staleness` steps before this one; see the Notes of `ParameterServer`.

        Raises
        ------
        OptionError
            There was no read before; the program has called the optimizer's `step` itself; or the script has no turn
            left for this rank.
        """
        refuse_recorded("ParameterServer.push")
        on, order = self._open("push")
        if self._read is None:
            raise OptionError(f"push: rank {on.group.index} has not read since its last push; needed: read()")
        if self.optimizer.calls != self._calls:
            raise OptionError(
                "push: the optimizer has taken a step since read(); needed: push() in the place of optimizer.step(), "
                "which it calls"
            )
        self.optimizer.step()
        change = self._shared.change()
        order.wait("push", 2 * self.clock + 1)
        self.last = Push(on.group.index, self.clock, self._read, self._shared.add(change))
        self._shared.count(self.last.staleness)
        self._read = None
        self.clock += 1
        order.go_on(2 * self.clock)

    def histogram(self) -> dict[int, int]:
        """The number of pushes of all workers so far by their staleness; 63 stands for 63 and more.

        Any rank may call it inside the block, alone.
        """
        self._open("histogram")
        return self._shared.histogram()

    def clocks(self) -> list[int | None]:
        """The number of steps that each worker has made; None for one that has finished. Any rank may call it alone."""
        _, order = self._open("clocks")
        return [None if each == FINISHED else each // 2 for each in order.clocks.values()]


class _Shared:
    """The shared parameters: a slice of them in the memory of each server, which all ranks read and add to.

    Parameters
    ----------
    group : Communicator
    learned : list of Leaf
        This rank's copies.
    value : array
        The shared parameters as they were last read, flat.
    servers : int
    """

    def __init__(self, group: Communicator, learned: Sequence[Leaf], value: Any, servers: int):
        self.learned, self.value, self.me = learned, value, group.index
        self.bounds = np.linspace(0, value.size, servers + 1).astype(int).tolist()
        start, end = self.bounds[self.me : self.me + 2] if self.me < servers else (0, 0)
        # Each server has the version of its slice, and the first one the histogram.
        records = np.zeros((self.me < servers) + _BINS * (self.me == 0), np.int64)
        self.window: Window = group.window(value[start:end])
        self.records: Window = group.window(records)

    def _slices(self) -> Iterator[tuple[int, slice]]:
        """The servers and their slices, from this rank on, so that not all ranks begin with the same one."""
        servers = len(self.bounds) - 1
        for i in range(servers):
            owner = (self.me + i) % servers
            yield owner, slice(self.bounds[owner], self.bounds[owner + 1])

    def fetch(self) -> tuple[int, ...]:
        """Copy the shared parameters to this rank's, and return the version of each slice."""
        versions = [0] * (len(self.bounds) - 1)
        for owner, part in self._slices():
            with self.window.locked(owner):
                self.value[part] = self.window.get(owner)
                versions[owner] = self.records.fetch_and_add(0, owner, 0)
        put_flat(self.learned, self.value)
        return tuple(versions)

    def change(self) -> Any:
        """The change of this rank's parameters since they were read, flat."""
        change = host_flat(self.learned, np.empty_like(self.value))
        change -= self.value
        return change

    def add(self, change: Any) -> tuple[int, ...]:
        """Add a change to the shared parameters, and return the version of each slice before."""
        versions = [0] * (len(self.bounds) - 1)
        for owner, part in self._slices():
            with self.window.locked(owner):
                self.window.add(change[part], owner)
                versions[owner] = self.records.fetch_and_add(1, owner, 0)
        return tuple(versions)

    def count(self, staleness: int) -> None:
        """Count a push in the histogram."""
        self.records.fetch_and_add(1, 0, 1 + min(staleness, _BINS - 1))

    def histogram(self) -> dict[int, int]:
        """The number of pushes by their staleness."""
        counts = self.records.get(0, 1, _BINS)
        return {int(i): int(counts[i]) for i in np.flatnonzero(counts)}

    def free(self) -> None:
        self.window.free()
        self.records.free()


class _Order:
    """The order of the workers' reads and pushes: by a script, and by the bound of staleness.

    Parameters
    ----------
    group : Communicator
    staleness : int or None
    turns : list of int, or None
        The places of this rank in the script.

    Attributes
    ----------
    clocks : Clocks
        Those of all workers, in half steps.
    waited_s : float
    """

    def __init__(self, group: Communicator, staleness: int | None, turns: list[int] | None):
        self.rank, self.staleness, self.waited_s = group.index, staleness, 0.0
        self.clocks: Clocks = group.clocks()
        self.turns = [] if turns is None else turns[::-1]  # the next one is the last
        self._turn_clocks: Clocks | None = None if turns is None else group.clocks()

    def begin(self) -> None:
        """Tell this rank's first turn."""
        if self._turn_clocks is not None:
            self._turn_clocks.set(self.turns[-1] if self.turns else FINISHED)

    def wait(self, what: str, half_steps: int) -> None:
        """Wait for this rank's turn, and for the workers that are too far behind."""
        if self._turn_clocks is not None:
            if not self.turns:
                raise OptionError(
                    f"{what}: the script has no turn left for rank {self.rank}, which has made {half_steps // 2} "
                    "steps; needed: one turn for each read and each push of a rank"
                )
            self._turn_clocks.wait(self.turns[-1])
        if self.staleness is not None:
            began = time.perf_counter()
            self.clocks.wait(half_steps - 2 * self.staleness)
            self.waited_s += time.perf_counter() - began

    def go_on(self, half_steps: int) -> None:
        """Tell this rank's clock, and its next turn."""
        self.clocks.set(half_steps)
        if self._turn_clocks is not None:
            self.turns.pop()
            self.begin()

    def free(self) -> None:
        self.clocks.free()
        if self._turn_clocks is not None:
            self._turn_clocks.free()


def _checked_script(caller: str, script: Iterable[int]) -> tuple[int, ...]:
    """The script as a tuple of integers."""
    if not isinstance(script, Iterable) or isinstance(script, str | bytes):
        raise ArgumentError(f"{caller}: script={script!r} was given; needed: a sequence of ranks")
    turns = tuple(script)
    for i, rank in enumerate(turns):
        check_count(caller, **{f"script[{i}]": rank})
    return turns


def _refuse_impossible(caller: str, script: tuple[int, ...], on: Axis, staleness: int | None) -> None:
    """Raise OptionError for a script that names unknown ranks, ends within a step, or breaks the bound of staleness."""
    for i, rank in enumerate(script):
        if rank >= on.size:
            raise OptionError(
                f"{caller}: script[{i}]={rank} was given; needed: a rank of axis {'*'.join(on.names)!r}, from 0 to "
                f"{on.size - 1}"
            )
    left = [script.count(rank) for rank in range(on.size)]
    for rank, turns in enumerate(left):
        if turns % 2:
            raise OptionError(
                f"{caller}: the script has {turns} turns for rank {rank}; needed: an even number, a read and a push "
                "for each step"
            )
    if staleness is None:
        return
    made = [0] * on.size
    for i, rank in enumerate(script):
        slowest = min(n if turns else FINISHED for n, turns in zip(made, left, strict=True))
        if made[rank] - 2 * staleness > slowest:
            behind = [r for r in range(on.size) if left[r] and made[r] == slowest][0]
            what = "push" if made[rank] % 2 else "read"
            raise OptionError(
                f"{caller}: script[{i}]={rank} is the {what} of step {made[rank] // 2 + 1} of rank {rank}, and rank "
                f"{behind} has made {slowest // 2} steps{' and a read' * (slowest % 2)}; staleness={staleness} was "
                "given, so that this turn would never come\n  fix: a larger staleness, or another order"
            )
        made[rank] += 1
        left[rank] -= 1
