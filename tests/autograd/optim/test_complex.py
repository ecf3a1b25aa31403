"""Complex parameters: an optimizer steps along the conjugate of `.grad`, and takes a number as a pair of real ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd import nn, optim
from autograd.arrays.pairs import from_pairs, pairs_of
from autograd.errors import DtypeError
from autograd.kernels.momentum import LEAST
from autograd.misc import flatten, optimizers

from ..arrays.devices import DEVICES
from ..nn.torch_side import reference
from .complex_case import OPTIMIZERS, ROWS, START, STEPS, Mixed, Twin, X, Y, assert_close, draw, pairs, train
from .test_optim import OPTIMIZERS as TORCHS

pytestmark = pytest.mark.filterwarnings("error::numpy.exceptions.ComplexWarning")


@pytest.mark.parametrize(
    "x", [draw(3, 4), draw(4, 3).T, draw(6, 8)[::2, ::-3], draw(2, 3).astype("complex64"), draw(0, 2),
          draw(2).astype("clongdouble"), numpy.array(1 + 2j), numpy.complex128(1 + 2j)],
    ids=["", "transposed", "strided", "complex64", "empty", "long", "number", "scalar"],
)  # fmt: skip
def test_pairs(x: Any) -> None:
    found = pairs_of(x)
    numpy.testing.assert_array_equal(found, pairs(x))
    for given in (found, numpy.asfortranarray(found)):
        back = from_pairs(given)
        numpy.testing.assert_array_equal(back, x)
        assert back.dtype == x.dtype
    if isinstance(x, numpy.ndarray) and x.size:
        assert numpy.shares_memory(found, x)
        assert numpy.shares_memory(from_pairs(found), x)


# -- one process -------------------------------------------------------------------------------------------------------
Form = Callable[[Callable[[Any], Any]], list[list[Any]]]


def _fortran(make: Any) -> Any:
    model = Mixed()
    model.w.array = numpy.asfortranarray(model.w.array)
    return train(model, make)


def _interrupted(make: Any) -> Any:
    def each(k: int, model: Any, optimizer: Any) -> Any:
        if k != STEPS // 2:
            return model, optimizer
        weights, state = model.state_dict(), optimizer.state_dict()
        arrays = [x for values in state.values() if isinstance(values, list) for x in values if hasattr(x, "shape")]
        shapes = {(x.shape, x.dtype.kind) for x in arrays}
        assert shapes <= {((3, 2), "c"), ((2,), "f"), ((), "c")}, "the state has the parameters' shapes"
        model = Mixed(start=[0 * x for x in START])
        model.load_state_dict(weights)
        optimizer = make(model.parameters())
        optimizer.load_state_dict(state)
        return model, optimizer

    return train(Mixed(), make, each=each)


def _copied(make: Any) -> Any:
    return train(Mixed(), make, each=lambda k, *both: copy.deepcopy(both) if k == STEPS // 2 else both)


def _planned(make: Any) -> Any:
    def each(k: int, model: Any, optimizer: Any) -> Any:
        after = optimizer.after_first_step()
        for values in after.state_lists():
            for p, v in zip(model.parameters(), values, strict=True):
                assert v is None or isinstance(v, int) or (v.shape, v.dtype) == (p.array.shape, p.array.dtype)
        return model, optimizer

    return train(Mixed(), make, each=each)


def _captured(make: Any) -> Any:
    model = Mixed()
    optimizer = make(model.parameters())

    @ag.capture
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = model.squares(x, y) / ROWS
        tape.backward(loss)
        optimizer.step()
        return loss

    found = []
    for _ in range(STEPS):
        step(ag.constant(X), ag.constant(Y))
        found.append([numpy.array(x) for x in model.values()])
    assert_bits(found, train(Mixed(), make))
    return found


def _masters(make: Any) -> Any:
    model = Mixed()
    optimizer = optim.MasterWeights(make, model.parameters())
    found = []
    for _ in range(STEPS):
        with ag.Tape() as tape:
            loss = optimizer.scale(model.squares(X, Y) / ROWS)
        tape.backward(loss)
        optimizer.step()
        found.append([numpy.array(x) for x in model.values()])
    return found


FORMS: dict[str, Form] = {
    "": lambda make: train(Mixed(), make),
    "transposed": _fortran,
    "interrupted": _interrupted,
    "copied": _copied,
    "planned": _planned,
    "captured": _captured,
    "offload": lambda make: train(Mixed(), lambda ps: optim.Offload(make, ps)),
    "master weights": _masters,
    "complex64": lambda make: train(Mixed("complex64"), make),
    "clongdouble": lambda make: train(Mixed("clongdouble"), make),
}


@cache
def formula(name: str) -> list[list[Any]]:
    """The formula of an optimizer on the pairs."""
    return train(Twin(), OPTIMIZERS[name])


def assert_bits(found: Any, expected: Any) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            numpy.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_takes_complex_numbers_as_pairs(name: str, form: str) -> None:
    make = OPTIMIZERS[name]
    assert_close(FORMS[form](make), formula(name), 2e-5 if form == "complex64" else 1e-12)


@pytest.mark.parametrize("name", TORCHS)
def test_an_optimizer_of_complex_parameters_is_torchs(name: str) -> None:
    """Every step, the state after the last, and the first gradient: torch's is the conjugate."""
    make, words = TORCHS[name]
    found = reference(f"complex/{name}")
    model = Mixed(start=[found[f"start/{i}"] for i in range(3)])
    optimizer = make(model.parameters(), **words)
    x, y, sign = found["x"], found["y"], -1 if words.get("maximize") else 1
    ours = []
    for step in range(STEPS):
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = sign * model.squares(x, y) / ROWS
        tape.backward(loss)
        if not step:
            conjugates = [p.grad.numpy().conj() for p in model.parameters()]
            assert_close([conjugates], [[found[f"grad/{i}"] for i in range(3)]])
        optimizer.step()
        ours.append([numpy.array(v) for v in model.values()])
    tolerance = 1e-10 if words.get("centered") else 1e-12  # a difference of averages that cancel has fewer digits
    assert_close(ours, [[found[f"value/{step}/{i}"] for i in range(3)] for step in range(STEPS)], tolerance)
    state = optimizer.state_dict()
    theirs = {key.partition("/")[2] for key in found if key.startswith("state/")}
    for key in theirs:
        kind, i = key.split("/")
        # near the minimum a gradient is a difference of large numbers
        assert_close([[state[STATES[kind]][int(i)]]], [[found[f"state/{key}"]]], 100 * tolerance)
    assert theirs or not state.keys() & {*STATES.values()} - {"velocity"}


