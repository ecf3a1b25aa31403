"""Runs compiled loops on arrays, for the tests of the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from autograd.compiler import build
from autograd.compiler.loops import Loop, pointer_of
from autograd.compiler.machine import Row, Table, compile_loops
from autograd.compiler.memory import Frame
from autograd.compiler.program import Program
from autograd.compiler.text import Text

SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-45, -1e-45, 1e-40, 5e-324, 1.17e-38, 2.3e-308, 3e38, -3e38,
    1e308, np.inf, -np.inf, np.nan, -np.nan, 3.7, -3.7, 8388609.5, 2147483647.0, 2147483648.0, -2147483649.5,
    4294967296.0, 9.2e18, 9.3e18, 1.8e19, 1e20, -9.3e18, 127.5, 128.0, 255.0, 256.0, -129.0,
)  # fmt: skip
DTYPES = ("f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")


def numbers(dtype: str, size: int, random: np.random.Generator) -> Any:
    """Numbers of a dtype, special ones among them."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        with np.errstate(all="ignore"):
            x = (random.standard_normal(size) * 10.0 ** random.integers(-3, 4, size)).astype(kind)
            special = np.array(SPECIAL).astype(kind)
    elif kind.kind == "b":
        return random.random(size) < 0.5
    else:
        limits = np.iinfo(kind)
        x = random.integers(limits.min, limits.max, size, kind, endpoint=True)
        special = np.array([limits.min, limits.max, 0, 1, limits.max - 1, limits.min + 1, limits.max // 2], kind)
    here = random.random(size) < 0.5
    x[here] = random.choice(special, here.sum())
    return x


def run(loop: Loop, arrays: Sequence[Any]) -> int:
    """Run a loop; the result is the walk's."""
    (address,) = compile_loops([loop])
    table = Table()
    table.add(Row(address, checks=True), [(k, 0) for k in range(len(arrays))])
    return table.finish()(*arrays)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """No loop is known, as in a new process."""
    monkeypatch.setattr(build, "_addresses", {})


def write_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are written again, by functions that a test replaces: the store knows them by their sources."""
    forget(monkeypatch)
    monkeypatch.setenv("RINGTAPE_CODE", "none")


def made(shape: Sequence[int], dtype: str, random: np.random.Generator) -> Any:
    """Numbers in an array whose memory has some layout: transposed, reversed, with gaps, or repeated."""
    ndim = len(shape)
    order = random.permutation(ndim) if random.random() < 0.5 else np.arange(ndim)
    steps = [int(random.choice([1, 1, 1, 2, -1, -2])) if random.random() < 0.5 else 1 for _ in shape]
    repeated = [random.random() < 0.15 for _ in shape]
    own = [1 if each else n for n, each in zip(shape, repeated, strict=True)]
    long = [n * abs(step) for n, step in zip(own, steps, strict=True)]
    x = numbers(dtype, int(np.prod(long)), random).reshape([long[d] for d in order]).transpose(np.argsort(order))
    x = x[tuple(slice(None, None, step) for step in steps)]
    return np.broadcast_to(x, tuple(shape))


def same(found: Any, needed: Any) -> bool:
    """Whether two arrays have the same bits; a NaN is any NaN."""
    needed = np.asarray(needed)
    if found.dtype != needed.dtype or found.shape != needed.shape:
        return False
    if needed.dtype.kind == "f":
        is_nan = np.isnan(needed)
        if not np.array_equal(is_nan, np.isnan(found)):
            return False
        found, needed = np.where(is_nan, 0, found), np.where(is_nan, 0, needed)
    return found.tobytes() == np.ascontiguousarray(needed).tobytes()


def elementwise(function: Any, steps: Sequence[tuple[Any, ...]], arrays: Sequence[Any], shape: Sequence[int]) -> None:
    """Check that a loop, which loads its operands first, has the bits of a function."""
    with np.errstate(all="ignore"):
        needed = np.asarray(function(*arrays))
    found = np.empty(shape, needed.dtype)
    loads = tuple(("load", k) for k in range(len(arrays)))
    loop = Loop(
        tuple(shape), tuple(pointer_of(x, shape) for x in (*arrays, found)),
        (*loads, *steps, ("store", len(arrays), len(loads) + len(steps) - 1)),
    )  # fmt: skip
    assert run(loop, [*arrays, found]) >= 0
    assert same(found, needed), (loop, arrays, found, needed)


def frame_of(program: Program, arguments: Sequence[Any]) -> Frame:
    """The arrays of one run."""
    kind = program.memory.kind
    return Frame(tuple(arguments), None if kind is None else np.empty((), kind))


def run_once(program: Program, frame: Frame) -> None:
    """Run the lines of a program."""
    text, given = Text(), "".join(f"a{i}, " for i in range(len(frame.arguments)))
    lines = ["gradients, recorded = frame.gradients, None", *([f"{given}= frame.arguments"] if given else [])]
    text.function("run", "frame", [*lines, *program.run_lines(text.name)], "<run>")(frame)
