"""Faults as data: their kinds, plans of them, the text of a plan, and plans that are drawn from a seed."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any, ClassVar, NoReturn

from autograd.errors import ArgumentError, MeshError, OptionError, typed_errors

__all__ = ["CALLS", "KINDS", "Corrupt", "Delay", "Drop", "Fault", "Kill", "Plan", "Stop", "plan"]

CALLS = (
    "all_reduce", "reduce", "broadcast", "gather", "all_gather", "scatter", "reduce_scatter", "all_to_all", "scan",
    "send", "recv", "get", "accumulate", "barrier", "window.get", "window.add", "window.put", "window.fetch_and_add",
)  # fmt: skip
"""The calls that move data between ranks, or synchronize them. A message that is lent is a `send`."""

_NAME = re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII)
_TEXT = re.compile(r"(?P<kind>\w+):(?P<rank>\w+)@(?P<at>\w+)(?P<options>(,\w+=[^,;\s]+)*)", re.ASCII)
_FORM = "KIND:RANK@NUMBER, for example kill:2@17 or delay:0@3,seconds=0.1,of=all_reduce"


def _refuse(given: str, needed: str) -> NoReturn:
    raise OptionError(f"{given} was given; needed: {needed}")


def _checked_int(where: str, name: str, given: Any, least: int) -> int:
    """An argument as an int from `least` on."""
    try:
        number = operator.index(given)
    except TypeError:
        number = least - 1
    if isinstance(given, bool) or number < least:
        _refuse(f"{where}({name}={given!r})", f"an int from {least} on")
    return number


@dataclass(frozen=True, repr=False)
class Fault:
    """One fault of one rank. Its `repr` is a text that `Plan` and ``RINGTAPE_FAULTS`` take: ``kill:2@17``.

    Parameters
    ----------
    rank : int
        The rank that fails, by its number in the world.
    at : int
        The operation at which it fails, counted from 1 on that rank.
    of : str, optional
        The name of an operation. Then `at` counts the operations of this name only.
    start : int, optional
        The start of the job at which it happens, where `parallel.launch` starts it several times: 1 is the first. By
        default it happens at each.
    """

    kind: ClassVar[str] = ""
    needs_call: ClassVar[bool] = False
    """Whether it changes a call that moves data; see `collectives.testing.faults`."""

    rank: int
    at: int
    of: str = field(default="", kw_only=True)
    start: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        self._check_int("rank", 0)
        self._check_int("at", 1)
        self._check_int("start", 0)
        if not isinstance(self.of, str) or (self.of and not _NAME.fullmatch(self.of)):
            _refuse(f"{type(self).__name__}(of={self.of!r})", "a name such as all_reduce or checkpoint.write")
        if self.of and self.needs_call and self.of not in CALLS:
            raise OptionError(
                f"{self!r}: {self.kind} changes a call between ranks, and {self.of} is none; needed: of one of "
                f"{', '.join(CALLS)}"
            )

    def __repr__(self) -> str:
        given = (f for f in fields(self) if f.name not in ("rank", "at"))
        options = [f",{f.name}={getattr(self, f.name)}" for f in given if getattr(self, f.name) != f.default]
        return f"{self.kind}:{self.rank}@{self.at}{''.join(options)}"

    @property
    def place(self) -> tuple[int, str, int]:
        """The rank, the name and the number of the operation at which it happens."""
        return self.rank, self.of, self.at

    def _check_int(self, name: str, least: int) -> None:
        number = _checked_int(type(self).__name__, name, getattr(self, name), least)
        object.__setattr__(self, name, number)  # the class is frozen


@typed_errors
@dataclass(frozen=True, repr=False)
class Kill(Fault):
    """The rank is killed: a process by SIGKILL, a thread by an exception that its program cannot keep."""

    kind = "kill"


@typed_errors
@dataclass(frozen=True, repr=False)
class Stop(Fault):
    """The rank stops for good without ending: a process by SIGSTOP, a thread by a wait that only the job's end ends."""

    kind = "stop"