STATES = {
    "momentum_buffer": "velocity", "exp_avg": "first", "exp_avg_sq": "second", "max_exp_avg_sq": "largest",
    "sum": "sums", "square_avg": "squares", "grad_avg": "averages",
}  # fmt: skip


@pytest.mark.parametrize("name", ["SGD, momentum", "SGD, Nesterov", "Adam", "AdamW", "RMSprop", "LAMB"])
def test_large_parameters(name: str) -> None:
    """Those that compiled loops update, and that a captured step lowers, where they are real."""
    make, n = OPTIMIZERS[name], 2 * LEAST
    start, target, rate = draw(n), draw(n), numpy.linspace(0.5, 1, n)

    def run(w: ag.Parameter, loss: Callable[[Any, Any], Any], wrap: Any = lambda f: f) -> Any:
        b = ag.Parameter(rate)
        optimizer = make([b, w])

        def step() -> None:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                value = loss(w, b) + (b**2).sum()
            tape.backward(value)
            optimizer.step()

        step = wrap(step)
        for _ in range(8):
            step()
        return w.numpy(), b.numpy()

    def of_pairs(w: Any, b: Any) -> Any:
        return ((w[:, 0] * b - target.real) ** 2 + (w[:, 1] * b - target.imag) ** 2).sum()

    def squares(w: Any, b: Any) -> Any:
        return (np.abs(w * b - target) ** 2).sum()

    ours = run(ag.Parameter(start), squares)
    w, b = run(ag.Parameter(pairs(start)), of_pairs)
    assert_close([ours], [[w[:, 0] + 1j * w[:, 1], b]])
    assert_bits([run(ag.Parameter(start), squares, ag.capture)], [ours])


