"""Operations on values, as LLVM's instructions, with the bits of NumPy's inner loops.

A value is a name in a `Code`, of one element or of several lanes. No instruction has a fast-math flag, so that LLVM
neither contracts nor reassociates.
"""

from __future__ import annotations

import math
import platform
import re
import struct
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from .loops import Unsupported

__all__ = ["FEATURES", "TYPES", "Code", "apply", "bitcast", "cast", "constant", "declarations", "divides", "intrinsic",
           "kind_of", "literal", "metadata_of", "select", "type_of"]  # fmt: skip

_numpy: Any = np
FEATURES: dict[str, bool] = _numpy._core._multiarray_umath.__cpu_features__
TYPES = {"f2": "i16", "f4": "float", "f8": "double", "b1": "i1"}
TYPES |= {f"{kind}{n}": f"i{8 * n}" for kind in "iu" for n in (1, 2, 4, 8)}
_FLOAT_COMPARISONS = {"equal": "oeq", "not_equal": "une", "less": "olt", "less_equal": "ole", "greater": "ogt",
                      "greater_equal": "oge"}  # fmt: skip
_COMPARISONS = {"equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt",
                "greater_equal": "ge"}  # fmt: skip
_BITWISE = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}
_LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}


@cache  # one entry; without it each `maximum` of a captured step takes 1 ms more to compile
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


def divides(text: str) -> bool:
    """Whether a text has quotients.

    LLVM may compute them for parts of vectors that no element fills, whose zeros give errors that the step does not.
    """
    return " fdiv " in text


_SHORT = 16  # LLVM fills the last vector of a loop of fewer iterations
_NO_VECTORS = re.compile(r"label %fail|> %|@(?!llvm\.)")  # exits, vectors, and calls, of which LLVM makes no vectors
_METADATA = (
    "!0 = distinct !{!0, !2, !3}", "!1 = distinct !{!1, !4}", '!2 = !{!"llvm.loop.vectorize.enable", i1 true}',
    '!3 = !{!"llvm.loop.vectorize.width", i32 4}', '!4 = !{!"llvm.loop.vectorize.enable", i1 false}',
    "!5 = distinct !{!5, !6}", '!6 = !{!"llvm.loop.vectorize.width", i32 8}',
)  # fmt: skip


def metadata_of(n: int, text: str, is_dense: bool) -> str:
    """The end of an innermost loop of `n` iterations with a text: its vectors are full where others would do harm.

    Of a loop of few iterations LLVM fills the last vector, which is slow where a loop around it reads what it has
    written, and gives errors for quotients. For the rest of 16 lanes it would use pairs of floats; that of 8 has none.
    LLVM warns where it cannot do what is said here: `is_dense` tells that elements lie one after another.
    """
    has_vectors = not _NO_VECTORS.search(text)
    if n >= _SHORT:
        return ", !llvm.loop !5" if has_vectors and " fdiv float " in text else ""
    if n >= 4 and is_dense and has_vectors:
        return ", !llvm.loop !0"
    return ", !llvm.loop !1" if divides(text) else ""


