"""The text of the walker, which calls the functions of a table one after another, and its entry from Python.

A table is an array of int64 words. Each row has `HEAD` words, then its pointers:

    [words of this row, function, context, auxiliary, checks, dims address, strides address, outer, n, p0 ... p(n-1)]

With outer > 0 the function is called in a loop over that many outer dimensions; then follow their extents, the
outermost first, for each dimension the strides of the n pointers, twice n words for the pointers of the current call,
and one word for each dimension's counter. So a table serves one walk at a time, and several tables several threads.

Before the walk, pointers that are new in each call are set: a move is three words, the place of the pointer in the
table, the number of a base, and an offset from it.

The floating-point flags are cleared at the start and read at the end. `checks` is a sum: 1 if what the row raises
counts, else it is taken back; and 2 if the function may clear the flags, as many of NumPy's do: then they are read
before it, which takes 10 ns.

The entry is a built-in function of CPython: its `self` is the address of `[table, rows, moves, moved, bases, count of
bases, address of the type ndarray, place of the pointer to the data in an ndarray, holds]`, and its arguments are the
bases, arrays or addresses. A call takes 0.05 us; by ctypes it would take 0.7 us. Other threads run during the walk,
unless it holds the interpreter's lock.
"""

from __future__ import annotations

import platform

__all__ = ["DIVISION", "HEAD", "INVALID", "NEEDED", "OVERFLOW", "text"]

HEAD = 9
"""The words of a row before its pointers."""

_FLAGS = {"x86_64": (4, 8, 1), "aarch64": (2, 4, 1), "arm64": (2, 4, 1)}
DIVISION, OVERFLOW, INVALID = _FLAGS.get(platform.machine(), (0, 0, 0))
"""The bits of floating-point errors in the result of a walk, which are those of <fenv.h>."""

