"""Captured steps with complex numbers: NumPy's own loops and products in a table, with the bits of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd import optim

LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "moduli of products": lambda z, x: ((np.abs(x @ z) ** 2 - 1.0) ** 2).mean(),
    "real and imaginary parts": lambda z, x: (np.real(x @ z) * np.imag(z).sum()).sum(),
    "conjugates": lambda z, x: np.real(np.sum(np.conj(z) * z * x[0])),
    "angles": lambda z, x: np.sum(np.angle(x * z) ** 2),
    "quotients and powers": lambda z, x: np.sum(np.abs(x / z + z**2 - 1 / z) ** 2),
    "exponentials": lambda z, x: np.sum(np.abs(np.exp(1j * x * z) + np.sin(z)) ** 2),
    "a filter": lambda z, x: (np.real(np.fft.ifft(np.fft.fft(x) * z)) ** 2).sum(),
    "a real filter": lambda z, x: (np.fft.irfft(np.fft.rfft(np.real(x), axis=-1) * np.abs(z[:3]), 5) ** 2).sum(),
    "two dimensions": lambda z, x: (np.abs(np.fft.fftshift(np.fft.fft2(x * z))) ** 2).mean(),
    "means and sums": lambda z, x: np.abs(np.mean(x * z) + np.sum(z)) ** 2,
    "choices": lambda z, x: np.sum(np.abs(np.where(np.real(x) > 0, x * z, -z)) ** 2),
    "places": lambda z, x: np.sum(np.abs(z[numpy.array([0, 2, 2])] * x[0, 1:4]) ** 2),
}
PYTHON = "angles", "means and sums"  # a power of a number is another function than that of an array
OPTIMIZERS = {"SGD": lambda p: optim.SGD(p, 1e-3, 0.9), "Adam": lambda p: optim.Adam(p, 1e-2)}


def left_by(name: str, kind: str, dtype: str, is_captured: bool) -> tuple[list[Any], Any]:
    random = numpy.random.default_rng(0)

    def drawn(*shape: int) -> Any:
        return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(dtype)

    z = ag.Parameter(drawn(5))
    optimizer = OPTIMIZERS[kind]([z])

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = LOSSES[name](z, x)
        tape.backward(loss)
        optimizer.step()
        return loss

    do: Any = ag.capture(step) if is_captured else step
    return [(do(ag.tensor(drawn(4, 5))).numpy().tobytes(), z.numpy().tobytes()) for _ in range(24)], do


@pytest.mark.parametrize("dtype", ["complex128", "complex64"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", LOSSES)
def test_a_step_of_complex_numbers_has_the_bits_of_the_step(name: str, kind: str, dtype: str) -> None:
    needed, _ = left_by(name, kind, dtype, False)
    found, do = left_by(name, kind, dtype, True)
    assert [i for i, (a, b) in enumerate(zip(found, needed, strict=True)) if a != b] == []
    assert do.replays == 20
    assert do._last.program.misses == 0
    assert name in PYTHON or "stays a call of Python" not in str(do)
