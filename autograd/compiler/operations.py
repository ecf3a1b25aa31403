"""Operations on values, as LLVM's instructions, with the bits of NumPy's inner loops.

A value is a name in a `Code`, of one element or of several lanes. No instruction has a fast-math flag, so that LLVM
neither contracts nor reassociates.
"""

from __future__ import annotations

import math
import platform
import struct
from collections.abc import Sequence
from functools import cache

import numpy as np

from .loops import Unsupported

__all__ = ["TYPES", "Code", "apply", "bitcast", "cast", "constant", "declarations", "intrinsic", "kind_of", "literal",
           "select", "type_of"]  # fmt: skip

TYPES = {"f4": "float", "f8": "double", "b1": "i1"}
TYPES |= {f"{kind}{n}": f"i{8 * n}" for kind in "iu" for n in (1, 2, 4, 8)}
_FLOAT_COMPARISONS = {"equal": "oeq", "not_equal": "une", "less": "olt", "less_equal": "ole", "greater": "ogt",
                      "greater_equal": "oge"}  # fmt: skip
_COMPARISONS = {"equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt",
                "greater_equal": "ge"}  # fmt: skip
_ARITHMETIC = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div"}
_BITWISE = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}
_LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}


@cache
def _second_of_equals() -> bool:
    """Whether ``maximum`` and ``minimum`` of two zeros are the second one, wherever they stand; it is so on x86."""
    for dtype in (np.float32, np.float64):
        for n in (1, 3, 8, 17, 33):
            for a, b in ((-0.0, 0.0), (0.0, -0.0)):
                x, y = np.full(2 * n, a, dtype), np.full(2 * n, b, dtype)
                for p, q in ((x[:n], y[:n]), (x[:n], y[0]), (x[::2], y[::2])):
                    for f in (np.maximum, np.minimum):
                        if (np.signbit(f(p, q)) != np.signbit(b)).any():
                            return False
    return True


def literal(dtype: str, number: float, lanes: int = 1) -> str:
    """A constant, repeated for each lane."""
    if dtype == "b1":
        one = "true" if number else "false"
    elif dtype in ("f4", "f8"):
        one = f"0x{struct.pack('>d', float(np.float32(number)) if dtype == 'f4' else number).hex().upper()}"
    else:
        one = str(int(number))
    return one if lanes == 1 else f"<{', '.join([f'{TYPES[dtype]} {one}'] * lanes)}>"


def constant(dtype: str, text: str) -> str:
    """A constant with the bytes of an item."""
    item = bytes.fromhex(text)
    if dtype == "b1":
        return "true" if item[0] else "false"
    bits = int.from_bytes(item, "little" if np.little_endian else "big")
    if dtype == "f8":
        return f"0x{bits:016X}"
    if dtype == "f4":  # LLVM writes it as the double of the same value
        x = struct.unpack("=f", item)[0]
        if not math.isnan(x):
            return literal("f4", x)
        return f"0x{bits >> 31 << 63 | 0x7FF << 52 | (bits & 0x7FFFFF) << 29:016X}"
    return str(bits)


