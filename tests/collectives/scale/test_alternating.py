"""Programs with several losses in turn: adversarial training, penalties on gradients, and up to seven losses."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn, optim
from autograd.errors import GradientWarning, ReplicaWarning, ScaleError
from collectives import I, R

from .test_programs import scale

_random = numpy.random.default_rng(23)
REAL, NOISE = _random.normal(size=(60, 4)), _random.normal(size=(60, 3))
START = {"g": _random.normal(size=(3, 4)), "d": _random.normal(size=4), "m": _random.normal(size=(4, 4)) / 2}


def total(x: Any) -> Any:
    return cc.all_reduce(x, "dp", to=I)


def mean(x: Any) -> Any:
    return cc.mean(x, "dp", to=I)


def caught(program: Callable[[cc.Mesh], Any], n: int) -> list[str]:
    def main() -> Any:
        with cc.Mesh(dp=n) as mesh:
            return program(mesh)

    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        cc.run(main, n)
    mine = [each for each in given if issubclass(each.category, GradientWarning | ReplicaWarning)]
    return [f"{each.category.__name__}: {each.message}" for each in mine]


def parameters() -> dict[str, ag.Parameter]:
    return {name: ag.Parameter(value.copy(), name=name) for name, value in START.items()}


def own(mesh: cc.Mesh, a: Any) -> Any:
    return a[int(mesh.axis("dp").rank) :: int(mesh.axis("dp").size)]


def logits(x: Any, p: dict[str, Any]) -> Any:
    return np.tanh(x @ cc.cast(p["m"], "dp", to=R)) @ cc.cast(p["d"], "dp", to=R)


def against(z: Any, label: float) -> Any:
    return nn.binary_cross_entropy_with_logits(z, numpy.full(z.shape, label))


# -- two optimizers ----------------------------------------------------------------------------------------------------
def adversarial(of_d: Any, of_g: Any, clears: bool = True, steps: int = 3) -> Callable[[cc.Mesh], None]:
    """The discriminator's step, on a generated batch without a gradient, and the generator's."""

    def program(mesh: cc.Mesh) -> None:
        p = parameters()
        d, g = optim.Adam([p["d"], p["m"]], lr=0.01), optim.Adam([p["g"]], lr=0.01)
        x, z = own(mesh, REAL), own(mesh, NOISE)
        for _ in range(steps):
            if clears:
                d.zero_grad()
            with ag.Tape() as tape:
                fake = ag.stop_gradient(z @ cc.cast(p["g"], "dp", to=R))
                loss = of_d(against(logits(x, p), 1.0) + against(logits(fake, p), 0.0))
            tape.backward(loss)
            d.step()
            g.zero_grad()
            with ag.Tape() as tape:
                loss = of_g(against(logits(z @ cc.cast(p["g"], "dp", to=R), p), 1.0))
            tape.backward(loss)
            g.step()

    return program


@pytest.mark.parametrize("n", [2, 3, 4])
def test_adversarial_training(n: int) -> None:
    with scale("error"):
        assert caught(adversarial(mean, mean), n) == []


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize(("of_d", "of_g"), [(mean, total), (total, mean)])
def test_a_sum_of_the_means_of_one_player(of_d: Any, of_g: Any, n: int) -> None:
    (text,) = caught(adversarial(of_d, of_g), n)
    assert text.startswith("ScaleWarning") and f"{n} times too large along axis 'dp'" in text
    with scale("error"), pytest.raises(ScaleError):
        caught(adversarial(of_d, of_g), n)


@pytest.mark.parametrize("n", [2, 3])
def test_a_gradient_of_the_discriminator_that_is_used_twice(n: int) -> None:
    texts = caught(adversarial(mean, mean, clears=False), n)
    assert texts and all(text.startswith("GradientWarning") for text in texts), texts


# -- a penalty on a gradient ------------------------------------------------------------------------------------------
def penalised(how: Callable[[Any, Any], Any]) -> Callable[[cc.Mesh], Any]:
    """A critic with the penalty of WGAN-GP: the norm of its gradient by the row, which is differentiated again."""

    def program(mesh: cc.Mesh) -> Any:
        p = parameters()
        x = own(mesh, REAL)
        with ag.Tape() as tape:
            entered = {name: cc.cast(p[name], "dp", to=R) for name in ("d", "m")}

            def critic(rows: Any) -> Any:
                return np.tanh(rows @ entered["m"]) @ entered["d"]

            gradient = ag.vjp(critic, ag.tensor(x))[1](ag.tensor(numpy.ones(len(x))))
            norms = np.sqrt((gradient * gradient).sum(axis=1))
            loss = how(critic(x + 1) - critic(x), (norms - 1) ** 2)
        tape.backward(loss)
        return [p[name].grad.numpy() for name in ("d", "m")]

    return program


PENALTIES = {
    "means": lambda a, b: mean(a.mean() + 10 * b.mean()),
    "sums": lambda a, b: total(a.sum() / 60) + total(10 * b.sum() / 60),
}


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("how", PENALTIES.values(), ids=PENALTIES)
def test_a_gradient_penalty(how: Any, n: int) -> None:
    with scale("error"):
        assert caught(penalised(how), n) == []
        for found in cc.run(lambda: on(penalised(how), n), n):
            for one, two in zip(found, cc.run(lambda: on(penalised(how), 1), 1)[0], strict=True):
                numpy.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-12)


def on(program: Any, n: int) -> Any:
    with cc.Mesh(dp=n) as mesh:
        return program(mesh)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_sum_of_means_with_a_gradient_penalty(n: int) -> None:
    (text,) = caught(penalised(lambda a, b: total(a.mean() + 7 * b.mean())), n)
    assert f"{n} times too large along axis 'dp'" in text
    (text,) = caught(penalised(lambda a, b: total(a.sum() / 60) + total(7 * b.mean())), n)
    assert "terms of unequal scale" in text


# -- several losses in turn --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("losses", [2, 3, 4, 5, 6, 7])
def test_each_of_several_losses_in_turn_is_examined(losses: int) -> None:
    """A wrong one among others, whichever it is."""

    def program(mesh: cc.Mesh, wrong: int) -> None:
        p = parameters()
        x = own(mesh, REAL)
        for i in range(2 * losses):
            with ag.Tape() as tape:
                loss = (total if i % losses == wrong else mean)(np.tanh(logits(x, p)).mean())
            tape.backward(loss)

    for wrong in range(losses):
        texts = caught(partial(program, wrong=wrong), 2)
        assert len(texts) == 1 and "2 times too large" in texts[0], (wrong, texts)
