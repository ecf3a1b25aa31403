"""JAX's `shard_map` in the sweep: collectives in chains, in control flow and in transformations.

A call is an expression of the operands x, whose rows are sharded (``S0``) or copied (``R``), and w, which is copied.
Its functions have two definitions: on the part of one device, and, for the serial result, on the stacked parts of all.
The mode says where `jax.grad` is taken, outside of `shard_map` or inside it, and whether `check_vma` is on.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from .cases import Case, Difference, arrays, smaller
from .sweep import Documented

__all__ = ["CALLS", "FUNCTIONS", "PLAIN", "candidates", "cases", "request", "script"]

NAME = "JAX shard_map"
PLAIN = "R"
MODES = ("outside", "inside", "outside, check_vma=False", "inside, check_vma=False")

# name: the definition on one device of N, and that on stacked parts.
FUNCTIONS = {
    "psum": ('lambda y: lax.psum(y, "i")', "lambda y: jnp.broadcast_to(y.sum(0), y.shape)"),
    "pmean": ('lambda y: lax.pmean(y, "i")', "lambda y: jnp.broadcast_to(y.mean(0), y.shape)"),
    "pmax": ('lambda y: lax.pmax(y, "i")', "lambda y: jnp.broadcast_to(y.max(0), y.shape)"),
    "pmin": ('lambda y: lax.pmin(y, "i")', "lambda y: jnp.broadcast_to(y.min(0), y.shape)"),
    "gather": ('lambda y: lax.all_gather(y, "i", tiled=True)',
               "lambda y: jnp.broadcast_to(y.reshape(-1, *y.shape[2:]), (N, N * y.shape[1], *y.shape[2:]))"),
    "stack": ('lambda y: lax.all_gather(y, "i").sum(0)', "lambda y: jnp.broadcast_to(y.sum(0), y.shape)"),
    "scatter": ('lambda y: lax.psum_scatter(y, "i", tiled=True)', "lambda y: y.sum(0).reshape(N, -1, *y.shape[2:])"),
    "exchange": ('lambda y: lax.all_to_all(y, "i", 0, 0, tiled=True)',
                 "lambda y: jnp.swapaxes(y.reshape(N, N, -1, *y.shape[2:]), 0, 1).reshape(y.shape)"),
    "ring": ('lambda y: lax.ppermute(y, "i", [(r, (r + 1) % N) for r in range(N)])', "lambda y: jnp.roll(y, 1, 0)"),
    "send": ('lambda y: lax.ppermute(y, "i", [(0, 1)])', "lambda y: jnp.zeros_like(y).at[1].set(y[0])"),
    "swap": ('lambda y: lax.pshuffle(y, "i", [*range(1, N), 0])', "lambda y: jnp.roll(y, -1, 0)"),
    "index": ('lambda: lax.axis_index("i")', "lambda: jnp.arange(N).reshape(N, 1, 1)"),
    "vary": ('lambda y: lax.pcast(y, "i", to="varying")', "lambda y: y"),
    "keep": ('lambda y: jnp.where(lax.axis_index("i") == 0, y, 0.0)', "lambda y: y.at[1:].set(0.0)"),
    "part": ('lambda y: y * lax.dynamic_slice_in_dim(jnp.arange(1.0, N + 1), lax.axis_index("i"), 1)',
             "lambda y: y * jnp.arange(1.0, N + 1).reshape(N, 1, 1)"),
    "branch": ('lambda y: lax.switch(lax.axis_index("i"), [lambda t: t * t] + [lambda t: 3 * t] * (N - 1), y)',
               "lambda y: jnp.concatenate([y[:1] ** 2, 3 * y[1:]])"),
}  # fmt: skip

STEPS = [
    "psum({})", "pmean({})", "gather({})", "scatter({})", "exchange({})", "ring({})", "send({})", "swap({})",
    "stack({})", "jnp.sin({})", "pmax({})", "{} - lax.stop_gradient(pmax(lax.stop_gradient({})))", "keep({})",
    "part({})", "branch({})", "{} * (index() + 1)", "{} + psum(w)", "{} * w", "jax.nn.softmax({}, -1)",
    "jnp.sort({}, -1)", "{}.max(-1, keepdims=True)", "jnp.cumsum({}, -2)", "jax.nn.silu({})",
    "{}.mean(-2, keepdims=True)", "jax.nn.logsumexp({}, -2, keepdims=True)",
    "jnp.linalg.norm({}, axis=-2, keepdims=True)",
]  # fmt: skip
TWICE = [  # operands that are used in two ways
    "psum(w) * x", "pmean(w) + x", "pmax(x)", "pmin(x)", "psum(x) * psum(w)", "psum(x) * x", "psum(x * psum(x))",
    "gather(w).sum(-2, keepdims=True) * x", "psum((x * w).sum((-2, -1), keepdims=True)) ** 2 * w",
    "(x - pmean(x.mean(-2, keepdims=True))) ** 2", "jnp.exp(x - lax.stop_gradient(pmax(x))) / psum(jnp.exp(x))",
]  # fmt: skip
INSIDE = [  # a step in control flow or in a transformation; `y` is its operand
    "jax.checkpoint(lambda y: {y})(x * w)", "jax.jit(lambda y: {y})(x * w)",
    "lax.scan(lambda y, _: (vary({y}), None), vary(x * w), None, length=2)[0]",
    "lax.cond(w.sum() > 0, lambda y: {y}, lambda y: 2 * {y}, x * w)", "jax.vmap(lambda y: {y}, -1, -1)(x * w)",
    "lax.fori_loop(0, 2, lambda i, y: vary({y}), vary(x * w))", "jax.jvp(lambda y: {y}, (x * w,), (x,))[1]",
]  # fmt: skip


DOCUMENTED = [
    Documented(
        "https://docs.jax.dev/en/latest/notebooks/shard_map.html",
        "with check_vma=False, results that out_specs promise to be equal and that are not are undefined behaviour",
        lambda case, difference: case.mode == MODES[3] and case.layouts[difference.operand] == "R",
    ),
    Documented(
        "https://docs.jax.dev/en/latest/jep/17111-shmap-transpose.html",
        "where varying axes are not tracked, the transpose of psum is psum: each device's copy of its result counts",
        lambda case, difference: case.mode == MODES[3] and bool({"psum", "pmean"} & used(case.call)),
    ),
]


def calls() -> Iterator[str]:
    """Each step; steps in control flow and transformations; pairs and triples of steps that communicate."""
    for step in STEPS:
        yield step.replace("{}", "(x * w)")
    yield from TWICE
    shared = STEPS[:10]
    for inside, step in itertools.product(INSIDE, shared):
        yield inside.replace("{y}", step.replace("{}", "y"))
    for first, second in itertools.product(shared, repeat=2):
        if first != second:
            yield second.replace("{}", first.replace("{}", "jnp.sin(x) * w"))
    for first, second in itertools.product(("psum({})", "gather({})", "scatter({})", "ring({})"), repeat=2):
        yield second.replace("{}", "jnp.sin(" + first.replace("{}", "x * w") + " * w)") + " * w"


CALLS = list(dict.fromkeys(calls()))


def cases() -> Iterator[Case]:
    """All cases, shuffled: a sweep that is cut short is a sample. Uneven rows, which are refused, have few calls."""
    few = CALLS[: len(STEPS) + len(TWICE)]
    found = [
        Case(call, ("nk", "1k"), (layout, "R"), (("k", 3), ("n", rows)), extrema, mode)
        for mode, (rows, extrema, layout, chosen) in itertools.product(MODES, (
            (8, "first", "S0", CALLS), (4, "last", "S0", CALLS), (4, "last", "R", few), (5, "first", "S0", few),
        )) for call in chosen
    ]  # fmt: skip
    random.Random(0).shuffle(found)
    yield from found


def candidates(case: Case) -> Iterator[Case]:
    """Simpler cases: a call without one of its steps, and what any case has."""
    for call in CALLS:
        if len(call) < len(case.call) and used(call) <= used(case.call):
            yield case._replace(call=call)
    yield from smaller(case, PLAIN)


def used(call: str) -> set[str]:
    return {name for name in FUNCTIONS if f"{name}(" in call}


def is_one(call: str) -> bool:
    """Whether the result is one value for all devices by its outermost collective, so that the out_specs are P()."""
    depths = list(itertools.accumulate({"(": 1, ")": -1}.get(c, 0) for c in call))
    return call.startswith(("psum(", "pmean(", "pmax(", "pmin(")) and depths.index(0, 4) == len(call) - 1


def request(case: Case, ranks: int, differences: bool = False) -> dict[str, Any]:
    """The line that the worker is sent."""
    return {
        "call": case.call, "operands": [x.tolist() for x in arrays(case)], "layouts": case.layouts,
        "one": is_one(case.call), "inside": case.mode.startswith("inside"), "check_vma": "False" not in case.mode,
        "differences": differences, "functions": {name: FUNCTIONS[name] for name in used(case.call)},
    }  # fmt: skip


def script(case: Case, difference: Difference, ranks: int) -> str:
    """A program of at most 15 lines, for one device in each of `ranks` processes, that raises AssertionError."""
    names = sorted(used(case.call))
    ins = ", ".join("P()" if layout == "R" else 'P("i")' for layout in case.layouts)
    out, check = "P()" if is_one(case.call) else 'P("i")', ", check_vma=False" if "False" in case.mode else ""
    stacked = {"R": "jnp.broadcast_to({0}, (N, *{0}.shape))", "S0": "{0}.reshape(N, -1, {0}.shape[-1])"}
    parts = ", ".join(stacked[layout].format(n) for n, layout in zip("xw", case.layouts, strict=True))
    lines = [
        "import os, jax, jax.numpy as jnp, numpy as np, jax.experimental.multihost_utils as hosts",
        "from jax import P, lax",
        'jax.config.update("jax_enable_x64", True); jax.config.update("jax_cpu_collectives_implementation", "gloo")',
        f'N, port = {ranks}, os.environ["MASTER_PORT"]; '
        'jax.distributed.initialize("127.0.0.1:" + port, N, int(os.environ["RANK"]))',
        'mesh = jax.make_mesh((N,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))',
        f"x, w = {', '.join(f'jnp.array({x.tolist()})' for x in arrays(case))}",
        f"call = lambda {', '.join(names)}: lambda x, w: {case.call}",
        "local, stacked = " + ", ".join(f"call({', '.join(FUNCTIONS[n][kind] for n in names)})" for kind in (0, 1)),
        f"f = jax.shard_map(local, mesh=mesh, in_specs=({ins}), out_specs={out}{check})",
        f"g = lambda x, w: stacked({parts})" + ("[0]" if is_one(case.call) else ".reshape(-1, f(x, w).shape[-1])"),
    ]
    if difference.stage != "value":
        lines.append("like = lambda y, key: np.random.default_rng(key).standard_normal(y.shape)")
        gradients = "jax.grad(lambda x, w: ({0}(x, w) * like({0}(x, w), 0)).sum(), (0, 1))"
        if case.mode.startswith("inside"):
            own = "lambda x, w, c: jax.grad(lambda x, w: (local(x, w) * c).sum(), (0, 1))(x, w)"
            inner = (f"lambda x, w: jax.shard_map({own}, mesh=mesh, in_specs=({ins}, {out}), out_specs=({ins}){check})"
                     "(x, w, like(f(x, w), 0))")  # fmt: skip
        else:
            inner = gradients.format("f")
        lines.append(f"df, dg = {inner}, {gradients.format('g')}")
    if difference.stage == "second order":
        dot = "sum((a * like(a, 1 + i)).sum() for i, a in enumerate(d(x, w)))"
        lines.append(f"hf, hg = (jax.grad(lambda x, w, d=d: {dot}, (0, 1)) for d in (df, dg))")
    kind = {"value": "", "second order": "h"}.get(difference.stage, "d")
    of = f"[{difference.operand}]" if kind else ""
    lines += [
        f"got, want = hosts.process_allgather(jax.jit({kind}f)(x, w){of}, tiled=True), jax.jit({kind}g)(x, w){of}",
        "assert jnp.allclose(got, want), f'rank {jax.process_index()}: {got.tolist()}, not {want.tolist()}'",
    ]
    assert len(lines) <= 15, lines
    return "\n".join(lines) + "\n"
