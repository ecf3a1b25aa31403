"""Writes the text of LLVM's intermediate representation for loops. Nothing here loads LLVM.

Each loop becomes one function ``int f(context, char **pointers, dims, strides, auxiliary)``, the form of NumPy's inner
loops; shape and strides are constants in it. It calls a body whose pointers are declared not to overlap, so that LLVM's
loop vectorizer needs no checks. A step stands in the outermost loop in which its value is the same.

No instruction has a fast-math flag, so that LLVM neither contracts nor reassociates. A sum is taken in NumPy's order
(`numpy/_core/src/umath/loops_utils.h.src`, pairwise summation): along the innermost axis eight partial sums in blocks
of at most 128 elements, which are one vector here, and the blocks in a binary tree; over outer axes, row after row.
Which axis is the innermost follows NumPy's iterator: axes are sorted by their strides, and merged where they can be.
Where two summed axes are left side by side as the innermost ones, NumPy copies parts to a buffer: `Unsupported`.
"""

from __future__ import annotations

import math
import platform
import struct
from collections.abc import Callable, Sequence
from functools import cache, cmp_to_key
from typing import Any

import numpy as np

from .loops import Loop, Pointer, Unsupported, contiguous, dtypes_of

__all__ = ["declarations", "function_text"]

_TYPES = {"f4": "float", "f8": "double", "b1": "i1"}
_TYPES |= {f"{kind}{n}": f"i{8 * n}" for kind in "iu" for n in (1, 2, 4, 8)}
_BLOCK, _LANES = 128, 8  # of NumPy's pairwise summation
_WIDE = 64  # elements in flight where the order does not matter

_FLOAT_COMPARISONS = {"equal": "oeq", "not_equal": "une", "less": "olt", "less_equal": "ole", "greater": "ogt",
                      "greater_equal": "oge"}  # fmt: skip
_COMPARISONS = {"equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt",
                "greater_equal": "ge"}  # fmt: skip
_ARITHMETIC = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div"}
_BITWISE = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}
_LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}
_EFFECTS = ("store", "store_at", "add_at", "reduce")


@cache
def _second_of_equals() -> bool:
    """Whether ``maximum`` and ``minimum`` of two zeros are the second one, wherever they stand; it is so on x86."""
    for dtype in (np.float32, np.float64):
        for n in (1, 3, 8, 17, 33):
            for a, b in ((-0.0, 0.0), (0.0, -0.0)):
                x, y = np.full(2 * n, a, dtype), np.full(2 * n, b, dtype)
                for p, q in ((x[:n], y[:n]), (x[:n], y[0]), (x[::2], y[::2])):
                    for f in (np.maximum, np.minimum):
                        if (np.signbit(f(p, q)) != np.signbit(b)).any():
                            return False
    return True


def _literal(dtype: str, number: float, lanes: int = 1) -> str:
    """A constant, repeated for each lane."""
    if dtype == "b1":
        one = "true" if number else "false"
    elif dtype in ("f4", "f8"):
        one = f"0x{struct.pack('>d', number).hex().upper()}"
    else:
        one = str(int(number))
    return one if lanes == 1 else f"<{', '.join([f'{_TYPES[dtype]} {one}'] * lanes)}>"


def _constant(dtype: str, text: str) -> str:
    """A constant with the bytes of an item."""
    item = bytes.fromhex(text)
    if dtype == "b1":
        return "true" if item[0] else "false"
    bits = int.from_bytes(item, "little" if np.little_endian else "big")
    if dtype == "f8":
        return f"0x{bits:016X}"
    if dtype == "f4":  # LLVM writes it as the double of the same value
        x = struct.unpack("=f", item)[0]
        if not math.isnan(x):
            return _literal("f4", x)
        return f"0x{bits >> 31 << 63 | 0x7FF << 52 | (bits & 0x7FFFFF) << 29:016X}"
    return str(bits)


