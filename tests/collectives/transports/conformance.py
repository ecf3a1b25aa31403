"""What every communicator must do, written once. Each rank calls `conforms` with its communicator of one group.

The suite runs over threads, MPI, shared memory, every algorithm and staged device arrays. A check is made of requests
whose results follow from NumPy alone: every rank knows the operands of all. Values are whole numbers, so that sums are
exact in any order.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pytest

from autograd.arrays.device import dtype_named
from autograd.arrays.half import is_half
from autograd.errors import CommunicationError, DtypeError, MeshError, OptionError, ShapeError
from collectives.transports.protocol import Communicator, Pending, Request

BFLOAT16 = "E" if find_spec("ml_dtypes") is not None else ""
DTYPES = "?bBhiqefdFD" + BFLOAT16
FEW = "?edF" + BFLOAT16

Arrays = list[np.ndarray[Any, Any]]


def named(dtype: Any) -> np.dtype[Any]:
    """The dtype of a letter: NumPy's, and E for bfloat16."""
    return dtype_named("bfloat16") if dtype == "E" else np.dtype(dtype)


def values(dtype: Any, count: int, *key: int) -> np.ndarray[Any, Any]:
    """Whole numbers, a function of the key, which names the rank that holds them."""
    return _values(named(dtype), int(count), *map(int, key)).copy()


