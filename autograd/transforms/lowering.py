"""Lowering: rows whose operations declare it, as calls of NumPy that write to arrays that were made once.

An operation declares ``lowered["y"]`` for its result, and ``lowered[i]`` for the cotangent of operand i: functions
``f(calls, out, ...)`` that add calls with the same bits to `Calls`. `Lowering` goes through the rows in order, and
gives each result an array: of memory whose last value nothing reads any more, or new. A value is known to be read until
the last row that gets it, a view of it, or a container with it. Rows that are not lowered stay the calls that they are,
and get these arrays. What leaves the step is not among them: results are copied, and gradients are new arrays in each
step, so a program may keep them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from .. import kernels
from ..engine.dispatch import identity, ones
from ..engine.leaves import Leaf
from ..errors import RingtapeError
from ..optim.base import remove_gradients, whole_step
from ..optim.sgd import PART, SGD
from .recorder import Held, Named, Recorder, Row, Slot, accumulate, adopt, read, slots_in

__all__ = ["Calls", "Gradients", "Lowering", "Update", "changing"]

_NEVER = 1 << 60
_ALIGNED = 64


class _Refused(Exception):
    """A row is not lowered."""


class _Missing:
    """The place of a value that has no array of its own."""


MISSING = _Missing()


class Calls:
    """The calls that a lowered row makes, in order: (function, arguments, output, whether its result must be true)."""

    def __init__(self, lowering: Lowering):
        self._lowering = lowering
        self.found: list[tuple[Callable[..., Any], tuple[Any, ...], Any, bool]] = []
        self.scratches: list[Any] = []

    def add(self, function: Callable[..., Any], *args: Any, out: Any = None) -> None:
        """Add a call. `out` is a keyword of it, for functions that take their output as one."""
        if any(x is MISSING for x in args) or getattr(function, "__self__", None) is MISSING:
            raise _Refused
        self.found.append((function, args, out, False))

    def require(self, function: Any, *args: Any) -> None:
        """Add a call that gives up by returning a false value."""
        if function is None:
            raise _Refused
        self.add(function, *args)
        self.found[-1] = (function, args, None, True)

    def ufunc(self, function: Any, *args: Any) -> None:
        """Add a call of a ufunc for arrays of one dtype, which numbers take too. The last argument is the output."""
        out = args[-1]
        xs = []
        for x in args[:-1]:
            if x.__class__ in (int, float):
                x = np.array(x, out.dtype)
            if not isinstance(x, np.ndarray | np.generic) or x.dtype != out.dtype or out.dtype.char not in "fd":
                raise _Refused
            xs.append(x)
        if np.broadcast_shapes(out.shape, *(x.shape for x in xs)) != out.shape:
            raise _Refused
        self.add(function, *xs, out)

    def scratch(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array for the time of these calls."""
        found = self._lowering.new(shape, np.dtype(dtype))
        self.scratches.append(found)
        return found

    def is_constant(self, x: Any) -> bool:
        """Whether an argument is the same in each step."""
        return self._lowering.is_constant(x)

    def refuse(self) -> NoReturn:
        """Say that the row is not lowered."""
        raise _Refused


