"""Tracing: the rows of a recorded step as nodes of a program, by running their functions on traced arrays.

Each row's function runs once more, with the values of the recorded run, and must give the bits that it gave then. What
cannot be traced stays a call of Python, on the same memory. Gradients are new memory in each step. The step of an
optimizer is traced like any other function: its state is put in the place of arrays of the program, and the numbers
that Python computes anew in each step, such as a rate, in the place of numbers.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import contains, getitem, itemgetter, setitem
from typing import Any

import numpy as np

from ..compiler.identities import Read, values_of
from ..compiler.memory import Departed, Frame, Memory
from ..compiler.nodes import Operand, Refused, steps_of
from ..compiler.numbers import Item, Number, texts_of
from ..compiler.plan import reads_of
from ..compiler.program import Lines, Program, changes_state
from ..compiler.text import Text, indented
from ..compiler.trace import Trace, Traced, like, operand_of, owner_of, real, tracing, without_collection
from ..engine.distribution import ALONE
from ..engine.leaves import Leaf, remove_gradients
from ..engine.state import state
from ..engine.tensor import Tensor
from ..errors import SITES
from ..optim.base import Optimizer, whole_step
from ..random.keys import get_state, set_state
from .guards import others_may_read
from .reach import is_holder, is_of_library
from .recorder import Made, Recorder, Row, Slot, accumulate, adopt, mapped, part_at, parts_of, read, slots_in, view

__all__ = ["TracedRun", "TracedStep", "traced_run"]

_MOST_TRIES = 16
_NUMBER = itemgetter(())
"""Makes the number of NumPy that Python gets in the place of an array without dimensions."""
NOTHING = np.zeros(())
"""In the place of an argument that only calls of Python take: a key, or an array of complex numbers."""


class Opaque:
    """A value that Python makes in each step, and that is no array: it is a part of the result of a row."""

    def __init__(self, slot: int, path: tuple[int, ...] = ()):
        self.slot, self.path = slot, path

    def value(self, frame: Frame) -> Any:
        return part_at(frame.values[self.slot], self.path)


class Passed:
    """An array that a call of Python gives to another one as it is: its shape may depend on values."""

    def __init__(self, slot: int, path: tuple[int, ...]):
        self.key = slot, path

    def value(self, frame: Frame) -> Any:
        return frame.values[self.key]


class Barred(Exception):
    """Another row must stay a call of Python, too, or an array that it makes must lie in memory."""

    def __init__(self, *slots: Any):
        self.slots = set(slots)


class TracedStep:
    """The nodes of a recorded step.

    Parameters
    ----------
    recorder : Recorder
        Of the run. The program's state is that of before the run.
    results : sequence
    inputs : sequence of ndarray
        The arrays of the arguments in the run.
    barred : set
        Slots of rows that are not traced, and keys of arrays that are not passed.

    Attributes
    ----------
    whys : dict
        By the number of a row: why it stays a call of Python.
    """

    def __init__(self, recorder: Recorder, results: Sequence[Any], inputs: Sequence[Any], barred: set[Any]):
        self.rows = recorder.rows
        self.trace = Trace()
        self.barred = barred
        self.whys: dict[int, str] = {}
        self.cleared: dict[int, Leaf] = {}  # leaves whose gradients the step removes
        self.gradients: dict[int, tuple[Leaf, Traced]] = {}
        self.buffers: list[Any] = []  # of all gradients
        self.leaves: dict[int, tuple[Leaf, Any]] = {}  # whose arrays are bound
        self.optimizers: list[Optimizer] = []  # those that are traced
        self.reads: list[Read] = []  # of these: their arrays, and what decides on their updates
        self.equal: list[tuple[dict[str, Any], str, list[int]]] = []  # places in such lists that hold one number
        self.classes: list[tuple[dict[str, Any], str, type]] = []  # of hyperparameters
        self._env: dict[int, Any] = {}
        self._given: Any = [], []  # the gradients that leaves have got, and leaves without
        self._made: dict[int, tuple[Traced, Passed]] = {}  # by id: arrays that calls of Python make
        self._passed: set[Any] = set()  # the keys of those that others get as they are
        self._needed: set[int] = set()  # the ids of the buffers that are read
        self._of_python: dict[int, Any] = {}  # by id: the buffers that calls of Python write to
        self._passes = True
        self._earlier: set[int] = set()  # of leaves whose gradients Python adds to
        self._lost = False  # whether Python may have changed gradients
        self._later: list[tuple[int, Row]] = []  # updates of buffers that wait, so that decisions on data come first
        uses = [*((row.args, row.words) for row in self.rows), list(results)]
        self._alone = Counter(at for each in uses for at in slots_in(each))  # the number of uses of each slot
        self.inputs = [_array_of(x) for x in inputs]
        self.opaque = [i for i, x in enumerate(self.inputs) if x is NOTHING]
        # Functions that read numbers of NumPy, and arrays that are others in each step, of leaves and optimizers, with
        # their forms: they are arguments, too.
        self.read_anew: list[tuple[Callable[[], Any], Any]] = []
        self._number_of: dict[int, Traced] = {}
        self._stale = False  # whether Python may have changed parameters
        # While a function is traced that changes parameters, gradients or buffers, they are no arrays. Threads that are
        # ranks have others.
        self._is_shared = state.distribution.is_alone and others_may_read()
        for i, x in enumerate(self.inputs):
            self._env[i] = Opaque(i) if x is NOTHING else self.trace.new(x, "argument", key=i)
        for i, row in enumerate(self.rows):
            if self._later and self._may_read_buffers(row):
                self._update_buffers()
            self.trace.row = i
            self._row(i, row)
        self._update_buffers()
        self.trace.row = len(self.rows)
        self._flush()
        self._passes = False  # what a call of Python returns may be a part of what other calls write to
        self.results = [self._result(x) for x in results]

    def program(self) -> Program:
        kept = _operands_in([x for x, _, _ in self.results])
        kept += [operand_of(g._value, g._buffer) for _, g in self.gradients.values()]
        operands = [*kept, *(x for node in self.trace.nodes for x in reads_of(node))]
        operands += [x for node in self.trace.nodes if node.kind != "python" for x in node.outs]
        self._needed = {id(x.buffer) for x in operands}
        both = [passed.key for x, passed in self._made.values()
                if passed.key in self._passed and id(x._buffer) in self._needed]  # fmt: skip
        if both:  # a call of Python may write to it
            raise Barred(*both)
        made = Program(self.trace.nodes, kept, self.inputs, self.buffers, self.trace.quiet)
        for node in made.late:
            if node.kind == "guard":
                raise Refused("a decision on data after something has changed")
            row = self.rows[node.row]
            try:
                args, words = (_getter(self._template(x), made.memory) for x in (row.args, row.words))
            except Refused as error:  # an operand is a value of a loop alone
                raise Barred(row.slot) from error
            made.redo[node.row] = partial(_redo, _from(row), row.function, args, words)
        return made

    # -- rows --------------------------------------------------------------------------------------------------------
    def _row(self, i: int, row: Row) -> None:
        function = row.function
        if function is read:
            self._put(row, self._leaf(row.args[0]))
        elif function is remove_gradients:
            for leaf in row.args:
                self.cleared[id(leaf)] = leaf
                self.gradients.pop(id(leaf), None)
                self._earlier.discard(id(leaf))
        elif function is accumulate or function is adopt:
            self._accumulate(i, row)
        elif function is whole_step and row.slot not in self.barred and not self._lost:
            self._step(i, row)
        elif row.changes == "gradients" and row.slot not in self.barred:
            start = len(self.trace.nodes)
            try:
                self._change_gradients(row)
            except Exception as error:
                if len(self.trace.nodes) > start:  # it has written to gradients
                    raise Barred(row.slot) from error
                self._python(i, row, error)
        elif row.changes == "buffers":
            self._later.append((i, row))
        elif row.changes or row.slot in self.barred:
            self._python(i, row, Refused("it changes something besides its result" if row.changes else "is barred"))
        else:
            self._call(i, row)

    def _may_read_buffers(self, row: Row) -> bool:
        """Whether a row may read what the updates that wait will change."""
        if row.changes is True and row.function not in (accumulate, adopt, remove_gradients):
            return True
        owners = {id(owner_of(x)) for _, later in self._later for x in _buffers_of(later).values()}
        return any(id(owner_of(x)) in owners for x in _arrays_in((row.args, row.words)))

    def _update_buffers(self) -> None:
        """Trace the updates of buffers that wait, or leave them to Python."""
        later, self._later = self._later, []
        for i, row in later:
            self.trace.row, start = i, len(self.trace.nodes)
            own, before = vars(row.args[0]), _buffers_of(row)
            try:
                if row.slot in self.barred:
                    raise Refused("is barred")
                self.require_alone()
                made = {name: self.trace.state(x) for name, x in before.items()}
                own.update(made)
                with tracing(self.trace):
                    row.function(*self._resolved(row.args), **self._resolved(row.words))
                if any(own[name] is not x for name, x in made.items()):
                    raise Refused("a buffer that becomes another array")
                self._put(row, None)
            except Exception as error:
                own.update(before)
                if len(self.trace.nodes) > start and not isinstance(error, Barred):
                    raise Barred(row.slot) from error
                self._python(i, row, error)
            finally:
                own.update(before)

    def require_alone(self) -> None:
        """Refuse to trace what changes something that another thread may read."""
        if self._is_shared:
            raise Refused("it changes what another thread may read while it is traced")

    def _step(self, i: int, row: Row) -> None:
        """Trace the step of an optimizer, or leave it to Python."""
        start, given = len(self.trace.nodes), self._given
        try:
            _Stepper(self, row).trace()
        except Barred:
            raise
        except Exception as error:  # of an optimizer of the program, too, which may do what no trace knows
            del self.trace.nodes[start:]
            self._given = given
            self._python(i, row, error)

    def _call(self, i: int, row: Row) -> None:
        """Trace a call that only has a result, or leave it to Python."""
        start = len(self.trace.nodes)
        try:
            value = self._traced(row)
            self._require(row, value)
            self._put(row, value)
        except Barred:
            raise
        except Exception as error:  # of the function, too, which may do what no trace knows
            older = {id(x.buffer) for node in self.trace.nodes[:start] for x in (*node.outs, *node.reads)}
            if any(out.buffer.kind != "temporary" or id(out.buffer) in older
                   for node in self.trace.nodes[start:] for out in node.outs):  # fmt: skip
                raise Barred(row.slot) from error  # it has written to what other rows have made
            del self.trace.nodes[start:]
            self._python(i, row, error)

    def _traced(self, row: Row) -> Any:
        """The result of a row's function on traced arrays."""
        args, words = self._resolved(row.args), self._resolved(row.words)
        if row.function is view:
            x, shape, dtype, offset, strides = args
            return x._on(np.ndarray(shape, dtype, x._value, offset, strides))
        start = len(self.trace.nodes)
        with tracing(self.trace):
            value = row.function(*args, **words)
        module = str(getattr(row.function, "__module__", ""))
        is_own = not module.startswith("autograd.") or module.startswith("autograd.custom.")
        if any(node.kind == "guard" for node in self.trace.nodes[start:]):
            if is_own:
                raise Refused("a function of the program decides on values")
            if any(map(changes_state, self.trace.nodes[:start])):  # the step itself could not run anew
                raise Refused("a decision on data after something has changed")
        if row.expected:
            if value != row.value:
                raise Refused("a decision on data is another one")
            return None
        return self._known(value)

    def _known(self, x: Any) -> Any:
        """A value of a row, with arrays of the trace in the place of those that are the same in each step."""
        if x.__class__ in (tuple, list):
            return x.__class__(map(self._known, x))
        return self.trace.constant(x) if type(x) is np.ndarray and x.dtype.kind in "fiubc" else x

    def _require(self, row: Row, value: Any) -> None:
        """Refuse a result that has other bits, or another form, than in the recorded run."""
        known = None if row.expected else row.value
        if isinstance(known, tuple) and isinstance(value, tuple) and known:
            known, value = known[0], value[0]  # what it keeps for backward may have been written since
        if isinstance(known, np.ndarray | np.generic) and known.__class__ in (np.ndarray, type(known)):
            mine = real(value)
            if not isinstance(mine, np.ndarray | np.generic):
                raise Refused("another kind of result")
            if mine.dtype != known.dtype or mine.shape != known.shape:
                raise Refused("a result of another form")
            if isinstance(known, np.ndarray) and known.size and steps_of(mine) != steps_of(known):
                raise Refused("a result in another order of memory")
            if mine.tobytes() != known.tobytes():
                raise Refused("a result with other bits")

    def _put(self, row: Row, value: Any) -> None:
        if row.expected:
            return
        self._env[row.slot] = value
        for path, at in row.parts.items():
            part = value
            for k in path:
                part = Opaque(part.slot, (*part.path, k)) if type(part) is Opaque else part[k]
            self._env[at] = part

    def _resolved(self, x: Any) -> Any:
        """Arguments of a row with traced arrays."""
        kind = x.__class__
        if kind is Slot:
            found = self._env[x.at]
            if _has_opaque(found):
                raise Refused("a value that Python makes")
            return found
        if kind is Made:
            return x.kind(*map(self._resolved, x.parts))
        return self._known(x) if parts_of(x) is None else mapped(self._resolved, x)

    def _leaf(self, leaf: Leaf) -> Traced:
        array = leaf.array
        if self._stale:
            raise Refused("a parameter is read after Python may have changed it")
        if isinstance(array, np.generic) and array.dtype.kind in "fiubc" or (id(leaf), "array") in self.barred:
            if id(leaf) not in self._number_of:
                self._number_of[id(leaf)] = self.value_of(array, partial(read, leaf))
            return self._number_of[id(leaf)]
        if array.__class__ is not np.ndarray:
            raise Refused(f"a leaf whose array is a {type(array).__name__}")
        self.leaves[id(leaf)] = leaf, array
        return self.trace.state(array)

    def value_of(self, value: Any, get: Callable[[], Any]) -> Traced:
        """A number of NumPy, or an array, that `get` reads in each step."""
        is_number = isinstance(value, np.generic)
        self.inputs.append(np.asarray(value))
        self.read_anew.append((get, _form(value)))
        made = self.trace.new(self.inputs[-1], "argument", key=len(self.inputs) - 1)
        return Traced(self.trace, made._value, made._buffer, is_number)

    def put_value(self, made: Traced, put: Callable[[Any], Any]) -> None:
        """Have a number of NumPy, or a new array, given to `put` in each step."""
        operand, is_number = operand_of(made._value, made._buffer), made._is_scalar

        def bind(memory: Memory) -> Callable[[Frame], Any]:
            read_one = memory.reader(operand)
            return lambda frame: put(read_one(frame)[()] if is_number else read_one(frame).copy("K"))

        self.trace.add("python", put, (), (), reads=[operand], bind=bind, changes=True)

    # -- gradients ---------------------------------------------------------------------------------------------------
    def _accumulate(self, i: int, row: Row) -> None:
        leaf = row.args[0]
        array = leaf.array
        known = self.gradients.get(id(leaf))
        if self._lost:
            raise Refused("a gradient that Python may have changed")
        if known is None and id(leaf) not in self.cleared:
            self._earlier.add(id(leaf))
            row = copy.copy(row)
            row.function, row.changes = accumulate, "buffers"  # it copies a cotangent, and changes no traced gradient
            self._python(i, row, Refused("it adds to the gradient of an earlier call"))
            return
        ct = self._resolved(row.args[1])
        if type(ct) is not Traced or ct.shape != array.shape:
            raise Refused("a cotangent of another form")
        if not isinstance(row.value, np.ndarray | np.generic) or row.value.dtype != array.dtype:
            raise Refused("a gradient of another form")
        if known is not None:
            total = known[1]
            with tracing(self.trace):
                total += ct
            self._put(row, total)
            return
        buffer = ct._buffer
        is_own = (
            buffer.kind == "temporary" and isinstance(row.value, np.ndarray) and row.args[1].__class__ is Slot
            and self._alone.get(row.args[1].at) == 1
            and ct.dtype == array.dtype and ct._value.strides == row.value.strides and ct.nbytes == buffer.size
            and id(buffer) not in self._of_python
        )  # fmt: skip
        if is_own:
            buffer.kind, found = "gradient", ct
            buffer.base = ct._value
        else:
            found = self.trace.new(np.empty_like(row.value), "gradient")
            found._is_scalar = isinstance(row.value, np.generic)
            found._value[...] = ct._value
            self.trace.copy(operand_of(found._value, found._buffer), self.trace.operand(ct))
        found._buffer.key = leaf
        self.buffers.append(found._buffer)
        self.gradients[id(leaf)] = leaf, found
        self._put(row, found)

    def _change_gradients(self, row: Row) -> None:
        """Trace a function that gives leaves other gradients."""
        self.require_alone()
        args, leaves = self._resolved(row.args), [x for x in row.args if isinstance(x, Leaf)]
        known = [self.gradients.get(id(leaf)) for leaf in leaves]
        if self._lost or any(g is None and id(leaf) not in self.cleared for g, leaf in zip(known, leaves, strict=True)):
            raise Refused("a gradient of an earlier call")
        pairs = [g for g in known if g is not None]
        before = [leaf._grad for leaf in leaves]
        try:
            for leaf in leaves:
                leaf._grad = None
            for leaf, g in pairs:
                leaf._grad = Tensor(g, None if leaf.layout is None else leaf.layout.dual)
            with tracing(self.trace):
                row.function(*args)
            for leaf, g in pairs:
                now = getattr(leaf._grad, "array", None)
                if now is g:
                    continue
                if type(now) is not Traced or now.shape != g.shape or now.dtype != g.dtype:
                    raise Refused("a gradient that changes its form")
                g._value[...] = now._value
                self.trace.copy(operand_of(g._value, g._buffer), self.trace.operand(now))
        finally:
            for leaf, x in zip(leaves, before, strict=True):
                leaf._grad = x

    # -- calls of Python ---------------------------------------------------------------------------------------------
    def _python(self, i: int, row: Row, error: Exception) -> None:
        self.whys[i] = f"{row.name} at {row.line}: {error}"
        args, words = self._template(row.args), self._template(row.words)
        outs: list[tuple[tuple[int, ...], Traced]] = []
        changed: list[tuple[Leaf, Traced]] = []
        if row.changes is True or row.changes == "gradients":
            self._flush()
            changed = self._changed(row)
        value = None if row.expected else self._outputs(row.value, row.slot, (), outs)
        reads = _operands_in((args, words))
        function, slot, expected = row.function, row.slot, row.expected
        known = row.value
        keeps = not row.expected and _has_opaque(value)
        call = _from(row)

        def bind(memory: Memory) -> Callable[[Frame], Any]:
            get_args, get_words = _getter(args, memory), _getter(words, memory)
            given = [(leaf, memory.reader(operand_of(g._value, g._buffer))) for leaf, g in changed]
            writes = [(path, memory.reader(operand_of(x._value, x._buffer)))
                      for path, x in outs if id(x._buffer) in self._needed]  # fmt: skip
            passed = [(slot, path) for path, _ in outs if (slot, path) in self._passed]

            def step(frame: Frame) -> None:
                if frame.recorded is None or function is accumulate:  # which sends nothing
                    found = call(function, *get_args(frame), **get_words(frame))
                else:
                    found = frame.recorded[i]
                if expected:
                    if found != known:
                        raise Departed
                    return
                for leaf, write in given:
                    own, now = write(frame), leaf._grad
                    own[...] = getattr(now, "array", now)
                    leaf._grad = own
                if keeps:
                    frame.values[slot] = found
                for key in passed:
                    part = part_at(found, key[1])
                    frame.values[key] = part.copy() if memory.has(part) else part
                for path, write in writes:
                    part, own = part_at(found, path), write(frame)
                    if np.shape(part) != own.shape or getattr(part, "dtype", own.dtype) != own.dtype:
                        raise Departed  # a decision on data, by Python
                    own[...] = part

            return step

        written = [x for _, x in (*outs, *changed)]
        reads += [operand_of(x._value, x._buffer) for _, x in changed]
        self._of_python |= {id(x._buffer): x._buffer for x in written}
        self.trace.add("python", row.name, tuple(operand_of(x._value, x._buffer) for x in written), (), reads=reads,
                       bind=bind, changes=row.changes)  # fmt: skip
        if not row.expected:
            self._put(row, value)

    def _changed(self, row: Row) -> list[tuple[Leaf, Traced]]:
        """The gradients that a call of Python may change, with what it makes of them in the recorded run."""
        if not self.gradients:
            return []
        if not state.distribution.is_alone or any(g._is_scalar for _, g in self.gradients.values()):
            self._lost = self._stale = True
            return []
        before = [array.copy() for _, array in self.leaves.values()]
        for leaf, g in self.gradients.values():
            leaf._grad, leaf.used = g._value.copy("K"), None
        with np.errstate(all="ignore"):
            row.function(*map(_plain, row.args), **mapped(_plain, row.words))
        if any(x.tobytes() != array.tobytes() for x, (_, array) in zip(before, self.leaves.values(), strict=True)):
            self._stale = True
        for leaf, g in [*self.gradients.values()]:
            now = getattr(leaf._grad, "array", leaf._grad)
            if now is None:
                self.cleared[id(leaf)] = leaf
                del self.gradients[id(leaf)]
                continue
            if not isinstance(now, np.ndarray) or now.shape != g.shape or now.dtype != g.dtype:
                raise Refused("Python gives a gradient another form")
            g._value[...] = now
        return list(self.gradients.values())

    def _flush(self) -> None:
        """Give leaves their gradients, so that Python can read them."""
        now = list(self.gradients.values()), list(self.cleared.values())
        known = [(id(leaf), id(g)) for leaf, g in now[0]], [id(leaf) for leaf in now[1]]
        if known == self._given:
            return
        self._given = known
        reads = [operand_of(g._value, g._buffer) for _, g in now[0]]
        self.trace.add("python", "gradients", (), (), reads=reads, bind=lambda memory: _giver(memory, *now))

    def _outputs(self, x: Any, slot: int, path: tuple[int, ...], outs: list[Any]) -> Any:
        """The result of a call of Python: its arrays are copied to memory, the rest stays with Python."""
        if isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "fiubc" and x.dtype.isnative:
            if isinstance(x, np.ndarray):
                x = like(x)[0] if x.size else np.array(x)
            found = self.trace.new(x)
            outs.append((path, found))
            self._made[id(found)] = found, Passed(slot, path)
            return found
        if x.__class__ is tuple or x.__class__ is list:
            return x.__class__(self._outputs(part, slot, (*path, k), outs) for k, part in enumerate(x))
        return None if x is None else Opaque(slot, path)

    def _template(self, x: Any) -> Any:
        """Arguments of a call of Python, with operands in the place of arrays."""
        if x.__class__ is Slot:
            return self._template_of(self._env[x.at], x.at)
        return x if parts_of(x) is None else mapped(self._template, x)

    def _template_of(self, x: Any, slot: int) -> Any:
        """A value of the trace as an argument of Python."""
        kind = type(x)
        if kind is Traced:
            if self._passes and id(x) in self._made:
                passed = self._made[id(x)][1]
                if passed.key not in self.barred:
                    self._passed.add(passed.key)
                    return passed
            found = operand_of(x._value, x._buffer)
            return Made(_NUMBER, (found,)) if x._is_scalar else found
        if kind is tuple or kind is list:
            return kind(self._template_of(part, slot) for part in x)
        if kind is Opaque or x is None or isinstance(x, bool | int | float | str | np.ndarray | np.generic):
            return x
        cells = getattr(x, "__closure__", None) or ()
        if callable(x) and not any(type(cell.cell_contents) in (Traced, tuple, list) for cell in cells):
            return x
        raise Barred(slot)

    # -- results -----------------------------------------------------------------------------------------------------
    def _result(self, x: Any) -> tuple[Any, Any, int]:
        """Operand or constant, layout ("" for no Tensor), and place of a result."""
        if x.__class__ is Made:  # of a Tensor
            array, layout, _, node = x.parts
            return self._template(array), layout, node
        return self._template(x), "", 0