def declarations(text: str) -> str:
    """The declarations of the intrinsics that a text calls, and of what it says of loops.

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
            kinds = [x.rpartition(" ")[0] for x in given.partition(")")[0].split(", ")]
            found[name] = f"declare {result} @llvm.{name}({', '.join(kinds)})"
    lines = [*found.values(), *(_METADATA if "!llvm.loop" in text else ())]
    return "".join(f"{line}\n" for line in lines)


def _truth(code: Code, dtype: str, x: str, lanes: int) -> str:
    if dtype == "b1":
        return x
    test = "fcmp une" if kind_of(dtype) == "f" else "icmp ne"
    return code.new(f"{test} {type_of(dtype, lanes)} {x}, {literal(dtype, 0, lanes)}")


def select(code: Code, c: str, of: str, x: str, y: str, lanes: int) -> str:
    return code.new(f"select {type_of('b1', lanes)} {c}, {of} {x}, {of} {y}")


def apply(code: Code, name: str, dtype: str, xs: Sequence[str], lanes: int) -> str:
    """The result of a ufunc's inner loop on values of one dtype."""
    on = _Values(code, dtype, lanes, xs[0], xs[-1])
    if name == "positive":
        return on.x
    if dtype == "f2":
        found = apply(code, name, "f4", [cast(code, "f4", dtype, x, lanes) for x in xs], lanes)
        return cast(code, dtype, "f4", found, lanes)
    if name in _LOGICAL:
        p, q = (_truth(code, dtype, each, lanes) for each in xs)
        return code.new(f"{_LOGICAL[name]} {type_of('b1', lanes)} {p}, {q}")
    if name == "logical_not":
        return code.new(f"xor {type_of('b1', lanes)} {_truth(code, dtype, xs[0], lanes)}, {literal('b1', 1, lanes)}")
    if name in _BITWISE:
        return on.do(_BITWISE[name])
    if name == "invert":
        return on.do("xor", on.x, on.number(1 if on.kind == "b" else -1))
    if name in _COMPARISONS:
        return _compared(on, name)
    write = {"f": _OF_FLOATS, "b": _OF_BOOLEANS}.get(on.kind, _OF_INTEGERS).get(name)
    if write is None:
        raise Unsupported(f"{name} of {dtype}")
    return write(on)


class _Values:
    """The operands of an operation, of one dtype; x and y are the same where there is one."""

    def __init__(self, code: Code, dtype: str, lanes: int, x: str, y: str):
        self.code, self.dtype, self.lanes, self.x, self.y = code, dtype, lanes, x, y
        self.of, self.kind = type_of(dtype, lanes), kind_of(dtype)

    def number(self, value: float) -> str:
        return literal(self.dtype, value, self.lanes)

    def do(self, name: str, *given: str) -> str:
        """An instruction on x and y, or on other values."""
        return self.code.new(f"{name} {self.of} {', '.join(given or (self.x, self.y))}")

    def call(self, name: str, *given: str) -> str:
        """An intrinsic of x, or of other values."""
        return intrinsic(self.code, name, self.dtype, given or (self.x,), self.lanes)

    def pick(self, c: str, p: str, q: str) -> str:
        return select(self.code, c, self.of, p, q, self.lanes)


def _compared(on: _Values, name: str) -> str:
    if on.kind == "f":
        return on.do(f"fcmp {_FLOAT_COMPARISONS[name]}")
    sign = "" if name in ("equal", "not_equal") else "s" if on.kind == "i" else "u"
    return on.do(f"icmp {sign}{_COMPARISONS[name]}")


def _extreme(name: str, test: str) -> _Writer:
    """The larger or the smaller number: x where the test holds."""

    def write(on: _Values) -> str:
        if on.kind != "f":
            return on.pick(on.do(f"icmp {'s' if on.kind == 'i' else 'u'}{test}"), on.x, on.y)
        if not _second_of_equals():
            raise Unsupported(f"{name} of zeros with both signs depends on their place here")
        best = on.pick(on.do(f"fcmp o{test}"), on.x, on.y)
        return on.pick(on.do("fcmp uno", on.x, on.x), on.x, best)

    return write


def _absolute_integer(on: _Values) -> str:
    if on.kind == "u":
        return on.x
    return on.pick(on.do("icmp slt", on.x, on.number(0)), on.do("sub", on.number(0), on.x), on.x)


def _sign_of_integer(on: _Values) -> str:
    some = on.pick(on.do("icmp ne", on.x, on.number(0)), on.number(1), on.number(0))
    return some if on.kind == "u" else on.pick(on.do("icmp slt", on.x, on.number(0)), on.number(-1), some)


def _sign(on: _Values) -> str:
    inner = on.pick(on.do("fcmp uno", on.x, on.x), on.x, on.number(0))
    inner = on.pick(on.do("fcmp olt", on.x, on.number(0)), on.number(-1), inner)
    return on.pick(on.do("fcmp ogt", on.x, on.number(0)), on.number(1), inner)


