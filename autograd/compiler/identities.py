"""Identities: values that must be the objects that they were, read and compared anew before each run.

A read is a tuple of a function and its arguments. `getattr`, `operator.getitem` and `operator.contains` give one value;
``(operator.call, f)`` gives all values of the iterable that ``f()`` returns, and their number counts, too. Machine code
makes the reads by CPython's own functions, in some 20 ns each; without it `map` does, in some 60.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import chain, groupby
from operator import call, contains, getitem, is_
from typing import Any

import numpy as np

from .build import compile_texts, is_available
from .machine import Definition, builtin, symbols_of

__all__ = ["END", "Identities", "Read", "values_of"]

Read = tuple[Any, ...]
END = (object(),)
"""Follows the values of a read that gives any number of them."""

_KINDS = {getattr: 0, getitem: 1, contains: 2, call: 3}
_WORDS = 5
_NO_ARGUMENTS = 0x4  # METH_NOARGS

_TEXT = """
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyBool_FromLong(i64)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare ptr @PyObject_GetItem(ptr, ptr)
declare i32 @PySequence_Contains(ptr, ptr)
declare ptr @PyObject_CallNoArgs(ptr)
declare ptr @PyObject_GetIter(ptr)
declare ptr @PyIter_Next(ptr)
declare ptr @PyErr_Occurred()
declare i32 @PyErr_ExceptionMatches(ptr)
declare void @PyErr_Clear()
declare void @Py_DecRef(ptr)

; The words of a read: its kind, an object, a key, what is read where there is no such attribute, and what it must be:
; an object; for `contains` 0 or 1; for a call the address of [count, objects].
define ptr @hold(ptr %self, ptr %unused) {
entry:
  %at = call i64 @PyLong_AsLongLong(ptr %self)
  %head = inttoptr i64 %at to ptr
  %count = load i64, ptr %head
  %error_at = getelementptr i64, ptr %head, i64 1
  %error = load ptr, ptr %error_at
  %reads = getelementptr i64, ptr %head, i64 2
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k_next, %same ]
  %read = phi ptr [ %reads, %entry ], [ %read_next, %same ]
  %k_next = add i64 %k, 1
  %read_next = getelementptr i64, ptr %read, i64 5
  %is_done = icmp eq i64 %k, %count
  br i1 %is_done, label %yes, label %load
load:
  %kind = load i64, ptr %read
  %object_at = getelementptr i64, ptr %read, i64 1
  %object = load ptr, ptr %object_at
  %key_at = getelementptr i64, ptr %read, i64 2
  %key = load ptr, ptr %key_at
  %absent_at = getelementptr i64, ptr %read, i64 3
  %absent = load ptr, ptr %absent_at
  %needed_at = getelementptr i64, ptr %read, i64 4
  %needed = load ptr, ptr %needed_at
  switch i64 %kind, label %all [ i64 0, label %attribute i64 1, label %item i64 2, label %member ]

attribute:
  %value = call ptr @PyObject_GetAttr(ptr %object, ptr %key)
  %is_gone = icmp eq ptr %value, null
  br i1 %is_gone, label %gone, label %compare
gone:
  %may_miss = icmp ne ptr %absent, null
  br i1 %may_miss, label %ask, label %raise
ask:
  %matches = call i32 @PyErr_ExceptionMatches(ptr %error)
  %is_missing = icmp ne i32 %matches, 0
  br i1 %is_missing, label %missing, label %raise
missing:
  call void @PyErr_Clear()
  %is_absent = icmp eq ptr %absent, %needed
  br i1 %is_absent, label %same, label %no
item:
  %part = call ptr @PyObject_GetItem(ptr %object, ptr %key)
  %no_part = icmp eq ptr %part, null
  br i1 %no_part, label %raise, label %compare
compare:
  %found = phi ptr [ %value, %attribute ], [ %part, %item ]
  call void @Py_DecRef(ptr %found)
  %is_same = icmp eq ptr %found, %needed
  br i1 %is_same, label %same, label %no
member:
  %has = call i32 @PySequence_Contains(ptr %object, ptr %key)
  %is_error = icmp slt i32 %has, 0
  br i1 %is_error, label %raise, label %membership
membership:
  %wide = sext i32 %has to i64
  %must = ptrtoint ptr %needed to i64
  %as_before = icmp eq i64 %wide, %must
  br i1 %as_before, label %same, label %no

all:
  %whole = call ptr @PyObject_CallNoArgs(ptr %object)
  %no_whole = icmp eq ptr %whole, null
  br i1 %no_whole, label %raise, label %iterate
iterate:
  %iterator = call ptr @PyObject_GetIter(ptr %whole)
  call void @Py_DecRef(ptr %whole)
  %no_iterator = icmp eq ptr %iterator, null
  br i1 %no_iterator, label %raise, label %begin
begin:
  %length = load i64, ptr %needed
  br label %step
