"""The cases of `benchmarks/gpu.py`, and the loop in which a library's process serves its requests."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Step = Callable[[], Any]


class Copy(NamedTuple):
    """A copy of an array on the device, which is the limit of what memory allows."""

    bytes: int


class Rows(NamedTuple):
    """A function of an array of rows, forward and backward."""

    function: str
    rows: int
    width: int
    dtype: str
    moves: tuple[float, float]
    """How often a perfect kernel reads or writes the array, forward and backward; both tables of rotary are one."""


class Attention(NamedTuple):
    """Causal attention forward and backward, in float16."""

    batch: int
    heads: int
    tokens: int
    width: int


class Adam(NamedTuple):
    """One step of AdamW on one parameter of float32."""

    parameters: int


class GPT(NamedTuple):
    """A training step of `examples/gpt.py`. In float16 the optimizer has weights of float32."""

    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int
    batch: int
    dtype: str


class MLP(NamedTuple):
    """A training step of a small network with momentum, one operation at a time or captured as a graph."""

    widths: tuple[int, ...]
    batch: int
    is_captured: bool


Case = Copy | Rows | Attention | Adam | GPT | MLP

_MOVES = {"gelu": (2, 3), "silu": (2, 3), "softmax": (2, 3), "log_softmax": (2, 3), "layer_norm": (2, 3),
          "rms_norm": (2, 3), "cross_entropy": (1, 2), "dropout": (2, 2), "rotary": (3, 3), "activated_bias": (2, 3),
          "sum_of_rows": (1, 0)}  # fmt: skip
SMALL_STEP = (64, 64, 64, 10)


def cases(is_small: bool) -> dict[str, Case]:
    """All cases by name; small ones are for tests of the benchmark itself."""
    found: dict[str, Case] = {"copy": Copy(1 << (16 if is_small else 31))}
    for function, moves in _MOVES.items():
        for dtype in ("float32", "float16"):
            width = 50304 if function == "cross_entropy" else 4096
            rows = 4096 if function == "cross_entropy" else 32768
            found[f"{function}, {dtype}"] = Rows(function, *((8, 64) if is_small else (rows, width)), dtype, moves)
    shape = (8, 64) if is_small else (32768, 4096)
    found["cast, float32"] = Rows("cast", *shape, "float32", (1.5, 1.5))  # to float16, and back
    found["cast, float16"] = Rows("cast", *shape, "float16", (3, 3))  # to float32
    for tokens in (1024, 2048, 4096, 8192):
        for width in (64, 128):
            shape = (1, 2, tokens // 128, 16) if is_small else (max(1, 16384 // tokens), 2048 // width, tokens, width)
            found[f"attention, {tokens} tokens, width {width}"] = Attention(*shape)
    found["adam, 100M parameters"] = Adam(10_000 if is_small else 100_000_000)
    for dtype in ("float32", "float16"):
        sizes = (2, 32, 2, 16, 64, 2) if is_small else (12, 768, 12, 1024, 50304, 8)
        found[f"gpt, {dtype}"] = GPT(*sizes, dtype)
    found["64-64-64-10 step"] = MLP(SMALL_STEP, 32, False)
    found["64-64-64-10 step, captured"] = MLP(SMALL_STEP, 32, True)
    return found


def moved_bytes(case: Case, phase: str) -> float | None:
    """The bytes that a perfect kernel moves, where memory is the limit."""
    if isinstance(case, Copy):
        return 2 * case.bytes
    if isinstance(case, Rows):
        size = case.rows * case.width * np.dtype(case.dtype).itemsize
        return size * (case.moves[0] if phase == "forward" else case.moves[1])
    return 7 * 4 * case.parameters if isinstance(case, Adam) else None


def operations(case: Case, phase: str) -> float:
    """The floating-point operations of the products of a case, where the tensor cores may be the limit."""
    if isinstance(case, Attention):  # causal: half of the scores; two products forward, five backward
        product = case.batch * case.heads * case.tokens**2 * case.width
        return (2 if phase == "forward" else 5) * product
    if isinstance(case, GPT):
        tokens, weights = case.batch * case.context, 12 * case.layers * case.width**2 + case.vocabulary * case.width
        return 6 * weights * tokens + 7 * case.layers * tokens * case.context * case.width
    return 0.0


def normal(seed: int, shape: tuple[int, ...], dtype: str, scale: float = 1.0) -> Any:
    """Normal numbers, made of a smaller block where there are many."""
    block = np.random.default_rng(seed).standard_normal(min(int(np.prod(shape)), 1 << 20)).astype(np.float32)
    return (np.resize(block, shape) * np.float32(scale)).astype(dtype)


def serve(about: str, make: Callable[[Case, bool], dict[str, Step]], synchronize: Callable[[], None]) -> None:
    """Answer requests on standard input until it ends.

    ``{"case": name}`` prepares a case, which replaces the one before, and ``{"time": phase, "repeat": n}`` returns the
    seconds of one call. Answers are lines of JSON. What a library prints goes to standard error.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    known = cases("--small" in sys.argv)
    steps: dict[str, Step] = {}

    def answer(**what: Any) -> None:
        out.write(json.dumps(what) + "\n")
        out.flush()

    answer(about=about)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "case" in request:
                steps = {}  # frees the memory of the case before
                steps = make(known[request["case"]], "--cpu" in sys.argv)
                first = {phase: step() for phase, step in steps.items()}
                synchronize()
                is_trained = isinstance(known[request["case"]], GPT)
                answer(phases=list(steps), loss=first["step"].item() if is_trained else None)
                continue
            step = steps[request["time"]]
            synchronize()
            start = time.perf_counter()
            for _ in range(request["repeat"]):
                step()
            synchronize()
            answer(seconds=(time.perf_counter() - start) / request["repeat"])
        except Exception as error:  # the other cases go on
            answer(error=f"{type(error).__name__}: {error}")
