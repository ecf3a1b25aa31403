"""Python numbers that may change from step to step, such as a learning rate and the powers of an optimizer's betas.

While a step is traced, a `Number` stands for such a number. Arithmetic with it is noted as source, which is evaluated
in each step with the numbers of that step, in Python's own arithmetic.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any, NoReturn

from .nodes import Refused

__all__ = ["Number", "evaluated"]

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


def _binary(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    do, sign = getattr(operator, name), _SIGNS[name]

    def make(a: Any, b: Any) -> Any:
        if not all(x.__class__ in (int, float, Number) for x in (a, b)):
            return NotImplemented
        values = [x.value if x.__class__ is Number else x for x in (a, b)]
        texts = [x.text if x.__class__ is Number else f"({x!r})" for x in (a, b)]
        if not all(math.isfinite(v) for v in values):
            raise Refused("a number that is not finite")
        sources: dict[str, Any] = {}
        for x in (a, b):
            if x.__class__ is Number:
                sources |= x.sources
        return Number(do(*values), f"({texts[0]} {sign} {texts[1]})", sources)

    return make, lambda a, b: make(b, a)


for _name in _SIGNS:
    _forward, _reflected = _binary(_name)
    setattr(Number, f"__{_name}__", _forward)
    setattr(Number, f"__r{_name}__", _reflected)


def evaluated(numbers: list[Number]) -> Callable[[], tuple[Any, ...]] | None:
    """A function that returns the present values of numbers; None if there are none."""
    if not numbers:
        return None
    names: dict[str, Any] = {"sqrt": math.sqrt}
    for each in numbers:
        names |= each.sources
    order = {name: f"n{i}" for i, name in enumerate(n for n in names if n != "sqrt")}
    text = ", ".join(each.text for each in numbers)
    text = re.sub(r"\bs\d+\b", lambda found: order[found[0]], text)
    lines = [f"    {short} = {name}()" for name, short in order.items()]
    source = "\n".join(["def values():", *lines, f"    return ({text},)"])
    space = dict(names)
    exec(compile(source, "<numbers of a captured step>", "exec"), space)
    found: Callable[[], tuple[Any, ...]] = space["values"]
    return found
