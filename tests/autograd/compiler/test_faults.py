"""Faults that are planted in tracing, planning and running: each is found, by the proof, in flight, or by a test."""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from operator import getitem
from typing import Any

import numpy as np
import pytest

from autograd.compiler import plan, program, trace
from autograd.compiler.machine import is_available
from autograd.compiler.memory import Departed, Memory
from autograd.compiler.nodes import Constant, Operand
from autograd.compiler.numbers import Number
from autograd.compiler.plan import Plan
from autograd.compiler.program import Program
from autograd.compiler.trace import Trace, Traced
from autograd.transforms import tracing
from autograd.transforms.tracing import TracedRun, TracedStep

from .programs import RandomProgram, TracedProgram, fault_of
from .steps import STEPS, ways
from .test_trace import Traces

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.skipif(not is_available(), reason="the faults are planted in machine code, too")

FAULTS: dict[str, tuple[Callable[[Patch], None], str]] = {}


def fault(found: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Note a fault, and by what it is found: "programs", or a step and how the fault shows there."""

    def note(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        FAULTS[plant.__name__.strip("_").replace("_", " ")] = plant, found
        return plant

    return note


def wrapped(patch: Patch, owner: Any, name: str, make: Callable[..., Any]) -> None:
    """Replace a function by `make(the function)`."""
    patch.setattr(owner, name, make(getattr(owner, name)))


# -- plan --------------------------------------------------------------------------------------------------------------
@fault("moments: another value")
def _operands_never_meet(patch: Patch) -> None:
    patch.setattr(Operand, "meets", lambda x, other: False)
    patch.setattr(plan._Access, "meets", lambda known, low, high: False)


@fault("momentum: another value")
def _operands_meet_only_where_they_begin(patch: Patch) -> None:
    patch.setattr(Operand, "meets", lambda x, other: x.buffer is other.buffer and x.offset == other.offset)
    patch.setattr(plan._Access, "meets", lambda known, low, high: low == known.start)


@fault("reduced: another value")
def _operands_in_one_buffer_are_the_same(patch: Patch) -> None:
    patch.setattr(Operand, "is_at", lambda x, other: x.buffer is other.buffer)


@fault("moments: another value")
def _a_node_joins_any_group(patch: Patch) -> None:
    patch.setattr(Plan, "_least", lambda self, reads, writes: 0)


@fault("momentum: another value")
def _writes_after_reads_are_no_dependence(patch: Patch) -> None:
    wrapped(patch, Plan, "_least", lambda own: lambda self, reads, writes: own(self, reads, ()))


@fault("machine code: 51")
def _a_gather_reads_at_its_own_place(patch: Patch) -> None:
    patch.setattr(plan, "_anywhere", lambda x: x)


@fault("momentum: another value")
def _a_write_to_state_is_dropped(patch: Patch) -> None:
    def used(own: Any) -> Any:
        def make(self: Any, nodes: Any) -> Any:
            found = own(self, nodes)
            last = max((i for i, n in enumerate(found) if any(o.buffer.kind == "state" for o in n.outs)), default=-1)
            return [n for i, n in enumerate(found) if i != last]

        return make

    wrapped(patch, Plan, "_used", used)


@fault("machine code: 1")
def _a_value_that_is_kept_is_dropped(patch: Patch) -> None:
    wrapped(
        patch,
        Plan,
        "_last_uses",
        lambda own: (
            lambda self: (
                {key: at for key, at in own(self).items() if at < len(self.groups)}
                | {key: len(self.groups) - 1 for key, at in own(self).items() if at == len(self.groups)}
            )
        ),
    )


@fault("momentum: another value")
def _memory_is_used_anew_too_early(patch: Patch) -> None:
    wrapped(patch, Plan, "_arena", lambda own: lambda self, last: own(self, {key: at - 1 for key, at in last.items()}))


@fault("moments: another value")
def _all_values_have_one_place(patch: Patch) -> None:
    def arena(own: Any) -> Any:
        def make(self: Any, last: Any) -> Any:
            size = own(self, last)
            for group in self.groups:
                for x in group.operands:
                    if x.__class__ is Operand and x.buffer.start > 0:
                        x.buffer.start = 0
            return size

        return make

    wrapped(patch, Plan, "_arena", arena)


@fault("moments: another value")
def _values_that_others_use_are_not_stored(patch: Patch) -> None:
    wrapped(
        patch,
        plan._Writer,
        "loop",
        lambda own: (
            lambda self, private, replaced: own(
                self, private | {id(x.buffer) for x in list(self._written.values())[-1:]}, replaced
            )
        ),
    )


@fault("momentum: another value")
def _a_value_takes_the_place_of_one_that_is_still_read(patch: Patch) -> None:
    def replaced(own: Any) -> Any:
        return lambda self, at, writer, private, last: own(self, at, writer, private, dict.fromkeys(last, at))

    wrapped(patch, plan.Plan, "_replaced", replaced)


@fault("moments: another value")
def _dimensions_that_are_not_one_are_merged(patch: Patch) -> None:
    def merged(own: Any) -> Any:
        def make(*given: Any) -> Any:
            shape, strides, axes, layout = own(*given)
            if len(shape) > 1 and not axes:
                n, m = shape[-2:]
                shape, strides = (*shape[:-2], n * m), [(*s[:-2], s[-1]) for s in strides]
            return shape, strides, axes, layout

        return make

    wrapped(patch, plan, "_merged", merged)


@fault("moments: another value")
def _the_last_element_is_left_out(patch: Patch) -> None:
    def merged(own: Any) -> Any:
        def make(*args: Any) -> Any:
            shape, strides, axes, layout = own(*args)
            return (*shape[:-1], shape[-1] - (shape[-1] > 1)) if shape else shape, strides, axes, layout

        return make

    wrapped(patch, plan, "_merged", merged)


@fault("momentum: another value")
def _strides_are_in_another_order(patch: Patch) -> None:
    wrapped(
        patch,
        plan,
        "_merged",
        lambda own: (
            lambda *args: (
                lambda shape, strides, axes, layout: (shape, [*strides[:-1], strides[-1][::-1]], axes, layout)
            )(*own(*args))
        ),
    )


@fault("momentum: another value")
def _a_repeated_dimension_has_a_stride(patch: Patch) -> None:
    def along(own: Any) -> Any:
        def make(x: Operand, shape: Any) -> Operand:
            found = own(x, shape)
            if x.shape == shape or not x.strides:
                return found
            return found._replace(
                strides=tuple(s or x.dtype.itemsize * (n > 1) for s, n in zip(found.strides, shape, strict=True))
            )

        return make

    wrapped(patch, plan, "along", along)


@fault("reduced: another value")
def _zeros_have_no_sign(patch: Patch) -> None:
    wrapped(
        patch,
        plan._Writer,
        "value",
        lambda own: (
            lambda self, x, dtype: own(
                self, Constant(x.value + 0, x.dtype) if x.__class__ is Constant and x.dtype.kind == "f" else x, dtype
            )
        ),
    )


@fault("momentum: another value")
def _a_constant_is_rounded(patch: Patch) -> None:
    wrapped(
        patch,
        plan._Writer,
        "value",
        lambda own: (
            lambda self, x, dtype: own(
                self,
                Constant(np.float16(x.value), x.dtype) if x.__class__ is Constant and x.dtype.kind == "f" else x,
                dtype,
            )
        ),
    )


@fault("momentum: another value")
def _a_reduction_adds_in_another_order(patch: Patch) -> None:
    def add(own: Any) -> Any:
        def make(self: Any, node: Any) -> None:
            own(self, node)
            if self._last and self._last[-1][0] == "reduce":
                self._last[-1] = (*self._last[-1][:5], self._last[-1][5][::-1])

        return make

    wrapped(patch, plan._Writer, "add", add)


@fault("momentum: another value")
def _a_reduction_is_along_another_dimension(patch: Patch) -> None:
    wrapped(
        patch,
        Trace,
        "add",
        lambda own: (
            lambda self, kind, *args, **words: own(
                self, kind, *args, **(words | {"axes": words["axes"][:1]} if kind == "reduce" else words)
            )
        ),
    )


@fault("momentum: a decision on data is not the recorded one")
def _an_index_that_is_out_of_range_is_in_range(patch: Patch) -> None:
    wrapped(
        patch,
        plan._Writer,
        "pairs",
        lambda own: (
            lambda self, node: tuple((value, step, n - 1 if n > 2 else n) for value, step, n in own(self, node))
        ),
    )


@fault("momentum: another value")
def _repeated_indices_do_not_add_up(patch: Patch) -> None:
    wrapped(
        patch,
        Trace,
        "add",
        lambda own: (
            lambda self, kind, function, *args, **words: own(
                self, *("scatter", "scatter") if kind == "add_at" else (kind, function), *args, **words
            )
        ),
    )


@fault("sums: a value that has no place in memory")
def _python_reads_nothing(patch: Patch) -> None:
    wrapped(patch, plan, "reads_of", lambda own: lambda node: node.reads)


# -- program -----------------------------------------------------------------------------------------------------------
@fault("momentum: another value where arguments and state have others")
def _the_pointer_to_an_argument_is_stale(patch: Patch) -> None:
    def pointer(own: Any) -> Any:
        def make(self: Any, x: Any) -> Any:
            if x.buffer.kind == "argument":
                return x.buffer.base.ctypes.data + x.offset
            return own(self, x)

        return make

    wrapped(patch, Program, "_pointer", pointer)


@fault("moments: another value")
def _offsets_in_arguments_are_left_out(patch: Patch) -> None:
    wrapped(
        patch,
        Program,
        "_pointer",
        lambda own: lambda self, x: own(self, x._replace(offset=0) if x.buffer.kind == "argument" else x),
    )


@fault("momentum: another value")
def _gradients_have_one_place(patch: Patch) -> None:
    patch.setattr(Memory, "offset", lambda self, buffer: 0)


@fault("momentum: kept")
def _gradients_are_the_same_memory_in_each_run(patch: Patch) -> None:
    known: dict[int, Any] = {}

    def lines(own: Any) -> Any:
        def make(self: Any, name: Any, arguments: Any) -> Any:
            memory = known.setdefault(id(self), np.empty((), self.memory.kind))
            return [f"gradients = {name(memory)}" if line.startswith("gradients =") else line
                    for line in own(self, name, arguments)]  # fmt: skip

        return make

    wrapped(patch, Program, "frame_lines", lines)


def _copied(patch: Patch, kind: str) -> None:
    def whole(own: Any) -> Any:
        def make(self: Any, buffer: Any) -> Any:
            is_new = id(buffer) not in self._whole
            found = own(self, buffer)
            if is_new and buffer.kind == kind:
                self._whole[id(buffer)] = found = found[0].copy(), found[1]
            return found

        return make

    wrapped(patch, Memory, "whole", whole)


@fault("momentum: another value where arguments and state have others")
def _a_constant_is_a_copy(patch: Patch) -> None:
    _copied(patch, "constant")


@fault("momentum: another value")
def _state_is_a_copy(patch: Patch) -> None:
    _copied(patch, "state")


@fault("momentum: flight")
def _numbers_are_those_of_the_first_run(patch: Patch) -> None:
    def once(own: Any) -> Any:
        def write(self: Any, name: Any) -> list[str]:
            done = self.__dict__.setdefault("done", [])
            lines = ["    " + line for line in own(self, name)]
            return [f"if not {name(done)}:", *lines, f"    {name(done)}.append(1)"]

        return write

    wrapped(patch, program._Numbers, "_write", once)


@fault("decision: is another one")
def _a_guard_is_left_out(patch: Patch) -> None:
    wrapped(
        patch,
        Trace,
        "add",
        lambda own: lambda self, kind, *args, **words: None if kind == "guard" else own(self, kind, *args, **words),
    )


@fault("momentum: another value")
def _the_last_two_steps_change_places(patch: Patch) -> None:
    def build(own: Any) -> Any:
        def make(self: Any, kept: Any) -> None:
            own(self, kept)
            self.steps[-2:] = self.steps[-2:][::-1]

        return make

    wrapped(patch, Program, "_build", build)


@fault("momentum: another value")
def _a_step_is_left_out(patch: Patch) -> None:
    def build(own: Any) -> Any:
        def make(self: Any, kept: Any) -> None:
            own(self, kept)
            del self.steps[len(self.steps) // 2]

        return make

    wrapped(patch, Program, "_build", build)


@fault("moments: another value")
def _a_product_is_of_the_transposed(patch: Patch) -> None:
    def add(own: Any) -> Any:
        def make(self: Any, table: Any, group: Any) -> None:
            if group.kind == "product":
                node = group.nodes[0]
                a, b, c = node.words["strides"]
                if node.ins[0].shape == node.ins[0].shape[::-1]:
                    node.words["strides"] = a[::-1], b, c
            own(self, table, group)

        return make

    wrapped(patch, Program, "_add", add)


# -- trace -------------------------------------------------------------------------------------------------------------
@fault("moments: another value")
def _a_view_begins_where_its_array_does(patch: Patch) -> None:
    for module in (trace, tracing):
        wrapped(patch, module, "operand_of", lambda own: lambda x, buffer: own(x, buffer)._replace(offset=0))


@fault("calls: 2")
def _a_copy_is_left_out(patch: Patch) -> None:
    wrapped(
        patch,
        Trace,
        "copy",
        lambda own: lambda self, out, source: None if out.buffer.kind == "gradient" else own(self, out, source),
    )


@fault("calls: 0")
def _a_cast_is_left_out(patch: Patch) -> None:
    patch.setattr(Traced, "astype", lambda self, dtype, *args, **words: self)


@fault("reduced: another value")
def _a_choice_is_the_other_one(patch: Patch) -> None:
    wrapped(
        patch,
        Trace,
        "add",
        lambda own: (
            lambda self, kind, function, outs, ins, *args, **words: own(
                self, kind, function, outs, (ins[0], ins[2], ins[1]) if function is np.where else ins, *args, **words
            )
        ),
    )


@fault("momentum: another value")
def _operands_are_in_another_order(patch: Patch) -> None:
    wrapped(
        patch,
        Trace,
        "add",
        lambda own: (
            lambda self, kind, function, outs, ins, *args, **words: own(
                self, kind, function, outs, ins[::-1] if function is np.subtract else ins, *args, **words
            )
        ),
    )


@fault("moments: another value")
def _a_view_of_an_array_is_a_copy(patch: Patch) -> None:
    def item(own: Any) -> Any:
        def make(self: Any, key: Any) -> Any:
            found = own(self, key)
            return found.copy() if found._buffer is self._buffer else found

        return make

    wrapped(patch, Traced, "__getitem__", item)


@fault("momentum: another value")
def _a_mean_divides_by_one_less(patch: Patch) -> None:
    wrapped(
        patch,
        Trace,
        "add",
        lambda own: (
            lambda self, kind, function, outs, ins, *args, **words: own(
                self,
                kind,
                function,
                outs,
                (ins[0], Constant(ins[1].value - 1, ins[1].dtype))
                if function is np.divide and ins[1].__class__ is Constant and ins[1].value > 1
                else ins,
                *args,
                **words,
            )
        ),
    )


# -- tracing -----------------------------------------------------------------------------------------------------------
@fault("momentum: another value where arguments and state have others")
def _arguments_are_constants(patch: Patch) -> None:
    wrapped(
        patch,
        Trace,
        "new",
        lambda own: (
            lambda self, value, kind="temporary", array=None, key=None: (
                self.constant(value) if kind == "argument" else own(self, value, kind, array, key)
            )
        ),
    )


@fault("momentum: flight")
def _a_rate_is_the_recorded_one(patch: Patch) -> None:
    wrapped(
        patch, Number, "of", lambda own: lambda value, source: value if isinstance(value, float) else own(value, source)
    )


@fault("moments: flight")
def _a_count_is_the_recorded_one(patch: Patch) -> None:
    wrapped(
        patch,
        Number,
        "of",
        lambda own: lambda value, source: own(value, (lambda: value) if isinstance(value, int) else source),
    )


def _unread(patch: Patch, leaves_out: Callable[[Any], bool]) -> None:
    def with_exact(own: Any) -> Any:
        def make(self: Any, exact: Any) -> Any:
            keeps = [not leaves_out(read) for read in self.reads]
            self.reads, self._kept = (list(compress(x, keeps)) for x in (self.reads, self._kept))
            return own(self, exact)

        return make

    wrapped(patch, TracedRun, "with_exact", with_exact)


@fault("hyperparameters: flight")
def _hyperparameters_are_not_guarded(patch: Patch) -> None:
    _unread(patch, lambda read: read[0] is getattr and read[2] not in ("array", "uses"))


@fault("leaves: flight")
def _arrays_of_leaves_are_not_guarded(patch: Patch) -> None:
    _unread(patch, lambda read: read[0] is getattr and read[2] == "array")


@fault("velocities: flight")
def _arrays_of_state_are_not_guarded(patch: Patch) -> None:
    _unread(patch, lambda read: read[0] is getitem)


@fault("momentum: another value")
def _gradients_are_not_given(patch: Patch) -> None:
    patch.setattr(TracedStep, "_flush", lambda self: None)


@fault("momentum: another value")
def _gradients_are_given_in_another_order(patch: Patch) -> None:
    def giver(own: Any) -> Any:
        def make(memory: Any, gradients: Any, cleared: Any) -> Any:
            order = sorted(range(len(gradients)), key=lambda i: gradients[i][1].shape)
            other = [(gradients[i][0], gradients[order[k - 1]][1]) for k, i in enumerate(order)]
            return own(memory, other, cleared)

        return make

    wrapped(patch, tracing, "_giver", giver)


@fault("momentum: another value")
def _a_second_gradient_is_not_added(patch: Patch) -> None:
    patch.setattr(Traced, "__iadd__", lambda self, other: self, raising=False)


@fault("momentum: kept")
def _results_are_not_copied(patch: Patch) -> None:
    def result(own: Any) -> Any:
        return lambda *given: [line.replace(".copy()", "") for line in own(*given)]

    wrapped(patch, TracedRun, "_result", result)


@fault("momentum: flight")
def _calls_of_python_are_not_made_again(patch: Patch) -> None:
    def frame(own: Any) -> Any:
        def make(self: Any, i: int, row: Any, error: Exception) -> None:
            value = row.value
            if row.changes == "keys":
                function = row.function
                row.function = lambda *args, **words: (function(*args, **words), value)[1]
            own(self, i, row, error)

        return make

    wrapped(patch, TracedStep, "_python", frame)


@fault("moments: another value")
def _counts_are_not_written(patch: Patch) -> None:
    wrapped(patch, tracing, "Lines", lambda own: lambda of: own((lambda _: []) if of.__name__ == "count" else of))


@fault("moments: another value")
def _state_that_is_rebound_is_not_copied(patch: Patch) -> None:
    patch.setattr(tracing._Stepper, "_collect", lambda self: None)


@fault("momentum: another value")
def _the_beginning_of_an_update_is_left_out(patch: Patch) -> None:
    patch.setattr(tracing._Stepper, "_begin", lambda self: None)


def found_in(found: str) -> str:
    """How a fault shows where it is looked for: in a step, or in the calls or machine code of a random program."""
    where, _, how = found.partition(": ")
    if where in STEPS:
        return f"{where}: {ways(where)}"
    if where == "decision":
        traces = Traces(np.ones(4))
        run = traces.program(traces.call(lambda x: x * 2 if x.sum() > 0 else x * 3))
        try:
            run(-np.ones(4))
        except Departed:
            return f"{where}: departs"
        return found
    try:
        fault = fault_of(TracedProgram(RandomProgram(int(how))), where == "machine code")
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    return found if fault else f"{where}: none"


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.filterwarnings("ignore")
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, found = FAULTS[name]
    if (where := found.partition(": ")[0]) in STEPS:
        assert ways(where) == ""
    else:
        assert found_in(found) != found
    with monkeypatch.context() as patch:
        plant(patch)
        assert found_in(found).startswith(found)


def test_there_are_fifty_faults() -> None:
    assert len(FAULTS) >= 50
    by = [found.partition(": ")[2] for _, found in FAULTS.values()]
    assert all(by)
    assert sum("another value" in how for how in by) > 30  # by the proof: the step is replayed otherwise, and right
