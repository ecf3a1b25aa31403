"""Requests: the calls of a communicator, their validation, and their results.

======================  =======================================  =====================================================
call                    fields besides `call`                    result
======================  =======================================  =====================================================
all_reduce              x, op, out                               the reduction over the ranks; in place if `out` is `x`
reduce                  x, root                                  the sum on the root, None elsewhere
broadcast               x on the root, out elsewhere; root       the root's value; elsewhere `out`, filled
gather                  x, counts, root                          parts in order of rank on the root, None elsewhere
all_gather              x, counts                                parts in order of rank
scatter                 x on the root; counts, root, dtype       this rank's part
reduce_scatter          x, counts                                this rank's part of the sum
all_to_all              x, counts, receive_counts                the parts received, in order of rank
scan                    x, options (exclusive, backwards)        the sum over this rank and those before (or after) it
send                    x, peer, options                         None; returns at once and owns a copy
lend                    x, peer                                  None, once `x` may be changed again: no copy is made
recv                    out, peer, options                       `out`, filled
get                     x, options (runs,)                       the elements of the ranks' arrays that `runs` name
accumulate              x, options (runs, count)                 `count` zeros, plus the values that the ranks add
exchange                x, which is bytes                        the list of every rank's bytes
barrier                                                          None
======================  =======================================  =====================================================

The options of a message are () or (number, text for reports). Where the number is None, the order matches messages.
All ranks call `get` and `accumulate`, which are one-sided; runs are ``(source, offset, count)`` in elements, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from autograd.arrays.device import is_bfloat16
from autograd.arrays.plain import require_plain_array
from autograd.errors import ArgumentError, DtypeError, MeshError, OptionError, ShapeError

__all__ = ["Array", "Bfloat16", "Control", "DTYPES", "REDUCTIONS", "Request", "Runs", "alone", "answer", "check",
           "check_members", "check_message", "given_bytes", "is_communicated", "not_communicated", "shown",
           "whole_bytes"]  # fmt: skip

Array = np.ndarray[Any, Any]
Runs = Sequence[tuple[int, int, int]]
"""Parts of the ranks' arrays: source rank, offset in its array, and count, in elements."""

DTYPES = frozenset(np.dtype(char) for char in "?bBhHiIlLqQefdgFDG")
"""The dtypes that transports carry: native numeric ones, and booleans. bfloat16 is carried as one of them."""

REDUCTIONS = frozenset(("all_reduce", "reduce", "reduce_scatter", "scan", "accumulate"))
"""The reductions. Their operands of 16 bits are added in float32, and the result is rounded once."""

_OPERATIONS = ("sum", "max", "prod")
_ROOTED = frozenset(("broadcast", "reduce", "gather", "scatter"))
_OF_PARTS = frozenset(("all_gather", "reduce_scatter"))
_SUMS_OF_COUNTS = {"reduce_scatter": "the sum of counts", "all_to_all": "the sum of send_counts"}
_PEERS = {"send": "dst", "lend": "dst", "recv": "src"}


class Request(NamedTuple):
    """One call of a communicator, with all its arguments. The module's table has the calls.

    Attributes
    ----------
    call : str
        The name of the call.
    x : array, bytes or None
        This rank's operand: one-dimensional and contiguous, of a native numeric or boolean dtype. None where this rank
        contributes nothing. The transport neither keeps nor changes it; a started call works on a copy.
    op : {"sum", "max", "prod"}
        The operation of `all_reduce`; the other reductions are sums.
    counts, receive_counts : sequence of int
        Numbers of elements, one per rank: of the parts, and in `all_to_all` of the received parts. They may be zero.
    root, peer : int
        The root, or the other rank of a message, as an index into the group.
    dtype : dtype
        The dtype of the result, where no operand determines it (`scatter`).
    out : array
        The receive buffer of `recv`, and of `broadcast` on ranks other than the root. Of an `all_reduce` it may be `x`
        itself, which the result then replaces, without a copy. The result is this array. It belongs to the call until
        the call is complete.
    options : tuple
        Further arguments of some calls; see the table.
    mark : int
        The transport's mark of the call (`job.history`), if it was determined in advance; else 0.

    Examples
    --------
    >>> import numpy as np, collectives as cc
    >>> cc.run(lambda: cc.world().run(Request("all_reduce", np.ones(2), op="max")).tolist(), ranks=2)
    [[1.0, 1.0], [1.0, 1.0]]
    """

    call: str
    x: Any = None
    op: str = "sum"
    counts: Any = None
    receive_counts: Any = None
    root: int = 0
    peer: int = 0
    dtype: Any = None
    out: Any = None
    options: tuple[Any, ...] = ()
    mark: int = 0


