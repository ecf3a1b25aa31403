"""What type checkers see: a user's program, the stubs of `autograd.numpy`, and the declared methods of Tensor."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd.engine.primitive import Primitive
from autograd.engine.tensor import Tensor
from autograd.ops import tensor_methods, torch_methods
from autograd.testing import stubs

from . import program

ROOT = Path(__file__).parents[2]


def test_the_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    losses, of_ranks = program.main(program.Settings())
    assert losses[-1] < losses[1] and of_ranks[0][-1] < of_ranks[0][0]
    assert of_ranks[0] == of_ranks[1]
    assert re.match(r"4\.5360 4\.54 float64", capsys.readouterr().out)
    assert len(Path(program.__file__).read_text().splitlines()) > 200


def test_the_configuration_of_mypy_contains_the_program_with_the_flags_of_strict() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert "tests.types.program" in config["modules"]
    (flags,) = (each for each in config["overrides"] if each["module"] == "tests.types.*")
    main = pytest.importorskip("mypy.main", reason="mypy is in the extra dev")
    _, _, strict = main.define_options()
    given = {**config, **flags, "implicit_reexport": not config["no_implicit_reexport"]}
    assert {name for name, value in strict if given.get(name) is not value} == set()


@pytest.mark.slow
def test_mypy_strict_passes_on_the_program_alone() -> None:
    api = pytest.importorskip("mypy.api", reason="mypy is in the extra dev")
    out, errors, status = api.run(["--strict", "--config-file=", str(ROOT / "tests" / "types" / "program.py")])
    assert status == 0, out + errors


# -- the stubs of autograd.numpy ---------------------------------------------------------------------------------------


@pytest.fixture(params=stubs.STUBS)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return import_module(request.param)


def _without_names_of_numpy(text: str) -> str:
    return re.sub(r'^(from numpy\S* import .*|""".*""")\n', "", text, flags=re.M)


def test_stubs_are_up_to_date(module: ModuleType) -> None:
    written, expected = stubs.path(module.__name__).read_text(), stubs.stub(module)
    if f"with NumPy {stubs.numpy_version()};" in written:
        assert written == expected, "stale; write it anew: python -m autograd stubs"
    assert _without_names_of_numpy(written) == _without_names_of_numpy(expected), (
        "stale; write it anew: python -m autograd stubs"
    )


def test_stubs_are_valid_and_declare_every_public_name(module: ModuleType) -> None:
    tree = ast.parse(stubs.path(module.__name__).read_text())
    declared = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    declared |= {alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom)
                 for alias in node.names}  # fmt: skip
    declared |= {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)
                 and isinstance(node.target, ast.Name)}  # fmt: skip
    assert set(module.__all__) - declared == set()


X = numpy.array([[2.0, 0.5], [0.25, 3.0]])
OPTIONS: dict[str, Any] = {
    "axis": 0, "axis1": 0, "axis2": 1, "dtype": "float32", "indices_or_sections": 2, "kth": 0, "n": 2,
    "new_shape": (4,), "obj": 0, "pad_width": 1, "q": 0.5, "repeats": 2, "reps": 2, "shape": (2, 2), "shift": 1,
    "source": 0, "destination": 1, "indices": numpy.array([0, 1]), "condition": numpy.array([True, False]),
}  # fmt: skip
CALLS: dict[str, Any] = {
    "append": lambda f, x: f(x, x), "broadcast_to": lambda f, x: f(x, (3, 2, 2)), "choose": lambda f, x: f([0, 1], x),
    "compress": lambda f, x: f([True, False], x, 0), "delete": lambda f, x: f(x, 0, 0),
    "dsplit": lambda f, x: f(x[None], 2), "einsum": lambda f, x: f("ij,jk", x, x),
    "expand_dims": lambda f, x: f(x, 0), "extract": lambda f, x: f(X > 1, x),
    "full": lambda f, x: f((2, 2), x[0, 0]),
    "interp": lambda f, x: f(0.5, [0.0, 1.0], x[0]), "ldexp": lambda f, x: f(x, 2),
    "piecewise": lambda f, x: f(x, [X > 1], [lambda y: y, 0.0]), "reshape": lambda f, x: f(x, (4,)),
    "select": lambda f, x: f([X > 1], [x]), "take_along_axis": lambda f, x: f(x, numpy.array([[0, 1]]), 0),
    "tensorinv": lambda f, x: f(x, 1), "tensorsolve": lambda f, x: f(x, x[0]), "where": lambda f, x: f(X > 1, x, 0.0),
    "cross": lambda f, x: f(np.array([1.0, 2.0, 3.0]) * x[0, 0], numpy.ones(3)), "cumulative_sum": lambda f, x: f(x[0]),
    "cumulative_prod": lambda f, x: f(x[0]), "outer": lambda f, x: f(x[0], x[1]), "matrix_power": lambda f, x: f(x, 2),
    "convolve": lambda f, x: f(x[0], x[1]), "correlate": lambda f, x: f(x[0], x[1]),
    "resize": lambda f, x: f(x, (4,)), "squeeze": lambda f, x: f(x[None]), "swapaxes": lambda f, x: f(x, 0, 1),
}  # fmt: skip


def test_results_of_tensors_are_what_the_stubs_state(module: ModuleType) -> None:
    """Call every function of which a stub states that it gives Tensors."""
    tried = 0
    for name, function in stubs.own_functions(module).items():
        text = stubs.overloads(name, function)
        states = re.search(r"Tensor.*\) -> (.*): \.\.\.$", text, flags=re.M)
        if states is None or states[1] not in ("Tensor", "list[Tensor]", "tuple[Tensor, ...]", "tuple[Tensor, Tensor]"):
            continue
        integers = isinstance(function, Primitive) and re.search("bitwise|shift|invert", function.name)
        with numpy.errstate(all="ignore"):
            found = _call(name, function, ag.tensor(numpy.array([[1, 2], [3, 0]]) if integers else X))
        several = states[1] != "Tensor"
        assert isinstance(found, {"l": list, "t": tuple, "T": Tensor}[states[1][0]]), (name, states[1], found)
        assert not several or all(isinstance(each, Tensor) for each in found), name
        tried += 1
    assert tried > {"autograd.numpy": 200}.get(module.__name__, 15)


def _call(name: str, function: Any, x: Tensor) -> Any:
    if name in CALLS:
        return CALLS[name](function, x)
    if isinstance(function, Primitive):
        return function(*[x] * len(function.words))
    given = []
    for p in inspect.signature(function).parameters.values():
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD:
            given.append([x, x] if p.name in ("arrays", "tup") else OPTIONS.get(p.name, x))
    return function(*given)


# -- the declared methods of Tensor ------------------------------------------------------------------------------------


def _declared() -> tuple[set[str], dict[str, list[str]]]:
    """The attributes and methods that the class declares for type checkers, the latter with their parameters."""
    tree = ast.parse(Path(inspect.getfile(Tensor)).read_text())
    (cls,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Tensor")
    (block,) = (node for node in cls.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    targets = [node.target for node in block.body if isinstance(node, ast.AnnAssign)]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    methods = {}
    for node in block.body:
        if isinstance(node, ast.FunctionDef):
            a = node.args
            every = [*a.posonlyargs, *a.args, a.vararg, *a.kwonlyargs, a.kwarg]
            methods[node.name] = [each.arg for each in every if each is not None][1:]
    return names, methods


def test_the_declared_methods_of_tensor_are_those_that_are_installed() -> None:
    names, methods = _declared()
    assert names == set(tensor_methods.PROPERTIES)
    installed = tensor_methods.METHODS | torch_methods.METHODS
    standard = {name for name in tensor_methods.STANDARD if name.startswith("__")}
    installed |= {name: tensor_methods.STANDARD[name] for name in tensor_methods.STANDARD.keys() - standard}
    assert {name for name in methods if not name.startswith("__")} == set(installed)
    for name, function in installed.items():
        if not isinstance(function, Primitive):
            _, *parameters = inspect.signature(function).parameters
            assert methods[name] == parameters, name
    operators = {f"__{name}__" for name in (*tensor_methods.OPERATORS, *tensor_methods.UNREFLECTED_OPERATORS)}
    operators |= {f"__r{name}__" for name in tensor_methods.OPERATORS} | {"__pos__", "__round__", "__index__"}
    operators |= standard
    assert {name for name in methods if name.startswith("__")} == operators