_WALK = """
declare i32 @feclearexcept(i32)
declare i32 @fetestexcept(i32)

define i64 @walk(ptr %table, i64 %rows, ptr %moves, i64 %moved, ptr %bases) {
entry:
  %found = alloca i32
  store i32 0, ptr %found
  %seen = call i32 @fetestexcept(i32 ERRORS)
  %is_seen = icmp ne i32 %seen, 0
  br i1 %is_seen, label %clear, label %set
clear:
  %cleared = call i32 @feclearexcept(i32 ERRORS)
  br label %set

set:                                                                  ; the pointers that are new in each call
  %m = phi i64 [ 0, %entry ], [ 0, %clear ], [ %m_next, %move ]
  %m_done = icmp eq i64 %m, %moved
  br i1 %m_done, label %next, label %move
move:
  %m_word = mul i64 %m, 3
  %m_at = getelementptr i64, ptr %moves, i64 %m_word
  %m_place = load i64, ptr %m_at
  %m_base = word i64 %m_at, 1
  %m_offset = word i64 %m_at, 2
  %b = word i64 %bases, %m_base
  %address = add i64 %b, %m_offset
  %target = getelementptr i64, ptr %table, i64 %m_place
  store i64 %address, ptr %target
  %m_next = add i64 %m, 1
  br label %set

next:
  %row = phi ptr [ %table, %set ], [ %row_next, %restored ]
  %k = phi i64 [ 0, %set ], [ %k_next, %restored ]
  %k_done = icmp eq i64 %k, %rows
  br i1 %k_done, label %end, label %read
read:
  %words = load i64, ptr %row
  %row_next = getelementptr i64, ptr %row, i64 %words
  %k_next = add i64 %k, 1
  %function = word ptr %row, 1
  %context = word ptr %row, 2
  %auxiliary = word ptr %row, 3
  %checks = word i64 %row, 4
  %dims = word ptr %row, 5
  %strides = word ptr %row, 6
  %outer = word i64 %row, 7
  %n = word i64 %row, 8
  %pointers = getelementptr i64, ptr %row, i64 9
  %check = and i64 %checks, 1
  %is_checked = icmp ne i64 %check, 0
  %is_quiet = icmp eq i64 %checks, 1
  br i1 %is_quiet, label %begin, label %note
note:                                                                 ; the row may clear the flags, or is not to count
  %noted = call i32 @fetestexcept(i32 ERRORS)
  %old = load i32, ptr %found
  %union = or i32 %old, %noted
  store i32 %union, ptr %found
  br label %begin
begin:
  %before = phi i32 [ ERRORS, %read ], [ %noted, %note ]
  %is_plain = icmp eq i64 %outer, 0
  br i1 %is_plain, label %once, label %repeat
once:
  %r = call i32 %function(ptr %context, ptr %pointers, ptr %dims, ptr %strides, ptr %auxiliary)
  %r_bad = icmp ne i32 %r, 0
  br i1 %r_bad, label %stop, label %after

repeat:                                                               ; set the current pointers, and the counters to 0
  %extents = getelementptr i64, ptr %pointers, i64 %n
  %steps = getelementptr i64, ptr %extents, i64 %outer
  %all = mul i64 %outer, %n
  %current = getelementptr i64, ptr %steps, i64 %all
  %given = getelementptr i64, ptr %current, i64 %n
  %counters = getelementptr i64, ptr %given, i64 %n
  br label %copy
copy:
  %c = phi i64 [ 0, %repeat ], [ %c_next, %copy_one ]
  %c_done = icmp eq i64 %c, %n
  br i1 %c_done, label %zero, label %copy_one
copy_one:
  %c_from = getelementptr i64, ptr %pointers, i64 %c
  %c_to = getelementptr i64, ptr %current, i64 %c
  %c_word = load i64, ptr %c_from
  store i64 %c_word, ptr %c_to
  %c_next = add i64 %c, 1
  br label %copy
zero:
  %z = phi i64 [ 0, %copy ], [ %z_next, %zero_one ]
  %z_done = icmp eq i64 %z, %outer
  br i1 %z_done, label %call, label %zero_one
zero_one:
  %z_to = getelementptr i64, ptr %counters, i64 %z
  store i64 0, ptr %z_to
  %z_next = add i64 %z, 1
  br label %zero
call:                                                                 ; some loops move the pointers that they are given
  br label %give
give:
  %g = phi i64 [ 0, %call ], [ %g_next, %give_one ]
  %g_done = icmp eq i64 %g, %n
  br i1 %g_done, label %given_all, label %give_one
give_one:
  %g_from = getelementptr i64, ptr %current, i64 %g
  %g_to = getelementptr i64, ptr %given, i64 %g
  %g_word = load i64, ptr %g_from
  store i64 %g_word, ptr %g_to
  %g_next = add i64 %g, 1
  br label %give
given_all:
  %q = call i32 %function(ptr %context, ptr %given, ptr %dims, ptr %strides, ptr %auxiliary)
  %q_bad = icmp ne i32 %q, 0
  br i1 %q_bad, label %stop, label %carry
carry:                                                                ; from the innermost of the outer dimensions on
  %d = phi i64 [ %outer, %given_all ], [ %d_less, %rewound ]
  %d_done = icmp eq i64 %d, 0
  br i1 %d_done, label %after, label %count
count:
  %d_less = sub i64 %d, 1
  %d_counter = getelementptr i64, ptr %counters, i64 %d_less
  %d_old = load i64, ptr %d_counter
  %d_new = add i64 %d_old, 1
  %d_extent = word i64 %extents, %d_less
  %d_row = mul i64 %d_less, %n
  %d_steps = getelementptr i64, ptr %steps, i64 %d_row
  %d_ends = icmp eq i64 %d_new, %d_extent
  %d_back = mul i64 %d_old, -1
  %d_times = select i1 %d_ends, i64 %d_back, i64 1
  %d_store = select i1 %d_ends, i64 0, i64 %d_new
  store i64 %d_store, ptr %d_counter
  br label %shift
shift:
  %s = phi i64 [ 0, %count ], [ %s_next, %shift_one ]
  %s_done = icmp eq i64 %s, %n
  br i1 %s_done, label %shifted, label %shift_one
shift_one:
  %s_step = word i64 %d_steps, %s
  %s_by = mul i64 %s_step, %d_times
  %s_at = getelementptr i64, ptr %current, i64 %s
  %s_old = load i64, ptr %s_at
  %s_new = add i64 %s_old, %s_by
  store i64 %s_new, ptr %s_at
  %s_next = add i64 %s, 1
  br label %shift
shifted:
  br i1 %d_ends, label %rewound, label %call
rewound:
  br label %carry

after:
  br i1 %is_checked, label %restored, label %look
look:
  %raised = call i32 @fetestexcept(i32 ERRORS)
  %kept = xor i32 %before, -1
  %undo = and i32 %raised, %kept
  %is_undone = icmp eq i32 %undo, 0
  br i1 %is_undone, label %restored, label %take_back
take_back:
  %taken = call i32 @feclearexcept(i32 %undo)
  br label %restored
restored:
  br label %next

stop:
  %failed = xor i64 %k, -1
  ret i64 %failed
end:
  %last = call i32 @fetestexcept(i32 ERRORS)
  %others = load i32, ptr %found
  %both = or i32 %last, %others
  %result = zext i32 %both to i64
  ret i64 %result
}
"""