def _buffers_of(row: Row) -> dict[str, Any]:
    """The arrays that a row updates which changes the buffers of a module, by their names."""
    own = vars(row.args[0])
    return {name: own[name] for name in row.args[0]._buffers if own.get(name).__class__ is np.ndarray}


def _arrays_in(x: Any) -> list[Any]:
    """The arrays of the program among the arguments of a row."""
    if x.__class__ is np.ndarray:
        return [x]
    parts = (x.array,) if isinstance(x, Tensor) else parts_of(x)
    return [array for part in parts or () for array in _arrays_in(part)]


def _from(row: Row) -> Callable[..., Any]:
    """A function that calls another one from the line of a row, which errors and warnings name."""
    space: dict[str, Any] = {SITES: {2: row.site}}
    exec(compile("def call(f, *args, **words):\n    return f(*args, **words)", "<captured step>", "exec"), space)
    found: Callable[..., Any] = space["call"]
    return found


def _redo(call: Any, function: Any, args: Any, words: Any, frame: Frame) -> None:
    """Call the function of a row, which has found values that it cannot take, for its error."""
    call(function, *args(frame), **words(frame))


def _giver(memory: Memory, gradients: Sequence[Any], cleared: Sequence[Leaf]) -> Lines:
    """Lines that give leaves the gradients of a frame."""
    have = {id(leaf) for leaf, _ in gradients}

    def lines(name: Callable[[Any], str]) -> list[str]:
        found = []
        for leaf, g in gradients:
            field, order = memory.gradient(g._buffer)
            end = "[()]" if g._is_scalar else "" if order is None else f".transpose({order})"
            found += [f"{name(leaf)}._grad = gradients[{field!r}]{end}", f"{name(leaf)}.used = None"]
        return [*found, *(f"{name(leaf)}._grad = None" for leaf in cleared if id(leaf) not in have)]

    return Lines(lines)