CLIPS: dict[str, Callable[[Any], Any]] = {
    "norm": lambda ps: optim.clip_grad_norm_(ps, 0.5),
    "values": lambda ps: optim.clip_grad_value_(ps, 0.1),
}


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("name", ["SGD", "Adam", "LAMB"])
def test_clipping(name: str, clip: str) -> None:
    expected = train(Twin(), OPTIMIZERS[name], clip=CLIPS[clip])
    assert_close(train(Mixed(), OPTIMIZERS[name], clip=CLIPS[clip]), expected)


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, numpy.inf])
def test_the_norm_of_complex_gradients_is_that_of_absolute_values(order: float) -> None:
    gradients = draw(3, 2), draw(4).real, draw()
    ps = [ag.Parameter(g) for g in gradients]
    for p, g in zip(ps, gradients, strict=True):
        p.grad = g.copy()
    absolute = numpy.concatenate([numpy.abs(g).ravel() for g in gradients])
    norm = numpy.linalg.norm(absolute, order)
    numpy.testing.assert_allclose(optim.clip_grad_norm_(ps, 0.1, order), norm)
    for p, g in zip(ps, gradients, strict=True):
        numpy.testing.assert_allclose(p.grad.numpy(), g * (0.1 / (norm + 1e-6)))


@pytest.mark.parametrize("name", ["SGD, momentum", "Adam", "RMSprop, centered"])
def test_a_file_in_the_middle(tmp_path: Path, name: str) -> None:
    make = OPTIMIZERS[name]

    def each(k: int, model: Any, optimizer: Any) -> Any:
        if k == 20:
            nn.save({"model": model, "optimizer": optimizer}, tmp_path / "run.npz")
            model = Mixed(start=[0 * x for x in START])
            optimizer = make(model.parameters())
            nn.load({"model": model, "optimizer": optimizer}, tmp_path / "run.npz")
        return model, optimizer

    assert_bits(train(Mixed(), make, each=each), train(Mixed(), make))


class Signs(optim.Optimizer):
    """A user's: the signs of an average, which is kept once by name and once beside; the array is assigned."""

    _saved = ("averages", "counts")

    def __init__(self, params: Any, lr: float):
        super().__init__(params, lr)
        self.averages: list[Any] = [None] * len(self.parameters)
        self.counts = [0] * len(self.parameters)
        self.others: dict[int, Any] = {}

    def update(self, i: int, p: Any, g: Any) -> None:
        self.counts[i] += 1
        known = self.averages[i]
        self.averages[i] = g if known is None else 0.5 * known + g
        self.others[i] = 0.5 * self.others.get(i, 0.0) + g
        numpy.testing.assert_array_equal(self.others[i], self.averages[i])
        p.array = p.array - self.lr / self.counts[i] * numpy.sign(self.averages[i])


class Decreasing(optim.Optimizer):
    def update(self, i: int, p: Any, g: Any) -> None:
        p.array -= self.lr * g


@pytest.mark.parametrize("of", [Signs, Decreasing])
def test_an_optimizer_of_a_user(of: Any) -> None:
    assert_close(train(Mixed(), lambda ps: of(ps, lr=0.1)), train(Twin(), lambda ps: of(ps, lr=0.1)))


