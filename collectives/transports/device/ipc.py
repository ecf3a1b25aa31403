"""Ranks of one host whose GPUs read each other's memory: reductions by a kernel, and copies between GPUs.

Each rank has *slots* in its GPU's memory, and the other ranks have opened them (CUDA IPC), once. A call is made in
chunks of a slot: every rank copies its chunk into its slot and waits until the copy is complete, the ranks meet in an
exchange of the host, which also compares their calls, and every rank computes its result from all slots.

- *One shot*: every rank adds whole chunks. It reads as many arrays as there are ranks, and they meet once.
- *Two shots*, for more than two ranks and more than `ONE_SHOT_BYTES`: each rank adds a slice of the chunk; the ranks
  meet again, and every rank copies the slices of all.

Both add in order of rank, so that all ranks get the same bits; float16 is added in float32 and rounded once. A rank
alternates between two slots. It writes to a slot again two chunks later. Before the barrier of the chunk between, every
rank has waited for its own work on the earlier one, so nobody reads the slot any more. No kernel waits for another
rank: GPUs do not promise to run the kernels of two processes at the same time.

Only blocking calls use the slots. A started call would have to come back for each barrier; it is staged (`pinned`).

Two shots are the reduce_scatter and all_gather of Rabenseifner, Optimization of Collective Reduction Operations (ICCS
2004), for ranks that read each other's memory.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from autograd.arrays.runtime import Runtime
from autograd.errors import CollectiveMismatch, CommunicationError
from autograd.kernels import programs

from ...checks.reports import MadeCall, mismatch_text
from ...job.marks import digest_of
from ..protocol import Communicator, Request, quietly
from ..request import answer

__all__ = ["MOST_RANKS", "ONE_SHOT_BYTES", "Arena", "DeviceMemory"]

SLOT_BYTES = 32 << 20
"""Of each of the two slots of a rank: large enough that two barriers (some 20 us) count little beside its copies."""
ONE_SHOT_BYTES = 512 << 10
"""Up to it, reading whole operands of all ranks costs less than meeting twice."""
MOST_RANKS = 8
THREADS = 256
_MOST_BLOCKS = 2048
_PACK_BYTES = 16

_TYPES = {"f4": "float", "f8": "double", "f2": "Half", "c8": "float", "c16": "double", "i4": "unsigned",
          "u4": "unsigned", "i8": "unsigned long long", "u8": "unsigned long long"}  # fmt: skip
"""The kernel's types by dtype. A complex number is two numbers; signed sums have the bits of unsigned ones."""


_KERNELS = tuple(f"add_ranks<{name}>" for name in dict.fromkeys(_TYPES.values()))
_DEVICE = programs()
PROGRAM = _DEVICE.program_of("reduce", (files(__package__) / "reduce.cu").read_text(), _KERNELS)


_here: dict[str, Any] = {}  # memory of this process, which other ranks that are threads of it use as it is


