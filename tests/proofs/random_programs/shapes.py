"""Correct programs of the common kinds of parallel training, written by hand for a mesh of two axes.

`SHAPES` are data, tensor and sequence parallelism and combinations of them; `OTHERS` are ZeRO-3, Ulysses and others.
Mutation testing starts from these programs.
"""

from __future__ import annotations

import ast
from typing import Any

from autograd.layouts.layout import I, Label, P, R, Rooted, Shard, V

from .form import COMMUNICATION, LeafForm, Program, Statement

__all__ = ["OTHERS", "SHAPES"]

S0, S1 = Shard(0), Shard(1)
_AXES = ("dp", "tp")


def _x(name: str, shape: tuple[int, ...], dp: Label, tp: Label) -> LeafForm:
    return LeafForm(name, shape, (dp, tp), "data")


def _w(name: str, shape: tuple[int, ...], dp: Label, tp: Label) -> LeafForm:
    return LeafForm(name, shape, (dp, tp), "parameter")


def _program(leaves: list[LeafForm], lines: str, sizes: tuple[int, int] = (3, 2)) -> Program:
    """Parse statements, one per line: ``name = operation operands [axes] [option=value ...]``; axes are joined by *."""
    words: dict[str, Any] = {"R": R, "I": I, "V": V, "P": P, "S0": S0, "S1": S1}
    statements = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        name, _, operation, *rest = line.split()
        options: dict[str, Any] = {}
        operands = []
        for word in rest:
            key, is_option, value = word.partition("=")
            if is_option:
                options[key] = words[value] if value in words else ast.literal_eval(value)
            else:
                operands.append(word)
        if operation in COMMUNICATION:
            named = operands.pop().split("*")
            options["axes"] = tuple(a for a in _AXES if a in named)
        statements.append(Statement(name, operation, tuple(operands), **options))
    return Program(_AXES, sizes, tuple(leaves), tuple(statements))


SHAPES: dict[str, Program] = {
    "data parallel": _program(
        [_x("x", (5, 3), S0, I), _x("t", (5, 2), S0, I), _w("w", (3, 4), I, I), _w("b", (4,), I, I),
         _w("v", (4, 2), I, I)],
        """
        u = cast w dp to=R
        c = cast b dp to=R
        q = cast v dp to=R
        h0 = matmul x u
        h1 = add h0 c
        h = tanh h1
        y = matmul h q
        e = subtract y t
        e2 = multiply e e
        s = sum e2
        loss = all_reduce s dp to=I
        """,
    ),
    "tensor parallel": _program(
        [_x("x", (4, 3), I, I), _x("t", (4, 2), I, I), _w("w0", (3, 3), I, I), _w("w1", (3, 5), I, S1),
         _w("b1", (5,), I, S0), _w("w2", (5, 2), I, S0), _w("b2", (2,), I, I)],
        """
        x0 = matmul x w0
        x1 = tanh x0
        f = cast x1 tp to=R
        h0 = matmul f w1
        h1 = add h0 b1
        h = tanh h1
        z = matmul h w2
        g = all_reduce z tp to=I
        y = add g b2
        e = subtract y t
        e2 = multiply e e
        loss = sum e2
        """,
    ),
    "sequence parallel": _program(
        [_x("x", (5, 3), I, S0), _x("t", (5, 3), I, S0), _w("g", (3,), I, I), _w("w1", (3, 4), I, S1),
         _w("w2", (4, 3), I, S0), _w("g2", (3,), I, I)],
        """
        gr = cast g tp to=R
        n0 = multiply x gr
        n = tanh n0
        a = all_gather n tp dim=0 to=R
        h0 = matmul a w1
        h = tanh h0
        z = matmul h w2
        r = reduce_scatter z tp dim=0
        g2r = cast g2 tp to=R
        o = multiply r g2r
        e = subtract o t
        e2 = multiply e e
        s = sum e2
        loss = all_reduce s tp to=I
        """,
    ),
    "data x tensor parallel": _program(
        [_x("x", (5, 3), S0, I), _w("w0", (3, 3), I, I), _w("w1", (3, 4), I, S1), _w("w2", (4, 2), I, S0),
         _w("b2", (2,), I, I)],
        """
        u0 = cast w0 dp to=R
        u1 = cast w1 dp to=R
        u2 = cast w2 dp to=R
        c2 = cast b2 dp to=R
        x0 = matmul x u0
        x1 = tanh x0
        f = cast x1 tp to=R
        h0 = matmul f u1
        h = tanh h0
        z = matmul h u2
        g = all_reduce z tp to=I
        y = add g c2
        y2 = multiply y y
        s = sum y2
        loss = all_reduce s dp to=I
        """,
    ),
    "data x sequence parallel": _program(
        [_x("x", (6, 3), S0, S0), _w("g", (3,), I, I), _w("w1", (3, 4), I, S1), _w("w2", (4, 3), I, S0)],
        """
        gd = cast g dp to=R
        gr = cast gd tp to=R
        u1 = cast w1 dp to=R
        u2 = cast w2 dp to=R
        n0 = multiply x gr
        n = tanh n0
        a = all_gather n tp dim=0 to=R
        h0 = matmul a u1
        h = tanh h0
        z = matmul h u2
        r = reduce_scatter z tp dim=0
        r1 = tanh r
        o = multiply r1 gr
        o2 = multiply o o
        s = sum o2
        loss = all_reduce s dp*tp to=I
        """,
    ),
    "tensor parallel, gathered output": _program(
        [_x("x", (4, 3), R, I), _w("w0", (3, 3), I, I), _w("w1", (3, 4), I, S1), _w("w2", (4, 2), I, I)],
        """
        u0 = cast w0 dp to=R
        u1 = cast w1 dp to=R
        u2 = cast w2 dp to=R
        x0 = matmul x u0
        f = cast x0 tp to=R
        h0 = matmul f u1
        h = tanh h0
        a = all_gather h tp dim=1 to=I
        y = matmul a u2
        y2 = multiply y y
        s = sum y2
        loss = cast s dp to=I
        """,
    ),
}
"""Data, tensor and sequence parallelism."""