class _Code:
    """The lines of a function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0
        self.block = "entry"

    def new(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"  %v{self.count} = {text}")
        return f"%v{self.count}"

    def add(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def unique(self, name: str) -> str:
        self.count += 1
        return f"{name}{self.count}"


def _type(dtype: str, lanes: int = 1) -> str:
    return _TYPES[dtype] if lanes == 1 else f"<{lanes} x {_TYPES[dtype]}>"


def _kind(dtype: str) -> str:
    return dtype[0]


# -- operations --------------------------------------------------------------------------------------------------------
def _intrinsic(code: _Code, name: str, dtype: str, xs: Sequence[str], lanes: int) -> str:
    of = _type(dtype, lanes)
    suffix = f"{'f32' if dtype == 'f4' else 'f64'}" if lanes == 1 else f"v{lanes}{'f32' if dtype == 'f4' else 'f64'}"
    return code.new(f"call {of} @llvm.{name}.{suffix}({', '.join(f'{of} {x}' for x in xs)})")


def declarations(text: str) -> str:
    """The declarations of the intrinsics that a text calls.

    Examples
    --------
    >>> declarations("%v1 = call float @llvm.sqrt.f32(float %v0)")
    'declare float @llvm.sqrt.f32(float)\\n'
    """
    found = {}
    for part in text.split("call ")[1:]:
        result, at, rest = part.partition(" @llvm.")
        if at and "\n" not in result:
            name, _, given = rest.partition("(")
            found[name] = f"declare {result} @llvm.{name}({', '.join([result] * (given.partition(')')[0].count('%')))})"
    return "".join(f"{line}\n" for line in found.values())


def _truth(code: _Code, dtype: str, x: str, lanes: int) -> str:
    if dtype == "b1":
        return x
    test = "fcmp une" if _kind(dtype) == "f" else "icmp ne"
    return code.new(f"{test} {_type(dtype, lanes)} {x}, {_literal(dtype, 0, lanes)}")


def _select(code: _Code, c: str, of: str, x: str, y: str, lanes: int) -> str:
    return code.new(f"select {_type('b1', lanes)} {c}, {of} {x}, {of} {y}")


def _apply(code: _Code, name: str, dtype: str, xs: Sequence[str], lanes: int) -> str:
    """The result of a ufunc's inner loop on values of one dtype."""
    of, kind, x, y = _type(dtype, lanes), _kind(dtype), xs[0], xs[-1]

    def literal(number: float) -> str:
        return _literal(dtype, number, lanes)

    def select(c: str, p: str, q: str) -> str:
        return _select(code, c, of, p, q, lanes)

    if name in _LOGICAL:
        p, q = (_truth(code, dtype, each, lanes) for each in xs)
        return code.new(f"{_LOGICAL[name]} {_type('b1', lanes)} {p}, {q}")
    if name == "logical_not":
        return code.new(f"xor {_type('b1', lanes)} {_truth(code, dtype, x, lanes)}, {_literal('b1', 1, lanes)}")
    if name in _BITWISE:
        return code.new(f"{_BITWISE[name]} {of} {x}, {y}")
    if name == "invert":
        return code.new(f"xor {of} {x}, {literal(1 if kind == 'b' else -1)}")
    if name in _COMPARISONS:
        if kind == "f":
            return code.new(f"fcmp {_FLOAT_COMPARISONS[name]} {of} {x}, {y}")
        sign = "" if name in ("equal", "not_equal") else "s" if kind == "i" else "u"
        return code.new(f"icmp {sign}{_COMPARISONS[name]} {of} {x}, {y}")
    if kind == "b":  # add and maximum are or, multiply and minimum are and
        if name in ("absolute", "positive"):
            return x
        return code.new(f"{'or' if name in ('add', 'maximum', 'fmax') else 'and'} {of} {x}, {y}")
    if name in _ARITHMETIC:
        return code.new(f"{'f' if kind == 'f' else ''}{_ARITHMETIC[name]} {of} {x}, {y}")
    if name == "positive":
        return x
    if name == "square":
        return code.new(f"{'fmul' if kind == 'f' else 'mul'} {of} {x}, {x}")
    if name in ("maximum", "minimum", "fmax", "fmin"):
        above = name in ("maximum", "fmax")
        if kind == "f":
            if not _second_of_equals():
                raise Unsupported(f"{name} of zeros with both signs depends on their place here")
            best = select(code.new(f"fcmp {'ogt' if above else 'olt'} {of} {x}, {y}"), x, y)
            return select(code.new(f"fcmp uno {of} {x}, {x}"), x, best)
        return select(code.new(f"icmp {'s' if kind == 'i' else 'u'}{'gt' if above else 'lt'} {of} {x}, {y}"), x, y)
    if kind != "f":
        if name == "negative":
            return code.new(f"sub {of} {literal(0)}, {x}")
        below = None if kind == "u" else code.new(f"icmp slt {of} {x}, {literal(0)}")
        if name == "absolute":
            return x if below is None else select(below, code.new(f"sub {of} {literal(0)}, {x}"), x)
        if name == "sign":
            some = select(code.new(f"icmp ne {of} {x}, {literal(0)}"), literal(1), literal(0))
            return some if below is None else select(below, literal(-1), some)
        raise Unsupported(f"{name} of {dtype}")
    if name == "negative":
        return code.new(f"fneg {of} {x}")
    if name in ("absolute", "fabs"):
        return _intrinsic(code, "fabs", dtype, [x], lanes)
    if name in ("sqrt", "floor", "ceil", "trunc", "rint", "copysign"):
        return _intrinsic(code, name, dtype, xs, lanes)
    if name == "reciprocal":
        return code.new(f"fdiv {of} {literal(1)}, {x}")
    if name == "sign":
        inner = select(code.new(f"fcmp uno {of} {x}, {x}"), x, literal(0))
        inner = select(code.new(f"fcmp olt {of} {x}, {literal(0)}"), literal(-1), inner)
        return select(code.new(f"fcmp ogt {of} {x}, {literal(0)}"), literal(1), inner)
    if name == "signbit":
        as_int = "i4" if dtype == "f4" else "i8"
        bits = code.new(f"bitcast {of} {x} to {_type(as_int, lanes)}")
        return code.new(f"icmp slt {_type(as_int, lanes)} {bits}, {_literal(as_int, 0, lanes)}")
    if name == "isnan":
        return code.new(f"fcmp uno {of} {x}, {x}")
    if name in ("isinf", "isfinite"):
        size = _intrinsic(code, "fabs", dtype, [x], lanes)
        return code.new(f"fcmp {'oeq' if name == 'isinf' else 'one'} {of} {size}, {literal(math.inf)}")
    raise Unsupported(f"{name} of {dtype}")