class Update:
    """A step of SGD with momentum as calls; `begin` first."""

    def __init__(self, optimizer: SGD, keep: bool, small: Any, gradients: Gradients, members: Sequence[Leaf]):
        self.optimizer, self.keep, self.small = optimizer, keep, small
        self.members = [(p, p.array) for p in members]
        calls: list[Any] = small.calls(gradients.flat)
        self.velocities = [(i, optimizer.velocity[i]) for i in small.others]
        for i in small.others:
            k = next(k for k, p in enumerate(gradients.leaves) if p is optimizer.parameters[i])
            calls += small.calls_of_large(optimizer, i, gradients.tokens[k], gradients.parts.get(k, []))
        self.calls = [(function, args, None, False) for function, args in calls]
        written = [small.velocity, *(v for _, v in self.velocities), *(array for _, array in self.members)]
        self.written = [x for x in written if x.size]
        self.passes = self._passes(gradients)

    def _passes(self, gradients: Gradients) -> list[Any]:
        """The same as one pass of the compiled loop over each parameter, for rows of a table; none without Numba.

        Unlike the calls, the loop takes its numbers from arrays.
        """
        momentum = kernels.loop("momentum", self.small.velocity.dtype)
        if momentum is None:
            return []
        velocity = {id(p): v for p, v in zip(self.optimizer.parameters, self.optimizer.velocity, strict=True)}
        return [
            (momentum, (p.array.reshape(-1), velocity[id(p)].reshape(-1), g.reshape(-1), self.small.rate,
                        self.small.keep), None, False)
            for p, g in zip(gradients.leaves, gradients.tokens, strict=True) if id(p) in velocity
        ]  # fmt: skip

    def holds(self) -> bool:
        """Whether a step of the optimizer is still these calls, if its members have the same arrays."""
        optimizer = self.optimizer
        if optimizer.together() is not self.small:
            return False
        return not self.velocities or all(optimizer.velocity[i] is v for i, v in self.velocities)

    def fits(self) -> bool:
        """Whether they are, and its members have the same arrays."""
        return self.holds() and all(p.array is array for p, array in self.members)

    def begin(self) -> None:
        """Take the rate of the step from its schedule, count the step, note the use of gradients, write the numbers."""
        optimizer = self.optimizer
        optimizer._advance()
        optimizer._note_use(self.keep)
        self.small.set_numbers(optimizer.lr, optimizer.momentum)


class Gradients:
    """The gradients of a step: one new array, which has a part for each leaf.

    Attributes
    ----------
    kind : dtype
        Of the array: a structure with the `fields`.
    block : ndarray
        Stands for the array in calls.
    tokens : list of ndarray
        Its parts, which stand for the gradients.
    leaves : list of Leaf
    flat : ndarray or None
        Stands for the first gradients together.
    parts : dict of lists
        By the number of a gradient: arrays that stand for its parts of `sgd.PART` elements.
    fields : dict
        By the name of a field: what stands for it.
    """

    def __init__(self, leaves: Sequence[Leaf], values: Sequence[Any], first: int, divided: Sequence[int]):
        """Make the dtype for gradients like `values`: the `first` together, and some divided into parts."""
        self.leaves = list(leaves)
        fields: list[tuple[str, Any, Any, int]] = []
        parts: dict[int, list[str]] = {}
        end = 0
        for k, x in enumerate(values):
            fields.append((f"g{k}", x.dtype, x.shape, end))
            if k in divided:
                starts = range(0, x.size, PART)
                parts[k] = [f"g{k}_{i}" for i in range(len(starts))]
                fields += [(name, x.dtype, min(PART, x.size - start), end + start * x.itemsize)
                           for name, start in zip(parts[k], starts, strict=True)]  # fmt: skip
            end += x.nbytes
        if first:
            fields.append(("flat", values[0].dtype, sum(x.size for x in values[:first]), 0))
        names, dtypes, shapes, offsets = map(list, zip(*fields, strict=True)) if fields else ([], [], [], [])
        formats = [(dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True)]
        self.kind: Any = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": max(end, 1)})
        self.block = np.empty((), self.kind)
        self.fields = {name: self.block[name] for name in names}
        self.tokens = [self.fields[f"g{k}"] for k in range(len(values))]
        self.flat = self.fields.get("flat")
        self.parts = {k: [self.fields[name] for name in known] for k, known in parts.items()}

    def write(self, values: Sequence[Any]) -> None:
        """Write values to what stands for the gradients, to make calls with them."""
        for token, value in zip(self.tokens, values, strict=True):
            token[...] = value

    def text_of(self, x: Any) -> str | None:
        """Source for a gradient, another field, or rows of one, by the name of the field; None for other arrays."""
        if not isinstance(x, np.ndarray) or _owner(x) != id(self.block):
            return None
        for name, known in self.fields.items():
            if x is known:
                return name
        for name, known in self.fields.items():
            if x.ndim and (x.dtype, x.shape[1:], x.strides) == (known.dtype, known.shape[1:], known.strides):
                start, rest = divmod(x.ctypes.data - known.ctypes.data, x.strides[0])
                if 0 <= start < len(known) and not rest:
                    return f"{name}[{start}:{start + len(x)}]"
        raise _Refused


