"""Calls: the nodes of a program as calls of NumPy, on arrays that stay where they are, if they can.

Where loops are not compiled, the calls between two of Python are the lines of one generated function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .memory import Departed, Frame, Memory, part_of
from .nodes import Constant, Node, Operand, Place

__all__ = ["call_of", "calls_of"]


def calls_of(nodes: Sequence[Node], memory: Memory) -> Callable[[Frame], Any]:
    """One function of a frame that makes the calls of nodes, none of which is a call of Python."""
    names: dict[str, Any] = {"copyto": np.copyto}
    first: dict[str, str] = {}  # lines that read the arrays of the frame, by the name of the variable
    lines = []

    def name(value: Any) -> str:
        found = f"c{len(names)}"
        names[found] = value
        return found

    def text(x: Any) -> str:
        if x.__class__ is Constant:
            return name(np.array(x.value).astype(x.dtype))
        kind = x.buffer.kind
        if kind in ("argument", "gradient"):
            if part_of(x) is None and kind == "argument":
                return first.setdefault(f"frame.arguments[{x.buffer.key}]", f"a{len(first)}")
            return f"{name(memory.reader(x))}(frame)"
        return name(memory.view(x))

    for node in nodes:
        made = _line(node, text, name)
        lines.append(made or f"{name(call_of(node, memory))}(frame)")
    head = [f"{variable} = {source}" for source, variable in first.items()]
    source = "\n    ".join(["def calls(frame):", *head, *lines])
    exec(compile(source, "<calls of a captured step>", "exec"), names)
    found: Callable[[Frame], Any] = names["calls"]
    return found


def _line(node: Node, text: Callable[[Any], str], name: Callable[[Any], str]) -> str:
    """A node as one line of Python; "" where it needs more."""
    function, xs = node.function, (*node.ins, *node.outs)
    is_plain = all(x.dtype == of for x, of in zip(xs, node.dtypes, strict=False))
    if node.kind == "ufunc" and is_plain and function is not np.where:
        if function is np.positive:
            return f"copyto({text(node.outs[0])}, {text(node.ins[0])})"
        *given, out = map(text, xs)
        return f"{name(function)}({', '.join(given)}, out={out})"
    if node.kind == "reduce" and isinstance(function, np.ufunc):
        x, out = map(text, xs)
        return f"{name(function.reduce)}({x}, {name(node.words['axes'])}, None, {out}, True)"
    if node.kind == "product" and function is np.matmul:
        return f"{name(function)}({', '.join(map(text, xs))})"
    return ""


def call_of(node: Node, memory: Memory) -> Callable[[Frame], Any]:
    """A node as a call of NumPy with arrays that stay where they are, if they can."""
    if node.kind == "python":
        made = node.words.get("bind")
        found: Callable[[Frame], Any] = node.function if made is None else made(memory)
        return found
    readers = [memory.reader(x) if x.__class__ is Operand else _constant(x) for x in (*node.ins, *node.outs)]
    arrays = [node.words["arrays"][axis] for axis in node.words["arrays"]] if "arrays" in node.words else []
    indices = [memory.reader(x) for x in arrays]
    call = _CALLS[node.kind](node)

    def step(frame: Frame) -> None:
        call(*[read(frame) for read in readers], *[read(frame) for read in indices])

    return step


def _constant(x: Constant) -> Callable[[Frame], Any]:
    value = np.asarray(x.value).astype(x.dtype)[()]
    return lambda frame: value


def _ufunc(node: Node) -> Callable[..., Any]:
    function, of = node.function, node.dtypes
    if function is np.positive:
        return lambda x, out: np.copyto(out, x, casting="unsafe")
    if function is np.where:
        return lambda c, x, y, out: np.copyto(out, np.where(c, x, y), casting="unsafe")
    return lambda *xs: function(*xs[:-1], out=xs[-1], signature=of, casting="unsafe")


def _reduce(node: Node) -> Callable[..., Any]:
    function, axes = node.function, node.words["axes"]
    if function in (np.argmax, np.argmin):
        return lambda x, out: np.copyto(out, function(x, axis=axes[0], keepdims=True))
    return lambda x, out: function.reduce(x, axis=axes, keepdims=True, out=out)


def _product(node: Node) -> Callable[..., Any]:
    function = node.function

    def make(a: Any, b: Any, out: Any) -> None:
        out[...] = function(a, b)

    return make


def _key(node: Node, indices: Sequence[Any], ndim: int) -> tuple[Any, ...]:
    axes = list(node.words["arrays"])
    return tuple(indices[axes.index(d)] if d in axes else slice(None) for d in range(ndim))


def _gather(node: Node) -> Callable[..., Any]:
    n = len(node.ins)

    def make(*xs: Any) -> None:
        x, out, indices = xs[0], xs[n], xs[n + 1 :]
        out[...] = x[_key(node, indices, x.ndim)]

    return make


def _scatter(node: Node) -> Callable[..., Any]:
    n, adds = len(node.ins), node.kind == "add_at"

    def make(*xs: Any) -> None:
        value, x, indices = xs[0], xs[n], xs[n + 1 :]
        if adds:
            np.add.at(x, _key(node, indices, x.ndim), value)
        else:
            x[_key(node, indices, x.ndim)] = value

    return make


def _guard(node: Node) -> Callable[..., Any]:
    expected = node.words["value"]

    def make(x: Any) -> None:
        if bool(x) is not expected:
            raise Departed

    return make


def _loop(node: Node) -> Callable[..., Any]:
    n, order, function = len(node.ins), node.words["order"], node.function
    places, counts = [], [0, n]
    for is_written in order:
        places.append(counts[is_written])
        counts[is_written] += 1

    def make(*xs: Any) -> None:
        if function(*[xs[k] for k in places]) is False:
            raise Departed

    return make


def _whole(node: Node) -> Callable[..., Any]:
    n, function, (args, words) = len(node.ins), node.function, node.words["given"]

    def make(*xs: Any) -> None:
        found = function(*_filled(args, xs), **{key: _filled(x, xs) for key, x in words.items()})
        outs = xs[n:]
        for out, part in zip(outs, found if isinstance(found, tuple) else (found,), strict=True):
            if out.shape != np.shape(part):
                raise Departed
            out[...] = part

    return make


def _filled(x: Any, xs: Sequence[Any]) -> Any:
    """Arguments with arrays in their places."""
    if x.__class__ is Place:
        return xs[x.at][()] if x.is_number else xs[x.at]
    return x.__class__([_filled(part, xs) for part in x]) if x.__class__ in (tuple, list) else x


_CALLS: dict[str, Callable[[Node], Callable[..., Any]]] = {
    "ufunc": _ufunc, "reduce": _reduce, "product": _product, "gather": _gather, "scatter": _scatter,
    "add_at": _scatter, "guard": _guard, "loop": _loop, "call": _whole,
}  # fmt: skip
