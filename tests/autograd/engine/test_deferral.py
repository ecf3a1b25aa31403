"""``backward(defer=True)``: the cotangents of given values first, the gradients of the other leaves later."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, random
from autograd.engine import deferral
from autograd.engine.recording import LEAF
from autograd.errors import TapeError
from autograd.extend import defvjp, primitive


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


class Parts(nn.Module):
    """Parameters that are used once, twice, through other operations, and not at all."""

    def __init__(self) -> None:
        random.seed(1)
        self.norm = nn.LayerNorm(6, dtype=float)
        self.first = nn.Linear(6, 6, dtype=float)
        self.second = nn.Linear(6, 6, dtype=float)
        self.scale = ag.Parameter(values(6, seed=2))
        self.square = ag.Parameter(np.eye(6) * 3 + values(6, 6, seed=3) * 0.1)
        self.unused = ag.Parameter(values(2))


def plain(m: Parts, x: Any) -> Any:
    return anp.tanh(m.second(m.norm(m.first(x))))


def tied(m: Parts, x: Any) -> Any:
    return m.first(anp.tanh(m.first(x))) @ m.first.weight.T


def parameters_only(m: Parts, x: Any) -> Any:
    weight = anp.exp(m.scale)[:, None] * m.square  # no node of it depends on x
    return anp.sin(x @ weight) * (m.scale.sum() + 2.0)


def several_outputs(m: Parts, x: Any) -> Any:
    values, vectors = anp.linalg.eigh(m.square + m.square.T)  # of parameters alone
    a, b = anp.split(x @ vectors, 2, axis=-1)
    q, r = anp.linalg.qr(anp.concatenate([a, b], axis=1).T @ m.first(x) + m.square)
    return x * values + r.sum() + q.sum() * 0.1


def checkpointed(m: Parts, x: Any) -> Any:
    scale = anp.exp(m.scale)
    inner = ag.checkpoint(lambda z: anp.tanh(m.first(z)) * scale)
    return m.second(inner(inner(x * 1.0)) + inner(anp.outer(m.scale, m.scale)).sum())


def fused(m: Parts, x: Any) -> Any:
    return nn.functional.softmax(m.norm(x) * m.scale) + nn.functional.gelu(m.norm(x))


@primitive
def joined(a: Any, b: Any) -> Any:
    return a * b


defvjp(joined, lambda ans, a, b: lambda g: g * b, lambda ans, a, b: lambda g: g * a)


def own_primitive(m: Parts, x: Any) -> Any:
    return joined(x, anp.broadcast_to(m.scale, x.shape)) + joined(m.first(x), m.first(x))


def random_masks(m: Parts, x: Any) -> Any:
    return m.second(nn.functional.dropout(m.first(x), 0.5, key=random.Key(3, "mask")))


PROGRAMS: list[Callable[[Parts, Any], Any]] = [
    plain, tied, parameters_only, several_outputs, checkpointed, fused, own_primitive, random_masks,
]


def run(program: Callable[[Parts, Any], Any], defer: bool, retain: bool = False) -> tuple[Any, dict[str, Any]]:
    m, x = Parts(), ag.tensor(values(4, 6, seed=5), requires_grad=True)
    found: Any = None
    for _ in range(2):  # the second time the rules of the operations are known
        for p in (*m.parameters(), x):
            p.zero_grad()
        with ag.Tape() as tape:
            y = program(m, x)
        ct = values(*map(int, y.shape), seed=7)
        if defer:
            rest = tape.backward([y], [ct], wanted=[x], defer=True, retain=retain)
            assert x.grad is None
            found = rest.cotangents[0]
            rest()
        else:
            tape.backward([y], [ct])
            found = x.grad.numpy()
    return found, {name: None if p.grad is None else p.grad.numpy() for name, p in m.named_parameters()}


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_equals_one_sweep(program: Callable[[Parts, Any], Any], retain: bool) -> None:
    x, gradients = run(program, True, retain)
    expected_x, expected = run(program, False)
    np.testing.assert_allclose(x, expected_x, rtol=0, atol=1e-12)
    assert expected["unused"] is None and sum(g is not None for g in expected.values()) >= 1
    for name, g in expected.items():
        if g is None:
            assert gradients[name] is None, name
        else:
            np.testing.assert_allclose(gradients[name], g, rtol=0, atol=1e-12, err_msg=name)


def test_gradients_of_weights_come_with_the_rest() -> None:
    w, b = ag.Parameter(values(3, 3)), ag.Parameter(values(3))
    x = ag.tensor(values(2, 3), requires_grad=True)
    for first_time in (True, False):
        with ag.Tape() as tape:
            y = anp.tanh(x @ w + b)
        before = None if w.grad is None else w.grad.numpy().copy()
        rest = tape.backward([y], [values(2, 3, seed=4)], wanted=[x], defer=True)
        assert first_time == (before is None)
        assert (w.grad is None) if before is None else np.array_equal(w.grad.numpy(), before)
        rest()
        assert not np.array_equal(0 if before is None else before, w.grad.numpy())


def test_cotangent_of_a_value_inside() -> None:
    """The rest goes on from a wanted value that is no leaf."""
    w = ag.Parameter(values(3, 3))
    with ag.Tape() as tape:
        h = anp.tanh(w @ w)
        y = (h * h * 0.5).sum()
    rest = tape.backward(y, wanted=[h], defer=True)
    np.testing.assert_allclose(rest.cotangents[0], h.numpy())
    assert w.grad is None
    rest()
    with ag.Tape() as tape:
        h = anp.tanh(w @ w)
        y = (h * h * 0.5).sum()
    got = w.grad.numpy().copy()
    w.zero_grad()
    tape.backward(y)
    np.testing.assert_allclose(got, w.grad.numpy(), atol=1e-14)


def test_nothing_wanted_defers_everything() -> None:
    w = ag.Parameter(values(3))
    with ag.Tape() as tape:
        y = (w * w).sum()
    rest = tape.backward(y, wanted=[], defer=True)
    assert rest.cotangents == [] and w.grad is None
    rest()
    np.testing.assert_allclose(w.grad.numpy(), 2 * w.numpy())


def test_a_value_that_is_not_used_has_no_cotangent() -> None:
    w, x = ag.Parameter(values(3)), ag.tensor(values(3), requires_grad=True)
    with ag.Tape() as tape:
        y = (w * w).sum()
    rest = tape.backward(y, wanted=[x], defer=True)
    rest()
    assert rest.cotangents == [None] and w.grad is not None


def test_arrays_of_the_first_part_are_released() -> None:
    w, x = ag.Parameter(values(50, 50)), ag.tensor(values(4, 50), requires_grad=True)

    for _ in range(2):  # not before the rules are known
        with ag.Tape() as tape:
            h = anp.exp(x @ w)
            kept = weakref.ref(h.array)
            y = anp.sin(h).sum()
        del h
        assert kept() is not None
        rest = tape.backward(y, wanted=[x], defer=True)
    gc.collect()
    assert kept() is None  # exp's result: its adjoint is done, and the weight's needs x alone
    rest()
    assert w.array.flags.writeable
    w.data = w.numpy() * 0.5


def test_errors() -> None:
    w = ag.Parameter(values(3))
    with ag.Tape() as tape:
        y = (w * w).sum()
        with pytest.raises(TapeError, match="is no part of another one"):
            tape.backward(y, defer=True)
    with pytest.raises(TapeError, match="record=True"):
        tape.backward(y, defer=True, record=True)
    rest = tape.backward(y, defer=True)
    rest()
    with pytest.raises(TapeError, match="was run before"):
        rest()
    with pytest.raises(TapeError, match="released"):
        tape.backward(y)


def test_a_failing_part_changes_no_gradient() -> None:
    w, x = ag.Parameter(values(3)), ag.tensor(values(3), requires_grad=True)
    w.grad = np.ones(3)

    def fail(sweep: Any) -> None:
        raise ValueError("on purpose")

    with ag.Tape() as tape:
        tape.mark(fail)
        y = (x * w).sum()
    with pytest.raises(ValueError, match="on purpose"):
        tape.backward(y, wanted=[x], defer=True)
    np.testing.assert_array_equal(w.grad.numpy(), np.ones(3))


def test_communications_in_both_parts() -> None:
    """Ranks of a group run the same parts, so the collectives of each part are in the same order."""

    def program(defer: bool) -> Any:
        with cc.Mesh(tp=3) as mesh:
            r = int(mesh.axis("tp").rank)
            w = ag.Parameter(values(4, 4, seed=r), {"tp": cc.V})
            shared = ag.Parameter(values(4, seed=9))
            x = ag.tensor(values(2, 4, seed=20 + r), {"tp": cc.V}, requires_grad=True)
            found = []
            for _ in range(2):
                for p in (w, shared, x):
                    p.zero_grad()
                with ag.Tape() as tape:
                    whole = cc.all_reduce(w, "tp", to=cc.R)  # of a parameter alone
                    h = cc.all_reduce(anp.tanh(x @ w), "tp", to=cc.R) * cc.cast(shared, "tp", to=cc.R)
                    h = cc.permute(cc.cast(h, "tp", to=cc.V) @ whole, "tp", [(0, 1), (1, 2), (2, 0)])
                    y = (h * x).sum()
                if defer:
                    rest = tape.backward([y], [0.7], wanted=[x], defer=True)
                    rest()
                    g = rest.cotangents[0]
                else:
                    tape.backward([y], [0.7])
                    g = x.grad.numpy()
                found = [g, w.grad.numpy(), shared.grad.numpy()]
            return found

    for ours, expected in zip(cc.run(program, 3, True), cc.run(program, 3, False), strict=True):
        for a, b in zip(ours, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_wanted_value_that_is_computed_with_communication(checkpointed: bool) -> None:
    """As in the first stage of a pipeline, whose data needs no cotangent: its first layer is part of the rest."""

    def program(defer: bool) -> Any:
        with cc.Mesh(tp=2) as mesh:
            r = int(mesh.axis("tp").rank)
            w, v = (ag.Parameter(values(4, 4, seed=seed), {"tp": cc.V}) for seed in (r, 2 + r))
            x = ag.tensor(values(2, 4, seed=20 + r), {"tp": cc.V})

            def first(x: Any) -> Any:
                return cc.permute(anp.tanh(x @ w), "tp", [(0, 1), (1, 0)])

            with ag.Tape() as tape:
                h = (ag.checkpoint(first) if checkpointed else first)(x)
                y = (cc.permute(h @ v, "tp", [(0, 1), (1, 0)]) * h).sum()
            if defer:
                rest = tape.backward([y], [0.7], wanted=[h], defer=True)
                assert w.grad is None
                rest()
            else:
                tape.backward([y], [0.7])
            return w.grad.numpy(), v.grad.numpy()

    for ours, expected in zip(cc.run(program, 2, True), cc.run(program, 2, False), strict=True):
        for a, b in zip(ours, expected, strict=True):
            assert np.linalg.norm(b) > 0.1
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


FAULTS = ["both parts take all operands", "a cotangent is not kept", "dependence is not followed"]


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = deferral.split

    def wrong(nodes: Any, start: int, at: Any) -> Any:
        first, second, kept = real(nodes, start, at)
        if fault == "both parts take all operands":
            second = [n if two is not None else None for n, two in zip(nodes, second, strict=True)]
        elif fault == "a cotangent is not kept":
            first = [None if one is not None and n is not None and n[0] is LEAF and start + i not in at else one
                     for i, (n, one) in enumerate(zip(nodes, first, strict=True))]  # fmt: skip
        else:
            first = [None if one is not None and n is not None and n[0].name == "tanh" else one
                     for n, one in zip(nodes, first, strict=True)]  # fmt: skip
        return first, second, kept

    monkeypatch.setattr("autograd.engine.deferral.split", wrong)
    program = fused if fault == "a cotangent is not kept" else tied
    with pytest.raises((AssertionError, TypeError, IndexError)):
        test_equals_one_sweep(program, False)
