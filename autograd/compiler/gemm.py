"""Products of matrices in machine code of our own, in the order of additions in which OpenBLAS adds.

OpenBLAS adds the products that make an element one after another, each by a fused multiplication and addition, and the
inner dimension in blocks: the sum of a block is added to those of the blocks before. A product that does the same has
its bits. This one is written for vectors of 64 bytes. On such a processor (AMD EPYC, float32) it takes 0.9 of the time
of OpenBLAS 0.3.31 for products of hundreds of rows, and 0.6 where these have few rows, or are small and the second
operand is transposed.

A tile of the result, some rows of two vectors, stays in registers while a block of the inner dimension passes. Operands
are copied (packed) to the order in which tiles read them: the rows of a tile beside each other in a panel of `a`, and
its columns in a panel of `b`. One panel of `a` lies in the first cache, some of `b` in the second. (K. Goto and R. van
de Geijn, "Anatomy of high-performance matrix multiplication", ACM Transactions on Mathematical Software 34, 2008.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise

import numpy as np

from .build import compile_texts, has_vectors, noted
from .loops import Unsupported
from .machine import Row

__all__ = ["blocked"]

_TYPES = {"f4": "float", "f8": "double"}
_VECTOR = 64  # bytes
_ROWS = 14, 8  # of a tile: at most 28 vectors of sums, two of `b`, and one of `a`
_MANY_ROWS = 128  # of a product, from which on tiles are as large as possible; else they leave few rows unused
_TOGETHER = 8  # panels of `a` that are packed together
_FEW, _FEWER = 20, 3  # panels of `a` with which full panels of `b` are read where they are: to pack them takes longer
_PAGE = 4096  # bytes: rows that lie a multiple of them apart share few places of the caches
_PACKED = 1 << 22, 1 << 18  # bytes of `a` and of `b` that are packed at a time, at most
_CACHED = 1 << 19  # bytes of all columns that stay in the second cache, while rows pass in smaller parts


class _Code:
    """The lines of a function. A variable is memory on the stack, which LLVM turns into a register."""

    def __init__(self, dtype: str):
        self.kind, self.size = _TYPES[dtype], int(dtype[1:])
        self.lanes = _VECTOR // self.size
        self.vector, self.mask = f"<{self.lanes} x {self.kind}>", f"<{self.lanes} x i1>"
        self._bits = f"v{self.lanes}f{8 * self.size}"
        self._first: list[str] = []
        self._lines: list[str] = []
        self._n = 0

    def function(self, head: str, last: str = "ret void") -> str:
        """The text of a function of these lines."""
        return "\n".join([f"define {head} {{", *self._first, *self._lines, f"  {last}", "}"])

    def do(self, text: str) -> None:
        self._lines.append(f"  {text}")

    def __call__(self, text: str) -> str:
        """Add an instruction; returns the name of its value."""
        self._n += 1
        self.do(f"%v{self._n} = {text}")
        return f"%v{self._n}"

    # -- integers and addresses --
    def plus(self, x: str | int, y: str | int) -> str:
        return self(f"add i64 {x}, {y}")

    def minus(self, x: str | int, y: str | int) -> str:
        return self(f"sub i64 {x}, {y}")

    def times(self, x: str | int, y: str | int) -> str:
        return self(f"mul i64 {x}, {y}")

    def least(self, x: str | int, y: str | int) -> str:
        return self(f"call i64 @llvm.smin.i64(i64 {x}, i64 {y})")

    def is_less(self, x: str | int, y: str | int) -> str:
        return self(f"icmp slt i64 {x}, {y}")

    def choose(self, condition: str, kind: str, x: str | int, y: str | int) -> str:
        return self(f"select i1 {condition}, {kind} {x}, {kind} {y}")

    def at(self, address: str, offset: str | int) -> str:
        """The address `offset` bytes later."""
        return self(f"getelementptr i8, ptr {address}, i64 {offset}")

    def get(self, kind: str, address: str, offset: str | int = 0) -> str:
        return self(f"load {kind}, ptr {self.at(address, offset)}, align {self.size if kind == self.vector else 1}")

    def set(self, kind: str, value: str, address: str) -> None:
        self.do(f"store {kind} {value}, ptr {address}")

    def variable(self, kind: str, value: str) -> str:
        self._n += 1
        self._first.append(f"  %v{self._n} = alloca {kind}")
        self.set(kind, value, f"%v{self._n}")
        return f"%v{self._n}"

    # -- vectors --
    def spread(self, kind: str, x: str) -> str:
        """A vector of one value."""
        vector = f"<{self.lanes} x {kind}>"
        one = self(f"insertelement {vector} poison, {kind} {x}, i64 0")
        return self(f"shufflevector {vector} {one}, {vector} poison, <{self.lanes} x i32> zeroinitializer")

    def first_lanes(self, count: str, before: int = 0) -> str:
        """The mask of the lanes below a count, after `before` others."""
        numbers = ", ".join(f"i64 {before + i}" for i in range(self.lanes))
        return self(f"icmp slt <{self.lanes} x i64> <{numbers}>, {self.spread('i64', count)}")

    def masked(self, address: str, mask: str, other: str = "zeroinitializer") -> str:
        """A vector, whose lanes are those of `other` where they are not in the mask."""
        given = f"ptr {address}, i32 {self.size}, {self.mask} {mask}, {self.vector} {other}"
        return self(f"call {self.vector} @llvm.masked.load.{self._bits}.p0({given})")

    def put_masked(self, x: str, address: str, mask: str) -> None:
        given = f"{self.vector} {x}, ptr {address}, i32 {self.size}, {self.mask} {mask}"
        self.do(f"call void @llvm.masked.store.{self._bits}.p0({given})")

    def put(self, x: str, address: str) -> None:
        """Store a vector at an address that is a multiple of its size."""
        self.do(f"store {self.vector} {x}, ptr {address}, align {_VECTOR}")

    def fused(self, x: str, y: str, z: str) -> str:
        """``x * y + z``, rounded once."""
        given = ", ".join(f"{self.vector} {each}" for each in (x, y, z))
        return self(f"call {self.vector} @llvm.fma.{self._bits}({given})")

    # -- control --
    @contextmanager
    def loop(self, stop: str, step: str | int = 1) -> Iterator[str]:
        """A loop from 0 on to below `stop`."""
        place = self.variable("i64", "0")
        label = f"l{self._n}"
        self.do(f"br label %{label}")
        self._lines.append(f"{label}:")
        i = self.get("i64", place)
        self.do(f"br i1 {self.is_less(i, stop)}, label %{label}_in, label %{label}_out")
        self._lines.append(f"{label}_in:")
        yield i
        self.set("i64", self.plus(i, step), place)
        self.do(f"br label %{label}")
        self._lines.append(f"{label}_out:")

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        self._n += 1
        label = f"w{self._n}"
        self.do(f"br i1 {condition}, label %{label}, label %{label}_out")
        self._lines.append(f"{label}:")
        yield
        self.do(f"br label %{label}_out")
        self._lines.append(f"{label}_out:")


# -- a tile ------------------------------------------------------------------------------------------------------------
@cache  # linked code is never unloaded
def _tile(dtype: str, rows: int, vectors: int) -> int:
    """The address of the code of a tile of the result.

    In ``void tile(a, a_step, b, b_step, c, c_step, k, count, columns, start)`` a panel goes on `a_step` or `b_step`
    bytes later at the next place of the inner dimension. The sums are added to the result, or, if `start` is not null,
    to the number there, which gives the result. It has `count` rows and `columns` columns: others are not stored.
    """
    code = _Code(dtype)
    tile = [(i, v) for i in range(rows) for v in range(vectors)]
    places = {(i, v): code.at(code.at("%c", code.times("%c_step", i)), v * _VECTOR) for i, v in tile}
    for place in places.values():
        code.do(f"call void @llvm.prefetch.p0(ptr {place}, i32 1, i32 3, i32 1)")
    sums = {at: code.variable(code.vector, "zeroinitializer") for at in tile}
    a, b = code.variable("ptr", "%a"), code.variable("ptr", "%b")
    with code.loop("%k"):
        a_at, b_at = code.get("ptr", a), code.get("ptr", b)
        ys = [code.get(code.vector, b_at, v * _VECTOR) for v in range(vectors)]
        for i in range(rows):
            x = code.spread(code.kind, code.get(code.kind, a_at, i * code.size))
            for v in range(vectors):
                code.set(code.vector, code.fused(x, ys[v], code.get(code.vector, sums[i, v])), sums[i, v])
        code.set("ptr", code.at(a_at, "%a_step"), a)
        code.set("ptr", code.at(b_at, "%b_step"), b)
    masks = [code.first_lanes("%columns", v * code.lanes) for v in range(vectors)]
    is_first = code("icmp ne ptr %start, null")
    for is_start in (True, False):
        with code.when(is_first if is_start else code(f"xor i1 {is_first}, true")):
            start = code.spread(code.kind, code.get(code.kind, "%start")) if is_start else ""
            for i in range(rows):
                with code.when(code.is_less(i, "%count")):
                    for v in range(vectors):
                        old = start or code.masked(places[i, v], masks[v])
                        total = code(f"fadd {code.vector} {old}, {code.get(code.vector, sums[i, v])}")
                        code.put_masked(total, places[i, v], masks[v])
    text = code.function(
        "void @NAME(ptr noalias %a, i64 %a_step, ptr noalias %b, i64 %b_step, ptr noalias %c, i64 %c_step, i64 %k, "
        "i64 %count, i64 %columns, ptr %start)"
    )
    ((address,),) = compile_texts([text], ["NAME"])
    return address


# -- panels ------------------------------------------------------------------------------------------------------------
_PACK = "void @NAME(ptr %x, i64 %step, i64 %k, i64 %count, i64 %rows, i64 %line, ptr %to)"
"""The head of the functions that pack `count` rows into panels of `rows` rows, at most two vectors.