class Control(Request):
    """A request that carries facts about the program in place of its data: a header, or extents. It runs as any other.

    Records and timelines tell the two apart.
    """

    __slots__ = ()


def shown(request: Request) -> str:
    """The name of a call, followed by its reduction unless that is the sum: ``all_reduce max``.

    An exchange that is a part of another call names that one: ``exchange for all_reduce``.
    """
    if request.call == "exchange" and request.options:
        return f"exchange for {request.options[0]}"
    return request.call if request.op == "sum" else f"{request.call} {request.op}"


def answer(request: Request, rank: int) -> tuple[int, np.dtype[Any]] | None:
    """The number of elements and the dtype of a rank's result; None for a rank whose result is no array.

    They follow from the rank's own request, without communication. The operand may be a shape-only array.

    Examples
    --------
    >>> answer(Request("all_gather", np.ones(2), counts=[2, 3]), rank=0)
    (5, dtype('float64'))
    >>> answer(Request("reduce", np.ones(2), root=1), rank=0) is None
    True
    """
    call, x, _, counts, receive_counts, root, _, dtype, out, options, _ = request
    if out is not None:
        return out.size, out.dtype
    if call in ("all_reduce", "scan", "broadcast"):
        return x.size, x.dtype
    if call in ("all_gather", "gather"):
        return (sum(counts), x.dtype) if call == "all_gather" or root == rank else None
    if call == "reduce_scatter":
        return counts[rank], x.dtype
    if call == "all_to_all":
        return sum(receive_counts), x.dtype
    if call == "scatter":
        return counts[rank], np.dtype(dtype)
    if call == "reduce":
        return (x.size, x.dtype) if root == rank else None
    if call == "get":
        return sum(count for _, _, count in options[0]), x.dtype
    return (options[1], x.dtype) if call == "accumulate" else None


def given_bytes(request: Request) -> int:
    """The bytes that this rank passes to a call: of its operand, or of its receive buffer."""
    given = request.out if request.x is None else request.x
    return 0 if given is None else len(given) if isinstance(given, bytes) else int(given.nbytes)


def whole_bytes(request: Request, rank: int, size: int) -> int:
    """The bytes of all ranks' parts together; for one-sided calls, the bytes that belong to other ranks."""
    call, x, dtype = request.call, request.x, request.dtype
    if call in ("gather", "all_gather", "scatter"):
        item = x.dtype.itemsize if dtype is None else np.dtype(dtype).itemsize
        return int(sum(request.counts or ())) * item
    if call in ("get", "accumulate"):
        return sum(count for source, _, count in request.options[0] if source != rank) * int(x.dtype.itemsize)
    return given_bytes(request) * (size if call == "exchange" else 1)


def alone(request: Request) -> Any:
    """The result of a call in a group of one rank, except for messages."""
    call, x = request.call, request.x
    if call == "exchange":
        return [bytes(x)]
    if call == "barrier":
        return None
    if call == "get":
        taken = [x[at : at + count] for _, at, count in request.options[0]]
        return np.concatenate([x[:0], *taken])
    if call == "accumulate":
        runs, size = request.options
        total, start = np.zeros_like(x, np.float32 if x.dtype == np.float16 else x.dtype, shape=size), 0
        for _, at, count in runs:
            total[at : at + count] += x[start : start + count]
            start += count
        return total.astype(x.dtype, copy=False)
    if request.out is not None:  # the sum of one operand, which lies in the buffer already
        return request.out
    return np.zeros_like(x) if call == "scan" and request.options[0] else x.copy()


