"""Identities: values that must be the objects that they were, read and compared anew before each run.

A read is a tuple of a function and its arguments. `getattr`, `operator.getitem` and `operator.contains` give one value;
``(operator.call, f)`` gives all values of the iterable that ``f()`` returns, and their number counts, too. Machine code
makes the reads by CPython's own functions, in some 15 ns each; without it `map` does, in some 50.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import chain, groupby
from operator import call, contains, getitem, is_
from types import MemberDescriptorType
from typing import Any

import numpy as np

from .build import compile_texts, is_available
from .machine import FASTCALL, Definition, builtin, symbols_of

__all__ = ["END", "Identities", "Read", "values_of"]

Read = tuple[Any, ...]
END = (object(),)
"""Follows the values of a read that gives any number of them."""

_KINDS = {getattr: 0, getitem: 1, contains: 2, call: 3}
_SLOT = 4  # an attribute of a class with `__slots__`, read from its place in the object
_HEAD, _WORDS = 7, 5
_POINTER = ctypes.sizeof(ctypes.c_void_p)
_OBJECT = 16  # T_OBJECT_EX, the kind of such an attribute in a PyMemberDef

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

; The head: the count of reads, the class AttributeError, the count of arrays, the class ndarray, the address of the
; arrays' forms, the count of objects that no array may be, and their address. Then the words of each read: its kind, an
; object, a key, what is read where there is no such attribute, and what it must be: an object; for `contains` 0 or 1;
; for a call the address of [count, objects]. The words of a form: the dtype, the number of dimensions, the address of
; their extents and strides.
define ptr @hold(ptr %self, ptr %args, i64 %given) {
entry:
  %at = call i64 @PyLong_AsLongLong(ptr %self)
  %head = inttoptr i64 %at to ptr
  %count = load i64, ptr %head
  %error = word ptr %head, 1
  %arrays = word i64 %head, 2
  %ndarray = word ptr %head, 3
  %forms = word ptr %head, 4
  %others = word i64 %head, 5
  %banned = word ptr %head, 6
  %reads = getelementptr i64, ptr %head, i64 7
  %is_right = icmp eq i64 %given, %arrays
  br i1 %is_right, label %check, label %no

check:
  %a = phi i64 [ 0, %entry ], [ %a_next, %checked ]
  %form = phi ptr [ %forms, %entry ], [ %form_next, %checked ]
  %a_next = add i64 %a, 1
  %form_next = getelementptr i64, ptr %form, i64 3
  %are_checked = icmp eq i64 %a, %arrays
  br i1 %are_checked, label %next, label %array
array:                                                                ; its class, then the fields of PyArrayObject
  %x = word ptr %args, %a
  %class = byte ptr %x, 8
  %is_array = icmp eq ptr %class, %ndarray
  br i1 %is_array, label %typed, label %no
typed:
  %dtype = byte ptr %x, 56
  %dtype_needed = load ptr, ptr %form
  %is_dtype = icmp eq ptr %dtype, %dtype_needed
  br i1 %is_dtype, label %dimensional, label %no
dimensional:
  %ndim = byte i32 %x, 24
  %ndim_needed = word i64 %form, 1
  %ndim_wide = sext i32 %ndim to i64
  %is_ndim = icmp eq i64 %ndim_wide, %ndim_needed
  br i1 %is_ndim, label %sized, label %no
sized:
  %extents = byte ptr %x, 32
  %strides = byte ptr %x, 40
  %sizes = word ptr %form, 2
  %steps = getelementptr i64, ptr %sizes, i64 %ndim_wide
  br label %dimension
dimension:
  %d = phi i64 [ 0, %sized ], [ %d_next, %stepped ]
  %d_next = add i64 %d, 1
  %d_done = icmp eq i64 %d, %ndim_wide
  br i1 %d_done, label %placed, label %extent
extent:
  %extent_now = word i64 %extents, %d
  %size = word i64 %sizes, %d
  %is_size = icmp eq i64 %extent_now, %size
  br i1 %is_size, label %stride, label %no
stride:
  %stride_now = word i64 %strides, %d
  %step_needed = word i64 %steps, %d
  %is_step = icmp eq i64 %stride_now, %step_needed
  br i1 %is_step, label %stepped, label %no
stepped:
  br label %dimension
placed:                                                               ; it is aligned, and in the memory of no other
  %flags = byte i32 %x, 64
  %alignment = and i32 %flags, 256
  %is_aligned = icmp ne i32 %alignment, 0
  br i1 %is_aligned, label %owned, label %no
owned:
  %base = byte ptr %x, 48
  %owns = icmp eq ptr %base, null
  br i1 %owns, label %apart, label %viewed
viewed:
  %base_class = byte ptr %base, 8
  %is_of_array = icmp eq ptr %base_class, %ndarray
  br i1 %is_of_array, label %view, label %no
view:
  %first = byte ptr %base, 48
  %is_first = icmp eq ptr %first, null
  br i1 %is_first, label %apart, label %no
apart:
  %owner = phi ptr [ %x, %owned ], [ %base, %view ]
  br label %ban
ban:
  %o = phi i64 [ 0, %apart ], [ %o_next, %allowed ]
  %o_next = add i64 %o, 1
  %o_done = icmp eq i64 %o, %others
  br i1 %o_done, label %single, label %compare_other
compare_other:
  %banned_one = word ptr %banned, %o
  %is_banned = icmp eq ptr %owner, %banned_one
  br i1 %is_banned, label %no, label %allowed
allowed:
  br label %ban
single:                                                               ; no array is given twice
  %e = phi i64 [ 0, %ban ], [ %e_next, %distinct ]
  %e_next = add i64 %e, 1
  %e_done = icmp eq i64 %e, %a
  br i1 %e_done, label %checked, label %compare_earlier
compare_earlier:
  %earlier = word ptr %args, %e
  %is_again = icmp eq ptr %x, %earlier
  br i1 %is_again, label %no, label %distinct
distinct:
  br label %single
checked:
  br label %check

next:
  %k = phi i64 [ 0, %check ], [ %k_next, %same ]
  %read = phi ptr [ %reads, %check ], [ %read_next, %same ]
  %k_next = add i64 %k, 1
  %read_next = getelementptr i64, ptr %read, i64 5
  %is_done = icmp eq i64 %k, %count
  br i1 %is_done, label %yes, label %load
load:
  %kind = load i64, ptr %read
  %object = word ptr %read, 1
  %key = word ptr %read, 2
  %absent = word ptr %read, 3
  %needed = word ptr %read, 4
  switch i64 %kind, label %all [ i64 0, label %attribute i64 1, label %item i64 2, label %member i64 4, label %slot ]

slot:                                                                 ; the object is the place of an attribute
  %held = load ptr, ptr %object
  %is_held = icmp eq ptr %held, %needed
  br i1 %is_held, label %same, label %no
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
  %one_needed = word ptr %needed, %j_next
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
    arrays : sequence of ndarray
        They have the forms of those that are given at each call.
    banned : iterable of int
        The ids of arrays that these, or what they are views of, may not be.

    Attributes
    ----------
    hold : callable
        Whether each read gives what is kept; it raises what a read raises. Its arguments must be arrays like `arrays`:
        of the class ndarray, of the same dtype, shape and strides, aligned, none given twice, none banned. It is false
        for others, and for views of what is no array.

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

    def __init__(
        self, reads: Sequence[Read], kept: Iterable[Any], arrays: Sequence[Any] = (), banned: Iterable[int] = ()
    ):
        self._reads, self._kept = reads, list(kept)
        self._words: Any = None
        if not is_available() or arrays and not _has_fields():
            now, own, forms, known = values_of(reads), self._kept, [_form(x) for x in arrays], frozenset(banned)
            self.hold: Callable[..., bool] = lambda *given: (
                all(map(is_, now(), own)) and list(map(_form, given)) == forms and _are_apart(given, known)
            )
            return
        self._dtypes, self._banned = [x.dtype for x in arrays], np.array([*banned, 0], np.int64)
        self._sizes = [np.array([*x.shape, *x.strides, 0], np.int64) for x in arrays]
        each = zip(map(id, self._dtypes), (x.ndim for x in arrays), map(_address, self._sizes), strict=True)
        self._forms = np.array([*chain.from_iterable(each), 0], np.int64)
        self._words = np.zeros(_HEAD + _WORDS * len(reads), np.int64)
        self._words[:_HEAD] = (len(reads), id(AttributeError), len(arrays), id(np.ndarray), _address(self._forms),
                               len(self._banned) - 1, _address(self._banned))  # fmt: skip
        for k, (get, *of) in enumerate(reads):
            place = _slot(*of) if get is getattr and len(of) == 2 else 0
            words = (_SLOT, place) if place else (_KINDS[get], *map(id, of))
            self._words[_HEAD + _WORDS * k :][: len(words)] = words
        self.keep(self._kept)
        self.hold = builtin(_definition(), _address(self._words), self)

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
            self._words[_HEAD + _WORDS * k + 4] = (
                _address(self._lists[-1]) if get is call
                else {True: 1, False: 0}.get(value, -1) if get is contains else id(value)
            )  # fmt: skip


@cache  # one entry: it is compiled once in a process
def _definition() -> Any:
    ((address,),) = compile_texts([_TEXT], ["hold"], symbols_of(*_NEEDED))
    return Definition(b"hold", address, FASTCALL, b"Whether each read gives what is kept.")


class _Member(ctypes.Structure):
    """CPython's PyMemberDef."""

    _fields_ = (("name", ctypes.c_char_p), ("kind", ctypes.c_int), ("offset", ctypes.c_ssize_t))


