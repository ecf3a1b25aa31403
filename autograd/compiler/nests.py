"""Loops over dimensions, and the steps of a `Loop` inside them.

A step stands in the outermost loop in which its value is the same: `Body.depths`. `Place` says where an iteration finds
the elements of pointers; with several lanes it is several iterations at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .loops import Loop, dtypes_of
from .operations import (
    TYPES,
    Code,
    apply,
    bitcast,
    cast,
    constant,
    literal,
    metadata_of,
    select,
    type_of,
)

__all__ = ["EFFECTS", "Body", "Nest", "Place", "body_text", "has_exit", "load_one", "spread", "store_one", "wrapper"]

EFFECTS = ("store", "store_at", "add_at", "reduce")
"""The steps without a value."""


class Place:
    """Where an iteration finds the elements of pointers: for each lane the address.

    `address(k, lane)` gives it; `step(k)` the distance between lanes in bytes, None if it varies.
    """

    def __init__(self, address: Callable[[int, int], str], step: Callable[[int], int | None], lanes: int = 1):
        self.address, self.step, self.lanes = address, step, lanes

    def moved(self, code: Code, offset: str) -> Place:
        """The place that is some bytes farther."""

        def address(k: int, lane: int) -> str:
            return code.new(f"getelementptr i8, ptr {self.address(k, lane)}, i64 {offset}")

        return Place(address, self.step, self.lanes)


class Body:
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
            if name in EFFECTS:
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
            elif name in ("cast", "bitcast"):
                given = given[1:]
            found.append(max([depth, *(found[i] for i in given)]))
        return found

    def values(
        self, code: Code, steps: Sequence[int], place: Place, known: dict[int, str], fail: str = "fail"
    ) -> dict[int, str]:
        """Write steps, and return their values; `known` are values from outside, one for all lanes."""
        lanes, found, repeated = place.lanes, {}, {}  # type: int, dict[int, str], dict[int, str]
        checked: dict[tuple[int, int, int], str] = {}

        def of(i: int) -> str:
            if i in found:
                return found[i]
            if lanes == 1:
                return known[i]
            if i not in repeated:
                repeated[i] = spread(code, self.dtypes[i], known[i], lanes)
            return repeated[i]

        for at in steps:
            name, *given = self.loop.steps[at]
            if name == "load":
                found[at] = _load(code, self.loop.pointers[given[0]].dtype, given[0], place)
            elif name == "constant":
                text = constant(*given)
                found[at] = text if lanes == 1 else f"<{', '.join([f'{TYPES[given[0]]} {text}'] * lanes)}>"
            elif name == "where":
                c, i, j = given
                found[at] = select(code, of(c), type_of(self.dtypes[i], lanes), of(i), of(j), lanes)
            elif name in ("cast", "bitcast"):
                do = cast if name == "cast" else bitcast
                found[at] = do(code, given[0], self.dtypes[given[1]], of(given[1]), lanes)
            elif name == "store":
                _store(code, self.loop.pointers[given[0]].dtype, given[0], of(given[1]), place)
            elif name in ("load_at", "store_at", "add_at"):
                k, pairs, *value = given
                if name == "load_at" and not any(i in found for i, _, _ in pairs):  # one place for all lanes
                    (offset,) = self._offsets(code, pairs, known.__getitem__, 1, checked, fail)
                    found[at] = _load(code, self.loop.pointers[k].dtype, k, place.moved(code, offset))
                    continue
                offsets = self._offsets(code, pairs, of, lanes, checked, fail)
                found[at] = self._at(code, name, k, offsets, of(value[0]) if value else "", place)
            elif name != "reduce":
                found[at] = apply(code, name, self.dtypes[given[0]], [of(i) for i in given], lanes)
        return found

    def _offsets(
        self, code: Code, pairs: Any, of: Callable[[int], str], lanes: int,
        checked: dict[tuple[int, int, int], str], fail: str,
    ) -> list[str]:  # fmt: skip
        """The bytes from the address of a gather or scatter to its element, one for each lane."""
        totals = ["0"] * lanes
        for i, stride, n in pairs:
            if (i, n, lanes) not in checked:
                checked[i, n, lanes] = _checked(code, cast(code, "i8", self.dtypes[i], of(i), lanes), n, lanes, fail)
            for lane in range(lanes):
                index = checked[i, n, lanes]
                if lanes > 1:
                    index = code.new(f"extractelement <{lanes} x i64> {index}, i32 {lane}")
                index = code.new(f"mul i64 {index}, {stride}")
                totals[lane] = index if totals[lane] == "0" else code.new(f"add i64 {totals[lane]}, {index}")
        return totals

    def _at(self, code: Code, name: str, k: int, offsets: Sequence[str], value: str, place: Place) -> str:
        dtype, lanes = self.loop.pointers[k].dtype, place.lanes
        of, found = type_of(dtype, lanes), "poison"
        for lane, offset in enumerate(offsets):
            address = code.new(f"getelementptr i8, ptr {place.address(k, lane)}, i64 {offset}")
            if name != "load_at":
                one = value if lanes == 1 else code.new(f"extractelement {of} {value}, i32 {lane}")
                if name == "add_at":
                    one = apply(code, "add", dtype, [load_one(code, dtype, address), one], 1)
                store_one(code, dtype, address, one)
                continue
            one = load_one(code, dtype, address)
            found = one if lanes == 1 else code.new(f"insertelement {of} {found}, {TYPES[dtype]} {one}, i32 {lane}")
        return found


def _checked(code: Code, index: str, n: int, lanes: int, fail: str) -> str:
    """An index from 0 to n - 1, counted from the end if it is below zero; the code goes to `fail` if there is none."""
    of, bools = type_of("i8", lanes), type_of("b1", lanes)
    below = code.new(f"icmp slt {of} {index}, {literal('i8', 0, lanes)}")
    from_end = code.new(f"add {of} {index}, {literal('i8', n, lanes)}")
    index = select(code, below, of, from_end, index, lanes)
    fits = code.new(f"icmp ult {of} {index}, {literal('i8', n, lanes)}")
    if lanes > 1:
        bits = code.new(f"bitcast {bools} {fits} to i{lanes}")
        fits = code.new(f"icmp eq i{lanes} {bits}, -1")
    go_on = code.unique("in_range")
    code.add(f"br i1 {fits}, label %{go_on}, label %{fail}")
    code.label(go_on)
    return index


def spread(code: Code, dtype: str, x: str, lanes: int) -> str:
    of = type_of(dtype, lanes)
    first = code.new(f"insertelement {of} poison, {TYPES[dtype]} {x}, i32 0")
    return code.new(f"shufflevector {of} {first}, {of} poison, <{lanes} x i32> zeroinitializer")


def load_one(code: Code, dtype: str, address: str) -> str:
    if dtype == "b1":
        return code.new(f"icmp ne i8 {code.new(f'load i8, ptr {address}')}, 0")
    return code.new(f"load {TYPES[dtype]}, ptr {address}, align {dtype[1:]}")


def store_one(code: Code, dtype: str, address: str, x: str) -> None:
    if dtype == "b1":
        code.add(f"store i8 {code.new(f'zext i1 {x} to i8')}, ptr {address}")
    else:
        code.add(f"store {TYPES[dtype]} {x}, ptr {address}, align {dtype[1:]}")


def _load(code: Code, dtype: str, k: int, place: Place) -> str:
    lanes, size = place.lanes, int(dtype[1:])
    if lanes == 1:
        return load_one(code, dtype, place.address(k, 0))
    if place.step(k) == 0:
        return spread(code, dtype, load_one(code, dtype, place.address(k, 0)), lanes)
    of = type_of(dtype, lanes)
    if place.step(k) == size:
        if dtype == "b1":
            found = code.new(f"load <{lanes} x i8>, ptr {place.address(k, 0)}, align 1")
            return code.new(f"icmp ne <{lanes} x i8> {found}, zeroinitializer")
        return code.new(f"load {of}, ptr {place.address(k, 0)}, align {size}")
    found = "poison"
    for lane in range(lanes):
        one = load_one(code, dtype, place.address(k, lane))
        found = code.new(f"insertelement {of} {found}, {TYPES[dtype]} {one}, i32 {lane}")
    return found


def _store(code: Code, dtype: str, k: int, x: str, place: Place) -> None:
    lanes, size, of = place.lanes, int(dtype[1:]), type_of(dtype, place.lanes)
    if lanes == 1:
        store_one(code, dtype, place.address(k, 0), x)
    elif place.step(k) == size:
        if dtype == "b1":
            of, x = f"<{lanes} x i8>", code.new(f"zext {of} {x} to <{lanes} x i8>")
        code.add(f"store {of} {x}, ptr {place.address(k, 0)}, align {size}")
    else:
        for lane in range(lanes):
            store_one(code, dtype, place.address(k, lane), code.new(f"extractelement {of} {x}, i32 {lane}"))


# -- nests of loops ----------------------------------------------------------------------------------------------------
class Nest:
    """Loops over dimensions, opened and closed from the outside in; it knows the address of each pointer."""

    def __init__(self, code: Code, body: Body, prefix: str):
        self.code, self.body, self.prefix = code, body, prefix
        self.addresses = {k: f"%p{k}" for k in range(len(body.loop.pointers))}
        self._open: list[tuple[str, int, int]] = []  # the name, the extent, and the number of lines before
        self._is_innermost = False  # whether no loop has been closed since the last one was opened

    def place(self) -> Place:
        addresses = dict(self.addresses)
        return Place(lambda k, lane: addresses[k], lambda k: 0)

    def open(self, dim: int) -> None:
        """Begin the loop over a dimension."""
        code, name, n = self.code, f"{self.prefix}{dim}", self.body.loop.shape[dim]
        code.add(f"br label %{name}")
        before = code.block
        code.label(name)
        i = f"%i_{name}"
        code.lines.append(f"  {i} = phi i64 [ 0, %{before} ], [ %n_{name}, %{name}_next ]")
        self._open.append((name, n, len(code.lines)))
        self._is_innermost = True
        for k, pointer in enumerate(self.body.loop.pointers):
            if pointer.strides[dim]:
                offset = code.new(f"mul nsw i64 {i}, {pointer.strides[dim]}")
                self.addresses[k] = code.new(f"getelementptr i8, ptr {self.addresses[k]}, i64 {offset}")

    def close(self) -> None:
        """End the innermost loop that is open."""
        code, (name, n, start) = self.code, self._open.pop()
        code.add(f"br label %{name}_next")
        code.label(f"{name}_next")
        code.add(f"%n_{name} = add nuw nsw i64 %i_{name}, 1")
        done = code.new(f"icmp eq i64 %n_{name}, {n}")
        dim, pointers = int(name.removeprefix(self.prefix)), self.body.loop.pointers
        is_dense = all(p.strides[dim] in (0, int(p.dtype[1:])) for p in pointers)
        metadata = metadata_of(n, "\n".join(code.lines[start:]), is_dense) if self._is_innermost else ""
        code.add(f"br i1 {done}, label %{name}_done, label %{name}{metadata}")
        code.label(f"{name}_done")
        self._is_innermost = False

    def close_all(self) -> None:
        while self._open:
            self.close()


def wrapper(name: str, count: int) -> str:
    """The function in the form of NumPy's inner loops, which calls the body."""
    lines = [f"define i32 @{name}(ptr %context, ptr %pointers, ptr %dims, ptr %strides, ptr %auxiliary) nounwind {{"]
    for k in range(count):
        lines.append(f"  %a{k} = getelementptr ptr, ptr %pointers, i64 {k}")
        lines.append(f"  %p{k} = load ptr, ptr %a{k}")
    given = ", ".join(f"ptr %p{k}" for k in range(count))
    lines += [f"  %r = call i32 @{name}_body({given})", "  ret i32 %r", "}", ""]
    return "\n".join(lines)


def body_text(name: str, code: Code, count: int, can_fail: bool) -> str:
    given = ", ".join(f"ptr noalias %p{k}" for k in range(count))
    tail = ["fail:", "  ret i32 1"] if can_fail else []
    lines = [f"define internal i32 @{name}_body({given}) noinline nounwind {{", "entry:", *code.lines, "  ret i32 0"]
    return "\n".join([*lines, *tail, "}", ""])


def has_exit(code: Code) -> bool:
    return any("label %fail" in line for line in code.lines)