OTHERS: dict[str, Program] = {
    "ZeRO-3": _program(
        [_x("x", (5, 3), S0, I), _w("w", (3, 4), S0, I), _w("v", (4, 2), S0, I)],
        """
        u = all_gather w dp dim=0 to=R
        q = all_gather v dp dim=0 to=R
        h0 = matmul x u
        h = tanh h0
        y = matmul h q
        y2 = multiply y y
        s = sum y2
        loss = all_reduce s dp to=I
        """,
    ),
    "Ulysses": _program(
        [_x("x", (5, 4), I, S0), _w("g", (4,), I, I), _w("m", (5, 5), I, I)],
        """
        gr = cast g tp to=R
        mr = cast m tp to=R
        x0 = multiply x gr
        h = all_to_all x0 tp dim=1 dim2=0
        k = matmul mr h
        a = tanh k
        o = all_to_all a tp dim=0 dim2=1
        o2 = multiply o o
        s = sum o2
        loss = all_reduce s tp to=I
        """,
    ),
    "ring": _program(
        [_x("x", (4, 3), V, I), _w("w", (3, 3), I, I)],
        """
        u = cast w dp to=R
        k = matmul x u
        k1 = permute k dp pairs=((0,1),(1,2),(2,0))
        p1 = multiply k k1
        k2 = permute k1 dp pairs=((0,1),(1,2),(2,0))
        p2 = multiply p1 k2
        y = tanh p2
        s = sum y
        loss = all_reduce s dp to=I
        """,
    ),
    "pipeline": _program(
        [_x("x", (4, 3), R, I), _w("w", (3, 3), V, I)],
        """
        h0 = matmul x w
        h = tanh h0
        m = hand_over h dp pairs=((0,2),)
        y = matmul m w
        y2 = multiply y y
        s = sum y2
        loss = all_reduce s dp to=I
        """,
    ),
    "rooted": _program(
        [LeafForm("x", (5, 3), (Rooted(1), I), "data"), _w("w", (3, 2), Rooted(1), I)],
        """
        own = scatter x dp root=1 dim=0
        u = broadcast w dp root=1 to=R
        y0 = matmul own u
        y = tanh y0
        s = sum y
        loss = reduce s dp root=1
        """,
    ),
}
"""ZeRO-3, Ulysses, a ring, a pipeline, and data and weights that are rooted on one rank."""
