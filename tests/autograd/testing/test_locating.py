"""A check of a model that fails names the operation whose derivative is wrong, its line and the size of the error."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn
from autograd.engine.primitive import registry
from autograd.extend import Several, broadcast, defvjp, op, primitive
from autograd.testing import GradientMismatch, check_adjoint, check_grads

X = numpy.random.default_rng(0).normal(size=(2, 3))


def planted(name: str, function: Any, *rules: Any, word: str = "N", **words: Any) -> Any:
    """An operation with a wrong rule, which leaves the registry at once."""
    words = {"saves": "01"[: len(rules)], "dims": broadcast, "operands": "a b", **words}
    made = op(name, word, function, rules, **words)
    del registry[name]
    return made


@primitive
def square(x: Any) -> Any:
    return x * x


defvjp(square, lambda ans, x: lambda g: g * x)  # half of the gradient

cube = planted("cube", lambda a: a**3, lambda ct, y, a: 2 * ct * a**2)
times = planted(
    "times", lambda a, b: a * b, lambda ct, y, a, b: ct * b, lambda ct, y, a, b: ct * (a + 0.01), word="a b", dims=None
)
steep = planted("steep", lambda a: a**2, lambda ct, y, a: 2 * ct * ag.stop_gradient(a))  # wrong in second order only
pushed = planted("pushed", lambda a: a**2, lambda ct, y, a: 2 * ct * a, tangent=(lambda t, y, a: t * a,))


@pytest.fixture(scope="module")
def model() -> Any:
    return nn.Sequential(nn.Linear(3, 4, dtype="float64"), nn.Tanh(), nn.Linear(4, 2, dtype="float64"))


def line_of(function: Callable[..., Any], text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    return f"test_locating.py:{first + next(i for i, line in enumerate(lines) if text in line)}"


def with_cube(model: Any, x: Any) -> Any:
    h = model[1](model[0](x))
    h = cube(h)
    return (model[2](h) ** 2).sum()


def with_times(model: Any, x: Any) -> Any:
    h = model[1](model[0](x))
    return np.exp(model[2](times(h, np.sin(h)))).sum()


def with_square(model: Any, x: Any) -> Any:
    return np.cos(square(model(x))).sum()


def with_steep(model: Any, x: Any) -> Any:
    return np.sin(steep(np.tanh(x))).sum()


def with_pushed(model: Any, x: Any) -> Any:
    return np.sin(pushed(np.tanh(x))).sum()


WRONG: dict[str, tuple[Callable[..., Any], str, str, tuple[str, ...]]] = {
    "in a model": (with_cube, "cube(h)", "cube", ("declared at test_locating.py:", "8 of 8 elements differ", "0.33 ")),
    "of the second operand": (with_times, "times(h", "times", ("order 1, b of shape (2, 4)", "elements differ")),
    "of a primitive": (with_square, "cos(square(model", "square", ("argument 0 of shape (2, 2)", "0.5 of the largest")),
    "in second order": (with_steep, "steep(np", "steep", ("order 2 (of the reverse derivative), a of shape (2, 3)",)),
    "of forward mode": (with_pushed, "pushed(np", "pushed", ("forward mode, order 1",)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_check_grads_names_the_operation_and_the_line(name: str, model: Any) -> None:
    f, text, operation, words = WRONG[name]
    modes = ("forward", "reverse") if f is with_pushed else ("reverse",)
    with pytest.raises(GradientMismatch) as error:
        check_grads(lambda x: f(model, x), X, order=1 + (f is with_steep), modes=modes)
    found = str(error.value)
    named = [line for line in found.splitlines() if line.startswith("  wrong: ")]
    assert len(named) == 1, found
    assert f"operation {operation!r}, called at {line_of(f, text)}" in named[0]
    for word in words:
        assert word in found, found


def test_of_a_model_the_first_wrong_operation_comes_first() -> None:
    class Block(nn.Module):
        def __init__(self, function: Callable[..., Any]):
            self.function = function
            self.linear = nn.Linear(3, 3, key=ag.random.Key(4), dtype="float64")

        def forward(self, x: Any) -> Any:
            return self.function(self.linear(x))

    slightly = op("slightly wrong (located)", "N", lambda a: a**2, lambda ct, y, a: 2.001 * ct * a, saves="0")
    del registry["slightly wrong (located)"]
    model = nn.Sequential(Block(np.sin), Block(slightly), Block(cube))
    with pytest.raises(GradientMismatch) as error:
        check_grads(model, X, order=1, modes=["reverse"])
    named = [line for line in str(error.value).splitlines() if line.startswith("  wrong: ")]
    assert len(named) == 2
    line = line_of(test_of_a_model_the_first_wrong_operation_comes_first, "self.function(self")
    assert f"operation 'slightly wrong (located)', called at {line} in Sequential.1," in named[0]
    assert f"operation 'cube', called at {line} in Sequential.2," in named[1]


@pytest.fixture
def wrong_tanh() -> Iterator[None]:
    tanh: Any = registry["tanh"]
    before, pull = tanh.adjoint, tanh.pull
    tanh.adjoint = (lambda ct, y, *xs: ct * (1 - y),)
    _, tanh.pull = tanh.bind()
    yield
    tanh.adjoint, tanh.pull = before, pull


def test_a_wrong_rule_of_an_operation_of_the_library_is_named(wrong_tanh: None) -> None:
    with pytest.raises(GradientMismatch, match=r"wrong: the derivative of operation 'tanh', called at test_locating"):
        check_grads(lambda x: np.exp(np.tanh(np.sin(x))).sum(), X, order=1, modes=["reverse"])


def test_check_adjoint_names_the_operation(model: Any) -> None:
    with pytest.raises(GradientMismatch) as error:
        check_adjoint(lambda x: with_pushed(model, x), X)
    assert f"operation 'pushed', called at {line_of(with_pushed, 'pushed(np')}" in str(error.value)


def test_an_operation_with_several_results_is_named() -> None:
    rules = (lambda cts, ys, a: cts[0] * np.cos(a) + cts[1] * a,)
    shapes = lambda a, *_: (a, a)
    both = Several("both (located)", "N", lambda a: (numpy.sin(a), a**2), rules, outputs=shapes, saves="0")
    del registry["both (located)"]
    with pytest.raises(GradientMismatch, match=r"operation 'both \(located\)', called at test_locating"):
        check_grads(lambda x: sum(y.sum() for y in both(np.tanh(x))), X, order=1, modes=["reverse"])


def test_without_a_wrong_operation_the_message_says_so() -> None:
    with pytest.raises(GradientMismatch) as error:
        check_grads(lambda x: (np.sin(ag.stop_gradient(np.cos(x)) * x)).sum(), X, order=1)
    assert "operations that it calls is right by itself: is a value used without its gradient" in str(error.value)
    assert "wrong:" not in str(error.value)


def test_all_ranks_of_a_mesh_name_the_operation_of_one() -> None:
    def rank_main() -> str:
        with cc.Mesh(dp=-1):
            w = ag.Parameter(X[0])
            double = numpy.float64(cc.world().rank == 1) + 1  # the rule of one rank alone is wrong

            wrong = planted("of one rank", numpy.sin, lambda ct, y, a: ct * np.cos(a) * double)

            rows = ag.tensor(X[:1] + cc.world().rank, {"dp": cc.V})

            def loss(w: Any) -> Any:
                x = cc.cast(w, "dp", to=cc.R) * rows
                return cc.all_reduce(wrong(x).sum(), "dp", to=cc.I)

            with pytest.raises(GradientMismatch) as error:
                check_grads(loss, w, order=1, modes=["reverse"])
        return str(error.value)

    texts = cc.run(rank_main, 3)
    assert texts[0] == texts[1] == texts[2]
    assert "operation 'of one rank', called at test_locating" in texts[0] and "on rank 1" in texts[0]