step:
  %j = phi i64 [ 0, %begin ], [ %j_next, %same_one ]
  %one = call ptr @PyIter_Next(ptr %iterator)
  %j_next = add i64 %j, 1
  %is_end = icmp eq ptr %one, null
  br i1 %is_end, label %end, label %inside
inside:
  call void @Py_DecRef(ptr %one)
  %is_more = icmp sge i64 %j, %length
  br i1 %is_more, label %other, label %compare_one
compare_one:
  %one_at = getelementptr ptr, ptr %needed, i64 %j_next
  %one_needed = load ptr, ptr %one_at
  %is_same_one = icmp eq ptr %one, %one_needed
  br i1 %is_same_one, label %same_one, label %other
same_one:
  br label %step
end:
  call void @Py_DecRef(ptr %iterator)
  %failed = call ptr @PyErr_Occurred()
  %has_failed = icmp ne ptr %failed, null
  br i1 %has_failed, label %raise, label %ended
ended:
  %is_whole = icmp eq i64 %j, %length
  br i1 %is_whole, label %same, label %no
other:
  call void @Py_DecRef(ptr %iterator)
  br label %no

same:
  br label %next
raise:
  ret ptr null
no:
  %false = call ptr @PyBool_FromLong(i64 0)
  ret ptr %false
yes:
  %true = call ptr @PyBool_FromLong(i64 1)
  ret ptr %true
}
"""
_NEEDED = (
    "PyLong_AsLongLong", "PyBool_FromLong", "PyObject_GetAttr", "PyObject_GetItem", "PySequence_Contains",
    "PyObject_CallNoArgs", "PyObject_GetIter", "PyIter_Next", "PyErr_Occurred", "PyErr_ExceptionMatches",
    "PyErr_Clear", "Py_DecRef",
)  # fmt: skip


def values_of(reads: Sequence[Read]) -> Callable[[], Iterable[Any]]:
    """A function that makes reads, and returns their values in order, with `END` after those of each call.

    Examples
    --------
    >>> x, y = [1, 2], {"a": 3}
    >>> now = values_of([(call, x.__iter__), (getitem, y, "a"), (contains, y, "b")])
    >>> x.append(4)
    >>> list(now()) == [1, 2, 4, *END, 3, False]
    True
    """
    calls: list[Callable[[], Iterable[Any]]] = []
    for (get, _), group in groupby(reads, lambda read: (read[0], len(read))):
        if get is call:
            for _, read in group:
                calls += [read, END.__iter__]
        else:
            calls.append(partial(map, get, *zip(*(read[1:] for read in group), strict=True)))
    return lambda: chain.from_iterable(map(call, calls))


class Identities:
    """Reads, and the objects that they must give.

    Parameters
    ----------
    reads : sequence of Read
    kept : iterable
        The values, as `values_of` returns them.

    Attributes
    ----------
    hold : callable
        Without arguments: whether each read gives what is kept. It raises what a read raises.

    Examples
    --------
    >>> x = {"a": "one", "b": "two"}
    >>> reads = [(call, x.values), (getitem, x, "a")]
    >>> same = Identities(reads, values_of(reads)())
    >>> before = same.hold()
    >>> x["c"] = "three"
    >>> before, same.hold()
    (True, False)
    """

    def __init__(self, reads: Sequence[Read], kept: Iterable[Any]):
        self._reads, self._kept = reads, list(kept)
        self._words: Any = None
        if is_available():
            self._words = np.zeros(2 + _WORDS * len(reads), np.int64)
            self._words[:2] = len(reads), id(AttributeError)
            for k, (get, *of) in enumerate(reads):
                self._words[2 + _WORDS * k :][:4] = _KINDS[get], *map(id, of), *[0] * (3 - len(of))
            self.keep(self._kept)
            self.hold: Callable[[], bool] = builtin(_definition(), self._words.ctypes.data, self)
        else:
            now, own = values_of(reads), self._kept
            self.hold = lambda: all(map(is_, now(), own))

    def keep(self, kept: Iterable[Any]) -> None:
        """Compare with other values from now on."""
        self._kept[:] = kept
        if self._words is None:
            return
        values, self._lists = iter(self._kept), list[Any]()
        for k, (get, *_) in enumerate(self._reads):
            value = next(values)
            if get is call:
                part = [0]
                while value is not END[0]:
                    part.append(id(value))
                    value = next(values)
                part[0] = len(part) - 1
                self._lists.append(np.array(part, np.int64))
            self._words[2 + _WORDS * k + 4] = (
                self._lists[-1].ctypes.data if get is call
                else {True: 1, False: 0}.get(value, -1) if get is contains else id(value)
            )  # fmt: skip


@cache  # one entry: it is compiled once in a process
def _definition() -> Any:
    ((address,),) = compile_texts([_TEXT], ["hold"], symbols_of(*_NEEDED))
    return Definition(b"hold", address, _NO_ARGUMENTS, b"Whether each read gives what is kept.")
