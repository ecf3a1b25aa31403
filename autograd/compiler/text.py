"""Functions of Python that are written as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

__all__ = ["Text", "indented"]

_MOST_DEFAULTS = 200


class Text:
    """The text of a function, while it is written, with the objects that it names.

    Examples
    --------
    >>> text = Text()
    >>> add = text.function("add", "x", [f"return x + {text.name(3)}"], "an example")
    >>> add(4)
    7
    """

    def __init__(self) -> None:
        self._names: dict[str, Any] = {}
        self._known: dict[int, str] = {}

    def name(self, value: Any) -> str:
        """The name of an object; one for each."""
        if id(value) not in self._known:
            self._known[id(value)] = f"c{len(self._names)}"
            self._names[self._known[id(value)]] = value
        return self._known[id(value)]

    def function(
        self, name: str, parameters: str, lines: Sequence[str], file: str,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> Callable[..., Any]:  # fmt: skip
        """The function of lines. Objects are defaults of its parameters, which are read faster than globals.

        `more` are globals that tools read.
        """
        few = [f"{each}={each}" for each in self._names] if len(self._names) < _MOST_DEFAULTS else []
        source = "\n".join([f"def {name}({', '.join(filter(None, [parameters, *few]))}):", *indented(lines)])
        space = {**self._names, **more}
        exec(compile(source, file, "exec"), space)
        found: Callable[..., Any] = space[name]
        return found


def indented(lines: Sequence[str]) -> list[str]:
    """Lines of a block."""
    return [f"    {line}" for line in lines]