@functools.cache  # every rank asks for those of all ranks
def _values(dtype: np.dtype[Any], count: int, *key: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng((count, *key))
    found = rng.integers(0, 2 if dtype == np.bool_ else 7, count)
    return (found + 1j * rng.integers(0, 7, count) if dtype.kind == "c" else found).astype(dtype)


def reduced(parts: Sequence[np.ndarray[Any, Any]], op: str = "sum") -> np.ndarray[Any, Any]:
    """The reduction of all parts; of 16 bits in float32, rounded once."""
    ufunc = {"sum": np.add, "max": np.maximum, "prod": np.multiply}[op]
    dtype = parts[0].dtype
    total = parts[0].astype(np.float32) if is_half(dtype) else parts[0].copy()
    for part in parts[1:]:
        total = ufunc(total, part, dtype=total.dtype)
    return total.astype(dtype)


def split(whole: np.ndarray[Any, Any], counts: Sequence[int]) -> Arrays:
    return np.split(whole, np.cumsum(counts)[:-1])


def all_counts(size: int) -> list[list[int]]:
    """Counts of parts: rising, all zero, all on one rank, uneven with zeros among them."""
    return [
        [3 + rank for rank in range(size)],
        [0] * size,
        [5 * (rank == size // 2) for rank in range(size)],
        [(3 * rank + 1) % 5 for rank in range(size)],
    ]


class Case(NamedTuple):
    """A request of this rank, made anew for each run, and its result."""

    make: Callable[[], Request]
    expected: Any


def cases(rank: int, size: int, dtype: Any, counts: Sequence[int], key: int = 0) -> Iterator[Case]:
    """Every call of a group, but for messages, as one rank makes it."""
    dtype, ranks, me, counts = named(dtype), range(size), int(rank), list(counts)
    n = max(counts)
    same = [values(dtype, n, r, key) for r in ranks]
    parts = [values(dtype, counts[r], r, key) for r in ranks]
    whole = [values(dtype, sum(counts), r, key) for r in ranks]
    gathered, nothing = np.concatenate(parts), np.zeros(n, dtype)
    yield Case(lambda: Request("all_reduce", same[me].copy()), reduced(same))
    yield Case(lambda: Request("all_reduce", same[me].copy(), op="prod"), reduced(same, "prod"))
    if dtype.kind != "c":
        yield Case(lambda: Request("all_reduce", same[me].copy(), op="max"), reduced(same, "max"))
    yield Case(lambda: Request("all_gather", parts[me].copy(), counts=counts), gathered)
    yield Case(lambda: Request("reduce_scatter", whole[me].copy(), counts=counts), split(reduced(whole), counts)[me])
    for backwards, others in ((False, same[:me]), (True, same[me + 1 :][::-1])):
        for exclusive in (False, True):
            options = (exclusive, backwards)
            before = [nothing, *others] if exclusive else [nothing, *others, same[me]]
            yield Case(lambda options=options: Request("scan", same[me].copy(), options=options), reduced(before))
    # each rank sends (a + counts[b]) % 3 elements, a the sender and b the receiver
    table = [[(a + counts[b]) % 3 for b in ranks] for a in ranks]
    sent = [values(dtype, sum(table[r]), r, key) for r in ranks]
    arriving = [table[r][me] for r in ranks]
    received = np.concatenate([split(sent[r], table[r])[me] for r in ranks])
    yield Case(lambda: Request("all_to_all", sent[me].copy(), counts=table[me], receive_counts=arriving), received)
    yield from one_sided(me, parts)
    for root in ranks:
        mine = me == root
        yield Case(
            lambda root=root, mine=mine: Request(
                "broadcast", same[me].copy() if mine else None, root=root, out=None if mine else nothing.copy()
            ),
            same[root],
        )
        yield Case(lambda root=root: Request("reduce", same[me].copy(), root=root), reduced(same) if mine else None)
        yield Case(
            lambda root=root: Request("gather", parts[me].copy(), counts=counts, root=root), gathered if mine else None
        )
        yield Case(
            lambda root=root, mine=mine: Request(
                "scatter", whole[root].copy() if mine else None, counts=counts, root=root, dtype=dtype
            ),
            split(whole[root], counts)[me],
        )
    texts = [bytes([r % 256]) * (r * 3) for r in ranks]
    yield Case(lambda: Request("exchange", texts[me]), texts)
    yield Case(lambda: Request("barrier"), None)


def one_sided(me: int, parts: Arrays) -> Iterator[Case]:
    """Each rank reads the end of the next part and all of the last one, which everyone names, and adds to both."""
    size = len(parts)

    def runs_of(rank: int) -> list[tuple[int, int, int]]:
        after, last = (rank + 1) % size, size - 1
        half = len(parts[after]) // 2
        return [(after, half, len(parts[after]) - half), (last, 0, len(parts[last]))]

    def taken(rank: int) -> np.ndarray[Any, Any]:
        return np.concatenate([parts[r][at : at + n] for r, at, n in runs_of(rank)])

    yield Case(lambda: Request("get", parts[me].copy(), options=(runs_of(me),)), taken(me))
    dtype = parts[me].dtype
    total = np.zeros(len(parts[me]), np.float32 if dtype == np.float16 else dtype)
    for rank in range(size):
        given, start = taken(rank), 0
        for r, at, n in runs_of(rank):
            if r == me:
                total[at : at + n] += given[start : start + n]
            start += n
    options = (runs_of(me), len(parts[me]))
    yield Case(lambda: Request("accumulate", taken(me), options=options), total.astype(dtype))


def compare(result: Any, case: Case, request: Request, where: str) -> None:
    """The result is the one expected, owned by the caller, and in the buffer where one was given."""
    expected = case.expected
    if not isinstance(expected, np.ndarray):
        assert result == expected, where
        return
    assert np.array_equal(result, expected), f"{where}: {result}, needed: {expected}"
    assert type(result) is np.ndarray and result.dtype == expected.dtype, where
    assert result.flags.writeable and result.flags.c_contiguous and result.ndim == 1, where
    if request.out is not None:
        assert result is request.out, where
    elif request.x is not None:
        assert not np.shares_memory(result, request.x), where


def blocking(group: Communicator, case: Case) -> None:
    request = case.make()
    before = request.x.copy() if isinstance(request.x, np.ndarray) else None
    result = group.run(request)
    compare(result, case, request, f"{request.call} on {group!r}")
    if before is not None:
        assert np.array_equal(request.x, before), request.call
    if isinstance(result, np.ndarray):
        result[...] = 0  # nobody else's


def until_complete(pending: Pending[Any]) -> None:
    """Test until a wait would return at once."""
    while not pending.test():
        time.sleep(0)  # the others may be threads of this process


def started(group: Communicator, case: Case) -> tuple[Request, Pending[Any]]:
    """Start, and spoil the operand: the pending call owns what it was given."""
    request = case.make()
    pending = group.start(request)
    if isinstance(request.x, np.ndarray):
        request.x[...] = 1
    return request, pending


def finished(group: Communicator, case: Case, request: Request, pending: Pending[Any]) -> None:
    result = pending.wait()
    assert pending.test() and pending.wait() is result
    compare(result, case, request, f"{request.call}, started, on {group!r}")


def calls(group: Communicator, dtypes: str = DTYPES, only: Sequence[str] | None = None) -> int:
    """Every call, or only those named, in both ways, with every dtype and all counts. Returns how many were made."""
    made = 0
    for char in dtypes:
        for counts in all_counts(group.size):
            for case in cases(group.rank, group.size, char, counts):
                if only is not None and case.make().call not in only:
                    continue
                blocking(group, case)
                under_way = started(group, case)
                until_complete(under_way[1])
                finished(group, case, *under_way)
                made += 2
    return made


def any_order(group: Communicator, meets: bool = False, dtypes: str = "d") -> int:
    """All calls started one after the other, waited for in an order of each rank's own; blocking ones among them.

    Where the ranks of an algorithm meet (`meets`), as in shared memory, a started call may block until all have come to
    it, which none does that is in a blocking call meanwhile: there are none then.
    """
    made = 0
    for char in dtypes:
        under_way = []
        for nth, case in enumerate(cases(group.rank, group.size, char, all_counts(group.size)[3], key=1)):
            if nth % 4 == 2 and not meets:
                blocking(group, case)
            else:
                under_way.append((case, *started(group, case)))
        for nth in np.random.default_rng(group.rank).permutation(len(under_way)):
            finished(group, *under_way[nth])
        made += len(under_way)
    return made


def several(group: Communicator, meets: bool = False) -> None:
    """Many sums under way on two channels, whose orders are independent of each other.

    Where the ranks of an algorithm meet (`meets`), they come to both channels in one order.
    """
    other = group.duplicate("conformance")
    assert (other.rank, other.ranks, other.name) == (group.rank, group.ranks, f"{group.name}/conformance")
    pairs = []
    for nth in range(12):
        requests = {group: np.full(1000, nth), other: np.full(1000, 10 * nth)}
        # ranks differ in the order of channels
        order = (group, other) if meets or (nth + group.rank) % 2 else (other, group)
        found = {each: each.start(Request("all_reduce", requests[each] * (group.rank + 1))) for each in order}
        pairs.append((found[group], found[other]))
    total = group.size * (group.size + 1) // 2
    for nth in reversed(range(12)):
        first, second = pairs[nth]
        assert (first.wait() == nth * total).all() and (second.wait() == 10 * nth * total).all()


def rounding(group: Communicator) -> None:
    """Sums of float16 are rounded once: 2048 + 1 is 2048 in float16."""
    me, size = group.rank, group.size
    x, ones = np.array([1 if me else 2048], np.float16), [1] * size
    total = np.float16(2047 + size)
    assert group.all_reduce(x)[0] == total == group.start(Request("all_reduce", x)).wait()[0]
    found = group.reduce(x, size - 1)
    assert found is None or found[0] == total
    assert group.reduce_scatter(np.repeat(x, size), ones)[0] == total
    assert group.scan(x)[0] == np.float16(2048 + me)
    assert group.accumulate(x, [(0, 0, 1)], 1)[0] == (0 if me else total)


# -- messages ----------------------------------------------------------------------------------------------------------


def messages(group: Communicator, dtypes: str = FEW) -> int:
    """Every rank to every other and to itself, in every dtype: by send, started send and lend; received in order."""
    me, size, made = group.rank, group.size, 0
    for char in dtypes:
        for dst in range(size):
            x = values(char, dst, me, dst, 0)
            group.send(x, dst)
            x[...] = 1  # a send owns a copy
            x = values(char, dst + 1, me, dst, 1)
            assert group.start(Request("send", x, peer=dst)).wait() is None
            x[...] = 1
        kept = [values(char, dst + 2, me, dst, 2) for dst in range(size)]
        lent = [group.lend(x, dst) for dst, x in enumerate(kept)]
        for src in reversed(range(size)):
            for nth in range(3):
                buffer = np.zeros(me + nth, named(char))
                case = Case(lambda: Request("barrier"), values(char, me + nth, src, me, nth))
                result = group.recv(buffer, src) if nth else group.start(Request("recv", out=buffer, peer=src)).wait()
                assert result is buffer
                compare(result, case, Request("recv"), f"message {nth} from {src} on {group!r}")
                made += 1
        for pending in lent:
            assert pending.wait() is None
    return made


def order_of_receives(group: Communicator) -> None:
    """Receives are matched in the order in which they were started, whatever order they are waited for in."""
    me, size = group.rank, group.size
    right, left = (me + 1) % size, (me - 1) % size
    pending = [group.start(Request("recv", out=np.empty(1, np.int64), peer=left)) for _ in range(4)]
    if size > 1:
        assert not pending[0].test()
    group.barrier()
    for value in range(4):
        group.send(np.array([10 * me + value]), right)
    order = (3, 1, 0, 2) if size > 1 else (0, 1, 2, 3)
    for nth in order:
        until_complete(pending[nth])
        assert pending[nth].wait().tolist() == [10 * left + nth]


def large_messages(group: Communicator) -> None:
    """To everyone, before anyone receives: a send does not wait for its receiver."""
    me = group.rank
    for dst in range(group.size):
        group.send(np.full(100_000, me * 10.0 + dst), dst)
    for src in range(group.size):
        assert (group.recv(np.empty(100_000), src) == src * 10.0 + me).all()


def lanes(group: Communicator) -> None:
    """Messages of a lane are not mixed up with the group's."""
    me, size = group.rank, group.size
    lane = group.lane("conformance")
    assert lane is group.lane("conformance") and lane.ranks == group.ranks
    right, left = (me + 1) % size, (me - 1) % size
    group.send(np.array([1.0]), right)
    lane.send(np.array([2.0]), right)
    assert lane.recv(np.empty(1), left)[0] == 2 and group.recv(np.empty(1), left)[0] == 1


def subgroups(group: Communicator, only: Sequence[str] | None = None) -> None:
    """Groups of some ranks, made by their members alone and in any order of rank."""
    me, size = group.rank, group.size
    half = [rank for rank in range(size) if rank % 2 == me % 2][::-1]
    found = group.subgroup(half, "half")
    assert found.ranks == tuple(group.ranks[rank] for rank in half)
    assert found.ranks[found.rank] == group.ranks[me] and (found.size, found.name) == (len(half), "half")
    calls(found, "d", only)
    alone = found.subgroup([found.rank], "alone")
    assert (alone.ranks, alone.rank, alone.size) == ((group.ranks[me],), 0, 1)
    calls(alone, "d", only)
    if size > 2 and me != 1:  # the others take no part
        calls(group.subgroup([rank for rank in range(size) if rank != 1], "all but 1"), "d", only)


# -- what is refused ---------------------------------------------------------------------------------------------------


def refusals(rank: int, size: int, name: str) -> list[tuple[type[Exception], str, Request]]:
    """Requests that are wrong on their own, and the whole text of the error: the same on every transport."""
    x, table, strided = np.ones(3), np.ones((2, 2)), np.ones(6)[::2]
    frozen = np.ones(3)
    frozen.flags.writeable = False
    ones, last = [1] * size, size - 1
    ranks = f"whose ranks are 0 to {last}"
    flat = "a transport takes one-dimensional C-contiguous arrays, not shape {}: ravel it first"
    sizes = "the array has {} elements; needed: {}, {}"
    elsewhere = (rank + 1) % size
    found: list[tuple[type[Exception], str, Request]] = [
        *((ShapeError, flat.format("(2, 2)"), Request(call, table, options=(False, False)))
          for call in ("all_reduce", "reduce", "scan", "send", "lend")),
        *((ShapeError, flat.format("(2, 2)"), Request(call, table, counts=[4 * (r == rank) for r in range(size)]))
          for call in ("gather", "all_gather")),
        (ShapeError, flat.format("(3,)"), Request("all_reduce", strided)),
        (ShapeError, flat.format("(2, 2)"), Request("recv", out=table)),
        (ShapeError, flat.format("(2, 2)"), Request("broadcast", table, root=rank)),
        *((MeshError, f"root {root} is no rank of '{name}', {ranks}", Request(call, x, root=root))
          for call in ("reduce", "broadcast") for root in (-1, size)),
        (MeshError, f"root {size} is no rank of '{name}', {ranks}", Request("gather", x[:1], counts=ones, root=size)),
        (MeshError, f"root {size} is no rank of '{name}', {ranks}",
         Request("scatter", counts=ones, root=size, dtype="d")),
        (MeshError, f"dst {size} is no rank of '{name}', {ranks}", Request("send", x, peer=size)),
        (MeshError, f"dst -1 is no rank of '{name}', {ranks}", Request("lend", x, peer=-1)),
        (MeshError, f"src -2 is no rank of '{name}', {ranks}", Request("recv", out=x.copy(), peer=-2)),
        (MeshError, f"source {size} is no rank of '{name}', {ranks}", Request("get", x, options=([(size, 0, 1)],))),
        (MeshError, f"source -1 is no rank of '{name}', {ranks}", Request("accumulate", x, options=([(-1, 0, 3)], 3))),
        *((ShapeError, f"counts on '{name}' must be {size} counts >= 0, not {counts}", Request(call, x, counts=counts))
          for call in ("gather", "all_gather", "reduce_scatter") for counts in ([*ones, 1], [*ones[1:], -1])),
        (ShapeError, f"counts on '{name}' must be {size} counts >= 0, not {[*ones, 1]}",
         Request("scatter", counts=[*ones, 1], root=rank, dtype="d")),
        (ShapeError, f"send_counts on '{name}' must be {size} counts >= 0, not {[*ones[1:], -1]}",
         Request("all_to_all", x, counts=[*ones[1:], -1], receive_counts=ones)),
        (ShapeError, f"receive_counts on '{name}' must be {size} counts >= 0, not {[*ones, 2]}",
         Request("all_to_all", x, counts=ones, receive_counts=[*ones, 2])),
        (ShapeError, sizes.format(2, 1, "this rank's count"), Request("all_gather", x[:2], counts=ones)),
        (ShapeError, sizes.format(2, 1, "this rank's count"), Request("gather", x[:2], counts=ones)),
        (ShapeError, sizes.format(size + 1, size, "the sum of counts"),
         Request("reduce_scatter", np.ones(size + 1), counts=ones)),
        (ShapeError, sizes.format(size + 1, size, "the sum of send_counts"),
         Request("all_to_all", np.ones(size + 1), counts=ones, receive_counts=ones)),
        (ShapeError, sizes.format(size + 1, size, "the sum of counts"),
         Request("scatter", np.ones(size + 1), counts=ones, root=rank, dtype=np.float64)),
        (ShapeError, sizes.format(3, 2, "the sum of the runs"), Request("accumulate", x, options=([(0, 0, 2)], 3))),
        (ShapeError, f"scatter needs an array on its root, rank {rank} of '{name}'",
         Request("scatter", counts=ones, root=rank, dtype="d")),
        (ShapeError, f"broadcast needs an array on its root, rank {rank} of '{name}'", Request("broadcast", root=rank)),
        (ShapeError, f"all_reduce needs an array on rank {rank} of '{name}'", Request("all_reduce")),
        (ShapeError, f"recv on '{name}' needs a receive buffer: out=", Request("recv")),
        (ShapeError, f"the receive buffer of recv on '{name}' is read-only; needed: a writeable array",
         Request("recv", out=frozen)),
        (DtypeError, "scatter was given float64 on its root and dtype float32",
         Request("scatter", np.ones(size), counts=ones, root=rank, dtype=np.float32)),
        *((DtypeError, f"dtype {np.dtype(dtype)} cannot be communicated; needed: a native numeric or boolean dtype\n"
           f"  fix: x.astype({fix!r})", Request(call, np.ones(3).astype(dtype)))
          for dtype, fix in ((">f8", "float64"), ("U1", "float"), ("O", "float")) for call in ("all_reduce", "send")),
        (DtypeError, f"all_reduce with op='max' on '{name}' of complex128, whose values have no order",
         Request("all_reduce", np.ones(3, complex), op="max")),
        (OptionError, f"all_reduce with op='min' on '{name}'; needed: one of sum, max, prod",
         Request("all_reduce", x, op="min")),
        (ValueError, f"'all_reduced' on '{name}' is not a communicator's call; needed: a call that `Request` lists",
         Request("all_reduced", x)),
    ]  # fmt: skip
    if size > 1:
        found += [
            (ShapeError, f"the receive buffer of broadcast on '{name}' is read-only; needed: a writeable array",
             Request("broadcast", root=elsewhere, out=frozen)),
            (ShapeError, f"broadcast on '{name}' needs a receive buffer on ranks other than its root {elsewhere}: out=",
             Request("broadcast", root=elsewhere)),
        ]  # fmt: skip
    return found


def refused(group: Communicator) -> int:
    """Wrong requests are refused before anything is sent: no rank loses its place in the order of calls."""
    made = 0
    for error, text, request in refusals(group.rank, group.size, group.name):
        for call in (group.run, group.start):
            with pytest.raises(error) as caught:
                call(request)
            said = getattr(caught.value, "reason", str(caught.value))  # without the line of the program
            assert type(caught.value) is error and said == text, (request.call, said)
            made += 1
    me, size, name = group.rank, group.size, group.name
    for members, text in (
        ([], f"'g' of ranks [] of '{name}' repeats a rank or leaves out rank {me}"),
        ([me, me], f"'g' of ranks [{me}, {me}] of '{name}' repeats a rank or leaves out rank {me}"),
        ([me, size], f"member {size} is no rank of '{name}', whose ranks are 0 to {size - 1}"),
    ):
        with pytest.raises(MeshError) as caught:
            group.subgroup(members, "g")
        assert caught.value.reason == text
    assert group.all_reduce(np.ones(1))[0] == size
    return made


def by_name(group: Communicator) -> None:
    """The methods that are named for the calls make the requests that they are named for."""
    me, size, ones = group.rank, group.size, [1] * group.size
    x = np.arange(size) + 10.0 * me
    total = size * np.arange(size) + 10.0 * sum(range(size))
    assert group.all_reduce(x).tolist() == total.tolist()
    assert group.all_reduce(x, "max").tolist() == (np.arange(size) + 10.0 * (size - 1)).tolist()
    assert (group.reduce(x, 0) is None) == (me != 0)
    assert group.broadcast(x.copy(), size - 1).tolist() == (np.arange(size) + 10.0 * (size - 1)).tolist()
    gathered = group.gather(x[:1], ones, 0)
    assert gathered is None if me else gathered is not None and gathered.tolist() == [10.0 * r for r in range(size)]
    assert group.all_gather(x[:1], ones).tolist() == [10.0 * r for r in range(size)]
    assert group.scatter(x, ones, 0, x.dtype).tolist() == [me]
    assert group.reduce_scatter(x, ones).tolist() == [total[me]]
    assert group.all_to_all(x, ones, ones).tolist() == [me + 10.0 * r for r in range(size)]
    assert group.scan(x[:1]).tolist() == [10.0 * sum(range(me + 1))]
    assert group.scan(x[:1], True, True).tolist() == [10.0 * sum(range(me + 1, size))]
    assert group.get(x, [(size - 1, 0, 1)]).tolist() == [10.0 * (size - 1)]
    assert group.accumulate(x[:1], [(0, 0, 1)], 1).tolist() == [0.0 if me else 10.0 * sum(range(size))]
    assert group.exchange(bytes([me])) == [bytes([r]) for r in range(size)]
    assert group.barrier() is None
    group.agree("the same")
    assert group.control.exchange(b"") == [b""] * size


def traffic(group: Communicator) -> None:
    """Messages and bytes are counted for each peer, however they were sent."""
    me, size = group.rank, group.size
    right, left = (me + 1) % size, (me - 1) % size
    group.traffic.clear()
    group.send(np.zeros(4), right)
    group.lend(np.zeros(2, np.float32), right).wait() if size == 1 else group.send(np.zeros(2, np.float32), right)
    group.recv(np.empty(4), left)
    group.recv(np.empty(2, np.float32), left)
    assert group.traffic.peers == {group.ranks[right]: (2, 40)}
    group.traffic.clear()


def conforms(
    group: Communicator, dtypes: str = FEW, meets: bool = False, only: Sequence[str] | None = None
) -> int:
    """All of it, or of the calls of a group only those named. Returns how many calls were compared or refused."""
    made = calls(group, dtypes, only) + any_order(group, meets) + messages(group) + refused(group)
    rounding(group)
    several(group, meets)
    order_of_receives(group)
    large_messages(group)
    lanes(group)
    subgroups(group, only)
    by_name(group)
    traffic(group)
    return made


def wrong_lengths(group: Communicator) -> None:
    """A message that is shorter than its buffer, or longer, is an error on the rank that receives it."""
    me, size = group.rank, group.size
    for count in (1, 5):
        group.send(np.ones(count), (me + 1) % size)
        with pytest.raises(CommunicationError):
            group.recv(np.empty(2), (me - 1) % size)
    group.barrier()
