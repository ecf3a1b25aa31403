"""Guards: whether a call of a captured step is the one that was recorded.

`Form` describes the arguments of a call, and `Guard` what else the operations depend on: what the step can reach
(`reach.py`), and the state of the thread. `entry` writes both as one function, because it runs at every replay.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from operator import getitem, is_
from types import FrameType
from typing import Any, Protocol

import numpy as np
from numpy.lib.array_utils import byte_bounds

from ..arrays.capture import current_capture, read_of_capture
from ..arrays.device import is_inexact, runtime_of
from ..compiler.identities import Identities, Read, values_of
from ..compiler.text import Text, indented
from ..engine.events import listeners, spans
from ..engine.leaves import Leaf
from ..engine.pytree import Structure, flatten
from ..engine.state import state
from ..engine.tensor import TENSORS
from ..errors import CaptureError, TapeError, frames_of_threads, short, uncollected
from ..optim.base import Optimizer
from ..random.keys import Key
from .reach import ABSENT, Change, Reach, is_of_library, same
from .recorder import Passing, Recorder

__all__ = ["MOST_BYTES", "ORDINARY", "Form", "Guard", "Seen", "entry", "in_other", "is_heard", "others_may_read"]

ORDINARY = "fcbiu"
"""The kinds of dtypes of which operations take arrays, and other values are made."""

MOST_BYTES = 1 << 16
"""An array whose values each call compares has at most so many bytes."""

_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), slice, range)


def is_heard() -> bool:
    """Whether something hears of operations of this thread, or captures them."""
    me = threading.get_ident()
    return current_capture() is not None or any(thread == me for thread, _ in (*listeners, *spans))


class Form:
    """The form of arguments: what a replay needs of them, and their arrays.

    Attributes
    ----------
    args : tuple
        The arguments.
    key : tuple
        Equal for arguments of one form.
    arrays : list
        The arrays, NumPy scalars and keys of random draws, each once.
    is_on_device : bool
        Whether one of them is on a device.
    """

    is_on_device = False

    def __init__(self, args: tuple[Any, ...]):
        self.args = args
        self.leaves, self.structure = flatten(args, is_whole=True)
        self.arrays: list[Any] = []
        parts: list[Any] = []
        self.held: list[Any] = []  # objects that the key names by their identity
        seen: dict[int, int] = {}
        for i, x in enumerate(self.leaves):
            is_tensor = x.__class__ in TENSORS
            array = x.array if is_tensor else x
            if is_tensor and x.tape is not None and not x.tape.released(x.node):
                text = "capture: an argument is recorded by a tape; needed: data\n  fix: stop_gradient(x)"
                raise TapeError(text)
            if is_tensor and isinstance(x, Leaf) and x._requires_grad:
                parts.append((x.__class__, id(x)))  # it is read as a leaf, and gets gradients
                self.held.append(x)
            elif isinstance(array, np.ndarray | np.generic) or runtime_of(type(array)) is not None:
                self.is_on_device |= not isinstance(array, np.ndarray | np.generic)
                first = seen.setdefault(id(array), i)
                if first != i:
                    parts.append((x.__class__, "again", first))
                    continue
                layout = x.layout if is_tensor else None
                form = x.__class__, array.__class__, array.shape, array.dtype, array.strides, layout
                is_by_value = _counts_by_value(array)
                parts.append((*form, array.tobytes()) if is_by_value else form)
                self.arrays.append(array)
            elif x.__class__ is Key:
                first = seen.setdefault(id(x), i)
                if first != i:
                    parts.append((Key, "again", first))
                    continue
                parts.append((Key, x.axes, x.places, x.apart))
                self.arrays.append(x)
            elif x.__class__ in _CONSTANTS:
                parts.append((x.__class__, repr(x)))
            else:
                parts.append((x.__class__, id(x)))
                self.held.append(x)
        self.parts = parts
        self.key = (*_form_of(self.structure), *parts)

    @property
    def is_plain(self) -> bool:
        """Whether all containers are tuples, lists, and dictionaries of texts, and no array is there twice."""
        return _is_plain(self.structure) and not any(part[1] == "again" for part in self.parts)

    def __str__(self) -> str:
        return ", ".join(short(x) for x in self.leaves)

    def named_parts(self) -> dict[str, tuple[Any, ...]]:
        """The part of the key of each leaf, by its name in messages."""
        return dict(zip(_names(self.structure), self.parts, strict=True))

    def advice(self, last: dict[str, tuple[Any, ...]]) -> tuple[str, str]:
        """The first argument that is another one than in the last recorded call, as text, and a fix."""
        fix = "leave out of the arguments what is another one in each call"
        for name, now in self.named_parts().items():
            (kind, mark, *_), was = now, last.get(name, now)
            if was == now or was[0] is not kind:
                continue
            if kind in _CONSTANTS:
                fix = "give numbers that change as numpy.float64(x)" if kind in (int, float, complex) else fix
                return f"\n  {name} was {was[1]} and is {mark}", fix
            if isinstance(mark, int):
                text = f"is another {kind.__name__} than in the last call; objects are compared by identity"
                return f"\n  {name} {text}", f"make the {kind.__name__} once, before the calls; or give its values"
            if isinstance(now[-1], bytes) and was[:-1] == now[:-1]:
                return f"\n  {name} has other values; text, dates and records are compared by value", fix
        return "", "pad the arguments to one shape; give numbers that change as numpy.float64(x)"

    def copied(self) -> Form:
        """The same arguments with copies of their arrays, which tells an argument from an array of the program.

        Raises
        ------
        CaptureError
            The values of one would be seen neither by the recorded runs nor by replays.
        """
        for name, x in zip(_names(self.structure), self.leaves, strict=True):
            array = x.array if x.__class__ in TENSORS else x
            is_own = isinstance(array, np.ndarray) and array.__class__ not in (np.ndarray, np.memmap)
            if is_own or _counts_by_value(array) and (array.dtype.hasobject or array.nbytes > MOST_BYTES):
                raise CaptureError(
                    f"capture: {name} is {short(array)} of the class {type(array).__name__}; needed: an ndarray, no "
                    f"objects in it, and of text, dates and records, which are compared, at most {MOST_BYTES} bytes\n"
                    "  fix: give its numbers as arrays, and objects in a list; or call the step itself"
                )
        return self._with(lambda array: _copy_of(array) if isinstance(array, np.ndarray) else array)

    def other(self, seed: int, is_far: bool, scale: float = 1.0) -> Form:
        """Arguments of this form with other values.

        Floats are moved, and integers and booleans exchanged. With `is_far` floats are exchanged, too, and some change
        their sign; integers are drawn from those that are there, by the seed without the largest or the smallest, or
        with a 0, and booleans at random or all alike: a mask of ones, equal lengths, the largest label and the place of
        a maximum are others then. Floats are scaled, for decisions on their size; with NaN as the scale one of each
        array becomes NaN. Not each step takes such values.
        """
        random = np.random.default_rng(seed)

        def changed(array: Any) -> Any:
            if _counts_by_value(array):
                return array
            found = _other_values(array, seed, random, is_far)
            if scale == 1.0 or getattr(array, "dtype", np.dtype(int)).kind not in "fc" or not array.size:
                return found
            at = np.arange(array.size).reshape(array.shape) == 0 if np.isnan(scale) else True
            other = np.where(at, found * array.dtype.type(scale), found)
            if not isinstance(found, np.ndarray):
                return array.dtype.type(other)
            found[...] = other
            return found

        return self._with(changed)

    def _with(self, change: Callable[[Any], Any]) -> Form:
        """The same arguments with other arrays, one in the place of each."""
        made: dict[int, Any] = {}
        leaves = []
        for x in self.leaves:
            is_tensor = x.__class__ in TENSORS
            array = x.array if is_tensor else x
            is_array = isinstance(array, np.ndarray | np.generic | Key)
            if not is_array or is_tensor and isinstance(x, Leaf) and x._requires_grad:
                leaves.append(x)
                continue
            own = made.get(id(array))
            if own is None:
                own = made[id(array)] = change(array)
            if is_tensor and (tensor := made.get(id(x))) is None:
                tensor = made[id(x)] = copy.copy(x)
                tensor.array = own
            leaves.append(tensor if is_tensor else own)
        try:
            found = Form(self.structure.rebuild(leaves))
            pairs = zip_longest(_names(self.structure), found.leaves, leaves)
            fault = next((f"has another {name}" for name, a, b in pairs if a is not b), "")
        except Exception as error:  # of a class of the program
            fault = f"is none: {type(error).__name__}: {error}"
        if fault:
            text = f"capture: a copy of the arguments {fault}\n  fix: give the parts of each; or call the step itself"
            raise CaptureError(text)
        return found

    def require_unwritten(self, given: Form) -> None:
        """Raise CaptureError if the step has changed the copies of its arguments that it was given."""
        for mine, copied in zip(self.arrays, given.arrays, strict=True):
            if mine is not copied and mine.tobytes() != copied.tobytes():
                raise CaptureError(
                    f"capture: the step writes to its argument {short(mine)}; a replay would not repeat that\n"
                    "  fix: x = x - x.mean(0) in the place of x -= x.mean(0)"
                )
        leaves, structure = flatten(given.args, is_whole=True)
        before = dict(zip(_names(given.structure), given.leaves, strict=True))
        after = dict(zip(_names(structure), leaves, strict=True))
        pairs = [(name, before.get(name, ABSENT), after.get(name, ABSENT)) for name in {**before, **after}]
        change: Any = next((Change(*pair) for pair in pairs if not same(*pair[1:])), None)
        if change is None and _form_of(structure) != _form_of(given.structure):
            change = f"containers were {given.structure!r} and are {structure!r}"
        if change is not None:
            raise CaptureError(
                f"capture: the step changes its arguments: {change}; a replay would not repeat that\n  fix: return the "
                "value, and keep, count or append it outside of the step; or call the step itself"
            )

    def own(self, given: Form, result: Any) -> Any:
        """The result of a run with copies, with the arguments in the place of their copies."""
        found, structure = flatten(result)
        of = {id(copied): mine for mine, copied in zip(self.leaves, given.leaves, strict=True) if mine is not copied}
        return structure.rebuild([of.get(id(x), x) for x in found]) if any(id(x) in of for x in found) else result


def _names(structure: Structure) -> list[str]:
    """The names of the leaves of arguments in messages."""
    return [path for i, part in enumerate(structure.parts) for path in part.paths(f"argument {i}")]


def _form_of(structure: Structure) -> list[Any]:
    return [repr(structure), *_kinds(structure)]


class _Rest:
    """A part of a key: the rest of a container besides its parts, such as the static fields of a dataclass."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Rest):
            return False
        try:
            return bool(self.value == other.value)
        except ValueError:  # an array in it
            return self.value is other.value

    def __hash__(self) -> int:  # the text of the value stands beside it
        return 0