def _plain(x: Any) -> Any:
    """An argument of a call that changes something; what is traced is no argument of such a call."""
    if x.__class__ is Slot or x.__class__ is Made:
        raise Refused("a call that changes something, with an argument that is computed")
    return x if parts_of(x) is None else mapped(_plain, x)


def _has_opaque(x: Any) -> bool:
    return type(x) is Opaque or (type(x) in (tuple, list) and any(map(_has_opaque, x)))


def _operands_in(x: Any) -> list[Operand]:
    return [x] if type(x) is Operand else [each for part in parts_of(x) or () for each in _operands_in(part)]


def _getter(x: Any, memory: Memory) -> Callable[[Frame], Any]:
    """A function of the frame that returns an argument of Python."""
    kind, parts = type(x), parts_of(x)
    if kind is Operand:
        return memory.reader(x)
    if kind is Opaque or kind is Passed:
        found: Callable[[Frame], Any] = x.value
        return found
    if parts is None:
        return lambda frame: x
    gets = [_getter(part, memory) for part in parts]
    if kind is Made:
        return lambda frame: x.kind(*[get(frame) for get in gets])
    if kind is dict:
        return lambda frame: {key: get(frame) for key, get in zip(x, gets, strict=True)}
    return lambda frame: kind([get(frame) for get in gets])