def _cast(code: _Code, to: str, dtype: str, x: str, lanes: int) -> str:
    """The value of ``astype``."""
    source, target = _type(dtype, lanes), _type(to, lanes)
    if dtype == to:
        return x
    if to == "b1":
        return _truth(code, dtype, x, lanes)
    if _kind(to) == "f":
        if _kind(dtype) == "f":
            return code.new(f"{'fpext' if to == 'f8' else 'fptrunc'} {source} {x} to {target}")
        return code.new(f"{'sitofp' if _kind(dtype) == 'i' else 'uitofp'} {source} {x} to {target}")
    if _kind(dtype) == "f":
        return _to_integer(code, to, dtype, x, lanes)
    if _TYPES[to] == _TYPES[dtype]:
        return x
    if dtype != "b1" and int(to[1:]) < int(dtype[1:]):
        return code.new(f"trunc {source} {x} to {target}")
    return code.new(f"{'sext' if _kind(dtype) == 'i' else 'zext'} {source} {x} to {target}")


def _to_integer(code: _Code, to: str, dtype: str, x: str, lanes: int) -> str:
    """The conversion of the processor that NumPy's cast uses: out of range it gives the lowest number."""
    if platform.machine() != "x86_64":
        raise Unsupported("a cast from floats to integers: out of range it depends on the processor")
    source, wide = _type(dtype, lanes), "i8" if to in ("i8", "u8") else "i4"

    def convert(value: str) -> str:
        least = -(2.0 ** (8 * int(wide[1:]) - 1))
        at_least = code.new(f"fcmp oge {source} {value}, {_literal(dtype, least, lanes)}")
        if wide == "i4" and dtype == "f8":  # what is above -2**31 - 1 is cut to -2**31
            at_least = code.new(f"fcmp ogt {source} {value}, {_literal(dtype, least - 1, lanes)}")
        below = code.new(f"fcmp olt {source} {value}, {_literal(dtype, -least, lanes)}")
        fits = code.new(f"and {_type('b1', lanes)} {at_least}, {below}")
        cut = code.new(f"fptosi {source} {value} to {_type(wide, lanes)}")
        return _select(code, fits, _type(wide, lanes), cut, _literal(wide, least, lanes), lanes)

    if to == "u8":  # numbers from 2**63 on are moved down before
        half = _literal(dtype, 2.0**63, lanes)
        above = code.new(f"fcmp oge {source} {x}, {half}")
        high = convert(code.new(f"fsub {source} {x}, {half}"))
        high = code.new(f"xor {_type('i8', lanes)} {high}, {_literal('i8', -(2**63), lanes)}")
        return _select(code, above, _type("i8", lanes), high, convert(x), lanes)
    found = convert(x)
    return found if wide[1:] == to[1:] else code.new(f"trunc {_type(wide, lanes)} {found} to {_type(to, lanes)}")


# -- values at a place -------------------------------------------------------------------------------------------------
class _Place:
    """Where an iteration finds the elements of pointers: for each lane the address.

    `address(k, lane)` gives it; `step(k)` the distance between lanes in bytes, None if it varies.
    """

    def __init__(self, address: Callable[[int, int], str], step: Callable[[int], int | None], lanes: int = 1):
        self.address, self.step, self.lanes = address, step, lanes


class _Body:
    """The steps of a loop, with what is known of them."""

    def __init__(self, loop: Loop):
        self.loop = loop
        self.dtypes = dtypes_of(loop)
        self.written = {step[1] for step in loop.steps if step[0] in ("store", "store_at", "add_at")}
        self.ndim = len(loop.shape)
        self.depths = self._depths()

    def _depths(self) -> list[int]:
        """For each step the innermost dimension of the loop on which it depends, -1 for none."""
        found: list[int] = []
        innermost = self.ndim - 1
        for name, *given in self.loop.steps:
            if name in _EFFECTS:
                found.append(innermost)
                continue
            depth = -1
            if name in ("load", "load_at"):
                strides = self.loop.pointers[given[0]].strides
                depth = max((d for d, stride in enumerate(strides) if stride), default=-1)
                if given[0] in self.written:
                    depth = innermost
                given = [pair[0] for pair in given[1]] if name == "load_at" else []
            elif name == "constant":
                given = []
            elif name == "cast":
                given = given[1:]
            found.append(max([depth, *(found[i] for i in given)]))
        return found

    def values(
        self, code: _Code, steps: Sequence[int], place: _Place, known: dict[int, str], fail: str = "fail"
    ) -> dict[int, str]:
        """Write steps, and return their values; `known` are values from outside, one for all lanes."""
        lanes, found, spread = place.lanes, {}, {}  # type: int, dict[int, str], dict[int, str]
        checked: dict[tuple[int, int], str] = {}

        def of(i: int) -> str:
            if i in found:
                return found[i]
            if lanes == 1:
                return known[i]
            if i not in spread:
                spread[i] = _spread(code, self.dtypes[i], known[i], lanes)
            return spread[i]

        for at in steps:
            name, *given = self.loop.steps[at]
            if name == "load":
                found[at] = _load(code, self.loop.pointers[given[0]].dtype, given[0], place)
            elif name == "constant":
                text = _constant(*given)
                found[at] = text if lanes == 1 else f"<{', '.join([f'{_TYPES[given[0]]} {text}'] * lanes)}>"
            elif name == "where":
                c, i, j = given
                found[at] = _select(code, of(c), _type(self.dtypes[i], lanes), of(i), of(j), lanes)
            elif name == "cast":
                found[at] = _cast(code, given[0], self.dtypes[given[1]], of(given[1]), lanes)
            elif name == "store":
                _store(code, self.loop.pointers[given[0]].dtype, given[0], of(given[1]), place)
            elif name in ("load_at", "store_at", "add_at"):
                k, pairs, *value = given
                offsets = self._offsets(code, pairs, of, lanes, checked, fail)
                found[at] = self._at(code, name, k, offsets, of(value[0]) if value else "", place)
            elif name != "reduce":
                found[at] = _apply(code, name, self.dtypes[given[0]], [of(i) for i in given], lanes)
        return found

    def _offsets(
        self, code: _Code, pairs: Any, of: Callable[[int], str], lanes: int, checked: dict[tuple[int, int], str],
        fail: str,
    ) -> list[str]:  # fmt: skip
        """The bytes from the address of a gather or scatter to its element, one for each lane."""
        totals = ["0"] * lanes
        for i, stride, n in pairs:
            if (i, n) not in checked:
                checked[i, n] = _checked(code, _cast(code, "i8", self.dtypes[i], of(i), lanes), n, lanes, fail)
            for lane in range(lanes):
                index = checked[i, n]
                if lanes > 1:
                    index = code.new(f"extractelement <{lanes} x i64> {index}, i32 {lane}")
                index = code.new(f"mul i64 {index}, {stride}")
                totals[lane] = index if totals[lane] == "0" else code.new(f"add i64 {totals[lane]}, {index}")
        return totals

    def _at(self, code: _Code, name: str, k: int, offsets: Sequence[str], value: str, place: _Place) -> str:
        dtype, lanes = self.loop.pointers[k].dtype, place.lanes
        of, found = _type(dtype, lanes), "poison"
        for lane, offset in enumerate(offsets):
            address = code.new(f"getelementptr i8, ptr {place.address(k, lane)}, i64 {offset}")
            if name != "load_at":
                one = value if lanes == 1 else code.new(f"extractelement {of} {value}, i32 {lane}")
                if name == "add_at":
                    one = _apply(code, "add", dtype, [_load_one(code, dtype, address), one], 1)
                _store_one(code, dtype, address, one)
                continue
            one = _load_one(code, dtype, address)
            found = one if lanes == 1 else code.new(f"insertelement {of} {found}, {_TYPES[dtype]} {one}, i32 {lane}")
        return found