A panel has a line of `line` bytes, one or two vectors, for each place of the inner dimension: the elements of its rows.
`step` is the stride in bytes of the dimension whose elements are not side by side: one function packs `along` rows
whose elements are, another one `across` such whose elements at one place are. Where a line has more elements than there
are rows, these are of another row once more: to compute with zeros there might raise errors of floating point. Up to
`_spare` bytes after the last panel are written, too.
"""


@cache
def _pack(dtype: str, is_along: bool) -> int:
    """The address of one of the two functions."""
    code = _Code(dtype)
    (_along if is_along else _across)(code)
    ((address,),) = compile_texts([code.function(_PACK)], ["NAME"])
    return address


def _along(code: _Code) -> None:
    """Pack squares of elements, which are transposed."""
    lanes = code.lanes
    last, vectors, panel = code.minus("%count", 1), code(f"udiv i64 %line, {_VECTOR}"), code.variable("ptr", "%to")
    ahead = code.times("%step", "%rows")
    with code.loop("%count", "%rows") as j:
        with code.loop(vectors) as v:
            first, to = code.plus(j, code.times(v, lanes)), code.at(code.get("ptr", panel), code.times(v, _VECTOR))
            rows = [code.at("%x", code.times("%step", code.least(code.plus(first, q), last))) for q in range(lanes)]
            with code.loop("%k", lanes) as p:
                mask, at = code.first_lanes(code.minus("%k", p)), code.times(p, code.size)
                for row in rows:
                    code.do(f"call void @llvm.prefetch.p0(ptr {code.at(code.at(row, at), ahead)}, i32 0, i32 2, i32 1)")
                square = _transposed(code, [code.masked(code.at(row, at), mask) for row in rows])
                for q, x in enumerate(square):
                    code.put(x, code.at(to, code.times(code.plus(p, q), "%line")))
        code.set("ptr", code.at(code.get("ptr", panel), code.times("%line", "%k")), panel)


def _transposed(code: _Code, rows: list[str]) -> list[str]:
    """The columns of a square: in each stage the elements of a vector and of one half of all later take turns."""
    n = len(rows)
    for _ in range(n.bit_length() - 1):
        pairs = [(rows[i], rows[i + n // 2], half) for i in range(n // 2) for half in (0, 1)]
        rows = []
        for x, y, half in pairs:
            lanes = ", ".join(f"i32 {half * n // 2 + j + n * k}" for j in range(n // 2) for k in (0, 1))
            rows.append(code(f"shufflevector {code.vector} {x}, {code.vector} {y}, <{n} x i32> <{lanes}>"))
    return rows


def _across(code: _Code) -> None:
    """Pack the lines of all panels for one place after another."""
    panels, panel, width = code("sdiv i64 %count, %rows"), code.times("%line", "%k"), code.times("%rows", code.size)
    rest = code.minus("%count", code.times(panels, "%rows"))
    has_two = code.is_less(_VECTOR, "%line")
    full, last = ([code.first_lanes(rows, v * code.lanes) for v in range(2)] for rows in ("%rows", rest))

    def copy(x: str, to: str, masks: Sequence[str]) -> None:
        other = code.spread(code.kind, code.get(code.kind, x))
        code.put(code.masked(x, masks[0], other), to)
        with code.when(has_two):
            code.put(code.masked(code.at(x, _VECTOR), masks[1], other), code.at(to, _VECTOR))

    with code.loop("%k") as p:
        x, to = code.at("%x", code.times(p, "%step")), code.at("%to", code.times(p, "%line"))
        with code.loop(panels) as j:
            copy(code.at(x, code.times(j, width)), code.at(to, code.times(j, panel)), full)
        with code.when(code.is_less(0, rest)):
            copy(code.at(x, code.times(panels, width)), code.at(to, code.times(panels, panel)), last)


def _spare(line: int, dtype: str) -> int:
    return _VECTOR // int(dtype[1:]) * line


# -- the product -------------------------------------------------------------------------------------------------------
_WORDS = ("rows", "line", "rows_at_once", "columns_at_once", "packed_b", "is_direct", "pack_a", "pack_b", "a_step",
          "b_step", "full", "half", "start", "blocks")  # fmt: skip
"""What the function of a product reads first in its context: the rows and bytes of a line of a panel of `a`; the rows
and columns that are packed at a time; the place of columns in the scratch memory; whether full panels of `b` are read
where they are; the functions that pack, and their `step`; the tiles of two vectors and of one; the number to which sums
are added; the count of blocks."""


@cache
def _driver(dtype: str) -> int:
    """The address of the function of a row, which packs panels and calls tiles.

    Its context is the words of `_WORDS`, and then the end of each block of the inner dimension.
    """
    code = _Code(dtype)
    word = {name: code.get("i64", "%context", 8 * i) for i, name in enumerate(_WORDS)}
    a, b, c = (code.get("ptr", "%pointers", 8 * i) for i in range(3))
    m, n = (code.get("i64", "%dims", 8 * i) for i in (1, 3))
    a_row, a_inner, b_inner, b_column, c_row = (code.get("i64", "%strides", 8 * i) for i in range(3, 8))
    width, size, rows, line = 2 * code.lanes, code.size, word["rows"], word["line"]
    packed_b, is_direct = code.at("%scratch", word["packed_b"]), code.is_less(0, word["is_direct"])
    pack_a, pack_b = (code(f"inttoptr i64 {word[name]} to ptr") for name in ("pack_a", "pack_b"))
    begin, start = code.variable("i64", "0"), code.variable("ptr", code.at("%context", 8 * _WORDS.index("start")))
    with code.loop(word["blocks"]) as block:
        p, end = code.get("i64", begin), code.get("i64", code.at("%context", 8 * len(_WORDS)), code.times(block, 8))
        k, a_block, b_block = code.minus(end, p), code.at(a, code.times(p, a_inner)), code.at(b, code.times(p, b_inner))
        start_now, panel_bytes, column_bytes = code.get("ptr", start), code.times(k, line), code.times(k, size)
        with code.loop(m, word["rows_at_once"]) as row:
            a_count, a_panel = code.least(code.minus(m, row), word["rows_at_once"]), code.variable("ptr", "%scratch")
            code.set("ptr", "%scratch", a_panel)
            some = code.times(rows, _TOGETHER)
            with code.loop(a_count, some) as i:
                x = code.at(a_block, code.times(code.plus(row, i), a_row))
                count, to = code.least(code.minus(a_count, i), some), code.get("ptr", a_panel)
                given = f"ptr {x}, i64 {word['a_step']}, i64 {k}, i64 {count}, i64 {rows}, i64 {line}, ptr {to}"
                code.do(f"call void {pack_a}({given})")
                code.set("ptr", code.at(to, code.times(panel_bytes, _TOGETHER)), a_panel)
            with code.loop(n, word["columns_at_once"]) as column:
                b_count = code.least(code.minus(n, column), word["columns_at_once"])
                skipped = code.choose(is_direct, "i64", code(f"and i64 {b_count}, {-width}"), 0)
                b_columns = code.at(b_block, code.times(column, b_column))
                x, to = code.at(b_columns, code.times(skipped, b_column)), code.times(skipped, column_bytes)
                given = f"ptr {x}, i64 {word['b_step']}, i64 {k}, i64 {code.minus(b_count, skipped)}, i64 {width}"
                with code.when(code(f"or i1 {code.is_less(b_count, n)}, {code.is_less(row, 1)}")):
                    code.do(f"call void {pack_b}({given}, i64 {width * size}, ptr {code.at(packed_b, to)})")
                code.set("ptr", "%scratch", a_panel)
                with code.loop(a_count, rows) as i:
                    a_now, row_now = code.get("ptr", a_panel), code.plus(row, i)
                    code.set("ptr", code.at(a_now, panel_bytes), a_panel)
                    c_now = code.at(code.at(c, code.times(row_now, c_row)), code.times(column, size))
                    a_rows = code.minus(m, row_now)
                    with code.loop(b_count, width) as j:
                        count, is_there = code.minus(b_count, j), code.is_less(j, skipped)
                        there, packed = (code.at(b_columns, code.times(j, b_column)),
                                         code.at(packed_b, code.times(j, column_bytes)))  # fmt: skip
                        tile = code.choose(code.is_less(code.lanes, count), "i64", word["full"], word["half"])
                        b_now = code.choose(is_there, "ptr", there, packed)
                        b_step = code.choose(is_there, "i64", b_inner, width * size)
                        to = code.at(c_now, code.times(j, size))
                        code.do(
                            f"call void {code(f'inttoptr i64 {tile} to ptr')}(ptr {a_now}, i64 {line}, ptr {b_now}, "
                            f"i64 {b_step}, ptr {to}, i64 {c_row}, i64 {k}, i64 {a_rows}, i64 {count}, ptr {start_now})"
                        )
        code.set("ptr", "null", start)
        code.set("i64", end, begin)
    head = "i32 @NAME(ptr %context, ptr %pointers, ptr %dims, ptr %strides, ptr %scratch)"
    ((address,),) = compile_texts([code.function(head, "ret i32 0")], ["NAME"])
    return noted(address)


def blocked(row: Row, ends: Sequence[int], adds_zero: bool, dtype: str) -> Row:
    """The row of a product of matrices in code of our own, in the place of the row of NumPy's loop.

    Parameters
    ----------
    row : Row
    ends : sequence of int
        The ends of the blocks of the inner dimension; the last one is its size.
    adds_zero : bool
        Whether the sums of the first block are added to zeros, so that none is a negative zero.
    dtype : {"f4", "f8"}

    Raises
    ------
    Unsupported
        An operand has no dimension whose elements are side by side, or the processor has no vectors of 64 bytes.
    """
    (_, m, _, n), (a_row, a_inner, b_inner, b_column, _, c_column) = row.dims, row.strides[3:]
    size = int(dtype[1:])
    if size not in (a_row, a_inner) or size not in (b_inner, b_column) or c_column != size or not has_vectors():
        raise Unsupported("operands whose elements are not side by side, or vectors of fewer than 64 bytes")
    width, rows = 2 * _VECTOR // size, min(_ROWS, key=lambda rows: -m % rows if m < _MANY_ROWS else -rows)
    panels = -(-m // rows)
    line = -(-rows * size // _VECTOR) * _VECTOR
    k = max(end - begin for begin, end in pairwise([0, *ends]))
    columns = -(-n // width) * width
    most_a, most_b = _PACKED if k * columns * size > _CACHED else (_CACHED // 2, _CACHED)
    panels_at_once = min(panels, max(1, most_a // (k * line)))
    columns_at_once = min(columns, width * max(1, most_b // (k * width * size)))
    packed_b = panels_at_once * k * line + _spare(line, dtype)
    has_half = 0 < n % width <= width // 2
    tiles = [_tile(dtype, rows, v) if is_used else 0 for v, is_used in ((2, n > width // 2), (1, has_half))]
    is_direct = b_column == size and panels <= (_FEW if b_inner % _PAGE else _FEWER)
    start = int.from_bytes(np.array(0.0 if adds_zero else -0.0, dtype).tobytes(), "little", signed=True)
    packs = [_pack(dtype, step == size) for step in (a_inner, b_inner)]
    steps = [outer if inner == size else inner for outer, inner in ((a_row, a_inner), (b_column, b_inner))]
    words = [rows, line, rows * panels_at_once, columns_at_once, packed_b, is_direct, *packs, *steps, *tiles, start]
    context = np.array([*words, len(ends), *ends], np.int64)
    scratch = packed_b + columns_at_once * k * size + _spare(2 * _VECTOR, dtype)
    return row._replace(function=_driver(dtype), context=context.ctypes.data, scratch=scratch, owner=context)
