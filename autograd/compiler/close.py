"""Functions of a number inside loops, in vectors: close to the true value, not NumPy's bits.

=================  ==============================================================  ===================
step               formula                                                         error at most (ulp)
=================  ==============================================================  ===================
``exp_close``      2^k e^r with abs(r) <= log(2) / 2, a polynomial in r            1.1
``log_close``      k log(2) + log(1 + f), by s = f / (2 + f) [1]_                  1.0
``tanh_close``     -m / (2 + m) with m = e^(-2 abs(x)) - 1, from a polynomial      2.6
``sigmoid_close``  1 / (1 + e^-abs(x)), times e^-abs(x) for x < 0                  2.8
=================  ==============================================================  ===================

Special values are those of the functions. They tell of no floating-point errors, and depend on the processor: where it
has fused products and sums they are used. Results below the normal numbers are within one in the last place.

References
----------
.. [1] FreeBSD's msun, `e_log.c` (Sun Microsystems, 1993).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .operations import Code, intrinsic, literal, select, type_of

__all__ = ["CLOSE", "apply_close"]

_EXPONENT = {"f4": (23, 127), "f8": (52, 1023)}  # bits of the fraction, and the bias of the exponent
_LOG2 = {  # of which the high part times a power's number is exact
    "f4": (0.693145751953125, 1.42860682030941723212e-6),
    "f8": (6.93147180369123816490e-01, 1.90821492927058770002e-10),
}
_TERMS = {"f4": 7, "f8": 13}  # of the exponential series
_LOG = {
    "f4": (0.66666662693, 0.40000972152, 0.28498786688, 0.24279078841),
    "f8": (6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01, 2.222219843214978396e-01,
           1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01),
}  # fmt: skip
_LARGEST = {"f4": (89.0, -104.0, 10.0), "f8": (710.0, -746.0, 20.0)}  # beyond them e^x and tanh change no more


class _Numbers:
    """Instructions on values of one dtype and its integers."""

    def __init__(self, code: Code, dtype: str, lanes: int):
        self.code, self.dtype, self.lanes = code, dtype, lanes
        self.whole = "i4" if dtype == "f4" else "i8"
        self.of, self.of_whole = type_of(dtype, lanes), type_of(self.whole, lanes)

    def number(self, value: float) -> str:
        return literal(self.dtype, value, self.lanes)

    def do(self, name: str, x: str, y: str) -> str:
        return self.code.new(f"{name} {self.of} {x}, {y}")

    def do_whole(self, name: str, x: str, y: int | str) -> str:
        y = y if isinstance(y, str) else literal(self.whole, y, self.lanes)
        return self.code.new(f"{name} {self.of_whole} {x}, {y}")

    def fused(self, x: str, y: str, z: str) -> str:
        """``x * y + z``, rounded once where the processor can."""
        return intrinsic(self.code, "fmuladd", self.dtype, [x, y, z], self.lanes)

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """The value of a polynomial, whose constant term is the first."""
        *rest, last = coefficients
        found = self.number(last)
        for each in reversed(rest):
            found = self.fused(found, x, self.number(each))
        return found

    def pick(self, test: str, x: str, y: str, p: str, q: str) -> str:
        """p where a comparison of x and y holds, else q."""
        return select(self.code, self.do(f"fcmp {test}", x, y), self.of, p, q, self.lanes)

    def absolute(self, x: str) -> str:
        return intrinsic(self.code, "fabs", self.dtype, [x], self.lanes)

    def bits(self, x: str) -> str:
        return self.code.new(f"bitcast {self.of} {x} to {self.of_whole}")

    def of_bits(self, x: str) -> str:
        return self.code.new(f"bitcast {self.of_whole} {x} to {self.of}")

    def power(self, k: str) -> str:
        """2^k for a whole number k of a normal power."""
        digits, bias = _EXPONENT[self.dtype]
        return self.of_bits(self.do_whole("shl", self.do_whole("add", k, bias), digits))

    def reduced(self, x: str) -> tuple[str, str]:
        """The whole number k and r with x = k log(2) + r and |r| <= log(2) / 2."""
        digits, _ = _EXPONENT[self.dtype]
        magic = self.number(1.5 * 2.0**digits)  # added, it leaves the whole part in the last bits
        shifted = self.fused(x, self.number(1 / math.log(2)), magic)
        k = self.do_whole("sub", self.bits(shifted), self.bits(magic))
        part = self.do("fsub", shifted, magic)
        high, low = _LOG2[self.dtype]
        r = self.fused(part, self.number(-high), x)
        return k, self.fused(part, self.number(-low), r)

    def series(self, r: str) -> str:
        """e^r - 1 for small r."""
        terms = [1 / math.factorial(n) for n in range(2, _TERMS[self.dtype] + 1)]
        return self.fused(self.do("fmul", r, r), self.polynomial(r, terms), r)


def _exp(do: _Numbers, x: str) -> str:
    above, below, _ = _LARGEST[do.dtype]
    x = do.pick("ogt", x, do.number(above), do.number(above), x)
    x = do.pick("olt", x, do.number(below), do.number(below), x)
    k, r = do.reduced(x)
    half = do.do_whole("ashr", k, 1)  # in two steps, as 2^k may be no normal number
    y = do.do("fadd", do.series(r), do.number(1))
    y = do.do("fmul", y, do.power(half))
    return do.do("fmul", y, do.power(do.do_whole("sub", k, half)))


def _minus_one(do: _Numbers, x: str) -> str:
    """e^x - 1 for x from -40 to 0."""
    k, r = do.reduced(x)
    power = do.power(k)
    return do.fused(do.series(r), power, do.do("fsub", power, do.number(1)))


def _tanh(do: _Numbers, x: str) -> str:
    size, most = do.absolute(x), do.number(_LARGEST[do.dtype][2])
    size = do.pick("ogt", size, most, most, size)
    m = _minus_one(do, do.do("fmul", size, do.number(-2)))
    y = do.do("fdiv", m, do.do("fadd", m, do.number(2)))
    return intrinsic(do.code, "copysign", do.dtype, [y, x], do.lanes)


def _sigmoid(do: _Numbers, x: str) -> str:
    power = _exp(do, do.code.new(f"fneg {do.of} {do.absolute(x)}"))
    y = do.do("fdiv", do.number(1), do.do("fadd", power, do.number(1)))
    return do.pick("olt", x, do.number(0), do.do("fmul", y, power), y)


def _log(do: _Numbers, x: str) -> str:
    digits, bias = _EXPONENT[do.dtype]
    least, up = do.number(2.0 ** (1 - bias)), digits + 2
    scaled = do.do("fmul", x, do.number(2.0**up))
    is_small = do.do("fcmp olt", x, least)
    given = select(do.code, is_small, do.of, scaled, x, do.lanes)
    # The fraction from sqrt(1/2) to sqrt(2), and the power of two.
    root = 0x3F3504F3 if do.dtype == "f4" else 0x3FE6A09E667F3BCD
    bits = do.do_whole("sub", do.bits(given), root)
    k = do.do_whole("ashr", bits, digits)
    fraction = do.do_whole("add", do.do_whole("and", bits, (1 << digits) - 1), root)
    f = do.do("fsub", do.of_bits(fraction), do.number(1))
    one = literal(do.whole, up, do.lanes)
    k = do.do_whole("sub", k, select(do.code, is_small, do.of_whole, one, literal(do.whole, 0, do.lanes), do.lanes))
    power = do.code.new(f"sitofp {do.of_whole} {k} to {do.of}")
    s = do.do("fdiv", f, do.do("fadd", f, do.number(2)))
    z = do.do("fmul", s, s)
    rest = do.do("fmul", z, do.polynomial(z, _LOG[do.dtype]))
    half = do.do("fmul", do.do("fmul", f, f), do.number(0.5))
    high, low = _LOG2[do.dtype]
    low = math.log(2) - high if do.dtype == "f4" else low
    y = do.fused(s, do.do("fadd", half, rest), do.do("fmul", power, do.number(low)))
    y = do.do("fsub", f, do.do("fsub", half, y))
    y = do.fused(power, do.number(high), y)
    y = do.pick("oeq", x, do.number(math.inf), x, y)
    y = do.pick("olt", x, do.number(0), do.number(math.nan), y)
    y = do.pick("oeq", x, do.number(0), do.number(-math.inf), y)
    return do.pick("uno", x, x, x, y)


CLOSE = {"exp_close": _exp, "log_close": _log, "tanh_close": _tanh, "sigmoid_close": _sigmoid}
"""By name of a step: what writes its instructions."""


def apply_close(code: Code, name: str, dtype: str, x: str, lanes: int) -> str:
    """The value of a step of this file."""
    return CLOSE[name](_Numbers(code, dtype, lanes), x)
