"""The door to the ranks: what autograd asks, that one process and a mesh answer all of it, and the engine alone."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import optim
from autograd.engine.distribution import ALONE, Alone, Distribution
from autograd.engine.state import state
from autograd.errors import LayoutError
from autograd.extend import broadcast, op
from autograd.layouts.layout import Grid, I, P, R, Shard, V

ROOT = Path(__file__).resolve().parents[3]
ASKED = [name for name in vars(Distribution) if not name.startswith("_")]


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)


@contextmanager
def distributed(by: Any, grid: Grid) -> Iterator[None]:
    state.distribution, state.grid = by, grid
    try:
        yield
    finally:
        state.distribution, state.grid = ALONE, None


class Asking(Alone):
    """A mesh of two ranks that notes what it is asked."""

    is_alone = False

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def note_constant(self, name: str, layout: Any, value: Any) -> None:
        self.asked.append(("constant", name, value))

    def note_beside(self, name: str, x: Any, out: Any) -> None:
        self.asked.append(("beside", name, x.array.shape))

    def note_declaration(self, how: str, x: Any) -> None:
        self.asked.append(("declaration", how))

    def examine(self, operation: Any, layouts: Any, arrays: Any, options: Any) -> None:
        self.asked.append(("examine", operation.name))

    def compare_objective(self, outputs: Any, recording: Any) -> None:
        self.asked.append(("objective",))

    def compare_step(self, optimizer: Any) -> None:
        self.asked.append(("step", optimizer.calls))


def test_one_process_and_a_mesh_answer_everything_that_is_asked() -> None:
    assert len(ASKED) >= 14
    mesh = cc.Mesh(a=1)
    for name in ASKED:
        declared = vars(Distribution)[name]
        for answers in (ALONE, mesh):
            assert hasattr(answers, name), (answers, name)
            if inspect.isfunction(declared):
                theirs = inspect.signature(getattr(answers, name)).parameters
                # A method of a mesh may be a function of a check, whose parameters have names of their own.
                assert len(theirs) == len(inspect.signature(declared).parameters) - 1, (answers, name)


def test_the_answers_of_one_process() -> None:
    assert ALONE.is_alone and ALONE.progress is None and ALONE.stage_axes == () and not ALONE.is_norm_due()
    group = ALONE.group(("a",))
    assert (group.size, group.index, tuple(group.ranks), group.dry) == (1, 0, (0,), False)
    assert group.exchange(b"x") == [b"x"]
    assert ALONE.shapes(("a",), (2, 3)) == ([(2, 3)], 0) and ALONE.numbers_of_all(2, ("a",), "") == [2.0]
    assert ALONE.combinations_of_stages({("a",)}, "") == {("a",)}
    array = np.ones(2)
    assert ALONE.gathered(array, 0, "a", "") is array
    for each in (ALONE.note_constant, ALONE.note_beside, ALONE.examine):
        assert not each(*[None] * len(inspect.signature(each).parameters))


def test_what_is_asked_of_a_mesh() -> None:
    grid, door = Grid.of(("a",), (2,), (0,)), Asking()
    with distributed(door, grid):
        x, w = ag.tensor([1.0, 2.0], {"a": I}), ag.Parameter([3.0, 4.0])
        with ag.Tape() as tape:
            loss = (w * x * 2.0).sum()
        tape.backward(loss)
        optimizer = optim.SGD([w], 0.1)
        optimizer.step()
        part, own = ag.tensor([1.0, 2.0], {"a": Shard(0)}), ag.tensor([5.0, 6.0], {"a": V})
        _ = part + own
        ag.constant([1.0])
        number = ag.tensor(7.0, {"a": R})
        ag.tensor(number, {"a": R})  # the number of a Tensor, which may have been computed
    assert door.asked.count(("declaration", "scalar")) == 1
    for asked in (("declaration", "tensor"), ("constant", "multiply", 2.0), ("objective",), ("step", 1),
                  ("beside", "add", (2,)), ("declaration", "constant")):  # fmt: skip
        assert asked in door.asked, (asked, door.asked)


def test_no_objective_is_asked_about_with_a_cotangent_and_on_one_rank() -> None:
    grid, door = Grid.of(("a",), (2,), (0,)), Asking()
    with distributed(door, grid):
        w = ag.Parameter([3.0])
        with ag.Tape() as tape:
            y = w * w
        tape.backward(y, ag.tensor([1.0], {"a": I}))
    assert ("objective",) not in door.asked
    door.is_alone, door.asked = True, []  # type: ignore[misc]  # mypy: read-only, as in the protocol
    with distributed(door, Grid.of(("a",), (1,), (0,))):
        w = ag.Parameter([3.0])
        with ag.Tape() as tape:
            y = (w * w).sum()
        tape.backward(y)
    assert door.asked == []


def test_an_operation_that_was_first_used_outside_of_its_mesh_is_examined_inside() -> None:
    squares = op("squares, said to be linear (example)", "a", lambda x: x * x, (lambda ct, y, x: ct,), dims=broadcast)

    def program() -> None:
        mesh = cc.Mesh(a=1)
        with mesh:
            x = ag.tensor([1.0, 2.0], {"a": P})
        squares(x)
        with mesh, pytest.raises(LayoutError, match="not linear"):
            squares(x)

    program()


def test_importing_the_ranks_changes_nothing_below() -> None:
    """No list is filled and no class of autograd gets an attribute while `collectives` and `parallel` are imported."""
    program = """