# -- validation --------------------------------------------------------------------------------------------------------


def check(request: Request, rank: int, size: int, name: str) -> None:
    """Raise an error for an invalid request, before anything is sent.

    Parameters
    ----------
    rank, size, name
        Of the communicator: this rank's place, the number of ranks, and its name for messages.

    Raises
    ------
    ShapeError
        An array that is not flat or not contiguous, a read-only receive buffer, a number of counts that is not the
        number of ranks, an array whose size does not match the counts, or a missing operand or buffer.
    MeshError
        A rank that is not in the group.
    DtypeError
        A dtype that cannot be communicated or reduced, or that differs from the announced one, or an array that is
        masked or has an arithmetic of its own.

    Examples
    --------
    >>> check(Request("reduce", np.ones(3), root=2), 0, 2, "dp")
    Traceback (most recent call last):
    autograd.errors.MeshError: root 2 is no rank of 'dp', whose ranks are 0 to 1
      at ...
    >>> check(Request("all_reduce", np.ones((2, 3))), 0, 2, "dp")
    Traceback (most recent call last):
    autograd.errors.ShapeError: a transport takes one-dimensional C-contiguous arrays, not shape (2, 3): ravel it first
      at ...
    """
    call, x, op, counts, receive_counts, root, _, _, _, options, _ = request
    if call == "exchange" or call == "barrier":
        return
    if call in _PEERS:
        check_message(request, rank, size, name)
        return
    if counts is not None or call in _OF_PARTS:
        _check_parts(call, counts, receive_counts, size, name)
    if call in ("scatter", "broadcast"):
        _check_from_root(request, rank, size, name)
        return
    _check_operand(x, call, rank, name)
    if call in _ROOTED:
        check_rank("root", root, size, name)
    if call == "all_reduce":
        if op not in _OPERATIONS:
            mean = "\n  fix: group.all_reduce(x) / group.size" * (op in ("avg", "mean"))
            raise OptionError(f"all_reduce with op={op!r} on '{name}'; needed: one of {', '.join(_OPERATIONS)}{mean}")
        if request.out is not None and request.out is not x:
            raise ArgumentError(f"all_reduce on '{name}' was given another buffer than its operand; needed: out=x")
        if op == "max" and x.dtype.kind == "c":
            raise DtypeError(f"all_reduce with op='max' on '{name}' of {x.dtype}, whose values have no order")
    elif call in ("gather", "all_gather"):
        _check_size(x, counts[rank], "this rank's count")
    elif call in _SUMS_OF_COUNTS:
        _check_size(x, sum(counts), _SUMS_OF_COUNTS[call])
    elif call in ("get", "accumulate"):
        _check_runs(x, call, options[0], size, name)
    elif call not in ("reduce", "scan"):
        raise ValueError(f"{call!r} on '{name}' is not a communicator's call; needed: a call that `Request` lists")


def _check_runs(x: Any, call: str, runs: Runs, size: int, name: str) -> None:
    for source, _, _ in runs:
        check_rank("source", source, size, name)
    if call == "accumulate":
        _check_size(x, sum(count for _, _, count in runs), "the sum of the runs")


def check_message(request: Request, rank: int, size: int, name: str) -> None:
    """`check` for `send`, `lend` and `recv`."""
    call = request.call
    check_rank(_PEERS[call], request.peer, size, name)
    if call == "recv":
        _check_buffer(request.out, "recv", "", name)
    else:
        _check_operand(request.x, call, rank, name)


