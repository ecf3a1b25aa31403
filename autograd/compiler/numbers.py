"""Python numbers that may change from step to step, such as a learning rate and the powers of an optimizer's betas.

While a step is traced, a `Number` stands for such a number. Arithmetic with it is noted as source, which is evaluated
in each step with the numbers of that step, in Python's own arithmetic.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .nodes import Refused
from .text import Text

__all__ = ["Item", "Number", "evaluated", "texts_of"]

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**", "floordiv": "//", "mod": "%"}


class Number:
    """A Python number that may change from step to step.

    Attributes
    ----------
    value : int or float
        Its value while the step is traced.
    text : str
        A Python expression for it, in which the names of `sources` stand for their present values.
    sources : dict
        Functions that return the present value, by name.
    """

    __slots__ = ("sources", "text", "value")

    def __init__(self, value: Any, text: str, sources: dict[str, Callable[[], Any]]):
        self.value, self.text, self.sources = value, text, sources

    @classmethod
    def of(cls, value: Any, source: Callable[[], Any]) -> Number:
        """A number that `source` returns in each step."""
        name = f"s{id(source)}"
        return cls(value, name, {name: source})

    def __repr__(self) -> str:
        return f"Number({self.value!r})"

    def _refuse(self, *_: Any) -> NoReturn:
        raise Refused("a decision on a number that may change from step to step")

    __bool__ = __float__ = __int__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __array__ = __complex__ = __round__ = __floor__ = __ceil__ = __trunc__ = _refuse

    def __eq__(self, other: object) -> bool:
        self._refuse()

    __hash__ = object.__hash__

    def __neg__(self) -> Number:
        return Number(-self.value, f"(-{self.text})", self.sources)

    def sqrt(self) -> Number:
        return Number(math.sqrt(self.value), f"sqrt({self.text})", self.sources)


def _parts_of(x: Any) -> Any:
    """Value, text and sources of a `Number`, or of a number of Python; None for anything else."""
    if x.__class__ is Number:
        return x.value, x.text, x.sources
    return (x, f"({x!r})", {}) if x.__class__ in (bool, int, float) else None


def _binary(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    do, sign = getattr(operator, name), _SIGNS[name]

    def make(a: Any, b: Any) -> Any:
        parts = _parts_of(a), _parts_of(b)
        if None in parts:
            return NotImplemented
        (x, left, sources), (y, right, others) = parts
        if not (math.isfinite(x) and math.isfinite(y)):
            raise Refused("a number that is not finite")
        return Number(do(x, y), f"({left} {sign} {right})", {**sources, **others})

    return make, lambda a, b: make(b, a)


for _name in _SIGNS:
    _forward, _reflected = _binary(_name)
    setattr(Number, f"__{_name}__", _forward)
    setattr(Number, f"__r{_name}__", _reflected)


class Item:
    """The source of a number: ``of[keys[0]][keys[1]]...``"""

    def __init__(self, of: Any, *keys: Any):
        self.of, self.keys = of, keys

    def __call__(self) -> Any:
        found = self.of
        for key in self.keys:
            found = found[key]
        return found

    def text(self, name: Callable[[Any], str]) -> str:
        """The expression, where `name` returns the name of an object."""
        return name(self.of) + "".join(f"[{key!r}]" for key in self.keys)


def texts_of(numbers: Sequence[Number], name: Callable[[Any], str]) -> tuple[list[str], list[str]]:
    """Lines that read the sources of numbers, and the expressions of the numbers; `name` names objects in them."""
    sources: dict[str, Callable[[], Any]] = {}
    for each in numbers:
        sources |= each.sources
    order = {known: f"n{i}" for i, known in enumerate(sources)}
    lines = [f"{order[known]} = {source.text(name) if isinstance(source, Item) else f'{name(source)}()'}"
             for known, source in sources.items()]  # fmt: skip
    texts = [re.sub(r"\bs\d+\b", lambda found: order[found[0]], each.text) for each in numbers]
    return lines, [text.replace("sqrt(", f"{name(math.sqrt)}(") for text in texts]


def evaluated(numbers: Sequence[Number]) -> tuple[Any, ...]:
    """The present values of numbers."""
    text = Text()
    lines, texts = texts_of(numbers, text.name)
    lines += [f"return ({''.join(f'{each}, ' for each in texts)})"]
    found: tuple[Any, ...] = text.function("values", "", lines, "<numbers of a captured step>")()
    return found
