"""Programs of random calls: as calls of NumPy, and as machine code, they leave the bits that NumPy leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy
import pytest

import autograd as ag
from autograd.compiler import program as program_module
from autograd.compiler.machine import is_available
from autograd.errors import CaptureError

from ...tables import some
from .programs import RandomProgram, TracedProgram, fault_of
from .running import frame_of, run_once

COMPILED = pytest.mark.skipif(not is_available(), reason="without llvmlite there is no machine code")


def faults(seeds: range, compiled: bool) -> list[str]:
    return [f"{seed}: {found}" for seed in seeds if (found := fault_of(TracedProgram(RandomProgram(seed)), compiled))]


@pytest.mark.parametrize("group", some(range(10), 4))
def test_random_programs_as_calls_have_the_bits_of_numpy(group: int) -> None:
    assert not faults(range(50 * group, 50 * group + 50), compiled=False)


@COMPILED
@pytest.mark.parametrize("group", some(range(10), 4))
def test_random_programs_as_machine_code_have_the_bits_of_numpy(group: int) -> None:
    assert not faults(range(10 * group, 10 * group + 10), compiled=True)


@COMPILED
@pytest.mark.slow
@pytest.mark.parametrize("group", range(20))
def test_many_random_programs_as_machine_code_have_the_bits_of_numpy(group: int) -> None:
    assert not faults(range(1000 + 50 * group, 1050 + 50 * group), compiled=True)


@COMPILED
def test_most_random_programs_are_machine_code() -> None:
    tables = steps = 0
    for seed in range(20):
        made = TracedProgram(RandomProgram(seed)).program()
        tables, steps = tables + made.tables, steps + len(made.steps)
        assert made.is_compiled
    assert tables >= 20
    assert steps < 3 * tables


def test_few_calls_of_random_programs_are_left_out() -> None:
    skipped = done = 0
    for seed in range(100):
        of = RandomProgram(seed)
        TracedProgram(of)
        skipped, done = skipped + len(of.skipped), done + len(of.done)
    assert skipped < 0.05 * done


def test_the_same_program_is_not_always_made() -> None:
    kinds = {call.split()[1] for seed in range(30) for call in _calls(seed)}
    assert len(kinds) == 20


def _calls(seed: int) -> list[str]:
    of = RandomProgram(seed)
    TracedProgram(of)
    return of.done


def test_a_decision_after_a_change_cannot_be_taken_back() -> None:
    made = TracedProgram(RandomProgram(0)).program()
    frame = frame_of(made, RandomProgram(0).arguments)

    def depart(_: object) -> None:
        raise program_module.Departed

    made.steps, made._first_change = [depart], 1
    with pytest.raises(program_module.Departed):
        run_once(made, frame)
    made._first_change = 0
    with pytest.raises(CaptureError, match="when the replay had changed something"):
        run_once(made, frame)


def test_an_error_before_a_change_lets_the_step_itself_run() -> None:
    made = TracedProgram(RandomProgram(0)).program()
    frame = frame_of(made, RandomProgram(0).arguments)

    def fail(_: object) -> None:
        raise ValueError("of a call")

    made.steps, made._first_change = [fail], 1
    with pytest.raises(program_module.Departed):
        run_once(made, frame)
    made._first_change = 0
    with pytest.raises(ValueError, match="of a call"):
        run_once(made, frame)


@COMPILED
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_short_loops_tell_no_errors_that_numpy_does_not(dtype: str) -> None:
    """The quotients of the zeros with which LLVM would fill the last vector of a loop are none of the step's."""

    def step(a: Any, b: Any) -> Any:
        return a / b + 1.0 / (a * a)

    for n in range(1, 18):
        for shape in ((n,), (3, n)):
            random = numpy.random.default_rng(n)
            x, y = (random.uniform(1, 2, shape).astype(dtype) for _ in range(2))
            captured = ag.capture(step)
            with numpy.errstate(all="raise"):
                for _ in range(6):
                    found = captured(ag.tensor(x), ag.tensor(y))
            assert captured.replays >= 1
            assert found.array.tobytes() == step(ag.tensor(x), ag.tensor(y)).array.tobytes()
            y[..., -1] = 0
            with pytest.warns(RuntimeWarning, match="divide by zero"):
                captured(ag.tensor(x), ag.tensor(y))


_COMPILES = """
import tests.autograd.compiler.test_program as programs
from autograd.compiler.build import compile_loops
from autograd.compiler.loops import Loop, Pointer

for n in (3, 4, 8, 10, 15, 16, 18):
    for size, dtype in ((4, "f4"), (8, "f8")):
        x, gaps = Pointer(dtype, (n * size, size)), Pointer(dtype, (2 * n * size, 2 * size))
        at, every, total = Pointer("i8", (0, 8)), Pointer(dtype, (0, 0)), Pointer(dtype, (0, size))
        ends = (("divide", 0, 1), ("store", 1, 2)), (("multiply", 0, 1), ("reduce", "add", 2, 2, (0,), (size, size)))
        for a, b in ((x, x), (gaps, x), (x, gaps)):
            for end in ends:
                compile_loops([Loop((4, n), (a, b, total), (("load", 0), ("load", 1), *end))])
        taken = (("load", 1), ("load_at", 0, ((0, size, 9),)), ("load", 2), ("divide", 1, 2), ("store", 2, 3))
        compile_loops([Loop((4, n), (every, at, x), taken)])
assert not programs.faults(range(20), compiled=True)
print("done")
"""


@COMPILED
def test_the_compiler_prints_nothing() -> None:
    """LLVM warns on the terminal where it cannot do what a loop asks for."""
    environment = dict(os.environ, RINGTAPE_CODE="none")
    found = subprocess.run(
        [sys.executable, "-c", _COMPILES], env=environment, capture_output=True, text=True, check=True
    )
    assert (found.stdout, found.stderr) == ("done\n", "")
