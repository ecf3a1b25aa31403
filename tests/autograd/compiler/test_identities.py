"""Values that must be the objects that they were: each kind of read, and each way in which an array is another one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from operator import call, contains, getitem
from types import CellType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograd.compiler import identities
from autograd.compiler.identities import END, Identities, values_of
from autograd.compiler.machine import is_available

COMPILED = pytest.mark.skipif(not is_available(), reason="llvmlite is missing, or RINGTAPE_COMPILED=0")


class Plain:
    kind = "of the class"

    def __init__(self) -> None:
        self.a, self.b = [1], [2]


class Slots:
    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a, self.b = [1], [2]


Case = tuple[Any, list[tuple[Any, ...]], Callable[[], Any], Callable[[], Any]]


def cases() -> Iterator[tuple[str, Case]]:
    """By name: what is kept alive, reads, a change that they see, and what undoes it."""
    x, y = Plain(), Slots()
    z: dict[Any, Any] = {"a": [1], "b": [2]}
    w, s, c = [[1], [2], [3]], {1, 2}, CellType([1])
    own = x.a, y.b, z["b"], w[1], c.cell_contents
    yield "attribute", (x, [(getattr, x, "a")], lambda: setattr(x, "a", [1]), lambda: setattr(x, "a", own[0]))
    yield "slot", (y, [(getattr, y, "a"), (getattr, y, "b")], lambda: setattr(y, "b", [2]),
                   lambda: setattr(y, "b", own[1]))  # fmt: skip
    yield "class", (x, [(getattr, x, "kind")], lambda: setattr(x, "kind", "own"), lambda: delattr(x, "kind"))
    yield "absent", (x, [(getattr, x, "c", None)], lambda: setattr(x, "c", 3), lambda: delattr(x, "c"))
    yield "absent slot", (y, [(getattr, y, "c", END)], lambda: None, lambda: None)
    yield "item", (z, [(getitem, z, "b")], lambda: z.update(b=[2]), lambda: z.update(b=own[2]))
    yield "place", (w, [(getitem, w, 1)], lambda: w.__setitem__(1, [2]), lambda: w.__setitem__(1, own[3]))
    yield "member", (s, [(contains, s, 3)], lambda: s.add(3), lambda: s.remove(3))
    yield "no member", (s, [(contains, s, 2)], lambda: s.remove(2), lambda: s.add(2))
    yield "more values", (w, [(call, w.__iter__)], lambda: w.append([4]), lambda: w.pop())
    yield "fewer values", (w, [(call, w.__iter__)], lambda: w.append(w.pop()[:0]), lambda: w.__setitem__(2, kept[0]))
    yield "keys", (z, [(call, z.keys), (call, z.values)], lambda: z.setdefault("c", None), lambda: z.pop("c"))
    yield "cell", (c, [(getattr, c, "cell_contents")], lambda: setattr(c, "cell_contents", [1]),
                   lambda: setattr(c, "cell_contents", own[4]))  # fmt: skip
    kept = [w[2]]


SEEN = [name for name, _ in cases() if name != "absent slot"]


@pytest.mark.parametrize("compiled", ["0", pytest.param("1", marks=COMPILED)])
@pytest.mark.parametrize("name", SEEN)
def test_a_change_is_seen(name: str, compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGTAPE_COMPILED", compiled)
    _, reads, change, undo = dict(cases())[name]
    same = Identities(reads, values_of(reads)())
    assert same.hold()
    change()
    assert not same.hold()
    undo()
    assert same.hold()


@pytest.mark.parametrize("compiled", ["0", pytest.param("1", marks=COMPILED)])
def test_all_reads_together(compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGTAPE_COMPILED", compiled)
    made = dict(cases())
    reads = [read for _, some, _, _ in made.values() for read in some]
    same = Identities(reads, values_of(reads)())
    for _, _, change, undo in made.values():
        assert same.hold()
        change()
        is_seen = not same.hold()
        undo()
        assert is_seen or change is made["absent slot"][2]


@pytest.mark.parametrize("compiled", ["0", pytest.param("1", marks=COMPILED)])
def test_other_values_are_kept(compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGTAPE_COMPILED", compiled)
    x = Plain()
    reads = [(getattr, x, "a"), (call, x.b.__iter__), (contains, x.b, 5)]
    same = Identities(reads, values_of(reads)())
    x.a, x.b[0] = [5], 5
    assert not same.hold()
    same.keep(values_of(reads)())
    assert same.hold()


@pytest.mark.parametrize("compiled", ["0", pytest.param("1", marks=COMPILED)])
@pytest.mark.parametrize("error", [AttributeError, KeyError, IndexError, ValueError, ZeroDivisionError])
def test_what_a_read_raises_is_raised(error: type, compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGTAPE_COMPILED", compiled)
    x, z, w, c = Plain(), {"a": 1}, [1], CellType([1])

    def values() -> Iterator[int]:
        yield 1
        yield 1 // w[0]

    reads, change = {
        AttributeError: ((getattr, x, "a"), lambda: delattr(x, "a")),
        KeyError: ((getitem, z, "a"), z.clear),
        IndexError: ((getitem, w, 0), w.clear),
        ValueError: ((getattr, c, "cell_contents"), lambda: delattr(c, "cell_contents")),
        ZeroDivisionError: ((call, values), lambda: w.__setitem__(0, 0)),
    }[error]
    same = Identities([reads], values_of([reads])())
    assert same.hold()
    change()
    with pytest.raises(error):
        same.hold()


@COMPILED
def test_references_are_given_back() -> None:
    made = dict(cases())
    reads = [read for _, some, _, _ in made.values() for read in some]
    kept = list(values_of(reads)())
    same, x = Identities(reads, kept, [np.zeros(3)]), np.zeros(3)
    before = [sys.getrefcount(value) for value in (*kept, x, None)]
    for _ in range(1000):
        same.hold(x)
    after = [sys.getrefcount(value) for value in (*kept, x, None)]
    assert all(abs(a - b) < 500 for a, b in zip(before, after, strict=True))


LIKE = np.zeros((4, 6))[:, ::2]
ROW = np.zeros(24)
BANNED = np.zeros((4, 6))


class Other(np.ndarray[Any, Any]):
    pass


def unaligned() -> Any:
    return np.ndarray((4, 3), np.float64, np.zeros(300, np.uint8)[1:], 0, (48, 16))


ARRAYS: dict[str, tuple[Any, Any, bool]] = {
    "a view": (LIKE, np.zeros((4, 6))[:, ::2], True),
    "its own memory": (ROW, np.zeros(24), True),
    "another class": (ROW, Other(24), False),
    "no array": (ROW, 3.0, False),
    "a number": (ROW, np.float64(3), False),
    "another dtype": (LIKE, np.zeros((4, 6), np.int64)[:, ::2], False),
    "another order of bytes": (LIKE, np.zeros((4, 6), ">f8")[:, ::2], False),
    "another shape": (LIKE, np.zeros((5, 6))[:, ::2], False),
    "another last extent": (LIKE, np.zeros((4, 6))[:, :4:2], False),
    "more dimensions": (LIKE, np.zeros((4, 6))[:, ::2][None], False),
    "no dimensions": (ROW, np.zeros(()), False),
    "other strides": (LIKE, np.zeros((4, 3)), False),
    "not aligned": (LIKE, unaligned(), False),
    "banned": (BANNED, BANNED, False),
    "of a banned one": (LIKE, BANNED[:, ::2], False),
    "of bytes": (ROW, np.frombuffer(bytes(192)), False),
    "of what is of bytes": (ROW, np.frombuffer(bytes(192))[:], False),
}


def faults() -> list[str]:
    """The arrays that are taken for others."""
    found = []
    for name, (like, x, needed) in ARRAYS.items():
        first = Identities([], [], [like, ROW], [7, id(BANNED)]).hold(x, np.zeros(24))
        last = Identities([], [], [ROW, like], [id(BANNED), 7]).hold(np.zeros(24), x)
        if first is not needed or last is not needed:
            found.append(name)
    same, x = Identities([], [], [LIKE, LIKE]), np.zeros((4, 6))[:, ::2]
    return found + ["twice"] * same.hold(x, x) + ["how many"] * (same.hold(x) or same.hold() or same.hold(x, x, x))


@pytest.mark.parametrize("compiled", ["0", pytest.param("1", marks=COMPILED)])
def test_another_array_is_seen(compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGTAPE_COMPILED", compiled)
    assert faults() == []


PLANTED = {
    "class": ("icmp eq ptr %class, %ndarray", "icmp eq ptr %ndarray, %ndarray", "another class"),
    "dtype": ("icmp eq ptr %dtype, %dtype_needed", "icmp eq ptr %dtype, %dtype", "another dtype"),
    "dimensions": ("icmp eq i64 %ndim_wide, %ndim_needed", "icmp sge i64 %ndim_wide, 0", "no dimensions"),
    "extent": ("icmp eq i64 %extent_now, %size", "icmp eq i64 %size, %size", "another shape"),
    "stride": ("icmp eq i64 %stride_now, %step_needed", "icmp eq i64 %step_needed, %step_needed", "other strides"),
    "alignment": ("and i32 %flags, 256", "or i32 %flags, 256", "not aligned"),
    "owner": ("phi ptr [ %x, %owned ], [ %base, %view ]", "phi ptr [ %x, %owned ], [ %x, %view ]", "of a banned one"),
    "bytes": ("icmp eq ptr %base_class, %ndarray", "icmp eq ptr %ndarray, %ndarray", "of bytes"),
    "twice": ("icmp eq ptr %x, %earlier", "icmp eq ptr null, %earlier", "twice"),
}


@COMPILED
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong, needed = PLANTED[name]
    assert right in identities._TEXT
    monkeypatch.setattr(identities, "_TEXT", identities._TEXT.replace(right, wrong))
    identities._definition.cache_clear()
    try:
        assert needed in faults()
    finally:
        identities._definition.cache_clear()


@COMPILED
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 3)), max_size=12), st.data())
def test_machine_code_and_python_agree(places: list[tuple[int, int, int]], data: st.DataObject) -> None:
    of: list[Any] = [Plain(), Slots(), {"a": 1, "b": 2}, [1, 2]]
    reads: list[tuple[Any, ...]] = []
    for which, kind, k in places:
        x, name = of[which], "ab"[k % 2]
        if kind == 0 and which < 2:
            reads.append((getattr, x, name))
        elif kind == 1 and which < 2:
            reads.append((getattr, x, "c" if k > 1 else name, None))
        elif kind == 2 and which > 1:
            reads.append((getitem, x, name if which == 2 else k % 2))
        elif kind == 3 and which > 1:
            reads.append((contains, x, k))
        elif which > 1:
            reads.append((call, x.values if which == 2 else x.__iter__))
    kept = list(values_of(reads)())
    same = Identities(reads, kept)
    for which in data.draw(st.lists(st.integers(0, 3), max_size=4)):
        if which < 2:
            of[which].a = object()
        elif which == 2:
            of[2][f"{len(of[2])}"] = 3
        else:
            of[3].append(2)
    now = list(values_of(reads)())
    assert same.hold() is (len(now) == len(kept) and all(a is b for a, b in zip(now, kept, strict=True)))