_ENTRY = """
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyErr_Occurred()
declare i32 @PyErr_BadArgument()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)

define ptr @entry(ptr %self, ptr %args, i64 %count) {
entry:
  %at = call i64 @PyLong_AsLongLong(ptr %self)
  %head = inttoptr i64 %at to ptr
  %table = load ptr, ptr %head
  %rows = word i64 %head, 1
  %moves = word ptr %head, 2
  %moved = word i64 %head, 3
  %bases = word ptr %head, 4
  %needed = word i64 %head, 5
  %ndarray = word ptr %head, 6
  %place = word i64 %head, 7
  %type_place = sub i64 %place, 8
  %is_right = icmp eq i64 %count, %needed
  br i1 %is_right, label %next, label %wrong
wrong:
  %w = call i32 @PyErr_BadArgument()
  ret ptr null
next:
  %k = phi i64 [ 0, %entry ], [ %k_next, %set ]
  %done = icmp eq i64 %k, %count
  br i1 %done, label %run, label %read
read:
  %arg = word ptr %args, %k
  %type = byte ptr %arg, %type_place
  %is_array = icmp eq ptr %type, %ndarray
  br i1 %is_array, label %array, label %number
array:
  %data = byte i64 %arg, %place
  br label %set
number:
  %int = call i64 @PyLong_AsLongLong(ptr %arg)
  %is_minus = icmp eq i64 %int, -1
  br i1 %is_minus, label %ask, label %set
ask:
  %error = call ptr @PyErr_Occurred()
  %is_error = icmp ne ptr %error, null
  br i1 %is_error, label %raised, label %set
raised:
  ret ptr null
set:
  %base = phi i64 [ %data, %array ], [ %int, %number ], [ %int, %ask ]
  %to = getelementptr i64, ptr %bases, i64 %k
  store i64 %base, ptr %to
  %k_next = add i64 %k, 1
  br label %next
run:
  %holds = word i64 %head, 8
  %is_held = icmp ne i64 %holds, 0
  br i1 %is_held, label %held, label %free
held:
  %result1 = call i64 @walk(ptr %table, i64 %rows, ptr %moves, i64 %moved, ptr %bases)
  br label %return
free:
  %state = call ptr @PyEval_SaveThread()
  %result2 = call i64 @walk(ptr %table, i64 %rows, ptr %moves, i64 %moved, ptr %bases)
  call void @PyEval_RestoreThread(ptr %state)
  br label %return
return:
  %result = phi i64 [ %result1, %held ], [ %result2, %free ]
  %object = call ptr @PyLong_FromLongLong(i64 %result)
  ret ptr %object
}
"""


NEEDED = (
    "PyErr_BadArgument", "PyErr_Occurred", "PyEval_RestoreThread", "PyEval_SaveThread", "PyLong_AsLongLong",
    "PyLong_FromLongLong", "feclearexcept", "fetestexcept",
)  # fmt: skip
"""The functions of CPython and the C library that the text calls."""


def text() -> str:
    """The text of a module with the functions `walk` and `entry`.

    Examples
    --------
    >>> "ERRORS" in text()
    False
    """
    return (_WALK + _ENTRY).replace("ERRORS", str(DIVISION | OVERFLOW | INVALID))