def _slot(x: Any, name: str) -> int:
    """The address at which an object holds an attribute that its class has as a slot; 0 if it has none."""
    found = next((vars(each)[name] for each in type(x).__mro__ if name in vars(each)), None)
    if type(found) is not MemberDescriptorType:
        return 0
    at = ctypes.c_void_p.from_address(id(found) + type(found).__basicsize__ - _POINTER).value or 0
    member = _Member.from_address(at)
    if member.name != name.encode() or member.kind != _OBJECT:
        return 0
    place = id(x) + member.offset
    return place if ctypes.c_void_p.from_address(place).value == id(getattr(x, name, None)) else 0


def _form(x: Any) -> Any:
    """The form of an array, as `hold` compares it where there is no machine code."""
    is_array = x.__class__ is np.ndarray
    return is_array and (id(x.dtype), x.shape, x.strides if x.ndim else (), x.flags.aligned)


def _are_apart(given: Sequence[Any], banned: frozenset[int]) -> bool:
    """Whether arrays are different ones, and none is banned, or a view of a banned one, or of what is no array."""
    bases = [x.base for x in given]
    return (
        len(set(map(id, given))) == len(given) and banned.isdisjoint([*map(id, given), *map(id, bases)])
        and all(base is None or base.__class__ is np.ndarray and base.base is None for base in bases)
    )  # fmt: skip


def _address(x: Any) -> int:
    return int(x.ctypes.data)


@cache  # one entry: a fact of the process
def _has_fields() -> bool:
    """Whether an array has the fields that the text reads where NumPy's header has them (PyArrayObject_fields)."""
    x = np.zeros((3, 5), np.float32)[::2, 1:4]
    words = (ctypes.c_int64 * 9).from_address(id(x))
    if list(words[1:3]) != [id(np.ndarray), _address(x)] or list(words[6:8]) != [id(x.base), id(x.dtype)]:
        return False
    sizes = [list((ctypes.c_int64 * 2).from_address(address)) for address in words[4:6]]
    return words[3] & 0xFFFFFFFF == 2 and sizes == [[2, 3], [40, 4]] and bool(words[8] & 0x100) is x.flags.aligned