def _checked(code: _Code, index: str, n: int, lanes: int, fail: str) -> str:
    """An index from 0 to n - 1, counted from the end if it is below zero; the code goes to `fail` if there is none."""
    of, bools = _type("i8", lanes), _type("b1", lanes)
    below = code.new(f"icmp slt {of} {index}, {_literal('i8', 0, lanes)}")
    from_end = code.new(f"add {of} {index}, {_literal('i8', n, lanes)}")
    index = _select(code, below, of, from_end, index, lanes)
    fits = code.new(f"icmp ult {of} {index}, {_literal('i8', n, lanes)}")
    if lanes > 1:
        bits = code.new(f"bitcast {bools} {fits} to i{lanes}")
        fits = code.new(f"icmp eq i{lanes} {bits}, -1")
    go_on = code.unique("in_range")
    code.add(f"br i1 {fits}, label %{go_on}, label %{fail}")
    code.label(go_on)
    return index


def _spread(code: _Code, dtype: str, x: str, lanes: int) -> str:
    of = _type(dtype, lanes)
    first = code.new(f"insertelement {of} poison, {_TYPES[dtype]} {x}, i32 0")
    return code.new(f"shufflevector {of} {first}, {of} poison, <{lanes} x i32> zeroinitializer")


def _load_one(code: _Code, dtype: str, address: str) -> str:
    if dtype == "b1":
        return code.new(f"icmp ne i8 {code.new(f'load i8, ptr {address}')}, 0")
    return code.new(f"load {_TYPES[dtype]}, ptr {address}, align {dtype[1:]}")


def _store_one(code: _Code, dtype: str, address: str, x: str) -> None:
    if dtype == "b1":
        code.add(f"store i8 {code.new(f'zext i1 {x} to i8')}, ptr {address}")
    else:
        code.add(f"store {_TYPES[dtype]} {x}, ptr {address}, align {dtype[1:]}")


def _load(code: _Code, dtype: str, k: int, place: _Place) -> str:
    lanes, size = place.lanes, int(dtype[1:])
    if lanes == 1:
        return _load_one(code, dtype, place.address(k, 0))
    if place.step(k) == 0:
        return _spread(code, dtype, _load_one(code, dtype, place.address(k, 0)), lanes)
    of = _type(dtype, lanes)
    if place.step(k) == size:
        if dtype == "b1":
            found = code.new(f"load <{lanes} x i8>, ptr {place.address(k, 0)}, align 1")
            return code.new(f"icmp ne <{lanes} x i8> {found}, zeroinitializer")
        return code.new(f"load {of}, ptr {place.address(k, 0)}, align {size}")
    found = "poison"
    for lane in range(lanes):
        one = _load_one(code, dtype, place.address(k, lane))
        found = code.new(f"insertelement {of} {found}, {_TYPES[dtype]} {one}, i32 {lane}")
    return found


def _store(code: _Code, dtype: str, k: int, x: str, place: _Place) -> None:
    lanes, size, of = place.lanes, int(dtype[1:]), _type(dtype, place.lanes)
    if lanes == 1:
        _store_one(code, dtype, place.address(k, 0), x)
    elif place.step(k) == size:
        if dtype == "b1":
            of, x = f"<{lanes} x i8>", code.new(f"zext {of} {x} to <{lanes} x i8>")
        code.add(f"store {of} {x}, ptr {place.address(k, 0)}, align {size}")
    else:
        for lane in range(lanes):
            _store_one(code, dtype, place.address(k, lane), code.new(f"extractelement {of} {x}, i32 {lane}"))


