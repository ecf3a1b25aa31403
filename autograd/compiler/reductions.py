"""Reductions, in NumPy's order.

A sum is pairwise (`numpy/_core/src/umath/loops_utils.h.src`): along the innermost axis eight partial sums in blocks of
at most 128 elements, which are one vector here, and the blocks in a binary tree; over outer axes, row after row. Which
axis is the innermost follows NumPy's iterator: axes are sorted by their strides, and merged where they can be. Where
two summed axes are left side by side as the innermost ones, NumPy copies as many rows as fit to a buffer, and sums them
as one. A product goes from one element to the next. The order of extremes shows in the sign of zeros only.

A row, the elements along the innermost axis, has a function of its own, in which the steps that produce them stand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, cmp_to_key
from typing import Any, NamedTuple

import numpy as np

from .loops import Loop, Pointer, Unsupported, contiguous
from .nests import EFFECTS, Body, Nest, Place, body_text, has_exit, load_one, spread, store_one, wrapper
from .operations import TYPES, Code, apply, kind_of, literal, type_of

__all__ = ["reduction"]

_BLOCK, _LANES = 128, 8  # of NumPy's pairwise summation
_BUFFER = 8192  # elements, of NumPy's iterator
_WIDE = 64  # elements in flight where the order does not matter


def _require_form(loop: Loop) -> None:
    """Raise `Unsupported` for a reduction that has no compiled form."""
    _, op, k, _, axes = loop.steps[-1]
    dtype = loop.pointers[k].dtype
    if any(step[0] in ("store_at", "add_at") for step in loop.steps):
        raise Unsupported("a scatter beside a reduction")
    if k in {step[1] for step in loop.steps[:-1] if step[0] in ("load", "load_at", "store")}:
        raise Unsupported("a reduction into what the loop reads or writes")
    if op == "add" and kind_of(dtype) == "f" and not _is_pairwise(dtype):
        raise Unsupported("add.reduce: this version of NumPy adds in another order")
    if op in ("maximum", "minimum", "argmax", "argmin") and any(loop.shape[a] == 0 for a in axes):
        raise Unsupported(f"{op}.reduce of nothing")


def reduction(loop: Loop, name: str) -> str:
    """The text of a loop whose last step is a reduction."""
    is_place = loop.steps[-1][1] in ("argmax", "argmin")
    order = _with_axis_inside(loop) if is_place else _ordered(loop)
    loop, row, is_inner = order.loop, order.row, order.is_inner
    _require_form(loop)
    body, code = Body(loop), Code()
    _, op, k, i, axes = loop.steps[-1]
    dtype = loop.pointers[k].dtype
    outer = range(body.ndim - len(row)) if is_inner else range(body.ndim)
    # A result whose numbers come one after another begins with the identity.
    if any(loop.shape[a] == 0 for a in axes) or any(d in axes for d in outer):
        free = [d for d in range(body.ndim) if d not in axes]
        if all(loop.shape[d] for d in free):
            zeros = Nest(code, body, "z")
            for d in free:
                zeros.open(d)
            store_one(code, dtype, zeros.addresses[k], _identity(op, dtype))
            zeros.close_all()
    helper = ""
    if 0 not in loop.shape:
        nest, known = Nest(code, body, "d"), {}  # type: Nest, dict[int, str]
        for dim in range(-1, len(outer)):
            if dim >= 0:
                nest.open(dim)
            steps = [at for at, depth in enumerate(body.depths) if depth == dim]
            if is_inner:
                steps = [at for at in steps if loop.steps[at][0] not in EFFECTS]
            known |= body.values(code, steps, nest.place(), known)
        before = "" if is_place else _identity(op, dtype)
        if any(d in axes for d in outer):
            before = load_one(code, dtype, nest.addresses[k])
        if is_place:
            value, helper = _place_call(code, body, nest, known, order, name)
        elif is_inner:
            is_first = [f"%i_d{d}" for d in outer if d in axes]
            value, helper = _row_call(code, body, nest, known, order, name, before, is_first)
        else:
            value = _combined(code, op, dtype, before, known[i])
        store_one(code, dtype, nest.addresses[k], value)
        nest.close_all()
    text = body_text(name, code, len(loop.pointers), has_exit(code))
    return helper + text + wrapper(name, len(loop.pointers))


def _pairwise(x: Any) -> Any:
    """The sum of a row in NumPy's order."""
    if len(x) < _LANES:
        return sum(x, x.dtype.type(-0.0))
    if len(x) <= _BLOCK:
        whole = len(x) - len(x) % _LANES
        parts = x[:_LANES]
        for at in range(_LANES, whole, _LANES):
            parts = parts + x[at : at + _LANES]
        while len(parts) > 1:
            parts = parts[::2] + parts[1::2]
        return sum(x[whole:], parts[0])
    half = len(x) // 2 // _LANES * _LANES
    return _pairwise(x[:half]) + _pairwise(x[half:])