# -- optimizers --------------------------------------------------------------------------------------------------------
class _Stepper:
    """Traces the step of an optimizer."""

    def __init__(self, step: TracedStep, row: Row):
        self.step, self.trace_, self.row, (self.optimizer, self.keep) = step, step.trace, row, row.args
        self._undo: list[Callable[[], Any]] = []
        self._arrays: list[tuple[Any, Any, Traced]] = []  # container, key, and what stood there
        self._values: list[tuple[Any, Any, Traced, Callable[[Any], Any]]] = []  # the same of numbers of NumPy
        self._counts: list[tuple[Item, list[Any], Any]] = []  # a holder, places of one number, and it
        self._constants: list[tuple[Any, Any, Any]] = []  # a holder, a key, and the value
        self._hyperparameters: list[tuple[Any, str, Number]] = []  # the same
        self._holders: list[tuple[Any, int]] = []  # with their lengths
        self._has_gradient: list[bool] = []  # by parameter
        self._reads: list[Read] = []
        self._equal: list[tuple[dict[str, Any], str, list[int]]] = []

    def trace(self) -> None:
        optimizer = self.optimizer
        self.step.require_alone()
        if optimizer.run_updates is not None or optimizer.rounding is not None or not isinstance(optimizer, Optimizer):
            raise Refused("the updates of this optimizer are made elsewhere")
        gradients = [self._gradient(p) for p in optimizer.parameters]
        self._has_gradient = [g is not None for g in gradients]
        self._begin()
        # Where a tape needs a parameter, `step` refuses.
        self._reads += [*((getattr, p, "uses") for p in optimizer.parameters), *optimizer.reads_of_form()]
        optimizer._advance()
        keys = get_state()
        try:
            self._replace()
            with tracing(self.trace_):
                if optimizer._has_groups:
                    for group in optimizer._groups:
                        with optimizer.using(group):
                            optimizer.update_some(group.indices, gradients)
                else:
                    Optimizer.update_all(optimizer, gradients)
            if get_state() != keys:
                set_state(keys)
                raise Refused("an update that draws random numbers")
            self._collect()
            self.step.optimizers.append(optimizer)
            self.step.reads += self._reads
            self.step.equal += self._equal
        finally:
            for undo in reversed(self._undo):
                undo()

    def _gradient(self, p: Leaf) -> Any:
        found = self.step.gradients.get(id(p))
        if found is not None:
            return found[1]
        if id(p) in self.step._earlier or (p._grad is not None and id(p) not in self.step.cleared):
            raise Refused("a gradient of an earlier call")
        return None

    def _begin(self) -> None:
        """Note the beginning of the step, before which numbers are not those of this step."""
        optimizer, keep = self.optimizer, self.keep
        self.step._flush()

        call = _from(self.row)

        def begin(name: Callable[[Any], str]) -> list[str]:
            of, do = name(optimizer), name(call)
            return [
                f"if recorded is not None: {of}._advance()",
                f"elif {optimizer.counts_only(of, name(state), name(ALONE))}: {of}.steps += 1",
                f"else: {do}({of}._begin)",
                f"if recorded is None and ({of}._used is not None or not {of}.steps & ({of}.steps - 1)):",
                f"    {do}({of}._note_use, {keep})",
            ]

        self.trace_.add("python", Lines(begin), (), (), changes=True, is_begin=True)

    def _replace(self) -> None:
        """Put traced arrays in the place of parameters and state, and `Number` in the place of numbers."""
        optimizer, trace = self.optimizer, self.trace_
        for p in optimizer.parameters:
            array = p.array
            if isinstance(array, np.generic) or (id(p), "array") in self.step.barred:
                made = self.step._leaf(p)
                self._values.append((p, "array", made, partial(setattr, p, "array")))
                self._undo.append(partial(setattr, p, "array", array))
                p.array = made
                continue
            if array.__class__ is not np.ndarray or not array.flags.writeable:
                raise Refused("a parameter that is not a writeable array")
            self.step.leaves[id(p)] = p, array
            made = trace.state(array)
            self._undo.append(partial(setattr, p, "array", array))
            p.array = made
            self._arrays.append((p, "array", made))
        is_own = not is_of_library(type(optimizer).__module__)
        own = vars(optimizer)
        for name in optimizer.own_names() if is_own else optimizer._saved:
            x = own[name]
            is_of_parameters = x.__class__ is list and len(x) == len(optimizer.parameters)
            if is_of_parameters and all(isinstance(v, np.ndarray | np.generic | int | None) for v in x):
                self._replace_items(name, x)
            elif is_own and name not in optimizer.legal_names():
                self._undo.append(partial(setitem, own, name, x))
                self._replace_value(own, name)
        for holder in (optimizer, *optimizer._groups):
            own = vars(optimizer) if holder is optimizer else holder.own
            for name in ("lr", "steps"):
                if name in own:
                    value = own[name]
                    if value.__class__ not in (int, float):
                        raise Refused(f"a hyperparameter that is a {type(value).__name__}")
                    own[name] = Number.of(value, Item(own, name))
                    self._undo.append(partial(setitem, own, name, value))
                    self._hyperparameters.append((own, name, own[name]))
                    self.step.classes.append((own, name, value.__class__))

    def _keep(self, x: Any) -> None:
        """Give a list or a dictionary what it holds now when the trace has ended."""
        kept = x.copy()
        undo = x.update if x.__class__ is dict else x.extend
        self._undo += [partial(undo, kept), x.clear]  # the last one is called first

    def _replace_items(self, name: str, x: list[Any]) -> None:
        """Replace values of parameters, one for each."""
        own = vars(self.optimizer)
        self._keep(x)
        equal: dict[Any, list[int]] = {}  # counts that are one number, as they change together
        for i, item in enumerate(x):
            if item.__class__ is int:
                equal.setdefault((item, self._has_gradient[i]), []).append(i)
        for (item, _), places in equal.items():
            number = Number.of(item, Item(own, name, places[0]))
            self._counts.append((Item(own, name), places, number))
            for i in places:
                x[i] = number
            if len(places) > 1:
                self._equal.append((own, name, places))
        self._reads.append((getitem, own, name))
        for i, item in enumerate(x):
            if isinstance(item, np.ndarray | np.generic):
                self._replace_array(x, i)

    def _replace_array(self, holder: Any, key: Any) -> None:
        """Replace an array, or a number of NumPy."""
        value, trace = holder[key], self.trace_
        if value.dtype.char not in "fdFD":
            raise Refused(f"state of an optimizer of dtype {value.dtype}")
        if isinstance(value, np.generic) or (id(holder), key) in self.step.barred:
            holder[key] = self.step.value_of(value, partial(getitem, holder, key))
            self._values.append((holder, key, holder[key], partial(setitem, holder, key)))
        else:
            holder[key] = trace.state(value)
            self._arrays.append((holder, key, holder[key]))
            self._reads.append((getitem, holder, key))

    def _replace_value(self, holder: Any, key: Any) -> None:
        """Replace the arrays in a value of an optimizer of the program, and the numbers that its step changes."""
        value = holder[key]
        kind = value.__class__
        if isinstance(value, np.ndarray | np.generic):
            self._replace_array(holder, key)
        elif kind in (int, float) and (id(holder), key) in self.step.barred:
            holder[key] = Number.of(value, Item(holder, key))
            self._counts.append((Item(holder), [key], holder[key]))
        else:
            self._reads.append((getitem, holder, key))
            self._constants.append((holder, key, value))
            if is_holder(value):
                is_other = isinstance(value, dict | list | tuple | set | deque)
                inner = value if kind in (dict, list) else None if is_other else vars(value)
                if inner is None:
                    raise Refused(f"state of an optimizer in a {kind.__name__}")
                if any(inner is known for known, _ in self._holders):
                    return
                if inner is not value:  # an attribute of the class may be shadowed
                    names = {name for each in kind.__mro__[:-1] for name in vars(each)} - inner.keys()
                    self._reads += [(contains, inner, name) for name in sorted(names)]
                self._keep(inner)
                self._holders.append((inner, len(inner)))
                for each in range(len(inner)) if kind is list else list(inner):
                    self._replace_value(inner, each)

    def _collect(self) -> None:
        """Note what the step has put in the place of arrays and numbers."""
        if any(len(holder) != n for holder, n in self._holders):
            raise Refused("a container in an optimizer that changes its length")
        if any(own[name] is not number for own, name, number in self._hyperparameters):
            raise Refused("an update that changes a hyperparameter")
        for holder, key, value in self._constants:
            now = holder[key]
            if now is not value and not _is_equal(now, value):
                self._bar(holder, key, value.__class__ in (int, float) and type(now) in (int, float))
        for holder, key, made in self._arrays:
            now = holder.array if key == "array" and isinstance(holder, Leaf) else holder[key]
            if now is not made:
                is_new = type(now) is Traced and now.shape == made.shape and now.dtype == made.dtype
                if not is_new or not operand_of(now._value, now._buffer).is_at(operand_of(made._value, made._buffer)):
                    self._bar(holder, key, is_new)
        for holder, key, made, put in self._values:
            now = holder.array if key == "array" and isinstance(holder, Leaf) else holder[key]
            if now is made:
                continue
            if type(now) is not Traced or _form(real(now)) != _form(real(made)):
                raise Refused("state of an optimizer that changes its form")
            self.step.put_value(now, put)
            if isinstance(holder, Leaf):
                self.step._number_of[id(holder)] = now
        self._collect_counts()

    def _bar(self, holder: Any, key: Any, is_legal: bool) -> None:
        """Trace the step once more, where a value that it replaces is read anew and replaced in each step."""
        if not is_legal:
            raise Refused("state of an optimizer that changes its form")
        raise Barred((id(holder), key))

    def _collect_counts(self) -> None:
        """Note the Python numbers that the step has put in the place of counts."""
        numbers: list[Number] = []
        changed: list[tuple[Item, list[Any]]] = []
        for of, places, made in self._counts:
            now = [x if type(x) is Number else Number(x, repr(x), {}) for x in (of()[i] for i in places)]
            if len({x.text for x in now}) > 1:
                raise Refused("equal counts of an optimizer that become different")
            if now[0] is not made:
                numbers.append(now[0])
                changed.append((of, places))
        if numbers:

            def count(name: Callable[[Any], str]) -> list[str]:
                found, texts = texts_of(numbers, name)
                found += [f"value{k} = {text}" for k, text in enumerate(texts)]
                for k, (of, places) in enumerate(changed):
                    found += [f"of = {of.text(name)}", *(f"of[{key!r}] = value{k}" for key in places)]
                return found

            self.trace_.add("python", Lines(count), (), (), changes=True)