class Code:
    """The lines of a function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0
        self.block = "entry"

    def new(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"  %v{self.count} = {text}")
        return f"%v{self.count}"

    def add(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def unique(self, name: str) -> str:
        self.count += 1
        return f"{name}{self.count}"


def type_of(dtype: str, lanes: int = 1) -> str:
    return TYPES[dtype] if lanes == 1 else f"<{lanes} x {TYPES[dtype]}>"


def kind_of(dtype: str) -> str:
    return dtype[0]


# -- operations --------------------------------------------------------------------------------------------------------
def intrinsic(code: Code, name: str, dtype: str, xs: Sequence[str], lanes: int) -> str:
    of = type_of(dtype, lanes)
    suffix = f"{'f32' if dtype == 'f4' else 'f64'}" if lanes == 1 else f"v{lanes}{'f32' if dtype == 'f4' else 'f64'}"
    return code.new(f"call {of} @llvm.{name}.{suffix}({', '.join(f'{of} {x}' for x in xs)})")


def declarations(text: str) -> str:
    """The declarations of the intrinsics that a text calls.

    Examples
    --------
    >>> declarations("%v1 = call float @llvm.sqrt.f32(float %v0)")
    'declare float @llvm.sqrt.f32(float)\\n'
    """
    found = {}
    for part in text.split("call ")[1:]:
        result, at, rest = part.partition(" @llvm.")
        if at and "\n" not in result:
            name, _, given = rest.partition("(")
            given = given.partition(")")[0]
            found[name] = f"declare {result} @llvm.{name}({', '.join([result] * given.count(f'{result} '))})"
    return "".join(f"{line}\n" for line in found.values())


def _truth(code: Code, dtype: str, x: str, lanes: int) -> str:
    if dtype == "b1":
        return x
    test = "fcmp une" if kind_of(dtype) == "f" else "icmp ne"
    return code.new(f"{test} {type_of(dtype, lanes)} {x}, {literal(dtype, 0, lanes)}")


def select(code: Code, c: str, of: str, x: str, y: str, lanes: int) -> str:
    return code.new(f"select {type_of('b1', lanes)} {c}, {of} {x}, {of} {y}")


def apply(code: Code, name: str, dtype: str, xs: Sequence[str], lanes: int) -> str:
    """The result of a ufunc's inner loop on values of one dtype."""
    of, kind, x, y = type_of(dtype, lanes), kind_of(dtype), xs[0], xs[-1]

    def number(value: float) -> str:
        return literal(dtype, value, lanes)

    def pick(c: str, p: str, q: str) -> str:
        return select(code, c, of, p, q, lanes)

    if name in _LOGICAL:
        p, q = (_truth(code, dtype, each, lanes) for each in xs)
        return code.new(f"{_LOGICAL[name]} {type_of('b1', lanes)} {p}, {q}")
    if name == "logical_not":
        return code.new(f"xor {type_of('b1', lanes)} {_truth(code, dtype, x, lanes)}, {literal('b1', 1, lanes)}")
    if name in _BITWISE:
        return code.new(f"{_BITWISE[name]} {of} {x}, {y}")
    if name == "invert":
        return code.new(f"xor {of} {x}, {number(1 if kind == 'b' else -1)}")
    if name in _COMPARISONS:
        if kind == "f":
            return code.new(f"fcmp {_FLOAT_COMPARISONS[name]} {of} {x}, {y}")
        sign = "" if name in ("equal", "not_equal") else "s" if kind == "i" else "u"
        return code.new(f"icmp {sign}{_COMPARISONS[name]} {of} {x}, {y}")
    if kind == "b":  # add and maximum are or, multiply and minimum are and
        if name in ("absolute", "positive"):
            return x
        return code.new(f"{'or' if name in ('add', 'maximum', 'fmax') else 'and'} {of} {x}, {y}")
    if name in _ARITHMETIC:
        return code.new(f"{'f' if kind == 'f' else ''}{_ARITHMETIC[name]} {of} {x}, {y}")
    if name == "positive":
        return x
    if name == "square":
        return code.new(f"{'fmul' if kind == 'f' else 'mul'} {of} {x}, {x}")
    if name in ("maximum", "minimum", "fmax", "fmin"):
        above = name in ("maximum", "fmax")
        if kind == "f":
            if not _second_of_equals():
                raise Unsupported(f"{name} of zeros with both signs depends on their place here")
            best = pick(code.new(f"fcmp {'ogt' if above else 'olt'} {of} {x}, {y}"), x, y)
            return pick(code.new(f"fcmp uno {of} {x}, {x}"), x, best)
        return pick(code.new(f"icmp {'s' if kind == 'i' else 'u'}{'gt' if above else 'lt'} {of} {x}, {y}"), x, y)
    if kind != "f":
        if name in ("left_shift", "right_shift"):
            return _shifted(code, name, dtype, x, y, lanes)
        if name == "negative":
            return code.new(f"sub {of} {number(0)}, {x}")
        below = None if kind == "u" else code.new(f"icmp slt {of} {x}, {number(0)}")
        if name == "absolute":
            return x if below is None else pick(below, code.new(f"sub {of} {number(0)}, {x}"), x)
        if name == "sign":
            some = pick(code.new(f"icmp ne {of} {x}, {number(0)}"), number(1), number(0))
            return some if below is None else pick(below, number(-1), some)
        raise Unsupported(f"{name} of {dtype}")
    if name == "negative":
        return code.new(f"fneg {of} {x}")
    if name in ("absolute", "fabs"):
        return intrinsic(code, "fabs", dtype, [x], lanes)
    if name in ("sqrt", "floor", "ceil", "trunc", "rint", "copysign"):
        return intrinsic(code, name, dtype, xs, lanes)
    if name == "reciprocal":
        return code.new(f"fdiv {of} {number(1)}, {x}")
    if name == "sign":
        inner = pick(code.new(f"fcmp uno {of} {x}, {x}"), x, number(0))
        inner = pick(code.new(f"fcmp olt {of} {x}, {number(0)}"), number(-1), inner)
        return pick(code.new(f"fcmp ogt {of} {x}, {number(0)}"), number(1), inner)
    if name == "signbit":
        as_int = "i4" if dtype == "f4" else "i8"
        bits = code.new(f"bitcast {of} {x} to {type_of(as_int, lanes)}")
        return code.new(f"icmp slt {type_of(as_int, lanes)} {bits}, {literal(as_int, 0, lanes)}")
    if name == "isnan":
        return code.new(f"fcmp uno {of} {x}, {x}")
    if name in ("isinf", "isfinite"):
        size = intrinsic(code, "fabs", dtype, [x], lanes)
        return code.new(f"fcmp {'oeq' if name == 'isinf' else 'one'} {of} {size}, {number(math.inf)}")
    raise Unsupported(f"{name} of {dtype}")