@cache  # of two dtypes; without it each sum of a captured step takes 2 ms more to compile
def _is_pairwise(dtype: str) -> bool:
    """Whether NumPy sums in the order of this file: rows in blocks, and outer axes row after row."""
    x = np.random.default_rng(0).standard_normal((3, 1003)).astype(dtype)
    rows = [_pairwise(row) for row in x]
    return bool(
        all(row[:n].sum() == _pairwise(row[:n]) for row in x for n in (5, 12, 100, 128, 200, 333, 1003))
        and (x.sum(1) == rows).all()
        and (x.sum(0) == (x[0] + x[1]) + x[2]).all()
        and x[:, None].repeat(2, 1).sum((0, 2))[1] == (rows[0] + rows[1]) + rows[2]
    )


def _is_in_sequence(op: str, dtype: str) -> bool:
    """Whether numbers are combined one after another, through the rows of one result, too."""
    return op == "multiply" and kind_of(dtype) == "f"


def _combined(code: Code, op: str, dtype: str, x: str, y: str, lanes: int = 1) -> str:
    name = {"logical_and": "bitwise_and", "logical_or": "bitwise_or"}.get(op, op)
    return apply(code, name, dtype, [x, y], lanes)


def _identity(op: str, dtype: str, lanes: int = 1) -> str:
    """The number that a reduction begins with. It is 0 for a sum, so that a sum of -0 is 0."""
    if op in ("maximum", "minimum"):
        if kind_of(dtype) == "f":
            number: float = -math.inf
        elif kind_of(dtype) == "b":
            number = 0
        else:
            number = np.iinfo(dtype).min
        if op == "minimum":
            number = math.inf if kind_of(dtype) == "f" else 1 if kind_of(dtype) == "b" else int(np.iinfo(dtype).max)
        return literal(dtype, number, lanes)
    return literal(dtype, {"add": 0, "multiply": 1, "logical_and": 1, "logical_or": 0}[op], lanes)


class _Order(NamedTuple):
    """A reduction in the order in which NumPy's iterator goes.

    The dimensions of a row are the innermost ones, which NumPy merges to one, or copies to its buffer: then it reduces
    `block` elements at a time. Dimensions of one element are left out, and others are merged where all pointers allow
    it. `is_contiguous` is whether the array is contiguous along the innermost dimension; None if that has no effect.
    """

    loop: Loop
    row: list[int]
    is_inner: bool  # whether the row is reduced
    is_contiguous: bool | None
    block: int = 0


def _ordered(loop: Loop) -> _Order:
    _, op, k, i, axes, *given = loop.steps[-1]
    dtype = loop.pointers[k].dtype
    itemsize = int(dtype[1:])
    layout = given[0] if given and given[0] is not None else contiguous(loop.shape, itemsize)
    order = [d for d in _order_of(layout) if loop.shape[d] != 1]
    groups = _groups(loop, order, layout, axes)
    flags = tuple(d in axes for d in order)
    is_inner, inner, block = bool(groups) and flags[-1], len(groups[-1]) if groups else 0, 0
    if is_inner and len(groups) > 1 and groups[-2][0] in axes and 0 not in loop.shape and kind_of(dtype) == "f":
        if op == "add" and (len(groups) < 3 or groups[-3][0] not in axes) and _buffers_rows(dtype):
            block = _buffered(*(math.prod(loop.shape[d] for d in group) for group in groups[-2:]))
            inner += len(groups[-2])
        elif op != "multiply":
            raise Unsupported(f"{op}.reduce over axes side by side that are not one: NumPy copies them to a buffer")
    shape = tuple(loop.shape[d] for d in order)
    pointers = tuple(Pointer(p.dtype, tuple(p.strides[d] for d in order)) for p in loop.pointers)
    shape, pointers, flags, inner = _merged(shape, pointers, flags, inner)
    last = ("reduce", op, k, i, tuple(d for d, flag in enumerate(flags) if flag))
    row = list(range(len(shape) - inner, len(shape)))
    is_contiguous = bool(order) and layout[order[-1]] == itemsize
    return _Order(Loop(shape, pointers, (*loop.steps[:-1], last)), row, is_inner, is_contiguous, block)