import sys
import autograd, autograd.nn, autograd.optim, autograd.random, autograd.transforms, autograd.testing
from autograd.engine import events, state, tape, tensor, recording, sweep, primitive, distribution

def seen():
    found = {}
    for name, module in sorted(sys.modules.items()):
        if name.startswith("autograd.engine"):
            for key, value in vars(module).items():
                if isinstance(value, list | set | dict) and not key.startswith("__"):
                    found[name, key] = len(value)
                elif isinstance(value, type) and value.__module__ == name:
                    found[name, key] = sorted(vars(value))
    return found

before = seen()
import collectives, parallel
after = {key: value for key, value in seen().items() if key in before}
grown = {("autograd.engine.tensor", "TENSORS"), ("autograd.engine.primitive", "registry")}  # classes and operations
print({key for key in before if before[key] != after[key]} - grown, state.state.distribution is distribution.ALONE)
"""
    done = run(program)
    assert done.stdout == "set() True\n", done


_ALONE = """
import sys
import numpy as np
from autograd.engine import Parameter, Tape, op

rules = lambda ct, y, a, b: times(ct, b), lambda ct, y, a, b: times(ct, a)
times = op("times", "a b", np.multiply, rules, saves="01")
total = op("total", "a", np.sum, lambda ct, y, x: np.full(x.shape, ct), saves="0")

w = Parameter([1.0, 2.0, 3.0])
with Tape() as tape:
    y = total(times(times(w, w), w))
tape.backward(y)
assert y.numpy() == 36 and w.grad.numpy().tolist() == [3, 12, 27]
above = ("autograd.ops", "autograd.numpy", "autograd.layouts.refusals", "autograd.transforms", "autograd.nn",
         "autograd.optim", "autograd.random", "autograd.kernels", "collectives", "parallel", "mpi4py")
print([name for name in sys.modules if name.startswith(above)])
"""
# The package's own `__init__` is left out: what it loads is not what the engine needs.
_WITHOUT_PACKAGE = f"""
import sys, types
sys.modules["autograd"] = types.ModuleType("autograd")
sys.modules["autograd"].__path__ = [{str(ROOT / "autograd")!r}]
"""


@pytest.mark.parametrize("before", [_WITHOUT_PACKAGE, ""], ids=["modules", "package"])
def test_the_engine_alone_computes_a_gradient(before: str) -> None:
    """With two operations declared by hand, and nothing loaded that stands above it."""
    done = run(before + _ALONE)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done


def test_the_operations_are_loaded_where_numpy_meets_a_tensor() -> None:
    program = """
import sys
import numpy as np
from autograd.engine.leaves import tensor
x = tensor([0.0])
print("autograd.ops.elementwise" in sys.modules, np.exp(x).numpy(), "autograd.ops.elementwise" in sys.modules)
"""
    done = run(program)
    assert done.stdout == "False [1.] True\n", done


def test_a_plan_without_collectives_says_what_to_import() -> None:
    program = """
import autograd as ag
with ag.Tape() as tape:
    (ag.Parameter([1.0]) * 2.0).sum()
try:
    tape.plan()
except ag.errors.MeshError as error:
    print(str(error).splitlines()[1])
import collectives
print(tape.plan().problems)
"""
    done = run(program)
    assert done.stdout.split("\n")[0].startswith("  fix: import collectives") and "[]" in done.stdout, done