class Lowering:
    """The rows of a recorder, lowered where their operations declare it.

    Attributes
    ----------
    arrays : dict
        By slot: the array that has its value.
    calls : dict
        By the id of a row: its lowered calls; None for a row that needs no call.
    updates : dict
        By the id of a row: the `Update` in its place.
    gradients : Gradients
    leaves : list of pairs
        Leaves whose arrays are bound, and these.
    inputs : list of pairs
        Slots of arguments, and the arrays that they are copied to.
    bytes : int
        The size of all arrays that were made.
    """

    def __init__(
        self, recorder: Recorder, inputs: Sequence[Any], results: Sequence[Any], alone: set[int],
        barred: frozenset[int] = frozenset(),
    ):  # fmt: skip
        self.barred = barred  # the slots of gradients that are not written to new arrays
        self.arrays: dict[int, Any] = {}
        self.calls: dict[int, Any] = {}
        self.updates: dict[int, Update] = {}
        self.gradients = Gradients([], [], 0, [])
        self.leaves: list[tuple[Leaf, Any]] = []
        self.inputs: list[tuple[int, Any]] = []
        self.bytes = 0
        self._rows = recorder.rows
        self._alone = alone
        self._values: dict[int, Any] = dict(enumerate(inputs))
        for row in self._rows:
            self._values[row.slot] = row.value
            for path, at in row.parts.items():
                part = row.value
                for k in path:
                    part = part[k]
                self._values[at] = part
        self._free: list[Any] = []  # blocks of memory
        self._blocks: dict[int, Any] = {}  # by the owner of a recorded array: its block
        self._of_block: dict[int, Any] = {}  # by the id of an array: its block
        self._made: dict[int, Any] = {}  # by the id of its owner: memory that calls write to, so no constants
        self._constants: dict[int, Any] = {}
        self._all: list[Any] = []
        # Arrays of the program that rows read: it may write to them between the calls.
        self._foreign = {_owner(x) for x in recorder.constants if isinstance(x, np.ndarray)}
        self._pending: list[tuple[int, Any]] = []
        self._tokens: dict[int, Any] = {}
        self._last = self._last_uses(results)
        self._lower(inputs)

    def shares(self, at: int) -> bool:
        """Whether a value that is a local variable of a replay may lie in memory that replays use again."""
        mine = set(_owners(self._values[at]))
        return any(not mine.isdisjoint(_owners(self._values[each])) for each in self.arrays)

    @property
    def unwritten(self) -> frozenset[int]:
        """The slots of gradients whose rows are not lowered."""
        done = {row.slot for row in self._rows if id(row) in self.calls}
        return frozenset(at for at in self._tokens if at not in done)

    def in_order(self) -> Iterator[tuple[list[Any], Update | None]]:
        """The calls of each lowered row, in order, and its `Update`."""
        for row in self._rows:
            update = self.updates.get(id(row))
            yield (self.calls.get(id(row)) or [], None) if update is None else (update.calls, update)

    # -- memory ------------------------------------------------------------------------------------------------------
    def new(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of free memory, or of new."""
        size = max(int(np.prod(shape)) * dtype.itemsize, 1)
        fits = [block for block in self._free if block.nbytes >= size and block.nbytes <= 4 * size + 1024]
        if fits:
            block = min(fits, key=lambda b: b.nbytes)
            self._free = [b for b in self._free if b is not block]
        else:
            raw = np.empty(size + _ALIGNED, np.uint8)
            start = -raw.ctypes.data % _ALIGNED
            block = raw[start : start + size]
            self.bytes += size
        return self._on(block, shape, dtype)

    def _on(self, block: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        size = int(np.prod(shape)) * dtype.itemsize
        array = block[:size].view(dtype).reshape(shape)
        self._of_block[id(array)] = block
        self._all.append(array)  # kept, so that no other array gets its id
        self._write(array)
        return array

    def _write(self, array: Any) -> None:
        self._made[_owner(array)] = array

    def is_constant(self, x: Any) -> bool:
        """Whether an argument is the same in each step."""
        if not isinstance(x, np.ndarray) or id(x) in self._constants:
            return True
        return _owner(x) not in self._made and _owner(x) not in self._foreign

    # -- lifetimes ---------------------------------------------------------------------------------------------------
    def _last_uses(self, results: Sequence[Any]) -> dict[int, int]:
        last: dict[int, int] = {}
        for i, row in enumerate(self._rows):
            given = [owner for at in slots_in((row.args, row.words)) for owner in _owners(self._values[at])]
            kept = _NEVER if _is_opaque(row.value) else i
            for owner in given:
                last[owner] = max(last.get(owner, -1), kept)
            for owner in _owners(row.value):
                last[owner] = max(last.get(owner, -1), i)
        for at in slots_in(list(results)):
            for owner in _owners(self._values[at]):
                last[owner] = _NEVER
        return last

    def _release(self, i: int) -> None:
        for owner in [owner for owner in self._blocks if self._last.get(owner, i) <= i]:
            self._free.append(self._blocks.pop(owner))

    # -- rows --------------------------------------------------------------------------------------------------------
    def _lower(self, inputs: Sequence[Any]) -> None:
        for at, array in enumerate(inputs):
            if isinstance(array, np.ndarray) and array.flags.c_contiguous and array.ndim:
                own = np.empty(array.shape, array.dtype)
                self.bytes += own.nbytes
                self.arrays[at] = own
                self._write(own)
                self.inputs.append((at, own))
        self._changed = False
        steps = self._steps()
        for i, row in enumerate(self._rows):
            if row.function is read:
                self._read(row)
            elif id(row) in steps:
                self.updates[id(row)] = steps[id(row)]
            elif not row.changes and not row.expected:
                calls = self._lowered(i, row)
                if calls is not None:
                    self.calls[id(row)] = calls
                elif self._is_view(row):
                    self.calls[id(row)] = []
            is_again = row.function is remove_gradients or row.changes == "keys"
            self._changed = self._changed or bool(row.changes and not is_again)
            self._release(i)

    def _read(self, row: Row) -> None:
        leaf = row.args[0]
        if isinstance(row.value, np.ndarray) and leaf.array is row.value:
            self.arrays[row.slot] = row.value
            self._write(row.value)
            if not any(x is leaf for x, _ in self.leaves):
                self.leaves.append((leaf, row.value))

    def _resolve(self, x: Any) -> Any:
        kind = x.__class__
        if kind is Slot:
            found = self.arrays.get(x.at)
            if found is not None:
                return found
            value = self._values[x.at]
            if isinstance(value, tuple):
                return tuple(self._part(part) for part in value)
            return MISSING
        if kind is tuple:
            return tuple(map(self._resolve, x))
        if kind in (list, dict, Held, Named):
            return MISSING
        return x

    def _part(self, value: Any) -> Any:
        if value is None or value.__class__ in (int, float, bool):
            return value
        if isinstance(value, tuple):
            return tuple(map(self._part, value))
        at = next((at for at, known in self._values.items() if known is value and at in self.arrays), None)
        return MISSING if at is None else self.arrays[at]

    def _outputs(self, i: int, row: Row, given: Any, in_place: bool) -> Any:
        """New arrays for a result, by the parts of the recorded one."""
        at = row.slot
        if at in self._tokens:
            return self._tokens[at]
        return self._output(i, row, row.value, (), given if in_place else ())

    def _output(self, i: int, row: Row, value: Any, path: tuple[int, ...], given: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, tuple):
            return tuple(self._output(i, row, part, (*path, k), ()) for k, part in enumerate(value))
        if not isinstance(value, np.ndarray | np.generic) or value.dtype.hasobject:
            raise _Refused
        if isinstance(value, np.ndarray) and (not value.flags.c_contiguous or value.ndim == 0):
            raise _Refused
        owner = _owner(value)
        if isinstance(value, np.ndarray) and value.size != _size_of_owner(value):
            raise _Refused
        out = self._reused(i, value, given)
        if out is None:
            out = self.new(value.shape, value.dtype)
        self._blocks[owner] = self._of_block[id(out)]
        self._pending.append((row.slot if not path else row.parts.get(path, -1), out))
        return out

    def _reused(self, i: int, value: Any, given: Any) -> Any:
        """The memory of an operand that row i is the last to read, for a result of its form; None if there is none."""
        for x in given:
            block = self._of_block.get(id(x)) if isinstance(x, np.ndarray) else None
            if block is None or not x.ndim or (x.shape, x.dtype) != (value.shape, value.dtype):
                continue
            of = [key for key, known in self._blocks.items() if known is block]
            if len(of) == 1 and self._last[of[0]] == i:
                del self._blocks[of[0]]
                return self._on(block, value.shape, value.dtype)
        return None

    def _lowered(self, i: int, row: Row) -> Any:
        if row.of is None or row.words:
            return None
        op, key = row.of
        function = op.lowered.get(key)
        is_sum = (
            key != "y" and function is None and not op.variadic and op.rule(key) is identity and row.args[5] is not None
        )
        if function is None and not is_sum:
            return None
        free, blocks, size = list(self._free), dict(self._blocks), self.bytes
        self._pending = []
        calls = Calls(self)
        try:
            out = self._applied(i, row, calls, op.lowered.get(key))
            self._check(calls, out)
        except (_Refused, AttributeError, TypeError, ValueError, RingtapeError):
            self._free, self._blocks, self.bytes = free, blocks, size
            return None
        for at, array in self._pending:
            if at >= 0:
                self.arrays[at] = array
        if row.slot in self._tokens:
            self.arrays[row.slot] = self._tokens[row.slot]
        elif self._fold(row, calls, out):
            return []
        self._free += [self._of_block[id(x)] for x in calls.scratches]
        return calls.found

    def _applied(self, i: int, row: Row, calls: Calls, function: Any) -> Any:
        """Make the output of a row, and add the calls that write it."""
        op, key = row.of
        args = self._resolve(row.args)
        if key == "y":
            out = self._outputs(i, row, _flat(args), op.elementwise)
            function(calls, out, *args)
            return out
        _, ct, y, xs, options, shapes = args
        if function is not None and shapes is not None and tuple(shapes[key]) != np.broadcast_shapes(*shapes):
            raise _Refused
        out = self._outputs(i, row, _flat(args), op.elementwise)
        if function is not None:
            function(calls, out, ct, y, *xs, *options)
        elif ct is MISSING or ct.ndim != 2 or out.shape != ct.shape[1:] or ct.dtype.char not in "fd":
            raise _Refused
        else:
            calls.add(ones(len(ct), ct.dtype).dot, ct, out)
        return out

    def _check(self, calls: Calls, out: Any) -> None:
        for function, args, word, required in calls.found:
            if required and self._changed or self.gradients.text_of(getattr(function, "__self__", None)):
                raise _Refused
            for x in (*args, word):
                self.gradients.text_of(x)  # refuses views without source

    def _fold(self, row: Row, calls: Calls, out: Any) -> bool:
        """Compute a result of constants once."""
        own = {id(x) for x in (*_flat(out), *calls.scratches)}
        used = [x for f, args, word, _ in calls.found for x in (*args, word, getattr(f, "__self__", None))]
        if not all(id(x) in own or self.is_constant(x) for x in used) or isinstance(out, tuple) or row.parts:
            return False
        for function, args, word, _ in calls.found:
            make(function, args, word)
        fixed = out.copy()
        self.arrays[row.slot] = fixed
        self._constants[id(fixed)] = fixed
        owner = _owner(row.value)
        self._free += [self._blocks.pop(owner), *(self._of_block[id(x)] for x in calls.scratches)]
        return True

    def _is_view(self, row: Row) -> bool:
        """Take the result of a row that makes a view of an array from one call now."""
        if not isinstance(row.value, np.ndarray) or row.parts or row.words or row.slot in self._tokens:
            return False
        slots = slots_in(row.args)
        if not slots or not all(at in self.arrays for at in slots):
            return False
        if not any(_owner(row.value) in _owners(self._values[at]) for at in slots):
            return False
        args = self._resolve(row.args)
        if any(x is MISSING for x in _flat(args)):
            return False
        found = row.function(*args)
        if not isinstance(found, np.ndarray) or found.strides != row.value.strides or not any(
            _owner(found) == _owner(self.arrays[at]) for at in slots
        ):
            return False
        self.arrays[row.slot] = found
        return True

    def forget(self) -> None:
        """Release what was only needed to lower the rows and to prove it: above all, the recorded values."""
        for each in (self._values, self._last, self._blocks, self._of_block, self._made, self._constants):
            each.clear()
        self._all, self._free, self._pending = [], [], []

    # -- proof -------------------------------------------------------------------------------------------------------
    def fault(self, inputs: Sequence[Any], before: Sequence[tuple[Any, Any]]) -> str:
        """Make the lowered calls with the values of the recorded run; the name of a row with other bits, or "".

        `before` are arrays that the step changes, and their values before the run. Afterwards they are as it left them.
        """
        after = [(array, array.copy()) for array, _ in before]
        try:
            for array, value in before:
                np.copyto(array, value)
            for at, own in self.inputs:
                np.copyto(own, inputs[at])
            return self._first_fault({id(array): value for array, value in after})
        finally:
            for array, value in after:
                np.copyto(array, value)

    def _first_fault(self, after: dict[int, Any]) -> str:
        for row in self._rows:
            if id(row) in self.updates:
                update = self.updates[id(row)]
                self.gradients.write([self._values[at] for at in self._tokens])
                for function, args, _, _ in update.calls:
                    function(*args)
                if not update.fits() or not all(_has_bits(x, after.get(id(x))) for x in update.written):
                    return row.name
                continue
            calls = self.calls.get(id(row))
            for function, args, word, required in calls or ():
                if make(function, args, word) is False and required:
                    return row.name
            if calls is not None:
                for path, at in {(): row.slot, **row.parts}.items():
                    value = row.value
                    for k in path:
                        value = value[k]
                    if at in self.arrays and not _has_bits(self.arrays[at], value):
                        return f"{row.name} at {row.line}"
        return ""

    # -- optimizers --------------------------------------------------------------------------------------------------
    def _steps(self) -> dict[int, Update]:
        """Decide which gradients are new arrays of their own, and which steps of SGD are lowered."""
        grads, again, step = self._gradient_rows()
        members, large = _members_of(step)
        together = [*members, *large]
        usable = {id(row.args[0]) for key, row in grads.items() if key not in again and self._can_lower(row)}
        lowers = bool(together) and usable.issuperset(map(id, together))
        together = together if lowers else []
        taken = set(map(id, together))
        others = (row.args[0] for key, row in grads.items() if key in usable and key not in taken)
        leaves = [*together, *others]
        places = [grads[id(leaf)].args[1].at for leaf in leaves]
        divided = range(len(members), len(together))
        self.gradients = Gradients(
            leaves, [self._values[at] for at in places], len(members) if lowers else 0, divided
        )  # fmt: skip
        self._tokens = dict(zip(places, self.gradients.tokens, strict=True))
        self._write(self.gradients.block)
        if not lowers or step is None:
            return {}
        optimizer, keep = step.args
        return {id(step): Update(optimizer, keep, optimizer.together(), self.gradients, together)}

    def _gradient_rows(self) -> tuple[dict[int, Row], set[int], Row | None]:
        """By the id of a leaf, the row that gives it its gradient; the leaves with another use of it; a step of SGD.

        The step is the only other row that changes something after the first gradient.
        """
        grads: dict[int, Row] = {}
        cleared: set[int] = set()
        again: set[int] = set()
        step: Row | None = None
        for row in self._rows:
            if row.function is remove_gradients:
                cleared.update(map(id, row.args))
            elif row.function is accumulate:
                leaf, ct = row.args
                if id(leaf) in grads or id(leaf) not in cleared or ct.__class__ is not Slot or ct.at not in self._alone:
                    again.add(id(leaf))
                grads.setdefault(id(leaf), row)
            elif row.function is adopt:
                again.add(id(row.args[0]))
            elif row.changes and row.changes != "messages" and grads:
                if row.function is not whole_step or step is not None:
                    return grads, again, None
                step = row
        return grads, again, step

    def _can_lower(self, row: Row) -> bool:
        """Whether the operation that made a gradient declares how it is lowered."""
        leaf, ct = row.args
        at, value = ct.at, self._values[ct.at]
        if at in self.barred or not isinstance(value, np.ndarray) or value.dtype != leaf.array.dtype:
            return False
        maker = next((each for each in self._rows if each.slot == at), None)
        if maker is None or maker.of is None:
            return False
        op, key = maker.of
        return key in op.lowered


def _members_of(step: Row | None) -> tuple[list[Leaf], list[Leaf]]:
    """The parameters that a step of SGD with momentum updates together, and the large ones; none for another step."""
    optimizer: Any = None if step is None else step.args[0]
    small: Any = optimizer.together() if type(optimizer) is SGD else None
    if small is None or len({p.array.dtype for p in optimizer.parameters}) > 1:
        return [], []
    for p, v in zip(optimizer.parameters, optimizer.velocity, strict=True):
        x = p.array
        if not (x.__class__ is v.__class__ is np.ndarray and x.dtype.char in "fd" and v.dtype == x.dtype):
            return [], []
        if not (x.flags.c_contiguous and v.flags.c_contiguous):
            return [], []
    return [p for _, p, _, _ in small.members], [optimizer.parameters[i] for i in small.others]


def make(function: Callable[..., Any], args: tuple[Any, ...], out: Any) -> Any:
    """Make a call of `Calls`."""
    return function(*args) if out is None else function(*args, out=out)


def _has_bits(a: Any, b: Any) -> bool:
    """Whether two arrays, or an array and a NumPy scalar, have the same bits."""
    return b is not None and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def changing(recorder: Recorder) -> list[Any]:
    """The arrays that a step changes and lowered calls read or write: parameters, and velocities of SGD."""
    found = [leaf.array for leaf in recorder.leaves.values() if isinstance(leaf.array, np.ndarray)]
    for row in recorder.rows:
        if row.function is whole_step and type(row.args[0]) is SGD:
            small = row.args[0].together()
            if small is not None:
                velocities = [row.args[0].velocity[i] for i in small.others]
                found += [small.velocity, *(v for v in velocities if isinstance(v, np.ndarray))]
    return [x for x in found if x.flags.writeable]


def _flat(x: Any) -> list[Any]:
    if isinstance(x, tuple | list):
        return [each for part in x for each in _flat(part)]
    return [x]


def _owner(x: Any) -> int:
    while isinstance(x, np.ndarray) and x.base is not None:
        x = x.base
    return id(x)


def _size_of_owner(x: Any) -> int:
    while isinstance(x.base, np.ndarray):
        x = x.base
    return int(x.size)


def _owners(value: Any) -> list[int]:
    """The owners of the memory of the arrays in a value."""
    if isinstance(value, np.ndarray | np.generic):
        return [_owner(value)]
    if isinstance(value, tuple | list):
        return [owner for part in value for owner in _owners(part)]
    if isinstance(value, dict):
        return _owners(list(value.values()))
    return []


def _is_opaque(value: Any) -> bool:
    """Whether a value may hold arrays that are not seen."""
    if isinstance(value, tuple | list):
        return any(map(_is_opaque, value))
    if value is None or isinstance(value, np.ndarray | np.generic | bool | int | float | complex | str):
        return False
    return not callable(value)