def _check_from_root(request: Request, rank: int, size: int, name: str) -> None:
    call, x, root = request.call, request.x, request.root
    if x is not None:
        _check_flat(x)
    check_rank("root", root, size, name)
    if root != rank:
        if call == "broadcast":
            _check_buffer(request.out, call, f" on ranks other than its root {root}", name)
        elif is_bfloat16(np.dtype(request.dtype)):
            raise Bfloat16
        elif np.dtype(request.dtype) not in DTYPES:
            raise _wrong_dtype(np.dtype(request.dtype))
        return
    _check_operand(x, call, rank, name)
    if call == "scatter":
        if x.dtype != request.dtype:
            raise DtypeError(f"scatter was given {x.dtype} on its root and dtype {np.dtype(request.dtype)}")
        _check_size(x, sum(request.counts), "the sum of counts")


def check_rank(role: str, rank: int, size: int, name: str) -> int:
    """Return the rank if it is in the group; `role` is the name of the argument."""
    if not 0 <= rank < size:
        raise MeshError(f"{role} {rank} is no rank of '{name}', whose ranks are 0 to {size - 1}")
    return rank


def check_members(members: Sequence[int], rank: int, size: int, name: str, group: str) -> list[int]:
    """Return the members of a subgroup: distinct ranks of the group, with this rank among them."""
    found = [check_rank("member", int(member), size, group) for member in members]
    if rank not in found or len(set(found)) < len(found):
        raise MeshError(f"'{name}' of ranks {found} of '{group}' repeats a rank or leaves out rank {rank}")
    return found


def _check_flat(x: Any) -> None:
    if x.ndim != 1 or (isinstance(x, np.ndarray) and not x.flags.c_contiguous):
        raise ShapeError(f"a transport takes one-dimensional C-contiguous arrays, not shape {x.shape}: ravel it first")
    if x.dtype not in DTYPES:
        raise Bfloat16 if is_bfloat16(x.dtype) else _wrong_dtype(x.dtype)
    if type(x) is not np.ndarray and isinstance(x, np.ndarray):
        require_plain_array(x, "a transport")


class Bfloat16(Exception):
    """The arrays of a request are of bfloat16: `Communicator` moves their bits, and makes reductions in float32."""


def _wrong_dtype(dtype: np.dtype[Any]) -> DtypeError:
    return DtypeError(not_communicated(dtype))


def not_communicated(dtype: np.dtype[Any]) -> str:
    """The text of the error for a dtype that is not among `DTYPES`."""
    fix = np.dtype(dtype.type).name if dtype.kind in "biufc" else "float"
    return f"dtype {dtype} cannot be communicated; needed: a native numeric or boolean dtype\n  fix: x.astype({fix!r})"


def is_communicated(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of a dtype can be communicated: those of `DTYPES`, and bfloat16."""
    return dtype in DTYPES or is_bfloat16(dtype)


def _check_operand(x: Any, call: str, rank: int, name: str) -> None:
    if x is None:
        where = f"its root, rank {rank} of" if call in _ROOTED else f"rank {rank} of"
        raise ShapeError(f"{call} needs an array on {where} '{name}'")
    _check_flat(x)


def _check_buffer(out: Any, call: str, where: str, name: str) -> None:
    if out is None:
        raise ShapeError(f"{call} on '{name}' needs a receive buffer{where}: out=")
    _check_flat(out)
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ShapeError(f"the receive buffer of {call} on '{name}' is read-only; needed: a writeable array")


def _check_parts(call: str, counts: Any, receive_counts: Any, size: int, name: str) -> None:
    if counts is None:
        each = "x.size" if call == "all_gather" else "x.size // group.size"
        raise ArgumentError(
            f"{call} on '{name}' was called without counts; needed: counts, the number of elements of each of the "
            f"{size} ranks' parts\n  fix: [{each}] * group.size, if all are equal"
        )
    what, given = "send_counts" if call == "all_to_all" else "counts", counts
    if len(counts) == size and min(counts) >= 0:
        if receive_counts is None or (len(receive_counts) == size and min(receive_counts) >= 0):
            return
        what, given = "receive_counts", receive_counts
    raise ShapeError(f"{what} on '{name}' must be {size} counts >= 0, not {list(map(int, given))}")


def _check_size(x: Any, needed: int, meaning: str) -> None:
    if x.size != needed:
        raise ShapeError(f"the array has {x.size} elements; needed: {int(needed)}, {meaning}")