def _signbit(on: _Values) -> str:
    whole = f"i{on.dtype[1:]}"
    bits = bitcast(on.code, whole, on.dtype, on.x, on.lanes)
    return on.code.new(f"icmp slt {type_of(whole, on.lanes)} {bits}, {literal(whole, 0, on.lanes)}")


def _shifted(name: str, on: _Values) -> str:
    """A shift. By as many bits as there are, or more, none is left, but for copies of the sign."""
    width = 8 * int(on.dtype[1:])
    fits = on.do("icmp ult", on.y, on.number(width))
    if name == "right_shift" and on.kind == "i":
        return on.do("ashr", on.x, on.pick(fits, on.y, on.number(width - 1)))
    return on.pick(fits, on.do("shl" if name == "left_shift" else "lshr"), on.number(0))


def _instruction(name: str) -> _Writer:
    return lambda on: on.do(name)


def _intrinsic_of(name: str, *operands: str) -> _Writer:
    return lambda on: on.call(name, *(getattr(on, x) for x in operands))


_Writer = Callable[[_Values], str]
_EXTREMES: dict[str, _Writer] = {name: _extreme(name, "gt" if "max" in name else "lt")
                                 for name in ("maximum", "minimum", "fmax", "fmin")}  # fmt: skip
_OF_BOOLEANS: dict[str, _Writer] = {
    "absolute": lambda on: on.x, **dict.fromkeys(("add", "maximum", "fmax"), _instruction("or")),
    **dict.fromkeys(("multiply", "minimum", "fmin"), _instruction("and")),
}  # fmt: skip
_OF_INTEGERS: dict[str, _Writer] = {
    "add": _instruction("add"), "subtract": _instruction("sub"), "multiply": _instruction("mul"),
    "square": lambda on: on.do("mul", on.x, on.x), "negative": lambda on: on.do("sub", on.number(0), on.x),
    "absolute": _absolute_integer, "sign": _sign_of_integer, **_EXTREMES,
    **{name: partial(_shifted, name) for name in ("left_shift", "right_shift")},
}  # fmt: skip
_OF_FLOATS: dict[str, _Writer] = {
    "add": _instruction("fadd"), "subtract": _instruction("fsub"), "multiply": _instruction("fmul"),
    "divide": _instruction("fdiv"), "square": lambda on: on.do("fmul", on.x, on.x),
    "negative": lambda on: on.do("fneg", on.x), "reciprocal": lambda on: on.do("fdiv", on.number(1), on.x),
    **{name: _intrinsic_of(name, "x") for name in ("sqrt", "floor", "ceil", "trunc", "rint", "fabs")},
    "absolute": _intrinsic_of("fabs", "x"), "copysign": _intrinsic_of("copysign", "x", "y"), **_EXTREMES,
    "sign": _sign, "signbit": _signbit, "isnan": lambda on: on.do("fcmp uno", on.x, on.x),
    "isinf": lambda on: on.do("fcmp oeq", on.call("fabs"), on.number(math.inf)),
    "isfinite": lambda on: on.do("fcmp one", on.call("fabs"), on.number(math.inf)),
}  # fmt: skip


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
    if "f2" in (to, dtype):
        return _cast_half(code, to, dtype, x, lanes)
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


def _cast_half(code: Code, to: str, dtype: str, x: str, lanes: int) -> str:
    """The conversion of the processor between float16 and float32; without one LLVM calls a library that is missing."""
    if "f4" not in (to, dtype) or not FEATURES.get("F16C"):
        raise Unsupported(f"a cast from {dtype} to {to}")
    half, bits, wide = ("half" if lanes == 1 else f"<{lanes} x half>"), type_of("f2", lanes), type_of("f4", lanes)
    if to == "f4":
        return code.new(f"fpext {half} {code.new(f'bitcast {bits} {x} to {half}')} to {wide}")
    return code.new(f"bitcast {half} {code.new(f'fptrunc {wide} {x} to {half}')} to {bits}")


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