def _is_plain(structure: Structure) -> bool:
    if structure.kind is dict and not all(key.__class__ is str for key in structure.keys):
        return False
    return structure.kind in (None, type(None), tuple, list, dict) and all(map(_is_plain, structure.parts))


def _kinds(structure: Structure) -> Iterator[Any]:
    """The classes of containers, and what these have besides parts, which `repr` of a structure does not tell apart."""
    if structure.kind is not None:
        yield structure.kind
        if structure.rest is not None:
            yield repr(structure.rest)
            yield _Rest(structure.rest)
        for part in structure.parts:
            yield from _kinds(part)


def _counts_by_value(x: Any) -> bool:
    """Whether a form has the values of an array or a scalar, as of text, a date, a record: no operation takes them.

    A boolean of NumPy has no identity, by which a row could know it.
    """
    if not isinstance(x, np.ndarray | np.generic):
        return False
    return x.__class__ is np.bool_ or not (x.dtype.kind in ORDINARY or is_inexact(x.dtype))


def _copy_of(x: Any) -> Any:
    """A copy of an array, in memory of its own with the same strides."""
    if not x.size or x.dtype.hasobject:
        return x.copy()
    low, high = byte_bounds(x)
    whole = np.empty(high - low, np.uint8)
    found = np.ndarray(x.shape, x.dtype, whole.data, x.ctypes.data - low, x.strides)
    found[...] = x
    return found