def test_the_state_is_whole_after_an_update_that_raised() -> None:
    class Failing(optim.Adam):
        def update(self, i: int, p: Any, g: Any) -> None:
            super().update(i, p, g)
            if self.counts[i] == 2:
                raise KeyError("the user's")

    model = Mixed()
    optimizer = Failing(model.parameters())
    with pytest.raises(KeyError, match="user's"):
        train(model, lambda ps: optimizer)
    assert [(v.shape, v.dtype.kind) for v in optimizer.second] == [((3, 2), "c"), ((2,), "f"), ((), "c")]


def test_both_parts_go_downhill() -> None:
    """The report: |w - (1 + 2j)|^2 by SGD ended at 172,393."""
    w = ag.Parameter(numpy.array([0.5 + 0.5j]))
    optimizer = optim.SGD([w], lr=0.05)
    for k in range(STEPS):
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = (np.abs(w - (1 + 2j)) ** 2).sum()
        tape.backward(loss)
        if not k:
            assert w.grad.numpy() == -1 + 3j, "df/dx - i df/dy"
        optimizer.step()
    assert loss.item() < 2e-5


def test_an_average_of_weights() -> None:
    """As programs keep it for evaluation: it is linear, so that it is that of the pairs."""
    def averaged(model: Any) -> Any:
        found = [0 * x for x in model.values()]

        def each(k: int, model: Any, optimizer: Any) -> Any:
            found[:] = [0.9 * a + 0.1 * x for a, x in zip(found, model.values(), strict=True)]
            return model, optimizer

        train(model, OPTIMIZERS["Adam"], each=each)
        return found

    assert_close([averaged(Mixed())], [averaged(Twin())])


@pytest.mark.parametrize("there", DEVICES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_on_a_device(there: Any, name: str) -> None:
    expected = train(Mixed(), OPTIMIZERS[name], 5, CLIPS["values"])
    with there.as_cuda():
        model = Mixed().to(device="cuda")
        optimizer = OPTIMIZERS[name](model.parameters())
        x, y = there.move(X), there.move(Y)
        for _ in range(5):
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = model.squares(x, y) / ROWS
            tape.backward(loss)
            CLIPS["values"](model.parameters())
            optimizer.step()
        assert_close([[there.values(p) for p in model.parameters()]], expected[-1:])


def test_a_complex_gradient_of_a_real_parameter_is_refused() -> None:
    p = ag.Parameter(numpy.ones(2))
    with pytest.raises(DtypeError, match=r"Fix: g\.real"):
        p.grad = numpy.array([1 + 2j, 3j])
    p.grad = numpy.array([1 + 2j, 3j]).real


# -- HIPS's own functions ----------------------------------------------------------------------------------------------
def test_the_functions_of_hips_step_along_what_they_are_given() -> None:
    def gradient(x: Any, i: int) -> Any:
        return ag.grad(lambda x: np.sum(np.abs(x - (1 + 2j)) ** 2))(x)

    x = numpy.array([0.5 + 0.5j, 2 - 1j])
    up = optimizers.sgd(gradient, x, num_iters=5)
    of_hips = [0.62534175 + 0.08676341j, 1.74931649 - 1.82647318j]  # version 1.9
    numpy.testing.assert_allclose(up, of_hips)
    down = optimizers.sgd(lambda x, i: np.conj(gradient(x, i)), x, num_iters=300)
    numpy.testing.assert_allclose(down, [1 + 2j] * 2, rtol=1e-6)


def test_a_real_leaf_beside_a_complex_one_stays_real() -> None:
    flat, unflatten = flatten({"a": numpy.array([1 + 2j]), "b": numpy.array([3.0])})
    back = unflatten(flat + 1j)
    assert back["b"].dtype == float
    assert back["a"] == 1 + 3j
    gradient = ag.grad(lambda v: (np.abs(unflatten(v)["a"]) ** 2 * unflatten(v)["b"]).sum())(flat)
    numpy.testing.assert_allclose(gradient, [6 - 12j, 5])
    flat, unflatten = flatten({"b": 1.0})
    assert unflatten(flat + 1j)["b"] == 1 + 1j, "the complex step"