def _groups(loop: Loop, order: Sequence[int], layout: Sequence[int], axes: Sequence[int]) -> list[list[int]]:
    """Dimensions that NumPy merges: all are reduced or none is, and their strides follow each other."""
    groups: list[list[int]] = []
    for d in order:
        before = groups[-1][-1] if groups else -1
        if groups and (before in axes) == (d in axes) and layout[before] == layout[d] * loop.shape[d]:
            groups[-1].append(d)
        else:
            groups.append([d])
    return groups


def _buffered(rows: int, n: int) -> int:
    """The elements of rows that are not one in memory which NumPy copies to its buffer, and sums as one row."""
    return min(max(1, _BUFFER // n), rows) * n


@cache  # of two dtypes; without it each sum over several axes takes 15 ms more to compile
def _buffers_rows(dtype: str) -> bool:
    """Whether NumPy does so; its versions differ."""
    random = np.random.default_rng(1)
    for rows, n in ((7, 300), (1000, 9), (3, 5000)):
        x = random.standard_normal((2, rows, n + 1)).astype(dtype)[..., :n]
        block, needed = _buffered(rows, n), []
        for each in x:
            total, flat = x.dtype.type(0), each.reshape(-1)
            for at in range(0, flat.size, block):
                total = total + _pairwise(flat[at : at + block])
            needed.append(total)
        if (x.sum((1, 2)) != needed).any():
            return False
    return bool(np.getbufsize() == _BUFFER)


def _order_of(strides: Sequence[int]) -> list[int]:
    """The dimensions, outermost first, as NumPy's iterator sorts those of one operand."""
    order: list[int] = []  # innermost first
    for d in reversed(range(len(strides))):
        at = len(order)
        for place in reversed(range(len(order))):
            other = strides[order[place]]
            if other and strides[d]:
                if abs(other) <= abs(strides[d]):
                    break
                at = place
        order.insert(at, d)
    return order[::-1]


def _with_axis_inside(loop: Loop) -> _Order:
    """As `_ordered`, for a reduction whose result does not depend on an order: its axis is the innermost one."""
    _, op, k, i, (axis,), *_ = loop.steps[-1]
    order = [*(d for d in range(len(loop.shape)) if d != axis), axis]
    pointers = tuple(Pointer(p.dtype, tuple(p.strides[d] for d in order)) for p in loop.pointers)
    last = len(order) - 1
    steps = (*loop.steps[:-1], ("reduce", op, k, i, (last,)))
    return _Order(Loop(tuple(loop.shape[d] for d in order), pointers, steps), [last], True, None)


def _merged(
    shape: tuple[int, ...], pointers: tuple[Pointer, ...], flags: tuple[bool, ...], inner: int
) -> tuple[tuple[int, ...], tuple[Pointer, ...], tuple[bool, ...], int]:
    """The same loop with neighbours merged where all pointers allow it; the `inner` dimensions stay apart."""
    at = len(shape) - 2
    while at >= 0:
        allowed = flags[at] == flags[at + 1] and at != len(shape) - inner - 1
        if allowed and all(p.strides[at] == p.strides[at + 1] * shape[at + 1] for p in pointers):
            if at >= len(shape) - inner:
                inner -= 1
            shape = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
            flags = (*flags[:at], *flags[at + 1 :])
            pointers = tuple(Pointer(p.dtype, (*p.strides[:at], *p.strides[at + 1 :])) for p in pointers)
        at -= 1
    return shape, pointers, flags, inner


def _row_call(
    code: Code, body: Body, nest: Nest, known: dict[int, str], order: _Order, name: str, before: str,
    is_first: Sequence[str],
) -> tuple[str, str]:  # fmt: skip
    """The value of a result after a row, and the text of the row's functions.

    It was `before`; `is_first` are numbers that are 0 in the first row of a result.
    """
    row, is_contiguous = order.row, order.is_contiguous
    loop = body.loop
    _, op, k, i, _ = loop.steps[-1]
    dtype, n = loop.pointers[k].dtype, math.prod(loop.shape[d] for d in row)
    of, follows = TYPES[dtype], _is_in_sequence(op, dtype)
    steps = [at for at in range(len(loop.steps) - 1) if at not in known]
    inside = {j for at in steps for j in _operands(loop.steps[at])} | {i}
    scalars = sorted(at for at in known if at in inside)
    used = sorted({loop.steps[at][1] for at in steps if loop.steps[at][0] in ("load", "load_at", "store")})
    size = order.block or n
    text = _row_text(body, steps, scalars, used, row, size, name)
    given = [f"ptr {nest.addresses[j]}" for j in used]
    given += [f"{TYPES[body.dtypes[at]]} {known[at]}" for at in scalars]
    can_fail = "%failed" in text
    if can_fail:
        code.lines.insert(0, "  %failed = alloca i8\n  store i8 0, ptr %failed")

    def call(function: str, start: str, length: int, total: str) -> str:
        """The result after some elements of the row."""
        passed = [*given, *[f"{of} {total}"] * follows, *["ptr %failed"] * can_fail, f"i64 {start}", f"i64 {length}"]
        value = code.new(f"call {of} @{function}_row({', '.join(passed)})")
        if can_fail:
            failed = code.new(f"icmp ne i8 {code.new('load i8, ptr %failed')}, 0")
            go_on = code.unique("row_done")
            code.add(f"br i1 {failed}, label %fail, label %{go_on}")
            code.label(go_on)
        return value if follows else _combined(code, op, dtype, total, value)

    if size < n:  # what NumPy copies to its buffer, one block after another
        block, more, done = code.block, code.unique("block"), code.unique("blocks_done")
        code.add(f"br label %{more}")
        code.label(more)
        code.add(f"%{more}_at = phi i64 [ 0, %{block} ], [ %{more}_next, %{more}_end ]")
        code.add(f"%{more}_sum = phi {of} [ {before}, %{block} ], [ %{more}_total, %{more}_end ]")
        value = call(name, f"%{more}_at", size, f"%{more}_sum")
        code.add(f"br label %{more}_end")
        code.label(f"{more}_end")
        code.add(f"%{more}_total = {_same(of, value)}")
        code.add(f"%{more}_next = add i64 %{more}_at, {size}")
        is_last = code.new(f"icmp eq i64 %{more}_next, {n - n % size}")
        code.add(f"br i1 {is_last}, label %{done}, label %{more}")
        code.label(done)
        value = f"%{more}_total"
        if n % size:
            text += _row_text(body, steps, scalars, used, row, n % size, f"{name}_last")
            value = call(f"{name}_last", f"{n - n % size}", n % size, value)
        return value, text
    value = call(name, "0", n, before)
    if op not in ("maximum", "minimum") or kind_of(dtype) != "f" or is_contiguous is None:
        return value, text
    # The sign of a zero is that of the zero which NumPy compares last.
    text += _zero_text(body, steps, scalars, used, row, n, name, is_contiguous)
    first = "true"
    for index in is_first:
        here = code.new(f"icmp eq i64 {index}, 0")
        first = here if first == "true" else code.new(f"and i1 {first}, {here}")
    is_zero = code.new(f"fcmp oeq {of} {value}, {literal(dtype, 0)}")
    zero, signed, block = code.unique("zero"), code.unique("signed"), code.block
    code.add(f"br i1 {is_zero}, label %{zero}, label %{signed}")
    code.label(zero)
    other = code.new(f"call {of} @{name}_zero({', '.join([*given, f'{of} {before}', f'i1 {first}'])})")
    code.add(f"br label %{signed}")
    code.label(signed)
    return code.new(f"phi {of} [ {value}, %{block} ], [ {other}, %{zero} ]"), text


def _place_call(
    code: Code, body: Body, nest: Nest, known: dict[int, str], order: _Order, name: str
) -> tuple[str, str]:  # fmt: skip
    """The place of the first extreme of a row, or of its first NaN, and the text of the row's functions."""
    loop, row = body.loop, order.row
    _, op, k, i, axes = loop.steps[-1]
    dtype, n = body.dtypes[i], loop.shape[row[0]]
    extreme = "maximum" if op == "argmax" else "minimum"
    steps = [at for at in range(len(loop.steps) - 1) if at not in known]
    if _reads_what_it_writes(body, steps):
        raise Unsupported(f"{op} of values that are written in place")
    # The extreme first, in lanes; then the first element that is equal to it.
    pointers = (*loop.pointers, Pointer(dtype, loop.pointers[k].strides))
    of_extreme = Body(loop._replace(
        pointers=pointers, steps=(*loop.steps[:-1], ("reduce", extreme, len(pointers) - 1, i, axes))
    ))  # fmt: skip
    value, text = _row_call(code, of_extreme, nest, known, order, name, _identity(extreme, dtype), [])
    inside = {j for at in steps for j in _operands(loop.steps[at])} | {i}
    scalars = sorted(at for at in known if at in inside)
    used = sorted({loop.steps[at][1] for at in steps if loop.steps[at][0] in ("load", "load_at")})
    made = _Row(body, [at for at in steps if loop.steps[at][0] != "store"], scalars, row)
    own = made.code
    of = TYPES[dtype]
    own.add("br label %next")
    own.label("next")
    own.add("%j = phi i64 [ 0, %entry ], [ %j_next, %go_on ]")
    x = made.value("%j", 1)
    if kind_of(dtype) == "f":
        same = own.new(f"fcmp ueq {of} {x}, %extreme")  # both are NaN, or one of them, or they are equal
        is_nan = own.new(f"fcmp uno {of} {x}, {x}")
        wants_nan = own.new(f"fcmp uno {of} %extreme, %extreme")
        same = own.new(f"select i1 {wants_nan}, i1 {is_nan}, i1 {same}")
    else:
        same = own.new(f"icmp eq {of} {x}, %extreme")
    own.add(f"%j_next = add i64 %j, 1\n  %is_last = icmp eq i64 %j_next, {n}")
    own.add(f"br i1 {own.new(f'or i1 {same}, %is_last')}, label %return, label %go_on")
    own.label("go_on")
    own.add("br label %next")
    own.label("return")
    own.add("ret i64 %j")
    given = [f"ptr noalias %p{j}" for j in used] + [f"{TYPES[body.dtypes[at]]} %s{at}" for at in scalars]
    tail = ["fail:", "  ret i64 0"] if has_exit(own) else []
    head = f"define internal i64 @{name}_place({', '.join([*given, f'{of} %extreme'])}) nounwind {{"
    passed = [f"ptr {nest.addresses[j]}" for j in used] + [f"{TYPES[body.dtypes[at]]} {known[at]}" for at in scalars]
    place = code.new(f"call i64 @{name}_place({', '.join([*passed, f'{of} {value}'])})")
    return place, text + "\n".join([head, "entry:", *own.lines, *tail, "}", ""])


def _reads_what_it_writes(body: Body, steps: Sequence[int]) -> bool:
    """Whether values could not be computed once more after a loop."""
    loads = [body.loop.steps[at][1] for at in steps if body.loop.steps[at][0] in ("load", "load_at")]
    return not body.written.isdisjoint(loads)


def _zero_text(
    body: Body, steps: list[int], scalars: list[int], used: list[int], row: list[int], n: int, name: str,
    is_contiguous: bool,
) -> str:  # fmt: skip
    """The function that finds the zero of a row which NumPy compares last; `before` is compared first.

    NumPy begins with the first element of all, compares lanes, then the lanes with each other, and then the rest.
    """
    op, k = body.loop.steps[-1][1:3]
    dtype = body.loop.pointers[k].dtype
    of = TYPES[dtype]
    if _reads_what_it_writes(body, steps):
        raise Unsupported(f"{op}.reduce of values that are written in place")
    ranks = _ranks_of_zeros(op, dtype) if is_contiguous else tuple(range(8))
    if ranks is None:
        raise Unsupported(f"{op}.reduce: in which order NumPy compares zeros is not known here")
    lanes = len(ranks)
    made = _Row(body, [at for at in steps if body.loop.steps[at][0] != "store"], scalars, row)
    code = made.code
    skip = code.new("zext i1 %first to i64")
    m = code.new(f"sub i64 {n}, {skip}")
    full = code.new(f"and i64 {m}, {-lanes}")
    size = code.new(f"add i64 {m}, 1")
    is_short = code.new(f"icmp eq i64 {full}, 0")
    initial = "-1"
    if is_contiguous:  # it stands before the others in each lane, so in the last one, too
        initial = code.new(f"select i1 {is_short}, i64 -1, i64 {code.new(f'mul i64 {size}, {lanes - 1}')}")
    before_counts = code.new(f"fcmp oeq {of} %before, {literal(dtype, 0)}")
    before_counts = code.new(f"and i1 {before_counts}, {code.new('xor i1 %first, true')}")
    best = code.new(f"select i1 {before_counts}, i64 {initial}, i64 -2")
    code.add("br label %next")
    block = code.block
    code.label("next")
    code.add(f"%j = phi i64 [ 0, %{block} ], [ %j_next, %end ]")
    code.add(f"%best = phi i64 [ {best}, %{block} ], [ %best_next, %end ]")
    code.add(f"%found = phi {of} [ %before, %{block} ], [ %found_next, %end ]")
    code.add(f"%is_done = icmp eq i64 %j, {n}")
    code.add("br i1 %is_done, label %return, label %one")
    code.label("one")
    value = made.value("%j", 1)
    at = code.new(f"sub i64 %j, {skip}")
    lane = code.new(f"and i64 {at}, {lanes - 1}")
    place = code.new(f"getelementptr i64, ptr @{name}_ranks, i64 {lane}")
    in_lane = code.new(f"add i64 {code.new(f'lshr i64 {at}, {lanes.bit_length() - 1}')}, 1")
    of_lane = code.new(f"load i64, ptr {place}")
    rank = code.new(f"add i64 {code.new(f'mul i64 {of_lane}, {size}')}, {in_lane}")
    is_rest = code.new(f"icmp sge i64 {at}, {full}")
    rank = code.new(f"select i1 {is_rest}, i64 {code.new(f'add i64 {at}, {2**40}')}, i64 {rank}")
    rank = code.new(f"select i1 {code.new(f'icmp slt i64 {at}, 0')}, i64 {initial}, i64 {rank}")
    is_zero = code.new(f"fcmp oeq {of} {value}, {literal(dtype, 0)}")
    is_better = code.new(f"and i1 {is_zero}, {code.new(f'icmp sgt i64 {rank}, %best')}")
    code.add("br label %end")
    code.label("end")
    code.add(f"%best_next = select i1 {is_better}, i64 {rank}, i64 %best")
    code.add(f"%found_next = select i1 {is_better}, {of} {value}, {of} %found")
    code.add("%j_next = add i64 %j, 1")
    code.add("br label %next")
    code.label("return")
    code.add(f"ret {of} %found")
    given = [f"ptr noalias %p{j}" for j in used] + [f"{TYPES[body.dtypes[at]]} %s{at}" for at in scalars]
    tail = ["fail:", f"  ret {of} %before"] if has_exit(code) else []
    table = f"@{name}_ranks = internal constant [{lanes} x i64] [{', '.join(f'i64 {each}' for each in ranks)}]"
    head = (
        f"define internal {of} @{name}_zero({', '.join([*given, f'{of} %before', 'i1 %first'])}) noinline nounwind {{"
    )
    return "\n".join([table, head, "entry:", *code.lines, *tail, "}", ""])


@cache  # of operations and dtypes; without it each maximum of an axis takes 5 ms more to compile
def _ranks_of_zeros(op: str, dtype: str) -> tuple[int, ...] | None:
    """For each lane in which NumPy compares a contiguous row, its place in the comparison of lanes; None if unknown.

    Where the extreme of a row is zero, two zeros of different signs show which one is compared later. The number of
    lanes is the one that explains longer rows, too.
    """
    function, other = getattr(np, op), -1 if op == "maximum" else 1

    def order(n: int) -> list[int]:
        x = np.empty(n, dtype)

        def later(i: int, j: int) -> int:
            x[:], x[i], x[j] = other, 0.0, -0.0
            return -1 if np.signbit(function.reduce(x)) else 1

        return sorted(range(n), key=cmp_to_key(later))

    for lanes in (1, 2, 4, 8, 16, 32):
        seen = [(i - 1) % lanes for i in order(lanes + 1) if i]
        ranks = tuple(seen.index(lane) for lane in range(lanes))
        if all(order(n) == _order_of_zeros(ranks, n) for n in (2, lanes, 2 * lanes + 3, 67)):
            return ranks
    return None


def _order_of_zeros(ranks: Sequence[int], n: int) -> list[int]:
    """The elements of a row in the order in which they are compared."""
    lanes, m = len(ranks), n - 1
    full = m - m % lanes

    def rank(i: int) -> tuple[int, int]:
        if i == 0:
            return (lanes - 1, -1) if full else (-1, 0)
        return (lanes, i) if i > full else (ranks[(i - 1) % lanes], i)

    return sorted(range(n), key=rank)


def _operands(step: tuple[Any, ...]) -> list[int]:
    """The numbers of the values that a step takes."""
    name, *given = step
    if name in ("load", "constant"):
        return []
    if name in ("cast", "bitcast"):
        return [given[1]]
    if name in ("store", "reduce"):
        return [given[-1]] if name == "store" else [given[2]]
    return [*(pair[0] for pair in given[1]), *given[2:]] if name in ("load_at", "store_at", "add_at") else list(given)


class _Row:
    """The function that reduces a row: a block of lanes, the rest, and for long sums two halves."""

    def __init__(self, body: Body, steps: list[int], scalars: list[int], row: list[int]):
        self.body, self.steps, self.row = body, steps, row
        self.code = Code()
        self.known = {at: f"%s{at}" for at in scalars}
        self.shape = [body.loop.shape[d] for d in row]
        self.strides = [[p.strides[d] for d in row] for p in body.loop.pointers]
        self.i = body.loop.steps[-1][3]

    def _offset(self, k: int, index: str, shape: Sequence[int]) -> str:
        """The bytes from the row's address of a pointer to an element of the row."""
        code, total, strides = self.code, "", self.strides[k]
        for d in reversed(range(len(shape))):
            place = index
            if d:
                place = code.new(f"urem i64 {index}, {shape[d]}")
                index = code.new(f"udiv i64 {index}, {shape[d]}")
            if strides[d]:
                part = code.new(f"mul i64 {place}, {strides[d]}")
                total = part if not total else code.new(f"add i64 {total}, {part}")
        return total or "0"

    def value(self, index: str, lanes: int) -> str:
        """The value to reduce at an index, or at the next ones, too."""
        code, memo = self.code, {}  # type: Code, dict[tuple[int, int], str]
        is_straight = lanes == 1 or len(self.shape) == 1 or self.shape[-1] % lanes == 0

        def address(k: int, lane: int) -> str:
            if (k, lane) not in memo:
                if lane and is_straight:
                    shift = f"{lane * self.strides[k][-1]}"
                    memo[k, lane] = code.new(f"getelementptr i8, ptr {address(k, 0)}, i64 {shift}")
                else:
                    at = index if not lane else code.new(f"add i64 {index}, {lane}")
                    offset = self._offset(k, at, self.shape)
                    memo[k, lane] = code.new(f"getelementptr i8, ptr %p{k}, i64 {offset}")
            return memo[k, lane]

        place = Place(address, lambda k: self.strides[k][-1] if is_straight else None, lanes)
        found = self.body.values(code, self.steps, place, self.known)
        if self.i in found:
            return found[self.i]
        x = self.known[self.i]
        return x if lanes == 1 else spread(code, self.body.dtypes[self.i], x, lanes)


def _row_text(
    body: Body, steps: list[int], scalars: list[int], used: list[int], row: list[int], n: int, name: str
) -> str:
    op, k = body.loop.steps[-1][1:3]
    dtype = body.loop.pointers[k].dtype
    of, is_float = TYPES[dtype], kind_of(dtype) == "f"
    made = _Row(body, steps, scalars, row)
    code = made.code
    is_pairwise = is_float and op == "add"
    lanes = 1 if _is_in_sequence(op, dtype) else _LANES
    if lanes > 1 and not is_pairwise and n >= 2 * _WIDE and (len(made.shape) == 1 or made.shape[-1] % _WIDE == 0):
        lanes = _WIDE
    start, identity = "%start", _identity(op, dtype)
    if _is_in_sequence(op, dtype):
        identity = "%before"
    if is_pairwise and n > _BLOCK:
        code.add(f"%is_long = icmp ugt i64 %len, {_BLOCK}")
        code.add("br i1 %is_long, label %halves, label %block")
        code.label("block")
    total = identity
    if lanes > 1 and n >= lanes:
        first = made.value(start, lanes)
        code.add(f"%whole = and i64 %len, {-lanes}")
        code.add("br label %more")
        before = code.block
        code.label("more")
        vector = type_of(dtype, lanes)
        code.add(f"%at = phi i64 [ {lanes}, %{before} ], [ %at_next, %more_next ]")
        code.add(f"%sums = phi {vector} [ {first}, %{before} ], [ %sums_next, %more_next ]")
        code.add("%is_over = icmp eq i64 %at, %whole")
        code.add("br i1 %is_over, label %together, label %more_one")
        code.label("more_one")
        value = made.value(code.new(f"add i64 {start}, %at"), lanes)
        added = _combined(code, op, dtype, "%sums", value, lanes)
        code.add("br label %more_next")
        code.label("more_next")
        code.add(f"%sums_next = {_same(vector, added)}")
        code.add(f"%at_next = add i64 %at, {lanes}")
        code.add("br label %more")
        code.label("together")
        total, done = _horizontal(code, op, dtype, "%sums", lanes), "%whole"
    else:
        done = "0"
    code.add("br label %rest")
    before = code.block
    code.label("rest")
    code.add(f"%j = phi i64 [ {done}, %{before} ], [ %j_next, %rest_next ]")
    code.add(f"%total = phi {of} [ {total}, %{before} ], [ %total_next, %rest_next ]")
    code.add("%is_done = icmp eq i64 %j, %len")
    code.add("br i1 %is_done, label %return, label %rest_one")
    code.label("rest_one")
    value = made.value(code.new(f"add i64 {start}, %j"), 1)
    added = _combined(code, op, dtype, "%total", value)
    code.add("br label %rest_next")
    code.label("rest_next")
    code.add(f"%total_next = {_same(of, added)}")
    code.add("%j_next = add i64 %j, 1")
    code.add("br label %rest")
    code.label("return")
    code.add(f"ret {of} %total")
    given = [f"ptr noalias %p{j}" for j in used] + [f"{TYPES[body.dtypes[at]]} %s{at}" for at in scalars]
    given += [f"{of} %before"] * _is_in_sequence(op, dtype)
    can_fail = has_exit(code)
    given += ["ptr noalias %failed"] * can_fail
    if is_pairwise and n > _BLOCK:
        code.label("halves")
        half = code.new(f"and i64 {code.new('lshr i64 %len, 1')}, {-_LANES}")
        passed = ", ".join(each.replace("noalias ", "") for each in given)
        p = code.new(f"call {of} @{name}_row({passed}, i64 %start, i64 {half})")
        middle, rest = code.new(f"add i64 %start, {half}"), code.new(f"sub i64 %len, {half}")
        q = code.new(f"call {of} @{name}_row({passed}, i64 {middle}, i64 {rest})")
        code.add(f"ret {of} {code.new(f'fadd {of} {p}, {q}')}")
    tail = ["fail:", "  store i8 1, ptr %failed", f"  ret {of} {identity}"] if can_fail else []
    head = f"define internal {of} @{name}_row({', '.join([*given, 'i64 %start', 'i64 %len'])}) nounwind {{"
    return "\n".join([head, "entry:", *code.lines, *tail, "}", ""])


def _same(of: str, x: str) -> str:
    """An instruction with the value of another one, which has a name already."""
    return f"select i1 true, {of} {x}, {of} {x}"


def _horizontal(code: Code, op: str, dtype: str, vector: str, lanes: int) -> str:
    """The lanes of a vector reduced to one value, neighbours first, as NumPy's pairwise summation does."""
    of = type_of(dtype, lanes)
    if op == "add" and kind_of(dtype) == "f":
        parts = [code.new(f"extractelement {of} {vector}, i32 {lane}") for lane in range(lanes)]
        while len(parts) > 1:
            parts = [_combined(code, op, dtype, parts[j], parts[j + 1]) for j in range(0, len(parts), 2)]
        return parts[0]
    while lanes > 1:  # in any order: the two halves
        half = lanes // 2
        low, high = (
            code.new(f"shufflevector {of} {vector}, {of} poison, <{half} x i32> <{numbers}>")
            for each in (range(half), range(half, lanes))
            for numbers in [", ".join(f"i32 {lane}" for lane in each)]
        )
        lanes, of = half, type_of(dtype, half) if half > 1 else f"<1 x {TYPES[dtype]}>"
        if half == 1:
            low, high = (code.new(f"extractelement {of} {each}, i32 0") for each in (low, high))
        vector = _combined(code, op, dtype, low, high, half)
    return vector