# -- nests of loops ----------------------------------------------------------------------------------------------------
class _Nest:
    """Loops over dimensions, opened and closed from the outside in; it knows the address of each pointer."""

    def __init__(self, code: _Code, body: _Body, prefix: str):
        self.code, self.body, self.prefix = code, body, prefix
        self.addresses = {k: f"%p{k}" for k in range(len(body.loop.pointers))}
        self._open: list[tuple[str, int]] = []

    def place(self) -> _Place:
        addresses = dict(self.addresses)
        return _Place(lambda k, lane: addresses[k], lambda k: 0)

    def open(self, dim: int) -> None:
        """Begin the loop over a dimension."""
        code, name, n = self.code, f"{self.prefix}{dim}", self.body.loop.shape[dim]
        code.add(f"br label %{name}")
        before = code.block
        code.label(name)
        i = f"%i_{name}"
        code.lines.append(f"  {i} = phi i64 [ 0, %{before} ], [ %n_{name}, %{name}_next ]")
        self._open.append((name, n))
        for k, pointer in enumerate(self.body.loop.pointers):
            if pointer.strides[dim]:
                offset = code.new(f"mul nsw i64 {i}, {pointer.strides[dim]}")
                self.addresses[k] = code.new(f"getelementptr i8, ptr {self.addresses[k]}, i64 {offset}")

    def close(self) -> None:
        """End the innermost loop that is open."""
        code, (name, n) = self.code, self._open.pop()
        code.add(f"br label %{name}_next")
        code.label(f"{name}_next")
        code.add(f"%n_{name} = add nuw nsw i64 %i_{name}, 1")
        done = code.new(f"icmp eq i64 %n_{name}, {n}")
        code.add(f"br i1 {done}, label %{name}_done, label %{name}")
        code.label(f"{name}_done")

    def close_all(self) -> None:
        while self._open:
            self.close()


def _wrapper(name: str, count: int) -> str:
    """The function in the form of NumPy's inner loops, which calls the body."""
    lines = [f"define i32 @{name}(ptr %context, ptr %pointers, ptr %dims, ptr %strides, ptr %auxiliary) {{"]
    for k in range(count):
        lines.append(f"  %a{k} = getelementptr ptr, ptr %pointers, i64 {k}")
        lines.append(f"  %p{k} = load ptr, ptr %a{k}")
    given = ", ".join(f"ptr %p{k}" for k in range(count))
    lines += [f"  %r = call i32 @{name}_body({given})", "  ret i32 %r", "}", ""]
    return "\n".join(lines)


def _body_text(name: str, code: _Code, count: int, can_fail: bool) -> str:
    given = ", ".join(f"ptr noalias %p{k}" for k in range(count))
    tail = ["fail:", "  ret i32 1"] if can_fail else []
    lines = [f"define internal i32 @{name}_body({given}) noinline nounwind {{", "entry:", *code.lines, "  ret i32 0"]
    return "\n".join([*lines, *tail, "}", ""])


def function_text(loop: Loop, name: str) -> str:
    """The text of a function that computes a loop.

    Raises
    ------
    Unsupported
        It cannot be compiled with NumPy's bits.

    Examples
    --------
    >>> x = Pointer("f4", (4,))
    >>> text = function_text(Loop((8,), (x, x), (("load", 0), ("square", 0), ("store", 1, 1))), "f")
    >>> "fmul float" in text, "fast" in text
    (True, False)
    """
    if any(n < 0 for n in loop.shape):
        raise Unsupported(f"shape {loop.shape}")
    dtypes_of(loop)  # refuses what is no loop
    if loop.steps and loop.steps[-1][0] == "reduce":
        return _reduction(loop, name)
    body, code = _Body(loop), _Code()
    if 0 not in loop.shape:
        nest, known = _Nest(code, body, "d"), {}  # type: _Nest, dict[int, str]
        for dim in range(-1, body.ndim):
            if dim >= 0:
                nest.open(dim)
            steps = [at for at, depth in enumerate(body.depths) if depth == dim]
            known |= body.values(code, steps, nest.place(), known)
        nest.close_all()
    return _body_text(name, code, len(loop.pointers), _can_fail(code)) + _wrapper(name, len(loop.pointers))


def _can_fail(code: _Code) -> bool:
    return any("label %fail" in line for line in code.lines)