def _array_of(x: Any) -> Any:
    if isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "fiubc" and x.dtype.isnative:
        return np.asarray(x)
    return NOTHING


def _is_equal(a: Any, b: Any) -> bool:
    """Whether two values are one, or equal numbers or texts."""
    return a is b or (a.__class__ is b.__class__ and a.__class__ in (bool, int, float, str, tuple) and a == b)


def _form(x: Any) -> Any:
    """The form of a value that is read anew, as a program needs it: the class of a number; of an array more."""
    return type(x) if isinstance(x, np.generic) else (type(x), x.dtype, x.shape, x.strides)


def _has_other_form(get: Callable[[], Any], form: Any) -> bool:
    try:
        return bool(_form(get()) != form)
    except (LookupError, AttributeError):  # it is gone, or no array
        return True


def _aligned(x: Any) -> Any:
    x = np.asarray(x)
    return x if x.flags.aligned else like(x)[0]


# -- a run of a traced step --------------------------------------------------------------------------------------------
class TracedRun:
    """A traced step as a function of the arrays of its arguments.

    Attributes
    ----------
    step : TracedStep
    program : Program
    written : set of int
        The ids of the arrays that it writes to, which are no arguments.
    reads : list of Read
        Of the arrays and numbers of leaves and optimizers that the program is of; see `Identities`.
    seconds : float
        It took to trace, compile and prove the step.
    """

    seconds = 0.0
    misses = 0  # the runs, on one process, that were not those of the program
    patience = 8  # the number of them after which the step is better recorded anew

    def __init__(self, step: TracedStep, program: Program):
        self.step, self.program = step, program
        self.written = {id(x.buffer.array) for node in program.nodes for x in node.outs if x.buffer.kind == "state"}
        self.reads: list[Read] = [*((getattr, leaf, "array") for leaf, _ in step.leaves.values()), *step.reads]
        self._kept = list(values_of(self.reads)())
        text, given = Text(), [f"x{i}" for i in range(len(step.inputs) - len(step.read_anew))]
        lines = [*self.lines(text.name, given, "recorded"), "return results"]
        self._replay = text.function("replay", ", ".join(["recorded", *given]), lines, f"{__file__}: replay")

    def lines(self, name: Callable[[Any], str], given: Sequence[str], recorded: str = "None") -> list[str]:
        """The lines of a function that run the step, and set `results`.

        Parameters
        ----------
        name : callable
            Returns the name of an object.
        given : sequence of str
            The names of the arrays of the arguments.
        recorded : str
            That of the results of the recorded rows, if calls of Python give them without being made.
        """
        step, program = self.step, self.program
        opaque = {i: x for i, x in enumerate(given) if i in step.opaque}
        kind, aligned = name(np.ndarray), name(_aligned)  # an array that has memory of its own is aligned
        arguments = [name(NOTHING) if i in opaque
                     else f"{x} if {x}.__class__ is {kind} and {x}.base is None else {aligned}({x})"
                     for i, x in enumerate(given)]  # fmt: skip
        arguments += [f"{name(_aligned)}({name(get)}())" for get, _ in step.read_anew]
        body, n = program.run_lines(name), len(step.results)
        results = [line for k in range(n) for line in self._result(name, k)]
        found = [f"recorded = {recorded}", *program.frame_lines(name, arguments)]
        if program.needs_frame or any("frame" in result for result in results):
            found += [f"frame = {name(Frame)}(({''.join(f'a{i}, ' for i in range(len(arguments)))}), gradients)"]
            found += [f"frame.values[{i}] = {x}" for i, x in opaque.items()]
            found += ["frame.recorded = recorded"]
        if any(row.changes == "keys" for row in step.rows):
            body = [f"keys = {name(get_state)}()", "try:", *indented(body), f"except {name(Departed)}:",
                    f"    {name(set_state)}(keys)", "    raise"]  # fmt: skip
        return [*found, *body, *results, f"results = [{', '.join(f'r{k}' for k in range(n))}]"]

    def _result(self, name: Callable[[Any], str], k: int) -> list[str]:
        """Lines that set a result."""
        x, layout, node = self.step.results[k]
        memory, is_operand = self.program.memory, x.__class__ is Operand
        if is_operand or (x.__class__ is Made and x.kind is _NUMBER):
            read = memory.text(x, name) if is_operand else f"{memory.text(x.parts[0], name)}[()]"
        else:
            read = f"{name(_getter(x, memory))}(frame)"
        if is_operand and x.buffer.kind not in ("argument", "state", "gradient"):  # those are views, as in the step
            read += ".copy()"
        if layout == "":
            return [f"r{k} = {read}"]
        kind = name(Tensor)  # its constructor would check what is known
        return [f"r{k} = {name(object.__new__)}({kind})", f"r{k}.array = {read}", f"r{k}.layout = {name(layout)}",
                f"r{k}.tape = None", f"r{k}.node = {node}"]  # fmt: skip

    def __call__(self, *arrays: Any) -> list[Any]:
        found: list[Any] = self._replay(None, *arrays)
        return found

    def __str__(self) -> str:
        calls = "".join(f"\n  stays a call of Python: {why}" for why in dict.fromkeys(self.step.whys.values()))
        calls += "".join(f"\n  stays a call of NumPy: {why}" for why in dict.fromkeys(self.program.why))
        return f"{self.program}; made in {self.seconds:.2f} s{calls}"

    def explain(self) -> str:
        """Each loop and call, with the line of the program where its first operation stands."""
        rows = self.step.rows
        found = []
        for group, line in zip(self.program.plan.groups, self.program.lines(), strict=True):
            row = group.nodes[0].row
            found.append(f"{line}   {rows[row].line}" if 0 <= row < len(rows) else line)
        return "\n".join(found)

    def without_calls(self, *arrays: Any) -> list[Any]:
        """The results where calls of Python are not made: they give what they gave in the recorded run."""
        found: list[Any] = self._replay([row.value for row in self.step.rows], *arrays)
        return found

    def fits(self) -> bool:
        """Whether the program is that of the present arrays and numbers, some of which may be equal ones."""
        try:
            now = list(values_of(self.reads)())
        except (LookupError, AttributeError):
            return False
        return len(now) == len(self._kept) and all(map(_is_equal, now, self._kept))

    def faults(self, name: Callable[[Any], str]) -> list[str]:
        """Expressions that are true where numbers are none for this program; `name` returns the name of an object."""
        kinds = [f"{name(_has_other_form)}({name(get)}, {name(form)})" for get, form in self.step.read_anew]
        kinds += [f"{name(own)}[{key!r}].__class__ is not {name(kind)}" for own, key, kind in self.step.classes]
        return kinds + [f"len({{*{name(itemgetter(*places))}({name(own)}[{key!r}])}}) > 1"
                        for own, key, places in self.step.equal]  # fmt: skip

    def exchanged(self) -> set[Any]:
        """The leaves that have other arrays now and that no optimizer of the step updates, as keys to read them anew.

        They may get another array in each call, as averages of parameters do, and labels that are kept in a Tensor.
        """
        trained = {id(p) for optimizer in self.step.optimizers for p in optimizer.parameters}
        return {(at, "array") for at, (leaf, array) in self.step.leaves.items()
                if leaf.array is not array and at not in trained}  # fmt: skip

    def is_worn(self) -> bool:
        """Whether leaves or optimizers have other arrays, as those that are loaded, and have had them for some runs."""
        return self.misses > self.patience and not self.fits()

    def with_exact(self, exact: Callable[..., Any]) -> Callable[..., Any]:
        """This run, or `exact` where the program is that of other arrays or numbers."""

        def otherwise(*arrays: Any) -> Any:
            self.misses += state.distribution.is_alone  # several ranks go on with the same calls
            return exact(*arrays)

        text = Text()
        written, owner = text.name(self.written), text.name(owner_of)
        faults = [f"not {text.name(self.fits)}()", *self.faults(text.name),
                  # an argument that is written to is another one for each of the calls
                  *([f"any(id({owner}(x)) in {written} for x in arrays)"] if self.written else [])]  # fmt: skip
        own, other = text.name(self.__call__), text.name(otherwise)
        line = f"return {other}(*arrays) if {' or '.join(faults)} else {own}(*arrays)"
        return text.function("run", "*arrays", [line], f"{__file__}: run")


@without_collection()
def traced_run(
    recorder: Recorder, results: Sequence[Any], inputs: Sequence[Any], anew: Iterable[Any] = ()
) -> tuple[TracedRun | None, str]:
    """A recorded step as a program, or None and why there is none. The state is that of before the run.

    `anew` are the keys of leaves whose arrays each replay reads anew.
    """
    barred: set[Any] = set(anew)
    why = "many rows stay calls of Python"
    for _ in range(_MOST_TRIES):
        try:
            step = TracedStep(recorder, results, inputs, barred)
            return TracedRun(step, step.program()), ""
        except Barred as error:
            if error.slots <= barred:
                break
            barred |= error.slots
        except Refused as error:
            why = str(error)
            break
    return None, why