_OWN = ("autograd", "collectives", "parallel")
_POOLS = ("concurrent.futures.thread", "multiprocessing.pool")  # whose threads may be given work at any time


def others_may_read() -> bool:
    """Whether another thread runs code of the program or of ringtape, or waits for such work."""

    def found() -> bool:
        for innermost in frames_of_threads().values():
            frame: FrameType | None = innermost
            while frame is not None:
                name = frame.f_globals.get("__name__", "")
                if name in _POOLS or not is_of_library(name) or name.partition(".")[0] in _OWN:
                    return True
                frame = frame.f_back
        return False

    return uncollected(found)


def in_other(array: Any, seed: int, scale: float | None = None) -> None:
    """Write other values to an array of the program: floats near to its own, integers and booleans of its range.

    With a scale, floats are its own times this, and integers and booleans other ones.
    """
    is_float = array.dtype.kind in "fc"
    if is_float and scale is not None:
        array *= array.dtype.type(scale)
    else:
        way = 0 if scale is None else 1 if scale else 11  # of seeds, the one that makes a single integer 0
        array[...] = _other_values(array, way, np.random.default_rng((seed, way)), is_far=not is_float)


def _other_values(array: Any, seed: int, random: np.random.Generator, is_far: bool) -> Any:
    """An array of the form of another with other values; see `Form.other`."""
    if array.__class__ is Key:
        return array.at(array.step + 1 + int(random.integers(1000)))
    if array.dtype.kind not in ORDINARY or not array.size:
        return _copy_of(array) if isinstance(array, np.ndarray) else array
    x = _copy_of(np.asarray(array))
    flat, is_float = x.reshape(-1), x.dtype.kind in "fc"
    if is_far and not is_float:
        flat = (_masks if x.dtype.kind == "b" else _integers)(flat, seed, random)
    elif is_far or not is_float:
        flat = random.permutation(flat)
    if is_float:
        flat = flat * np.asarray(random.uniform(0.7, 1.3, flat.shape), x.real.dtype) + x.dtype.type(0.03125)
        if is_far:
            flat = flat * np.where(random.random(flat.shape) < 0.25, -1, 1)
            flat[-1] = 0 if seed % 4 == 3 else flat[-1]
    x[...] = flat.reshape(x.shape)
    return x if isinstance(array, np.ndarray) else x[()]