# -- reductions --------------------------------------------------------------------------------------------------------
def _reduction(loop: Loop, name: str) -> str:
    """The text of a loop whose last step is a reduction."""
    is_place = loop.steps[-1][1] in ("argmax", "argmin")
    loop, row, is_inner, is_contiguous = _with_axis_inside(loop) if is_place else _ordered(loop)
    body, code = _Body(loop), _Code()
    _, op, k, i, axes = loop.steps[-1]
    dtype = loop.pointers[k].dtype
    if any(step[0] in ("store_at", "add_at") for step in loop.steps):
        raise Unsupported("a scatter beside a reduction")
    if k in {step[1] for step in loop.steps[:-1] if step[0] in ("load", "load_at", "store")}:
        raise Unsupported("a reduction into what the loop reads or writes")
    if op == "add" and _kind(dtype) == "f" and not _is_pairwise(dtype):
        raise Unsupported("add.reduce: this version of NumPy adds in another order")
    is_empty = any(loop.shape[a] == 0 for a in axes)
    if is_empty and op in ("maximum", "minimum", "argmax", "argmin"):
        raise Unsupported(f"{op}.reduce of nothing")
    outer = range(body.ndim - len(row)) if is_inner else range(body.ndim)
    # A result whose numbers come one after another begins with the identity.
    if is_empty or any(d in axes for d in outer):
        if 0 not in [n for d, n in enumerate(loop.shape) if d not in axes]:
            zeros = _Nest(code, body, "z")
            for dim in range(body.ndim):
                if dim not in axes:
                    zeros.open(dim)
            _store_one(code, dtype, zeros.addresses[k], _identity(op, dtype))
            zeros.close_all()
    helper = ""
    if 0 not in loop.shape:
        nest, known = _Nest(code, body, "d"), {}  # type: _Nest, dict[int, str]
        for dim in range(-1, len(outer)):
            if dim >= 0:
                nest.open(dim)
            steps = [at for at, depth in enumerate(body.depths) if depth == dim]
            if is_inner:
                steps = [at for at in steps if loop.steps[at][0] not in _EFFECTS]
            known |= body.values(code, steps, nest.place(), known)
        before = "" if is_place else _identity(op, dtype)
        if any(d in axes for d in outer):
            before = _load_one(code, dtype, nest.addresses[k])
        if is_place:
            value, helper = _place_call(code, body, nest, known, row, name)
        elif is_inner:
            is_first = [f"%i_d{d}" for d in outer if d in axes]
            value, helper = _row_call(code, body, nest, known, row, name, before, is_first, is_contiguous)
        else:
            value = _combined(code, op, dtype, before, known[i])
        _store_one(code, dtype, nest.addresses[k], value)
        nest.close_all()
    text = _body_text(name, code, len(loop.pointers), _can_fail(code))
    return helper + text + _wrapper(name, len(loop.pointers))


@cache
def _is_pairwise(dtype: str) -> bool:
    """Whether NumPy sums in the order of this file: rows in blocks, and outer axes row after row."""

    def summed(x: Any) -> Any:
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
        return summed(x[:half]) + summed(x[half:])

    x = np.random.default_rng(0).standard_normal((3, 1003)).astype(dtype)
    rows = [summed(row) for row in x]
    return bool(
        all(row[:n].sum() == summed(row[:n]) for row in x for n in (5, 12, 100, 128, 200, 333, 1003))
        and (x.sum(1) == rows).all()
        and (x.sum(0) == (x[0] + x[1]) + x[2]).all()
        and x[:, None].repeat(2, 1).sum((0, 2))[1] == (rows[0] + rows[1]) + rows[2]
    )


def _is_in_sequence(op: str, dtype: str) -> bool:
    """Whether numbers are combined one after another, through the rows of one result, too."""
    return op == "multiply" and _kind(dtype) == "f"


def _combined(code: _Code, op: str, dtype: str, x: str, y: str, lanes: int = 1) -> str:
    name = {"logical_and": "bitwise_and", "logical_or": "bitwise_or"}.get(op, op)
    return _apply(code, name, dtype, [x, y], lanes)


def _identity(op: str, dtype: str, lanes: int = 1) -> str:
    """The number that a reduction begins with. It is 0 for a sum, so that a sum of -0 is 0."""
    if op in ("maximum", "minimum"):
        if _kind(dtype) == "f":
            number: float = -math.inf
        elif _kind(dtype) == "b":
            number = 0
        else:
            number = np.iinfo(dtype).min
        if op == "minimum":
            number = math.inf if _kind(dtype) == "f" else 1 if _kind(dtype) == "b" else int(np.iinfo(dtype).max)
        return _literal(dtype, number, lanes)
    return _literal(dtype, {"add": 0, "multiply": 1, "logical_and": 1, "logical_or": 0}[op], lanes)


def _ordered(loop: Loop) -> tuple[Loop, list[int], bool, bool]:
    """A loop in the order in which NumPy's iterator goes, with the dimensions that it merges to the innermost one.

    Then whether these are reduced, and whether the array is contiguous there. Dimensions of one element are left out,
    and dimensions are merged where all pointers allow it.
    """
    _, op, k, i, axes, *given = loop.steps[-1]
    itemsize = int(loop.pointers[k].dtype[1:])
    layout = given[0] if given and given[0] is not None else contiguous(loop.shape, itemsize)
    order = [d for d in _order_of(layout) if loop.shape[d] != 1]
    # Merge from the inside: what NumPy merges has one flag, and strides that follow each other.
    groups: list[list[int]] = []
    for d in order:
        before = groups[-1][-1] if groups else -1
        follows = groups and (before in axes) == (d in axes) and layout[before] == layout[d] * loop.shape[d]
        if follows:
            groups[-1].append(d)
        else:
            groups.append([d])
    is_inner = bool(groups) and groups[-1][0] in axes
    is_buffered = is_inner and len(groups) > 1 and groups[-2][0] in axes and 0 not in loop.shape
    if is_buffered and loop.pointers[k].dtype in ("f4", "f8") and op != "multiply":
        raise Unsupported(f"{op}.reduce over two axes side by side that are not one: NumPy copies them to a buffer")
    shape = tuple(loop.shape[d] for d in order)
    pointers = tuple(Pointer(p.dtype, tuple(p.strides[d] for d in order)) for p in loop.pointers)
    flags = tuple(d in axes for d in order)
    inner = len(groups[-1]) if groups else 0
    shape, pointers, flags, inner = _merged(shape, pointers, flags, inner)
    last = ("reduce", op, k, i, tuple(d for d, flag in enumerate(flags) if flag))
    row = list(range(len(shape) - inner, len(shape)))
    is_contiguous = bool(order) and layout[order[-1]] == itemsize
    return Loop(shape, pointers, (*loop.steps[:-1], last)), row, is_inner, is_contiguous


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