@typed_errors
@dataclass(frozen=True, repr=False)
class Delay(Fault):
    """The rank sleeps for some `seconds`, and then continues."""

    kind = "delay"
    seconds: float = field(default=0.1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.seconds
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if not is_number or not 0 <= given < math.inf:
            _refuse(f"Delay(seconds={given!r})", "a number of seconds that is not negative")


@typed_errors
@dataclass(frozen=True, repr=False)
class Drop(Fault):
    """The rank's part of a call is lost: a message that never arrives, or a contribution to a collective.

    So is all that the rank sends later to the same rank on this channel, or contributes there.
    """

    kind = "drop"
    needs_call = True


@typed_errors
@dataclass(frozen=True, repr=False)
class Corrupt(Fault):
    """Some `bits` of the result of a call are inverted on this rank, or of the message that it sends.

    The places of the bits are drawn from the `seed`, the rank and the number of the operation.
    """

    kind = "corrupt"
    needs_call = True
    bits: int = field(default=1, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_int("bits", 1)
        self._check_int("seed", 0)


KINDS: dict[str, type[Fault]] = {kind.kind: kind for kind in (Kill, Stop, Delay, Drop, Corrupt)}
"""The kinds of faults by name."""


@typed_errors
class Plan:
    """Faults that are injected together. Its `repr` is a text that makes the same plan, and that users can write.

    Parameters
    ----------
    *faults : Fault, str, Plan, or sequence of them
        A text has faults in the form ``KIND:RANK@NUMBER``, separated by semicolons. Options follow after commas:
        ``delay:0@3,seconds=0.1,of=all_reduce``.

    Attributes
    ----------
    faults : tuple of Fault

    Raises
    ------
    OptionError
        A text that is no fault, an unknown kind or option, a number that is out of range, or two faults at one place.
    ArgumentError
        An argument is no fault and no text.

    Examples
    --------
    >>> from collectives.testing import faults
    >>> plan = faults.Plan(faults.Kill(rank=2, at=17), "corrupt:1@9,bits=3")
    >>> plan
    kill:2@17; corrupt:1@9,bits=3
    >>> faults.Plan(repr(plan)) == plan
    True
    >>> faults.Plan("kil:2@17")
    Traceback (most recent call last):
    autograd.errors.OptionError: fault 'kil:2@17': there is no kind 'kil'; needed: one of kill, stop, ...
      fix: kill:2@17
      at ...
    """

    def __init__(self, *faults: Any):
        self.faults: tuple[Fault, ...] = tuple(_all_of(faults))
        places: dict[tuple[int, str, int], list[Fault]] = {}
        for fault in self.faults:
            others = places.setdefault(fault.place, [])
            for other in others:
                if other.start == fault.start or 0 in (other.start, fault.start):
                    raise OptionError(
                        f"the faults {other} and {fault} are at one operation; needed: one fault for each rank, name "
                        f"and number\n  fix: {_moved(fault, places)}"
                    )
            others.append(fault)

    def __repr__(self) -> str:
        return "; ".join(map(repr, self.faults))

    def __iter__(self) -> Iterator[Fault]:
        return iter(self.faults)

    def __len__(self) -> int:
        return len(self.faults)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.faults == other.faults

    def __hash__(self) -> int:
        return hash(self.faults)

    def of_start(self, number: int) -> Plan:
        """The faults that happen at a start of the job; 1 is the first.

        Examples
        --------
        >>> from collectives.testing import faults
        >>> faults.Plan("kill:2@17,start=1; delay:0@3").of_start(2)
        delay:0@3
        """
        return Plan(*(fault for fault in self.faults if fault.start in (0, number)))

    def check_ranks(self, size: int) -> None:
        """Raise MeshError if a fault is of a rank that a world of `size` ranks does not have."""
        for fault in self.faults:
            if fault.rank >= size:
                raise MeshError(
                    f"fault {fault}: rank={fault.rank} was given; needed: a rank from 0 to {size - 1} of a world of "
                    f"{size} rank{'s' * (size > 1)}"
                )


def _all_of(given: Iterable[Any]) -> Iterator[Fault]:
    for each in given:
        if isinstance(each, Fault):
            yield each
        elif isinstance(each, str):
            yield from map(_parsed, filter(None, map(str.strip, each.split(";"))))
        elif isinstance(each, Plan | list | tuple):
            yield from _all_of(each)
        else:
            raise ArgumentError(f"Plan: {each!r} was given; needed: a fault, such as Kill(rank=2, at=17), or its text")


def _parsed(text: str) -> Fault:
    """The fault that a text describes."""
    match = _TEXT.fullmatch(text)
    if match is None:
        _refuse(f"fault {text!r}", _FORM)
    name = match["kind"]
    kind = KINDS.get(name)
    if kind is None:
        near = difflib.get_close_matches(name.lower(), KINDS, 1)
        fix = f"\n  fix: {text.replace(name, near[0], 1)}" if near else ""
        raise OptionError(f"fault {text!r}: there is no kind {name!r}; needed: one of {', '.join(KINDS)}{fix}")
    types = {f.name: f.type for f in fields(kind)}
    words: dict[str, Any] = {"rank": match["rank"], "at": match["at"]}
    for option in filter(None, match["options"].split(",")):
        word, _, value = option.partition("=")
        if word not in types or word in words:
            others = ", ".join(each for each in types if each not in ("rank", "at"))
            problem = "is given twice" if word in types else f"is no option of {name}"
            raise OptionError(f"fault {text!r}: {word} {problem}; needed: each at most once of {others}")
        words[word] = value
    try:
        return kind(**{word: _READERS[str(types[word])](value) for word, value in words.items()})
    except ValueError as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"fault {text!r}: {error}; needed: {_FORM}") from None


_READERS: dict[str, Any] = {"int": int, "float": float, "str": str}


def _moved(fault: Fault, places: Mapping[tuple[int, str, int], Any]) -> Fault:
    """The fault at the next operation where there is none."""
    at = fault.at
    while (fault.rank, fault.of, at) in places:
        at += 1
    return type(fault)(**{f.name: getattr(fault, f.name) for f in fields(fault)} | {"at": at})


@typed_errors
def plan(
    seed: int, ranks: int, operations: int, kinds: str | Sequence[str] = ("kill",), count: int = 1, of: str = ""
) -> Plan:
    """Draw a plan from a seed: the same arguments give the same faults, on every machine.

    Parameters
    ----------
    seed : int
    ranks : int
        The number of ranks. Every rank is equally likely.
    operations : int
        The number of operations of a rank. Every one is equally likely. An `injected` block reports a fault that was
        not reached, with the number of operations that its rank has made.
    kinds : sequence of {"kill", "stop", "delay", "drop", "corrupt"}
        The kinds to draw from. A delay lasts up to 0.1 s.
    count : int
        The number of faults. They are at different places.
    of : str, optional
        The name of the operations that `operations` counts; by default it counts all of them.

    Returns
    -------
    Plan

    Raises
    ------
    OptionError
        A number that is too small, an unknown kind, or more faults than places.

    Examples
    --------
    >>> from collectives.testing import faults
    >>> faults.plan(seed=7, ranks=4, operations=200, kinds=("kill", "delay"), count=2)
    delay:1@31,seconds=0.007; kill:2@74
    """
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    for name, number in (("ranks", ranks), ("operations", operations), ("count", count)):
        _checked_int("plan", name, number, 1)
    for kind in kinds:
        if kind not in KINDS:
            raise OptionError(f"plan(kinds={kinds!r}): there is no kind {kind!r}; needed: some of {', '.join(KINDS)}")
    if not kinds or count > ranks * operations:
        needed = "one kind or more" if not kinds else f"at most {ranks * operations}, one at each place"
        _refuse(f"plan(kinds={kinds!r}, count={count})", needed)
    # Only `random` is promised to stay the same in all versions of Python.
    random = Random(operator.index(seed)).random
    drawn: dict[tuple[int, int], Fault] = {}
    while len(drawn) < count:
        rank, at, kind = int(random() * ranks), int(random() * operations) + 1, kinds[int(random() * len(kinds))]
        options: dict[str, Any] = {"seed": seed} if kind == "corrupt" else {}
        if kind == "delay":
            options["seconds"] = round(random() * 0.1, 3)
        drawn.setdefault((rank, at), KINDS[kind](rank, at, of=of, **options))
    return Plan(*drawn.values())