def _masks(flat: Any, seed: int, random: np.random.Generator) -> Any:
    """Booleans at random of which the first and the last are others; one seed of three makes all of them alike."""
    found = random.random(flat.shape) < 0.5
    found[0], found[-1] = not flat[0], not flat[-1]
    return np.full(flat.shape, not flat[0]) if seed % 3 == 1 else found


def _integers(flat: Any, seed: int, random: np.random.Generator) -> Any:
    """Other integers of the same range: by the seed without the largest, without the smallest, or with a 0.

    In the third way there are some that are missing between the smallest and the largest, too. One that is negative
    stays among them, as the label of rows that are ignored. Equal integers become smaller by 1, every second one by 2,
    all halves, or 0; those not above 0, and in one way those below 3, become larger by 1.
    """
    values, way = np.unique(flat), seed % 3
    if seed // 3 % 2 and values.size > 1:  # what stood in one half of the integers stands in the other one
        return _integers(flat[::-1], seed - 3, random)[::-1]
    few = way == 2 and 0 < values[-1] < 1000
    missing = np.setdiff1d(np.arange(values[-1] if few else 0, dtype=values.dtype), values)
    missing = np.resize(missing, -(-flat.size // 2)) if missing.size else missing
    if values.size == 1:
        known, found, turn = int(values[0]), flat.copy(), seed % 4
        other = known + 1 if known < 1 or known < 3 and turn == 1 else (known - 1, known - 2, known // 2, 0)[turn]
        found[:: 2 if turn == 1 and flat.size > 1 else 1] = other
        return found
    least = min(0, values[0])
    values = (values[:-1], values[1:], values)[way]
    at = random.integers(values.size, size=flat.size)
    found = np.where(values[at] == flat, values[(at + 1) % values.size], values[at])
    found[flat.size - missing.size :] = missing
    if least < 0 or way == 2:
        found[np.argmax(flat != least)] = least
    return found


class Seen(Passing):
    """The leaves and the modules of a step whose work a device captures."""

    def __init__(self) -> None:
        super().__init__()
        self.leaves: dict[int, Leaf] = {}
        self.modules: dict[int, Any] = {}

    def module(self, module: Any) -> None:
        """A module is called, and may call all that it has."""
        self.modules.update((id(each), each) for each in module.modules())

    def read_all(self, operands: Any) -> None:
        """Leaves enter a computation together."""
        self.leaves.update((id(x), x) for x in operands if isinstance(x, Leaf))


class Program(Protocol):
    """A program whose lines stand in the function of a plan; see `TracedRun`."""

    @property
    def written(self) -> Collection[int]:
        """The ids of the arrays that it writes to, which are no arguments."""

    @property
    def reads(self) -> list[Read]:
        """The reads of what the program is of."""

    def fits(self) -> bool:
        """Whether the program is that of their present values."""

    def is_worn(self) -> bool:
        """Whether they have been others for so long that the step may better be recorded anew."""

    def faults(self, name: Callable[[Any], str]) -> list[str]:
        """Expressions that are true where the program does not fit, though the reads give what they gave."""

    def lines(self, name: Callable[[Any], str], given: Sequence[str]) -> list[str]:
        """The lines of the program, which set `results`."""


class Guard:
    """The state that a recorded run depends on: of what the step could reach before, of leaves, of the thread.

    Parameters
    ----------
    recorder : Recorder or Seen
        Of the run.
    reach : Reach
        Made before it.
    is_left_other : bool
        Whether the run has changed something that is compared, which a replay changes, too.

    Attributes
    ----------
    changing : list
        The objects that rows change, such as parameters and optimizers.
    contents : list of (array or Leaf, bytes)
        Arrays of the program from which constants are computed, and what they held.
    """

    def __init__(self, recorder: Recorder | Seen, reach: Reach, is_left_other: bool = False):
        self.is_left_other = is_left_other
        self.contents: list[tuple[Any, bytes]] = []
        self.state = state.distribution, state.grid, state.no_grad
        self.reach = reach
        reads, _ = reach.kept()
        of_thread = vars(state)  # of this thread, to which the record belongs
        names = "recording", "distribution", "grid", "no_grad"
        for name in names:
            of_thread.setdefault(name, getattr(state, name))
        self._of_thread = None, None, *self.state  # no capture, no tape
        self._reads = [*reads, read_of_capture(), *((getitem, of_thread, name) for name in names)]
        self.same = Identities(self._reads, self._kept())
        self._more: list[tuple[Identities, Callable[[], Iterable[Any]], list[Any]]] = []
        self.changing = list(recorder.changing.values()) if isinstance(recorder, Recorder) else []
        # An optimizer of the program may change anything that it names.
        own = [x for x in self.changing if isinstance(x, Optimizer) and not is_of_library(type(x).__module__)]
        self.is_left_other = self.is_left_other or bool(own)
        self.leaves = [(x, x.array, _leaf_form(x)) for x in recorder.leaves.values()]

    def holds(self) -> bool:
        """Whether a replay would be the step."""
        if (
            (state.distribution, state.grid, state.no_grad) != self.state
            or not all(_leaf_form(x) == form for x, _, form in self.leaves) or not self.reach.holds()
            or not all(getattr(x, "array", x).tobytes() == kept for x, kept in self.contents)
        ):  # fmt: skip
            return False
        self.same.keep(self._kept())
        for identities, _, more in self._more:
            identities.keep([*self._kept(), *more])
        return True

    def _kept(self) -> list[Any]:
        return [*self.reach.kept()[1], *self._of_thread]

    def with_reads(self, reads: Sequence[Read], arrays: Sequence[Any], banned: Iterable[int]) -> Identities:
        """The identities of what this compares, and of more reads, with their present values; see `Identities`."""
        now = values_of(reads)
        more = list(now())
        found = Identities([*self._reads, *reads], [*self._kept(), *more], arrays, banned)
        self._more.append((found, now, more))
        return found

    def keep_equal(self) -> None:
        """Compare with the present values of more reads from now on, which are equal to those before."""
        for identities, now, more in self._more:
            values = list(now())
            if not all(map(is_, values, more)):
                more[:] = values
                identities.keep([*self._kept(), *more])

    def has_same_arrays(self) -> bool:
        """Whether no leaf has got another array, where a replay reads those of the run."""
        return all(x.array is array for x, array, _ in self.leaves)


def _leaf_form(x: Leaf) -> Any:
    array = x.array
    return array.__class__, array.shape, array.dtype, array.strides


def entry(
    form: Form, guard: Guard, run: Callable[..., Any], program: Program | None = None,
    again: Sequence[Callable[[], Any]] = (),
) -> Callable[[tuple[Any, ...]], Any]:  # fmt: skip
    """A function of the tuple of arguments that returns what `run` returns for their arrays; None if it may not run.

    Where a program fits, its lines stand in the function, and then the changes to make `again`.
    """
    text, given = Text(), [f"v{i}" for i in range(len(form.arrays))]
    name = text.name
    lines = [f"if ({name(listeners)} or {name(spans)}) and {name(is_heard)}(): return None"]
    checks: list[str] = []
    if form.is_plain:
        of_arguments, checks = _argument_lines(form, name)
        lines += of_arguments
    else:
        lines += [f"try: form = {name(Form)}(args)", f"except {name(TapeError)}: return None",
                  f"if form.key != {name(form.key)}: return None"]  # fmt: skip
        lines += ["".join(f"{v}, " for v in given) + "= form.arrays"] if given else []
    gone = "except (LookupError, ValueError, AttributeError): return None"  # a name, an attribute or a cell
    lines += [f"if {name(x)}{'.array' if isinstance(x, Leaf) else ''}.tobytes() != {name(kept)}: return None"
              for x, kept in guard.contents]  # fmt: skip
    forms = [f"{name(x)}.array is not {name(array)} and {name(_leaf_form)}({name(x)}) != {name(kept)}"
             for x, array, kept in guard.leaves]  # fmt: skip
    other = ["try:", f"    if not {name(guard.same.hold)}(): return None", gone,
             *(f"if {fault}: return None" for fault in (*checks, *forms)),
             f"return {name(run)}({', '.join(given)})"]  # fmt: skip
    if program is None or not program.fits():
        lines += other
    else:
        of = name(program)
        other[-1:] = [f"if {of}.fits(): {name(guard)}.keep_equal()", f"elif {of}.is_worn(): return None", other[-1]]
        arrays = [(v, x) for v, x in zip(given, form.arrays, strict=True)
                  if x.__class__ is np.ndarray and not _counts_by_value(x)]
        both = guard.with_reads(program.reads, [x for _, x in arrays], program.written)
        faults = ["not fits", *program.faults(name)]  # they see all leaves: by their arrays, or the classes of numbers
        lines += ["try:", f"    fits = {name(both.hold)}({', '.join(v for v, _ in arrays)})", gone]
        lines += [f"if {' or '.join(faults)}:", *indented(other)]
        lines += [*program.lines(name, given), *(f"{name(change)}()" for change in again), "return results"]
    return text.function("enter", "args", lines, f"{__file__}: entry")


def _argument_lines(form: Form, name: Callable[[Any], str]) -> tuple[list[str], list[str]]:
    """Lines that read the arrays of arguments, and return where these differ; and faults that `hold` sees, too."""
    lines, checks = list[str](), list[str]()
    leaves, arrays = iter(enumerate(form.leaves)), list[Any]()

    def open_container(structure: Structure, x: str) -> None:
        """The lines of a container, or a leaf, that a variable holds."""
        if structure.kind is None:
            leaf(*next(leaves), x)
            return
        if structure.kind is type(None):
            lines.append(f"if {x} is not None: return None")
            return
        is_dict, parts = structure.kind is dict, [f"{x}_{k}" for k in range(len(structure.parts))]
        size = f"{name(tuple)}({x}) != {structure.keys!r}" if is_dict else f"len({x}) != {len(parts)}"
        lines.append(f"if {x}.__class__ is not {name(structure.kind)} or {size}: return None")
        if parts:
            lines.append(f"{''.join(f'{part}, ' for part in parts)}= {x}{'.values()' if is_dict else ''}")
        for part, own in zip(structure.parts, parts, strict=True):
            open_container(part, own)

    def leaf(i: int, x: Any, a: str) -> None:
        kind, is_tensor = name(x.__class__), x.__class__ in TENSORS
        array = x.array if is_tensor else x
        v, faults = f"v{len(arrays)}", [f"{a}.__class__ is not {kind}"]
        if len(arrays) == len(form.arrays) or array is not form.arrays[len(arrays)]:  # it has no part in a run
            if x.__class__ in (float, complex):
                faults.append(f"{name(repr)}({a}) != {repr(x)!r}")
            elif x.__class__ in _CONSTANTS:
                faults.append(f"{a} != {name(x)}")
            else:
                faults = [f"{a} is not {name(x)}" + (f" or not {a}._requires_grad" if is_tensor else "")]
            lines.append(f"if {' or '.join(faults)}: return None")
            return
        is_by_value = _counts_by_value(array)
        own = checks if array.__class__ is np.ndarray and not is_by_value else faults
        if is_tensor:
            faults.append(f"{a}._requires_grad or {a}.tape is not None or {a}.layout is not {name(x.layout)}")
            own.append(f"{v}.__class__ is not {name(array.__class__)}")
        if array.__class__ is Key:
            own.append(f"{v}.axes != {name(array.axes)} or {v}.places != {name(array.places)}")
            own.append(f"{v}.apart != {name(array.apart)}")
        if isinstance(array, np.ndarray) or is_by_value:
            own.append(f"{v}.shape != {name(array.shape)} or {v}.dtype != {name(array.dtype)}")
            own += [f"{v}.strides != {name(array.strides)}"] if array.ndim else []
        own += [f"{v}.tobytes() != {array.tobytes()!r}"] if is_by_value else []
        own += [f"{v} is v{j}" for j, other in enumerate(arrays) if other.__class__ is array.__class__]
        lines.append(f"{v} = {a}.array if {a}.__class__ is {kind} else {a}" if is_tensor else f"{v} = {a}")
        lines.append(f"if {' or '.join(faults)}: return None")
        arrays.append(array)

    open_container(form.structure, "args")
    return lines, checks