def _with_axis_inside(loop: Loop) -> tuple[Loop, list[int], bool, bool]:
    """As `_ordered`, for a reduction whose result does not depend on an order: its axis is the innermost one."""
    _, op, k, i, (axis,), *_ = loop.steps[-1]
    order = [*(d for d in range(len(loop.shape)) if d != axis), axis]
    pointers = tuple(Pointer(p.dtype, tuple(p.strides[d] for d in order)) for p in loop.pointers)
    last = len(order) - 1
    steps = (*loop.steps[:-1], ("reduce", op, k, i, (last,)))
    return Loop(tuple(loop.shape[d] for d in order), pointers, steps), [last], True, False


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
    code: _Code, body: _Body, nest: _Nest, known: dict[int, str], row: list[int], name: str, before: str,
    is_first: Sequence[str], is_contiguous: bool | None,
) -> tuple[str, str]:  # fmt: skip
    """The value of a result after a row, and the text of the row's functions.

    It was `before`; `is_first` are numbers that are 0 in the first row of a result. The sign of an extreme that is zero
    matters if `is_contiguous` is not None.
    """
    loop = body.loop
    _, op, k, i, _ = loop.steps[-1]
    dtype, n = loop.pointers[k].dtype, math.prod(loop.shape[d] for d in row)
    of, follows = _TYPES[dtype], _is_in_sequence(op, dtype)
    steps = [at for at in range(len(loop.steps) - 1) if at not in known]
    inside = {j for at in steps for j in _operands(loop.steps[at])} | {i}
    scalars = sorted(at for at in known if at in inside)
    used = sorted({loop.steps[at][1] for at in steps if loop.steps[at][0] in ("load", "load_at", "store")})
    text = _row_text(body, steps, scalars, used, row, n, name)
    given = [f"ptr {nest.addresses[j]}" for j in used]
    given += [f"{_TYPES[body.dtypes[at]]} {known[at]}" for at in scalars]
    can_fail = "%failed" in text
    passed = [*given, *[f"{of} {before}"] * follows, *["ptr %failed"] * can_fail, "i64 0", f"i64 {n}"]
    value = code.new(f"call {of} @{name}_row({', '.join(passed)})")
    if can_fail:
        code.lines.insert(0, "  %failed = alloca i8\n  store i8 0, ptr %failed")
        failed = code.new(f"icmp ne i8 {code.new('load i8, ptr %failed')}, 0")
        go_on = code.unique("row_done")
        code.add(f"br i1 {failed}, label %fail, label %{go_on}")
        code.label(go_on)
    if follows:
        return value, text
    value = _combined(code, op, dtype, before, value)
    if op not in ("maximum", "minimum") or _kind(dtype) != "f" or is_contiguous is None:
        return value, text
    # The sign of a zero is that of the zero which NumPy compares last.
    text += _zero_text(body, steps, scalars, used, row, n, name, is_contiguous)
    first = "true"
    for index in is_first:
        here = code.new(f"icmp eq i64 {index}, 0")
        first = here if first == "true" else code.new(f"and i1 {first}, {here}")
    is_zero = code.new(f"fcmp oeq {of} {value}, {_literal(dtype, 0)}")
    zero, signed, block = code.unique("zero"), code.unique("signed"), code.block
    code.add(f"br i1 {is_zero}, label %{zero}, label %{signed}")
    code.label(zero)
    other = code.new(f"call {of} @{name}_zero({', '.join([*given, f'{of} {before}', f'i1 {first}'])})")
    code.add(f"br label %{signed}")
    code.label(signed)
    return code.new(f"phi {of} [ {value}, %{block} ], [ {other}, %{zero} ]"), text


def _place_call(
    code: _Code, body: _Body, nest: _Nest, known: dict[int, str], row: list[int], name: str
) -> tuple[str, str]:  # fmt: skip
    """The place of the first extreme of a row, or of its first NaN, and the text of the row's functions."""
    loop = body.loop
    _, op, k, i, axes = loop.steps[-1]
    dtype, n = body.dtypes[i], loop.shape[row[0]]
    extreme = "maximum" if op == "argmax" else "minimum"
    steps = [at for at in range(len(loop.steps) - 1) if at not in known]
    if _reads_what_it_writes(body, steps):
        raise Unsupported(f"{op} of values that are written in place")
    # The extreme first, in lanes; then the first element that is equal to it.
    pointers = (*loop.pointers, Pointer(dtype, loop.pointers[k].strides))
    of_extreme = _Body(loop._replace(
        pointers=pointers, steps=(*loop.steps[:-1], ("reduce", extreme, len(pointers) - 1, i, axes))
    ))  # fmt: skip
    value, text = _row_call(
        code, of_extreme, nest, known, row, name, _identity(extreme, dtype), [], None
    )  # fmt: skip
    inside = {j for at in steps for j in _operands(loop.steps[at])} | {i}
    scalars = sorted(at for at in known if at in inside)
    used = sorted({loop.steps[at][1] for at in steps if loop.steps[at][0] in ("load", "load_at")})
    made = _Row(body, [at for at in steps if loop.steps[at][0] != "store"], scalars, row)
    own = made.code
    of = _TYPES[dtype]
    own.add("br label %next")
    own.label("next")
    own.add("%j = phi i64 [ 0, %entry ], [ %j_next, %go_on ]")
    x = made.value("%j", 1)
    if _kind(dtype) == "f":
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
    given = [f"ptr noalias %p{j}" for j in used] + [f"{_TYPES[body.dtypes[at]]} %s{at}" for at in scalars]
    tail = ["fail:", "  ret i64 0"] if _can_fail(own) else []
    head = f"define internal i64 @{name}_place({', '.join([*given, f'{of} %extreme'])}) nounwind {{"
    passed = [f"ptr {nest.addresses[j]}" for j in used] + [f"{_TYPES[body.dtypes[at]]} {known[at]}" for at in scalars]
    place = code.new(f"call i64 @{name}_place({', '.join([*passed, f'{of} {value}'])})")
    return place, text + "\n".join([head, "entry:", *own.lines, *tail, "}", ""])