def _shifted(code: Code, name: str, dtype: str, x: str, y: str, lanes: int) -> str:
    """A shift. By as many bits as there are, or more, none is left, but for copies of the sign."""
    of, width = type_of(dtype, lanes), 8 * int(dtype[1:])
    fits = code.new(f"icmp ult {of} {y}, {literal(dtype, width, lanes)}")
    if name == "right_shift" and kind_of(dtype) == "i":
        by = select(code, fits, of, y, literal(dtype, width - 1, lanes), lanes)
        return code.new(f"ashr {of} {x}, {by}")
    found = code.new(f"{'shl' if name == 'left_shift' else 'lshr'} {of} {x}, {y}")
    return select(code, fits, of, found, literal(dtype, 0, lanes), lanes)


def bitcast(code: Code, to: str, dtype: str, x: str, lanes: int) -> str:
    """The value of ``view``, as a number of the same size."""
    if TYPES[to] == TYPES[dtype]:
        return x
    return code.new(f"bitcast {type_of(dtype, lanes)} {x} to {type_of(to, lanes)}")


def cast(code: Code, to: str, dtype: str, x: str, lanes: int) -> str:
    """The value of ``astype``."""
    source, target = type_of(dtype, lanes), type_of(to, lanes)
    if dtype == to:
        return x
    if to == "b1":
        return _truth(code, dtype, x, lanes)
    if kind_of(to) == "f":
        if kind_of(dtype) == "f":
            return code.new(f"{'fpext' if to == 'f8' else 'fptrunc'} {source} {x} to {target}")
        return code.new(f"{'sitofp' if kind_of(dtype) == 'i' else 'uitofp'} {source} {x} to {target}")
    if kind_of(dtype) == "f":
        return _to_integer(code, to, dtype, x, lanes)
    if TYPES[to] == TYPES[dtype]:
        return x
    if dtype != "b1" and int(to[1:]) < int(dtype[1:]):
        return code.new(f"trunc {source} {x} to {target}")
    return code.new(f"{'sext' if kind_of(dtype) == 'i' else 'zext'} {source} {x} to {target}")


def _to_integer(code: Code, to: str, dtype: str, x: str, lanes: int) -> str:
    """The conversion of the processor that NumPy's cast uses: out of range it gives the lowest number."""
    if platform.machine() != "x86_64":
        raise Unsupported("a cast from floats to integers: out of range it depends on the processor")
    source, wide = type_of(dtype, lanes), "i8" if to in ("i8", "u8") else "i4"

    def convert(value: str) -> str:
        least = -(2.0 ** (8 * int(wide[1:]) - 1))
        at_least = code.new(f"fcmp oge {source} {value}, {literal(dtype, least, lanes)}")
        if wide == "i4" and dtype == "f8":  # what is above -2**31 - 1 is cut to -2**31
            at_least = code.new(f"fcmp ogt {source} {value}, {literal(dtype, least - 1, lanes)}")
        below = code.new(f"fcmp olt {source} {value}, {literal(dtype, -least, lanes)}")
        fits = code.new(f"and {type_of('b1', lanes)} {at_least}, {below}")
        cut = code.new(f"fptosi {source} {value} to {type_of(wide, lanes)}")
        return select(code, fits, type_of(wide, lanes), cut, literal(wide, least, lanes), lanes)

    if to == "u8":  # numbers from 2**63 on are moved down before
        half = literal(dtype, 2.0**63, lanes)
        above = code.new(f"fcmp oge {source} {x}, {half}")
        high = convert(code.new(f"fsub {source} {x}, {half}"))
        high = code.new(f"xor {type_of('i8', lanes)} {high}, {literal('i8', -(2**63), lanes)}")
        return select(code, above, type_of("i8", lanes), high, convert(x), lanes)
    found = convert(x)
    return found if wide[1:] == to[1:] else code.new(f"trunc {type_of(wide, lanes)} {found} to {type_of(to, lanes)}")