class Arena:
    """The slots of some ranks of a host. All of these ranks make it together, and close it together.

    Parameters
    ----------
    group : Communicator
        A channel of its own of these ranks, for barriers.
    runtime : Runtime

    Attributes
    ----------
    slots, sums : list of list of array
        For each parity, every rank's memory: for its operand, and for the slice that it adds.

    Raises
    ------
    CommunicationError
        On all ranks, if one of them cannot open another one's memory.
    """

    def __init__(self, group: Communicator, runtime: Runtime):
        self.group, self.runtime = group, runtime
        self.stream = runtime.new_stream()
        self.number = 0  # of the chunk
        self.slot_bytes = SLOT_BYTES
        sizes = [SLOT_BYTES, SLOT_BYTES, SLOT_BYTES // 2, SLOT_BYTES // 2]
        self._mine = [runtime.exportable(size) for size in sizes]
        names = [str(uuid.uuid4()) for _ in sizes]
        _here.update(zip(names, self._mine, strict=True))
        self._opened: list[Any] = []
        problem = ""
        try:
            handles = [runtime.export_handle(each).hex() for each in self._mine]
        except Exception as error:
            handles, problem = [], f"{type(error).__name__}: {error}"
        everyone = self._exchanged([names, handles])
        parts: list[list[Any]] = []
        try:
            for rank, (theirs, found) in enumerate(everyone):
                if not found:
                    raise CommunicationError(f"rank {group.ranks[rank]} cannot export its memory")
                parts.append([self._open(n, h, s) for n, h, s in zip(theirs, found, sizes, strict=True)])
        except Exception as error:
            problem = problem or f"{type(error).__name__}: {getattr(error, 'reason', error)}"
        problems = self._exchanged(problem)
        for name in names:
            del _here[name]
        if any(problems):
            self._close_opened()
            quietly(self.group.barrier)  # before this rank's memory is given back
            shown = "; ".join(f"rank {r}: {text}" for r, text in zip(group.ranks, problems, strict=True) if text)
            raise CommunicationError(f"the ranks of '{group.name}' cannot open each other's GPU memory: {shown}")
        self.slots = [[part[parity] for part in parts] for parity in (0, 1)]
        self.sums = [[part[2 + parity] for part in parts] for parity in (0, 1)]

    def _exchanged(self, value: Any) -> list[Any]:
        return [json.loads(each) for each in quietly(lambda: self.group.exchange(json.dumps(value).encode()))]

    def _open(self, name: str, handle: str, size_bytes: int) -> Any:
        if name in _here:
            return _here[name]
        opened = self.runtime.open_handle(bytes.fromhex(handle), size_bytes)
        self._opened.append(opened)
        return opened

    def meet(self, call: str) -> None:
        """Wait for this rank's work, and for all ranks, which must make the same call.

        Raises
        ------
        CollectiveMismatch
            On all ranks. Without it they would read what is left in the slots.
        """
        self.stream.synchronize()
        word = np.uint64(digest_of(call))
        both = np.array([word, ~word])
        largest = quietly(lambda: self.group.run(Request("all_reduce", both, op="max")))  # max(~word) is ~min(word)
        if largest[0] != ~largest[1]:
            calls = zip(self.group.ranks, quietly(lambda: self.group.exchange(call.encode())), strict=True)
            made = {rank: MadeCall(each.decode()) for rank, each in calls}
            raise CollectiveMismatch(mismatch_text(self.group.name.removesuffix("/device memory"), made))

    def next(self) -> int:
        """The parity of the next chunk."""
        self.number += 1
        return self.number & 1

    def _close_opened(self) -> None:
        for each in self._opened:
            self.runtime.close_handle(each)
        self._opened = []

    def close(self) -> None:
        """Close the memory of the other ranks, and then give back this rank's. All ranks call it."""
        self.stream.synchronize()
        self.slots, self.sums = [], []
        self._close_opened()
        quietly(self.group.barrier)  # nobody uses this rank's memory any more
        self._mine = []


class DeviceMemory:
    """Carries the device arrays of a group through an arena; see the module."""

    name = "ipc"

    def __init__(self, group: Communicator, arena: Arena):
        self._arena, self._runtime = arena, arena.runtime
        self._index, self._size = group.index, group.size
        self._text = ""  # the call, which the ranks compare

    @staticmethod
    def carries(request: Request, started: bool) -> bool:
        """Whether a call goes through the arena: the same on all ranks."""
        if started or request.op != "sum":
            return False
        if request.call == "all_gather":
            return True
        return request.call in ("all_reduce", "reduce_scatter") and request.x.dtype.str[1:] in _TYPES

    def start(self, request: Request) -> Any:
        """Never called: see `carries`."""
        raise NotImplementedError

    def run(self, request: Request) -> Any:
        """Make a call. The current stream waits for the result, and the host does not."""
        x, runtime, arena = request.x, self._runtime, self._arena
        found = answer(request, self._index)
        assert found is not None
        out = request.out if request.out is not None else np.empty_like(x, shape=(found[0],), dtype=found[1])
        before, after = runtime.new_event(), runtime.new_event()
        before.record(runtime.current_stream())
        arena.stream.wait_event(before)
        counts = "" if request.counts is None else f" of counts {[int(count) for count in request.counts]}"
        self._text = f"{request.call}({x.dtype}[{x.size if not counts else sum(request.counts)}]{counts})"
        if request.call == "all_reduce":
            self._all_reduce(x, out)
        elif request.call == "reduce_scatter":
            self._reduce_scatter(x, out, [int(count) for count in request.counts])
        else:
            self._all_gather(x, out, [int(count) for count in request.counts])
        after.record(arena.stream)
        runtime.current_stream().wait_event(after)
        return out

    # -- the calls ---------------------------------------------------------------------------------------------
    def _all_reduce(self, x: Any, out: Any) -> None:
        arena, item = self._arena, x.itemsize
        for a, b in _chunks(x.size, arena.slot_bytes // item):
            nbytes, parity = (b - a) * item, arena.next()
            self._copy(arena.slots[parity][self._index][:nbytes], x[a:b])
            arena.meet(self._text)
            slots = arena.slots[parity]
            if self._size == 2 or nbytes <= ONE_SHOT_BYTES:
                self._add([slot[:nbytes] for slot in slots], out[a:b], x.dtype)
                continue
            slices = _slices(nbytes, self._size)
            start, stop = slices[self._index]
            mine = arena.sums[parity][self._index][: stop - start]
            self._add([slot[start:stop] for slot in slots], mine, x.dtype)
            arena.meet(self._text)
            whole = out[a:b]
            for (start, stop), total in zip(slices, arena.sums[parity], strict=True):
                self._copy(whole[start // item : stop // item], total[: stop - start])

    def _reduce_scatter(self, x: Any, out: Any, counts: list[int]) -> None:
        arena, item = self._arena, x.itemsize
        pack = _PACK_BYTES // item if item < _PACK_BYTES else 1
        step = arena.slot_bytes // self._size // item // pack * pack
        starts = [sum(counts[:rank]) for rank in range(self._size)]
        for a, b in _chunks(max(counts), step):
            parity = arena.next()
            mine = arena.slots[parity][self._index]
            for rank, (start, count) in enumerate(zip(starts, counts, strict=True)):
                first, last = min(a, count), min(b, count)
                at = rank * step * item
                self._copy(mine[at : at + (last - first) * item], x[start + first : start + last])
            arena.meet(self._text)
            first, last = min(a, out.size), min(b, out.size)
            at = self._index * step * item
            parts = [slot[at : at + (last - first) * item] for slot in arena.slots[parity]]
            self._add(parts, out[first:last], x.dtype)

    def _all_gather(self, x: Any, out: Any, counts: list[int]) -> None:
        arena, item = self._arena, x.itemsize
        starts = [sum(counts[:rank]) for rank in range(self._size)]
        for a, b in _chunks(max(counts), arena.slot_bytes // item):
            parity = arena.next()
            part = x[min(a, x.size) : min(b, x.size)]
            self._copy(arena.slots[parity][self._index][: part.nbytes], part)
            arena.meet(self._text)
            for slot, start, count in zip(arena.slots[parity], starts, counts, strict=True):
                first, last = min(a, count), min(b, count)
                self._copy(out[start + first : start + last], slot[: (last - first) * item])

    # -- the steps ---------------------------------------------------------------------------------------------
    def _copy(self, out: Any, x: Any) -> None:
        if x.nbytes:
            self._runtime.copy(out, x, self._arena.stream)

    def _add(self, parts: Sequence[Any], out: Any, dtype: np.dtype[Any]) -> None:
        """Launch the sum of all ranks' parts, which are bytes."""
        if not out.nbytes:
            return
        kernel = f"add_ranks<{_TYPES[dtype.str[1:]]}>"
        size = out.nbytes // (dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize)
        blocks = min(-(-out.nbytes // (_PACK_BYTES * THREADS)), _MOST_BLOCKS)
        absent = [_DEVICE.NULL] * (MOST_RANKS - len(parts))
        with self._arena.stream:
            arguments = (*parts, *absent, out, np.int32(len(parts)), np.int64(size))
            _DEVICE.launch(PROGRAM, kernel, (blocks,), (THREADS,), arguments)


def _chunks(count: int, step: int) -> list[tuple[int, int]]:
    """Split `count` elements into chunks of at most `step`; none elements are one empty chunk, as the ranks meet."""
    return [(a, min(a + step, count)) for a in range(0, count, step)] or [(0, 0)]


def _slices(nbytes: int, ranks: int) -> list[tuple[int, int]]:
    """Every rank's slice of some bytes, which begins at a multiple of a pack. Slices may be empty.

    Examples
    --------
    >>> _slices(100, 3)
    [(0, 48), (48, 80), (80, 100)]
    """
    packs = -(-nbytes // _PACK_BYTES)
    ends = [min(-(-packs * (rank + 1) // ranks) * _PACK_BYTES, nbytes) for rank in range(ranks)]
    return list(zip([0, *ends[:-1]], ends, strict=True))
