"""Cases of Fourier transforms with real arguments and a real result; `complex` has those with complex arguments."""

from __future__ import annotations

from typing import Any

from .base import normal, numpy_case


def parts(np: Any, z: Any) -> Any:
    """Return a real combination of real and imaginary parts, so that a real cotangent reaches both."""
    return np.real(z) + 2 * np.imag(z)


_ROWS: list[tuple[str, str, Any, tuple[int, ...]]] = [
    ("fft", "real", lambda np, x: parts(np, np.fft.fft(x)), (2, 3)),
    ("fft", "padded", lambda np, x: parts(np, np.fft.fft(x, 5, 0, "ortho")), (3, 2)),
    ("fft", "cut", lambda np, x: parts(np, np.fft.fft(x, 2)), (3,)),
    ("fft", "two dimensions", lambda np, x: parts(np, np.fft.fft2(x)), (2, 3)),
    ("fft", "one axis twice", lambda np, x: parts(np, np.fft.fftn(x, axes=(0, 0))), (3,)),
    ("fft", "shifted", lambda np, x: parts(np, np.fft.fftshift(np.fft.fft(np.fft.ifftshift(x)))), (2, 3)),
    ("ifft", "real", lambda np, x: parts(np, np.fft.ifft(x)), (2, 3)),
    ("ifft", "several dimensions", lambda np, x: parts(np, np.fft.ifftn(x, (3, 2), (0, 1), "forward")), (2, 3)),
    ("ifft", "two dimensions", lambda np, x: parts(np, np.fft.ifft2(x)), (2, 2)),
    *(("rfft", f"{n} {norm}", lambda np, x, n=n, m=norm: parts(np, np.fft.rfft(x, n, norm=m)), (2, 4))
      for n, norm in ((None, None), (5, "ortho"), (3, "forward"))),
    ("rfft", "several dimensions", lambda np, x: parts(np, np.fft.rfftn(x)), (2, 3)),
    ("rfft", "two dimensions", lambda np, x: parts(np, np.fft.rfft2(x, norm="ortho")), (2, 3)),
    ("rfft", "ihfft", lambda np, x: parts(np, np.fft.ihfft(x)), (5,)),
    *(("irfft", f"{n} {norm}", lambda np, x, n=n, m=norm: np.fft.irfft(x * (1 + 2j), n, norm=m), (2, 3))
      for n, norm in ((None, None), (5, "ortho"), (3, "forward"), (8, None))),
    ("irfft", "several dimensions", lambda np, x: np.fft.irfftn(x * (1 + 2j), (3, 4), (0, 1)), (3, 3)),
    ("irfft", "two dimensions", lambda np, x: np.fft.irfft2(x * (1 + 2j)), (2, 3)),
    ("irfft", "hfft", lambda np, x: np.fft.hfft(x * (1 + 2j)), (3,)),
    ("imag", "of a product", lambda np, x: np.imag(x * (2 + 3j)), (2, 3)),
    ("imag", "of real numbers", lambda np, x: np.imag(x) + x, (3,)),
    ("conj", "of a product", lambda np, x: np.conj(x * (2 + 3j)), (2, 3)),
    ("conj", "size", lambda np, x: np.real(np.conj(x * (2 + 3j)) * (x * 1j)), (2, 3)),
    ("absolute", "of a complex product", lambda np, x: np.abs(x * (2 + 3j) + 1), (2, 3)),
    ("arctan2", "angle", lambda np, x: np.angle(x * (2 + 3j) + 4), (2, 3)),
    ("arctan2", "angle in degrees", lambda np, x: np.angle(x * (2 + 3j) + 4, deg=True), (2, 3)),
]
for _operation, _label, _f, _shape in _ROWS:
    numpy_case(_operation, _label, _f, normal(*_shape))
