"""Programs written for HIPS autograd: its modules, names and calls, beside what they should compute."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd.builtins import isinstance as ag_isinstance
from autograd.builtins import type as ag_type
from autograd.core import make_jvp, make_vjp
from autograd.custom.vspace import vspace
from autograd.extend import defvjp, primitive
from autograd.misc import const_graph, flatten
from autograd.misc.fixed_points import fixed_point
from autograd.misc.flatten import flatten_func
from autograd.misc.optimizers import adam, rmsprop, sgd
from autograd.test_util import check_equivalent, check_grads, check_jvp, check_vjp, combo_check, scalar_close
from autograd.transforms.wrapping import unary_to_nary
from autograd.util import quick_grad_check, subval, subvals
from autograd.wrap_util import wrap_nary_f, wraps

RNG = numpy.random.default_rng(3)

NAMES = {
    "autograd": """checkpoint deriv dict elementwise_grad grad grad_and_aux grad_named hessian hessian_tensor_product
        hessian_vector_product holomorphic_grad isinstance jacobian list make_ggnvp make_hvp make_jvp make_vjp
        multigrad_dict primitive tensor_jacobian_product tuple type value_and_grad vector_jacobian_product""",
    "autograd.builtins": "dict isinstance list tuple type",
    "autograd.core": "VSpace defjvp defvjp make_jvp make_vjp primitive primitive_jvps primitive_vjps vspace",
    "autograd.differential_operators": "egrad grad jacobian make_jvp_reversemode make_vjp",
    "autograd.extend": """Box VSpace def_linear defjvp defjvp_argnum defjvp_argnums defvjp defvjp_argnum defvjp_argnums
        notrace_primitive primitive register_notrace vspace""",
    "autograd.misc": "const_graph flatten",
    "autograd.misc.fixed_points": "fixed_point",
    "autograd.misc.flatten": "flatten flatten_func",
    "autograd.misc.optimizers": "adam rmsprop sgd unflatten_optimizer",
    "autograd.numpy": "fft linalg random",
    "autograd.numpy.linalg": "T _dot",
    "autograd.test_util": "check_equivalent check_grads check_jvp check_vjp combo_check scalar_close",
    "autograd.tracer": "getval isbox notrace_primitive primitive",
    "autograd.util": "func quick_grad_check subval subvals",
    "autograd.wrap_util": "get_doc get_name unary_to_nary wrap_nary_f wraps",
}


@pytest.mark.parametrize("module", NAMES)
def test_imports(module: str) -> None:
    for name in NAMES[module].split():
        exec(f"from {module} import {name}", {})


def test_rare_modules_are_loaded_when_they_are_asked_for() -> None:
    code = (
        "import sys, autograd, collectives\n"
        "loaded = [m for m in sys.modules if m.partition('.')[0] in ('scipy', 'matplotlib', 'mpi4py')\n"
        "          or m.startswith(('autograd.scipy', 'autograd.misc', 'autograd.extend', 'autograd.core'))]\n"
        "assert not loaded, loaded\n"
        "from autograd import scipy\n"
        "assert 'scipy' not in sys.modules\n"
        "sys.modules['scipy.special'] = None\n"
        "try:\n    scipy.special\n"
        "except ImportError as error:\n    assert isinstance(error, autograd.DependencyError); print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pip install 'ringtape[scipy]'" in done.stdout


def test_python_names_answer_for_the_value() -> None:
    def f(x: Any) -> Any:
        assert ag_isinstance(x["a"], numpy.ndarray) and ag_isinstance(x, dict) and not ag_isinstance(x["a"], float)
        assert ag_isinstance(x["b"], float) and issubclass(ag_type(x["b"]), float)
        return np.sum(x["a"]) * x["b"]

    assert ag.grad(f)({"a": numpy.ones(2), "b": 3.0})["b"] == 2.0


def test_transforms_at_a_point() -> None:
    pull, y = make_vjp(np.exp, 0.0)
    assert (pull(2.0), y) == (2.0, 1.0)
    assert make_jvp(np.exp, 0.0)(3.0) == (1.0, 3.0)


# -- vector spaces ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("value", [0.0, RNG.random((2, 3)), 1j * RNG.random(2), [1.0, (RNG.random(2), {"a": 2j})], []],
                         ids=["number", "array", "complex", "nested", "empty"])  # fmt: skip
def test_a_vector_space(value: Any) -> None:
    space = vspace(value)
    basis = list(space.standard_basis())
    assert len(basis) == space.size
    total = space.zeros()
    for unit in basis:
        assert vspace(unit) == space
        assert space.inner_prod(unit, unit) == 1
        total = space.add(total, unit)
    check_equivalent(total, space.ones())
    x, y = space.randn(), space.randn()
    assert scalar_close(space.inner_prod(x, y), space.inner_prod(y, x))
    assert space != vspace([value])


# -- checks of derivatives -------------------------------------------------------------------------------------------
def test_checks_see_wrong_derivatives() -> None:
    numpy.random.seed(0)  # of 400 random directions of a number, one is too short to show the fault
    f = primitive(lambda x: x * x)
    defvjp(f, lambda ans, x: lambda g: g * 2.002 * x)
    for check in (check_vjp, check_jvp):
        check(lambda x: x * x, numpy.array([1.0, 2.0]))
        with pytest.raises(AssertionError):
            check(f, numpy.array([1.0, 2.0]))
    for mode in ("fwd", "rev", "forward", "reverse"):
        with pytest.raises(AssertionError):
            combo_check(lambda x, n: f(x) * n, 0, modes=[mode], order=1)([1.0], [2.0, 3.0])
    with pytest.raises(AssertionError), pytest.warns(DeprecationWarning):
        quick_grad_check(f, 1.0)
    with pytest.raises(AssertionError, match="modes="):
        check_grads(np.sin, modes=["backward"])(1.0)
    with pytest.raises(AssertionError, match="VSpace mismatch"):
        check_equivalent(1.0, numpy.ones(2))


def test_small_helpers() -> None:
    assert subval((1, 2), 1, 3) == (1, 3) and subvals([1, 2, 3], [(0, 5), (2, 6)]) == (5, 2, 6)
    twice = unary_to_nary(lambda f, x: f(x) * 2)
    assert twice(lambda a, b: a + b, (0, 1))(1, 2) == 6
    assert wraps(len, "not_{fun}", "{doc}")(lambda x: x).__name__ == "not_len"
    assert wrap_nary_f(len, sum, 1)(lambda x: x).__name__ == "sum_of_len_wrt_argnum_1"


# -- flattening ------------------------------------------------------------------------------------------------------
TREE = {"b": (1.0, [RNG.random((2, 3))]), "a": RNG.random(2), "none": ()}


def test_flatten_and_back() -> None:
    flat, unflatten = flatten(TREE)
    assert flat.shape == (9,)
    assert numpy.array_equal(flat[:2], TREE["a"])  # in the order of the keys
    check_equivalent(unflatten(flat), {k: TREE[k] for k in sorted(TREE)})
    with pytest.raises(ValueError, match="given 8 elements; needed: 9"):
        unflatten(flat[1:])
    check_grads(lambda tree: np.sin(flatten(tree)[0]), modes=["fwd", "rev"])(TREE)
    check_grads(lambda v: np.sum(unflatten(v)["b"][1][0] ** 2) * unflatten(v)["b"][0])(flat)
    func, back, example = flatten_func(lambda tree, n: {"a": tree["a"] * n}, TREE)
    assert numpy.array_equal(func(example, 2.0), 2 * TREE["a"]) and back(example)["none"] == ()


# -- optimizers: against their formulas ------------------------------------------------------------------------------
def test_optimizers_follow_their_formulas() -> None:
    scale = numpy.array([1.0, 4.0])

    def gradient(p: Any, i: int) -> Any:
        assert set(p) == {"x", "y"}
        return {"x": scale * p["x"] + i, "y": p["y"]}

    heard: list[Any] = []
    start = {"x": numpy.ones(2), "y": 2.0}
    hear = lambda p, i, g: heard.append((i, p["y"], g["y"]))
    found = sgd(gradient, start, hear, num_iters=3, step_size=0.1, mass=0.5)
    x, y, vx, vy = numpy.ones(2), 2.0, numpy.zeros(2), 0.0
    for i in range(3):
        assert heard[i] == (i, y, y)
        vx, vy = 0.5 * vx - 0.5 * (scale * x + i), 0.5 * vy - 0.5 * y
        x, y = x + 0.1 * vx, y + 0.1 * vy
    numpy.testing.assert_allclose(found["x"], x, rtol=1e-14)
    numpy.testing.assert_allclose(found["y"], y, rtol=1e-14)
    assert start["y"] == 2.0

    found = rmsprop(lambda p, i: p, numpy.array([2.0]), num_iters=2, step_size=0.1, gamma=0.9)
    p, s = 2.0, 1.0
    for _ in range(2):
        s = 0.9 * s + 0.1 * p * p
        p -= 0.1 * p / (numpy.sqrt(s) + 1e-8)
    numpy.testing.assert_allclose(found, [p], rtol=1e-14)

    found = adam(lambda p, i: p, numpy.array([2.0]), num_iters=2, step_size=0.1)
    p, m, v = 2.0, 0.0, 0.0
    for i in (1, 2):
        m, v = 0.9 * m + 0.1 * p, 0.999 * v + 0.001 * p * p
        p -= 0.1 * (m / (1 - 0.9**i)) / (numpy.sqrt(v / (1 - 0.999**i)) + 1e-8)
    numpy.testing.assert_allclose(found, [p], rtol=1e-14)


# -- fixed points, constant graphs -----------------------------------------------------------------------------------
def test_a_fixed_point_and_its_derivatives() -> None:
    def root(a: Any) -> Any:
        step = lambda a: lambda x: {"r": 0.5 * (x["r"] + a["square"] / x["r"])}
        return fixed_point(step, a, {"r": numpy.ones(2)}, lambda x, y: np.max(np.abs(x["r"] - y["r"])), 1e-12)["r"]

    a = {"square": numpy.array([2.0, 3.0])}
    numpy.testing.assert_allclose(root(a), numpy.sqrt(a["square"]), rtol=1e-12)
    numpy.testing.assert_allclose(ag.grad(lambda a: np.sum(root(a)))(a)["square"], 0.5 / numpy.sqrt(a["square"]))
    check_grads(root, modes=["rev"], order=2)(a)


def test_a_constant_graph_repeats_operations_and_no_program() -> None:
    runs = []

    def f(a: float, x: Any, y: Any) -> Any:
        runs.append(1)
        inner = ag.grad(lambda z: np.sum(np.sin(z) * y))(x * a)
        return {"out": inner, "same": x}

    g = const_graph(f, 2.0)
    for _ in range(3):
        x, y = RNG.random(3), RNG.random(3)
        found = g(x, y)
        numpy.testing.assert_allclose(found["out"], numpy.cos(2 * x) * y, rtol=1e-13)
        assert numpy.array_equal(found["same"], x)
    assert len(runs) == 1
    check_grads(lambda x, y: g(x, y)["out"], (0, 1))(RNG.random(3), RNG.random(3))
    with pytest.raises(ag.TapeError, match="1 values were given; needed: 2"):
        g(1.0)
    with pytest.raises(ag.TapeError, match="depends on none of its arguments"):
        const_graph(lambda x: 1.0)(2.0)


def test_a_constant_graph_leaves_out_what_no_argument_enters() -> None:
    seen = []
    look = primitive(lambda x, name: seen.append(name) or x)


    def f(a: Any, x: Any) -> Any:
        look(x * x, "unused")
        return look(a, "a") + 2 * look(x, "x")

    g = const_graph(f, 1.0)
    assert (g(2.0), seen) == (5.0, ["unused", "a", "x"])
    seen.clear()
    assert (g(3.0), seen) == (7.0, ["x"])
