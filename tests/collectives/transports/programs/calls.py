"""Every call, blocking and started, against numpy: uneven and zero counts, every root, dtypes, subgroups.

Subgroups take a boolean, an integer, a single and a complex dtype; all of them with the argument ``all``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import collectives as cc
from collectives.transports.mpi.communicator import MpiCommunicator

DTYPES = "?bBhHiIlLefdFD"
FEW = DTYPES if "all" in sys.argv[1:] else "?lfD"
Arrays = list[np.ndarray[Any, Any]]


def data_of(rank: int, size: int, dtype: Any) -> np.ndarray[Any, Any]:
    """The same on every rank that asks for it, another one for every rank; whole numbers: exact sums."""
    generator = np.random.default_rng((rank, size))
    values = generator.integers(0, 2 if dtype == np.bool_ else 9, size).astype(dtype)
    return values + 1j * generator.integers(0, 9, size).astype(dtype) if dtype.kind == "c" else values


def total(parts: Arrays) -> np.ndarray[Any, Any]:
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result


def split(whole: np.ndarray[Any, Any], counts: list[int]) -> Arrays:
    return np.split(whole, np.cumsum(counts)[:-1])


class Checker:
    """Runs a call on a communicator in both ways and compares."""

    def __init__(self, group: MpiCommunicator):
        self.group = group
        self.cases = 0

    def check(self, call: str, expected: Any, make: Callable[[], list[Any]]) -> None:
        for is_started in (False, True):
            args = make()
            given = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
            may_write = call == "recv" or (call == "broadcast" and args[1] != self.group.rank)
            if is_started:
                pending = self.group.start(call, *args)
                if not may_write and call != "recv":
                    for arg in args:
                        if isinstance(arg, np.ndarray):
                            arg[...] = 0  # the pending call owns what it was given
                while not pending.test():
                    pass
                result = pending.wait()
                assert pending.wait() is result
            else:
                result = getattr(self.group, call)(*args)
                for before, after in zip(given, args, strict=True):
                    if isinstance(before, np.ndarray) and not may_write:
                        np.testing.assert_array_equal(before, after)
            where = f"{call} on {self.group!r}, started: {is_started}"
            if expected is None:
                assert result is None, where
            else:
                np.testing.assert_array_equal(result, expected, where)
                assert result.dtype == expected.dtype, where
                assert not any(result is arg for arg in args) or may_write, where
            self.cases += 1

    def check_all(self, dtype: Any, counts: list[int]) -> None:
        me, size = self.group.rank, self.group.size
        everyone = range(size)
        n = max(counts)
        same = [data_of(rank, n, dtype) for rank in everyone]
        parts = [data_of(rank, counts[rank], dtype) for rank in everyone]
        whole = [data_of(rank, sum(counts), dtype) for rank in everyone]
        gathered = np.concatenate(parts)

        self.check("all_reduce", total(same), lambda: [same[me].copy()])
        self.check("all_gather", gathered, lambda: [parts[me].copy(), counts])
        self.check("reduce_scatter", split(total(whole), counts)[me], lambda: [whole[me].copy(), counts])
        if dtype.kind not in "cb":
            self.check("maximum", np.max(np.stack(same), axis=0), lambda: [same[me].copy()])
        if dtype.kind != "b":
            self.check("product", np.prod(np.stack(same), axis=0, dtype=dtype), lambda: [same[me].copy()])
        self.check_scans(same)
        self.check_one_sided(parts)
        # what rank a sends to rank b: (a + counts[b]) % 3 elements
        table = [[(a + counts[b]) % 3 for b in everyone] for a in everyone]
        sent = [data_of(rank, sum(table[rank]), dtype) for rank in everyone]
        received = np.concatenate([split(sent[rank], table[rank])[me] for rank in everyone])
        arriving = [table[rank][me] for rank in everyone]
        self.check("all_to_all", received, lambda: [sent[me].copy(), table[me], arriving])
        for root in everyone:
            self.check_root(root, counts, same, parts, whole)
        for _ in range(2):  # a ring: `check` receives twice
            message = same[me].copy()
            self.group.send(message, (me + 1) % size)
            message[...] = 0
        before = (me - 1) % size
        self.check("recv", same[before], lambda: [np.zeros(n, dtype), before])
        self.group.start("send", same[me], (me + 1) % size).wait()
        self.group.start("send", same[me], (me + 1) % size).wait()
        self.check("recv", same[before], lambda: [np.zeros(n, dtype), before])

    def check_scans(self, same: Arrays) -> None:
        me, size = self.group.rank, self.group.size
        nothing = np.zeros_like(same[0])
        for backwards, others in ((False, same[:me]), (True, same[me + 1 :])):
            before = total([nothing, *others])
            self.check("scan", before, lambda backwards=backwards: [same[me].copy(), True, backwards])
            self.check("scan", before + same[me], lambda backwards=backwards: [same[me].copy(), False, backwards])
        assert size > 1 or not before.any()

    def check_one_sided(self, parts: Arrays) -> None:
        """Each rank reads the end of the next part and the whole of the last, and adds to both."""
        me, size = self.group.rank, self.group.size

        def runs_of(rank: int) -> list[tuple[int, int, int]]:
            after, last = (rank + 1) % size, size - 1
            half = len(parts[after]) // 2
            return [(after, half, len(parts[after]) - half), (last, 0, len(parts[last]))]

        def taken(rank: int) -> np.ndarray[Any, Any]:
            return np.concatenate([parts[r][at : at + n] for r, at, n in runs_of(rank)])

        self.check("get", taken(me), lambda: [parts[me].copy(), runs_of(me)])
        given = np.zeros(len(parts[me]), parts[me].dtype)
        for rank in range(size):
            values, start = taken(rank), 0
            for r, at, n in runs_of(rank):
                if r == me:
                    given[at : at + n] = given[at : at + n] + values[start : start + n]
                start += n
        self.check("accumulate", given, lambda: [taken(me), runs_of(me), len(parts[me])])

    def check_root(self, root: int, counts: list[int], same: Arrays, parts: Arrays, whole: Arrays) -> None:
        me, dtype = self.group.rank, same[0].dtype
        is_root = me == root
        buffer = np.zeros(len(same[0]), dtype)
        gathered = np.concatenate(parts)
        self.check("broadcast", same[root], lambda: [same[me].copy() if is_root else buffer.copy(), root])
        self.check("reduce", total(same) if is_root else None, lambda: [same[me].copy(), root])
        self.check("gather", gathered if is_root else None, lambda: [parts[me].copy(), counts, root])
        given = split(whole[root], counts)[me]
        self.check("scatter", given, lambda: [whole[me].copy() if is_root else None, counts, root, dtype])

    def check_rest(self) -> None:
        me, size = self.group.rank, self.group.size
        expected = [bytes([rank]) * (rank * 3) for rank in range(size)]
        assert self.group.exchange(expected[me]) == expected
        assert self.group.start("exchange", expected[me]).wait() == expected
        assert self.group.barrier() is None
        assert self.group.start("barrier").wait() is None
        self.group.agree("the same")
        # several at a time, waited for in another order
        data = [data_of(rank, 1000, np.dtype("d")) for rank in range(size)]
        pending = [self.group.start("all_reduce", data[me] * k) for k in range(8)]
        for k in reversed(range(8)):
            np.testing.assert_array_equal(pending[k].wait(), total(data) * k)
        # large messages to everyone before anyone receives
        for rank in range(size):
            self.group.send(np.full(100_000, me * 10.0 + rank), rank)
        for rank in range(size):
            assert (self.group.recv(np.empty(100_000), rank) == rank * 10.0 + me).all()
        self.cases += 15


def check_group(group: MpiCommunicator, dtypes: str = FEW) -> int:
    checker = Checker(group)
    size = group.size
    for char in dtypes:
        for counts in (
            [3 + rank for rank in range(size)],
            [0] * size,
            [5 * (rank == size // 2) for rank in range(size)],
        ):
            checker.check_all(np.dtype(char), counts)
    checker.check_rest()
    return checker.cases


def main() -> None:
    world = cc.World("mpi").communicator
    assert world is cc.world()
    assert (world.name, world.ranks) == ("world", tuple(range(world.size)))
    cases = check_group(world, DTYPES)
    other = world.duplicate("bucket")
    assert (other.name, other.ranks) == ("world/bucket", world.ranks)
    pending = other.start("all_reduce", np.ones(3))  # its order is independent of the world's
    world.barrier()
    assert (pending.wait() == world.size).all()
    # halves, made by their members alone and in reversed order of rank
    half = [rank for rank in range(world.size) if rank % 2 == world.rank % 2][::-1]
    group = world.subgroup(half, "half")
    assert group.ranks == tuple(half)
    assert group.ranks[group.rank] == world.rank
    cases += check_group(group)
    again = world.subgroup(half, "half")
    nested = again.subgroup([again.rank], "alone")
    assert nested.ranks == (world.rank,)
    assert nested.size == 1
    cases += check_group(nested)
    if world.size > 2 and world.rank != 1:  # others do not take part
        rest = world.subgroup([rank for rank in range(world.size) if rank != 1], "all but 1")
        cases += check_group(rest)
    totals = world.all_reduce(np.array([cases]))
    if world.rank == 0:
        print(f"{totals[0]} cases on {world.size} ranks", flush=True)


if __name__ == "__main__":
    main()
    sys.exit(0)