def _reads_what_it_writes(body: _Body, steps: Sequence[int]) -> bool:
    """Whether values could not be computed once more after a loop."""
    loads = [body.loop.steps[at][1] for at in steps if body.loop.steps[at][0] in ("load", "load_at")]
    return not body.written.isdisjoint(loads)


def _zero_text(
    body: _Body, steps: list[int], scalars: list[int], used: list[int], row: list[int], n: int, name: str,
    is_contiguous: bool,
) -> str:  # fmt: skip
    """The function that finds the zero of a row which NumPy compares last; `before` is compared first.

    NumPy begins with the first element of all, compares lanes, then the lanes with each other, and then the rest.
    """
    op, k = body.loop.steps[-1][1:3]
    dtype = body.loop.pointers[k].dtype
    of = _TYPES[dtype]
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
    before_counts = code.new(f"fcmp oeq {of} %before, {_literal(dtype, 0)}")
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
    is_zero = code.new(f"fcmp oeq {of} {value}, {_literal(dtype, 0)}")
    is_better = code.new(f"and i1 {is_zero}, {code.new(f'icmp sgt i64 {rank}, %best')}")
    code.add("br label %end")
    code.label("end")
    code.add(f"%best_next = select i1 {is_better}, i64 {rank}, i64 %best")
    code.add(f"%found_next = select i1 {is_better}, {of} {value}, {of} %found")
    code.add("%j_next = add i64 %j, 1")
    code.add("br label %next")
    code.label("return")
    code.add(f"ret {of} %found")
    given = [f"ptr noalias %p{j}" for j in used] + [f"{_TYPES[body.dtypes[at]]} %s{at}" for at in scalars]
    tail = ["fail:", f"  ret {of} %before"] if _can_fail(code) else []
    table = f"@{name}_ranks = internal constant [{lanes} x i64] [{', '.join(f'i64 {each}' for each in ranks)}]"
    head = (
        f"define internal {of} @{name}_zero({', '.join([*given, f'{of} %before', 'i1 %first'])}) noinline nounwind {{"
    )
    return "\n".join([table, head, "entry:", *code.lines, *tail, "}", ""])


@cache
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
    if name == "cast":
        return [given[1]]
    if name in ("store", "reduce"):
        return [given[-1]] if name == "store" else [given[2]]
    if name in ("load_at", "store_at", "add_at"):
        return [*(pair[0] for pair in given[1]), *given[2:]]
    return list(given)


class _Row:
    """The function that reduces a row: a block of lanes, the rest, and for long sums two halves."""

    def __init__(self, body: _Body, steps: list[int], scalars: list[int], row: list[int]):
        self.body, self.steps, self.row = body, steps, row
        self.code = _Code()
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
        code, memo = self.code, {}  # type: _Code, dict[tuple[int, int], str]
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

        place = _Place(address, lambda k: self.strides[k][-1] if is_straight else None, lanes)
        found = self.body.values(code, self.steps, place, self.known)
        if self.i in found:
            return found[self.i]
        x = self.known[self.i]
        return x if lanes == 1 else _spread(code, self.body.dtypes[self.i], x, lanes)


def _row_text(
    body: _Body, steps: list[int], scalars: list[int], used: list[int], row: list[int], n: int, name: str
) -> str:
    op, k = body.loop.steps[-1][1:3]
    dtype = body.loop.pointers[k].dtype
    of, is_float = _TYPES[dtype], _kind(dtype) == "f"
    made = _Row(body, steps, scalars, row)
    code = made.code
    is_pairwise = is_float and op == "add"
    lanes = 1 if _is_in_sequence(op, dtype) else _LANES
    if lanes > 1 and not is_pairwise and n >= 2 * _WIDE and (len(made.shape) == 1 or made.shape[-1] % _WIDE == 0):
        lanes = _WIDE
    start, identity = "%start", _identity(op, dtype)
    if is_pairwise:
        identity = _literal(dtype, -0.0)
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
        vector = _type(dtype, lanes)
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
    given = [f"ptr noalias %p{j}" for j in used] + [f"{_TYPES[body.dtypes[at]]} %s{at}" for at in scalars]
    given += [f"{of} %before"] * _is_in_sequence(op, dtype)
    can_fail = _can_fail(code)
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


def _horizontal(code: _Code, op: str, dtype: str, vector: str, lanes: int) -> str:
    """The lanes of a vector reduced to one value, neighbours first, as NumPy's pairwise summation does."""
    of = _type(dtype, lanes)
    if op == "add" and _kind(dtype) == "f":
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
        lanes, of = half, _type(dtype, half) if half > 1 else f"<1 x {_TYPES[dtype]}>"
        if half == 1:
            low, high = (code.new(f"extractelement {of} {each}, i32 0") for each in (low, high))
        vector = _combined(code, op, dtype, low, high, half)
    return vector
