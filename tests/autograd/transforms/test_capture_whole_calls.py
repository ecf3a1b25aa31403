"""Functions that a captured step calls as a whole, as those of numpy.linalg and SciPy; parameters that are numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import autograd.scipy.linalg as sl
from autograd import optim
from autograd.compiler.nodes import Refused
from autograd.compiler.trace import _WHOLE, Trace, Traced, operand_of, tracing
from autograd.errors import RingtapeError

from .test_capture import bits

Value = Callable[[Any, Any], Any]
EYE = numpy.eye(5)


def spd(p: Any) -> Any:
    return p @ p.T + 5 * EYE


PROGRAMS: dict[str, Value] = {
    "the logarithm of a determinant": lambda p, x: np.linalg.slogdet(spd(p))[1],
    "a determinant": lambda p, x: np.log(np.linalg.det(spd(p))),
    "a Cholesky root": lambda p, x: np.log(np.diagonal(np.linalg.cholesky(spd(p)))).sum(),
    "a whole root": lambda p, x: (np.linalg.cholesky(spd(p)) * x).sum(),
    "a solution": lambda p, x: (np.linalg.solve(spd(p), ag.tensor(x)) ** 2).sum(),
    "a solution for one vector": lambda p, x: (np.linalg.solve(spd(p), ag.tensor(x)[0]) ** 2).sum(),
    "an inverse": lambda p, x: (np.linalg.inv(spd(p)) @ x).sum(),
    "eigenvalues": lambda p, x: (np.linalg.eigvalsh(spd(p)) ** 0.5).sum(),
    "eigenvectors": lambda p, x: (np.linalg.eigh(spd(p) + numpy.diag(numpy.arange(5.0)))[1] ** 4).sum(),
    "singular values": lambda p, x: np.linalg.svd(p, compute_uv=False).sum(),
    "QR": lambda p, x: (np.linalg.qr(p)[1] ** 2 * x).sum(),
    "a norm of a matrix": lambda p, x: np.linalg.norm(p @ x),
    "a triangular system": lambda p, x: (sl.solve_triangular(spd(p), ag.tensor(x), lower=True) ** 2).sum(),
    "sorted values": lambda p, x: (np.sort(p, 1) * x).sum(),
    "an order": lambda p, x: (p.reshape(-1)[np.argsort(ag.tensor(x).reshape(-1))] * numpy.arange(25)).sum(),
    "cumulated sums": lambda p, x: (np.cumsum(p, 0) * x).sum(),
    "cumulated products": lambda p, x: (np.cumprod(1 + 0.1 * p, 1) * x).sum(),
    "a contraction": lambda p, x: np.einsum("ij,jk,ik->", p, ag.tensor(x), p),
    "a triangle": lambda p, x: (np.tril(p, -1) * x + np.triu(p, 2)).sum(),
    "batches of roots": lambda p, x: np.log(
        np.diagonal(np.linalg.cholesky(np.stack([spd(p), spd(p * 2)])), axis1=1, axis2=2)).sum(),
    "a large root": lambda p, x: (np.linalg.cholesky(np.kron(numpy.eye(8), spd(p))) ** 3).sum(),
}  # fmt: skip


def trained(value: Value, wrap: Callable[[Any], Any], seed: int = 0) -> tuple[list[Any], Any]:
    p = ag.Parameter(numpy.random.default_rng(seed).standard_normal((5, 5)), name="p")
    optimizer = optim.Adam([p], 1e-2)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = value(p, x)
        tape.backward(loss)
        optimizer.step()
        return loss

    do = wrap(step)
    inputs = numpy.random.default_rng(seed + 1).standard_normal((12, 5, 5))
    return [(bits(do(x)), bits(p), bits(p.grad)) for x in inputs], do


@pytest.mark.parametrize("name", PROGRAMS)
def test_bits(name: str) -> None:
    expected, _ = trained(PROGRAMS[name], lambda step: step)
    found, do = trained(PROGRAMS[name], ag.capture)
    assert do.replays == 8
    assert found == expected
    assert "compiled" in str(do) or "calls of NumPy" in str(do)
    assert "stays a call of Python" not in str(do)


@pytest.mark.parametrize("is_late", [False, True], ids=["before a change", "after a change"])
def test_a_matrix_without_a_root_is_an_error_of_the_step(is_late: bool) -> None:
    def run(wrap: Callable[[Any], Any]) -> tuple[Any, ...]:
        p = ag.Parameter(numpy.ones((3, 3)))
        optimizer = optim.SGD([p], 0.1)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            root = None if is_late else np.linalg.cholesky(ag.tensor(x)) * 2.0
            with ag.Tape() as tape:
                loss = (p * x).sum()
            tape.backward(loss)
            optimizer.step()
            return loss, root if root is not None else np.linalg.cholesky(ag.tensor(x) + 0.0) * 2.0

        do, error = wrap(step), None
        for scale in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -1.0):
            try:
                do(numpy.eye(3) * scale)
            except RingtapeError as raised:
                error = type(raised), raised.reason.removesuffix(", in a replay").rpartition(": ")[2]
        return error, bits(p), bits(p.grad), bits(do(numpy.eye(3)))

    assert run(ag.capture) == run(lambda step: step)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda ps: optim.SGD(ps, 0.1),
    "momentum": lambda ps: optim.SGD(ps, 0.1, 0.9),
    "Nesterov": lambda ps: optim.SGD(ps, 0.1, 0.9, nesterov=True),
    "Adam": lambda ps: optim.Adam(ps, 0.1),
    "AdamW": lambda ps: optim.AdamW(ps, 0.1),
    "RMSprop": lambda ps: optim.RMSprop(ps, 0.01),
    "Adagrad": lambda ps: optim.Adagrad(ps, 0.1),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [numpy.float64, numpy.float32])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_that_are_numbers(name: str, dtype: Any) -> None:
    def run(wrap: Callable[[Any], Any]) -> tuple[list[Any], Any]:
        a, b, w = ag.Parameter(dtype(0.5)), ag.Parameter(dtype(-1.0)), ag.Parameter(numpy.ones(3, dtype))
        optimizer = OPTIMIZERS[name]([a, b, w])

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = ((np.exp(a) * ag.tensor(x) * w + b) ** 2).mean()
            tape.backward(loss)
            optimizer.step()
            return loss, a * 1.0

        do, found = wrap(step), []
        for i, x in enumerate(numpy.random.default_rng(0).standard_normal((14, 6, 3)).astype(dtype)):
            if i == 10:
                a.data = dtype(0.25)  # a number from outside
            loss, after = do(x)
            found.append((bits(loss), bits(after), *map(bits, (a, b, w)), *(bits(p.grad) for p in (a, b, w))))
            assert type(a.array) is dtype
        return found, do

    expected, _ = run(lambda step: step)
    found, do = run(ag.capture)
    assert found == expected
    assert do.replays == 10
    assert ".step" not in str(do), str(do)


@pytest.mark.parametrize("function", _WHOLE, ids=lambda f: f.__name__)
def test_a_function_called_as_a_whole_has_new_results_of_a_form(function: Any) -> None:
    """It writes to no argument, returns no part of one, and the form of its result is that for other values."""
    rng = numpy.random.default_rng(0)
    special: dict[str, Callable[[], tuple[Any, ...]]] = {
        "matrix_power": lambda: (a(), 3), "solve": lambda: (a(), a()), "cholesky": lambda: (a() @ a().T + EYE * 9,),
        "partition": lambda: (a(), 2), "argpartition": lambda: (a(), 2), "convolve": lambda: (a()[0], a()[1]),
        "correlate": lambda: (a()[0], a()[1]), "digitize": lambda: (a(), numpy.arange(4.0)),
        "einsum": lambda: ("ij,kj->ik", a(), a()), "inner": lambda: (a(), a()), "kron": lambda: (a(), a()),
        "interp": lambda: (a(), numpy.arange(4.0), a()[0, :4]), "lexsort": lambda: ((a()[0], a()[1]),),
        "searchsorted": lambda: (numpy.arange(4.0), a()), "tensordot": lambda: (a(), a()),
    }  # fmt: skip

    def a() -> Any:
        return rng.standard_normal((5, 5))

    arguments = special.get(function.__name__, lambda: (a(),))
    forms = []
    for _ in range(3):
        args = arguments()
        arrays = [x for x in (*args, *(args[0] if isinstance(args[0], tuple) else ())) if isinstance(x, numpy.ndarray)]
        before = [x.copy() for x in arrays]
        found = function(*args)
        parts = found if isinstance(found, tuple) else (found,)
        assert all((x == y).all() for x, y in zip(arrays, before, strict=True))
        assert not any(numpy.shares_memory(x, y) for x in arrays for y in parts)
        forms.append([(x.shape, x.dtype) for x in parts])
    assert forms[0] == forms[1] == forms[2]


def test_what_writes_or_has_results_of_another_form_is_refused() -> None:
    trace = Trace()
    x = trace.new(numpy.arange(6.0)[::-1].copy())
    with tracing(trace):
        for function in (numpy.unique, numpy.nonzero, numpy.flatnonzero, numpy.fill_diagonal, numpy.place):
            given = [x, 0] if "fill" in function.__name__ else [x] * len(inspect.signature(function).parameters)
            with pytest.raises((Refused, TypeError)):
                function(*given[:3] if function is numpy.place else given[:1] if len(given) > 2 else given)
        with pytest.raises(Refused):
            x.sort()
        with pytest.raises(Refused):
            numpy.cumsum(x, out=x)


def test_numbers_in_place_make_other_numbers() -> None:
    trace = Trace()
    x = trace.new(numpy.arange(6.0))
    with tracing(trace):
        a = b = x.sum()
        a *= 2
        a -= 1
        assert type(a) is Traced and a is not b
        assert float(b._value) == 15.0 and float(a._value) == 29.0
        assert operand_of(a._value, a._buffer).buffer is not operand_of(b._value, b._buffer).buffer
