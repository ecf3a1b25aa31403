"""The interpreter of PTX: instructions against NumPy, what it refuses, and faults in it that these tests see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from . import interpreter
from .interpreter import Fault, compute, kernel, run

pytestmark = pytest.mark.skipif(bool(interpreter.WHY_NOT), reason=interpreter.WHY_NOT)
RANDOM = np.random.default_rng(0)
S32, U32, S64, U64, F32, F64, F16 = (np.dtype(name) for name in ("i4", "u4", "i8", "u8", "f4", "f8", "f2"))


def draw(dtype: np.dtype, random: np.random.Generator, n: int = 64) -> Any:
    """Numbers of all sizes, and the ones at the ends."""
    if dtype.kind == "f":
        ends = [0.0, -0.0, 1.0, -1.5, 2.5, np.inf, -np.inf, np.nan, *[1e-20 if dtype.itemsize > 2 else 1e-4] * 8]
        wide = random.standard_normal(n - 16) * 2.0 ** random.integers(-8, 8, n - 16)
        return random.permutation([*ends, *wide]).astype(dtype)
    info = np.iinfo(dtype)
    ends = [info.min, info.max, 0, 1]
    return np.array([*ends, *random.integers(info.min, info.max, n - 4, dtype)], dtype)


class Case(NamedTuple):
    body: str
    operands: tuple[np.dtype, ...]
    result: np.dtype
    needed: Callable[..., Any]
    tolerance: float = 0.0


def high(a: Any, b: Any) -> Any:
    return np.array([int(x) * int(y) >> 8 * a.itemsize for x, y in zip(a, b, strict=True)]).astype(a.dtype)


def fma(a: Any, b: Any, c: Any) -> Any:
    """Of float32, rounded once: the sum in float64 is made odd where it was rounded (Boldo and Melquiond, 2008)."""
    p = a.astype(F64) * b
    s = p + c
    error = (p - (s - (s - p))) + (c - (s - p))
    is_even = (s.view(U64) & U64.type(1)) == 0
    odd = np.where(is_even & (error != 0) & np.isfinite(s), np.nextafter(s, np.copysign(np.inf, error)), s)
    return odd.astype(F32)


def to_integer(x: Any, dtype: str) -> Any:
    info = np.iinfo(dtype)
    clipped = np.clip(np.trunc(np.nan_to_num(x.astype(float), nan=0)), info.min, info.max)
    return clipped.astype(dtype)


def quotient(a: Any, b: Any) -> Any:
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    return np.array([abs(x) // abs(y) * (1 if x * y > 0 else -1) if y else -1 for x, y in pairs]).astype(a.dtype)


def permuted(a: Any, b: Any, c: Any) -> Any:
    found = []
    for x, y, s in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        pool = [*x.to_bytes(4, "little"), *y.to_bytes(4, "little")]
        picks = [(pool[s >> 4 * k & 7], s >> 4 * k & 8) for k in range(4)]
        found.append(int.from_bytes(bytes((255 if v & 128 else 0) if sign else v for v, sign in picks), "little"))
    return np.array(found, U32)


def bf16(x: Any) -> Any:
    bits = x.view(U32).astype(U64)
    rounded = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    return np.where(np.isnan(x), 0x7FFF, rounded).astype(U32)


def flushed(x: Any) -> Any:
    return np.where(abs(x) < np.finfo(F32).tiny, np.copysign(F32.type(0), x), x)


CASES = {
    "add.s32": Case("add.s32 y, a, b;", (S32, S32), S32, lambda a, b: a + b),
    "sub.s64": Case("sub.s64 y, a, b;", (S64, S64), S64, lambda a, b: a - b),
    "mul.lo": Case("mul.lo.s32 y, a, b;", (S32, S32), S32, lambda a, b: a * b),
    "mul.hi.u32": Case("mul.hi.u32 y, a, b;", (U32, U32), U32, high),
    "mul.hi.s64": Case("mul.hi.s64 y, a, b;", (S64, S64), S64, high),
    "mul.wide": Case("mul.wide.s32 y, a, b;", (S32, S32), S64, lambda a, b: a.astype(S64) * b),
    "mad.lo": Case("mad.lo.s32 y, a, b, c;", (S32, S32, S32), S32, lambda a, b, c: a * b + c),
    "mad.wide": Case("mad.wide.u32 y, a, b, c;", (U32, U32, U64), U64, lambda a, b, c: a.astype(U64) * b + c),
    "add.f32": Case("add.rn.f32 y, a, b;", (F32, F32), F32, lambda a, b: a + b),
    "add.f32, rounded down": Case("add.rm.f32 y, a, b;", (F32, F32), F32, lambda a, b: np.where(
        (a + b).astype(F64) > a.astype(F64) + b, np.nextafter(a + b, F32.type(-np.inf)), a + b)),
    "fma.f32": Case("fma.rn.f32 y, a, b, c;", (F32, F32, F32), F32, fma),
    "mad.f32": Case("mad.rn.f32 y, a, b, c;", (F32, F32, F32), F32, fma),
    "fma.f64": Case("fma.rn.f64 y, a, b, c;", (F64, F64, F64), F64, lambda a, b, c: a * b + c, 1e-10),
    "fma.f16": Case("fma.rn.f16 y, a, b, c;", (F16, F16, F16), F16,
                    lambda a, b, c: (a.astype(F64) * b + c).astype(F16)),
    "add.f16x2": Case("add.rn.f16x2 y, a, b;", (U32, U32), U32, lambda a, b: (
        np.nan_to_num(a.view(F16), nan=0) + np.nan_to_num(b.view(F16), nan=0)).view(U32)),
    "div.s32": Case("div.s32 y, a, b;", (S32, S32), S32, quotient),
    "div.f32": Case("div.rn.f32 y, a, b;", (F32, F32), F32, lambda a, b: a / b),
    "rem.u32": Case("rem.u32 y, a, b;", (U32, U32), U32, lambda a, b: np.where(b, a % np.maximum(b, 1), a)),
    "min.s32": Case("min.s32 y, a, b;", (S32, S32), S32, np.minimum),
    "max.f32": Case("max.f32 y, a, b;", (F32, F32), F32, np.fmax),
    "mul.ftz": Case("mul.ftz.f32 y, a, b;", (F32, F32), F32, lambda a, b: flushed(flushed(a) * flushed(b))),
    "saturation": Case("add.sat.f32 y, a, b;", (F32, F32), F32,
                       lambda a, b: np.clip(np.nan_to_num(a + b, nan=0), 0, 1)),
    "sqrt.f64": Case("sqrt.rn.f64 y, a;", (F64,), F64, np.sqrt),
    "ex2": Case("ex2.approx.f32 y, a;", (F32,), F32, np.exp2, 1e-6),
    "and": Case("and.b32 y, a, b;", (U32, U32), U32, lambda a, b: a & b),
    "not": Case("not.b64 y, a;", (S64,), S64, lambda a: ~a),
    "shl": Case("and.b32 %r0, b, 63; shl.b32 y, a, %r0;", (U32, U32), U32,
                lambda a, b: np.where(b % 64 > 31, 0, a << (b % 32))),
    "shr.s32": Case("and.b32 %r0, b, 63; shr.s32 y, a, %r0;", (S32, U32), S32,
                    lambda a, b: a >> np.minimum(b % 64, 31).astype(S32)),
    "shf": Case("shf.l.wrap.b32 y, a, b, 5;", (U32, U32), U32, lambda a, b: b << U32.type(5) | a >> U32.type(27)),
    "bfe.s32": Case("bfe.s32 y, a, 5, 9;", (S32,), S32, lambda a: a << 18 >> 23),
    "bfi": Case("bfi.b32 y, a, b, 8, 4;", (U32, U32), U32,
                lambda a, b: (b & ~U32.type(0xF00)) | (a & U32.type(15)) << U32.type(8)),
    "prmt": Case("prmt.b32 y, a, b, c;", (U32, U32, U32), U32, permuted),
    "lop3": Case("lop3.b32 y, a, b, c, 0xCA;", (U32, U32, U32), U32, lambda a, b, c: (a & b) | (~a & c)),
    "popc": Case("popc.b32 y, a;", (U32,), U32, lambda a: np.bitwise_count(a)),
    "clz": Case("clz.b32 y, a;", (U32,), U32, lambda a: np.array([32 - int(x).bit_length() for x in a])),
    "brev": Case("brev.b32 y, a;", (U32,), U32, lambda a: np.array([int(f"{x:032b}"[::-1], 2) for x in a])),
    "setp.lt": Case("setp.lt.f32 %p0, a, b; selp.b32 y, 1, 0, %p0;", (F32, F32), S32, lambda a, b: a < b),
    "setp.gtu": Case("setp.gtu.f32 %p0, a, b; selp.b32 y, 1, 0, %p0;", (F32, F32), S32, lambda a, b: ~(a <= b)),
    "setp.and": Case("setp.ne.s32 %p1, c, 0; setp.gt.and.s32 %p0|%p2, a, b, %p1; selp.b32 %r0, 1, 0, %p0;"
                     "selp.b32 %r1, 2, 0, %p2; add.s32 y, %r0, %r1;", (S32, S32, S32), S32,
                     lambda a, b, c: np.where(c == 0, 0, np.where(a > b, 1, 2))),
    "a guard": Case("setp.ge.s32 %p0, a, b; mov.b32 y, a; @!%p0 mov.b32 y, b;", (S32, S32), S32, np.maximum),
    "cvt.rzi": Case("cvt.rzi.s32.f32 y, a;", (F32,), S32, lambda a: to_integer(a, "i4")),
    "cvt.rni": Case("cvt.rni.f32.f32 y, a;", (F32,), F32, np.rint),
    "cvt.f16": Case("cvt.rn.f16.f32 y, a;", (F32,), F16, lambda a: a.astype(F16)),
    "cvt.bf16": Case("cvt.rn.bf16x2.f32 y, a, b;", (F32, F32), U32, lambda a, b: bf16(a) << U32.type(16) | bf16(b)),
    "cvt.s64": Case("cvt.s64.s32 y, a;", (S32,), S64, lambda a: a.astype(S64)),
    "cvt.u64 to f32": Case("cvt.rn.f32.u64 y, a;", (U64,), F32, lambda a: a.astype(F32)),
    "cvt.sat": Case("cvt.sat.u8.s32 %h0, a; cvt.u32.u8 y, %h0;", (S32,), U32, lambda a: np.clip(a, 0, 255)),
    "pack": Case("mov.b64 y, {a, b};", (U32, U32), U64, lambda a, b: a.astype("u8") | b.astype("u8") << np.uint64(32)),
    "unpack": Case("mov.b64 {_, y}, a;", (U64,), U32, lambda a: (a >> np.uint64(32)).astype(U32)),
    "carry": Case("mov.b64 {%r0, %r1}, a; mov.b64 {%r2, %r3}, b; add.cc.u32 %r4, %r0, %r2; addc.u32 %r5, %r1, %r3;"
                  "mov.b64 y, {%r4, %r5};", (S64, S64), S64, lambda a, b: a + b),
}  # fmt: skip


def check(name: str, by: Any = None) -> None:
    case = CASES[name]
    random = np.random.default_rng(0)
    operands = [draw(dtype, random) for dtype in case.operands]
    with np.errstate(all="ignore"):
        if name == "add.f16x2":
            operands = [np.nan_to_num(x.view(F16), nan=1, posinf=2, neginf=3).view(U32) for x in operands]
        needed = np.asarray(case.needed(*operands)).astype(case.result)
        found = compute(case.body, operands, case.result, by)
    np.testing.assert_allclose(found, needed, rtol=case.tolerance, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_instructions(name: str) -> None:
    check(name)


LANES = np.arange(32, dtype=U32)
COPY = "mul.wide.u32 %d0, %t, 4; add.s64 %d1, %d0, %A0; add.s64 %d2, %d0, %A1; mul.lo.u32 %r0, %t, %t;"
OF_WARPS = {
    "shfl.bfly": ("shfl.sync.bfly.b32 %r1, %r0, 3, 31, -1;", (LANES ^ 3) ** 2),
    "shfl.up": ("shfl.sync.up.b32 %r1|%p0, %r0, 2, 0, -1;", np.where(LANES < 2, LANES, LANES - 2) ** 2),
    "shfl.idx": ("shfl.sync.idx.b32 %r1, %r0, 7, 31, -1;", np.full(32, 49)),
    "vote": ("setp.lt.u32 %p0, %t, 3; vote.sync.ballot.b32 %r1, %p0, -1;", np.full(32, 7)),
    "redux": ("redux.sync.add.u32 %r1, %r0, -1;", np.full(32, sum(n * n for n in range(32)))),
    "a half": ("mov.u32 %r1, 0; setp.lt.u32 %p0, %t, 16; @!%p0 bra $end; shfl.sync.bfly.b32 %r1, %r0, 1, 31, 0xffff;"
               "$end:", np.where(LANES < 16, (LANES ^ 1) ** 2, 0)),
}  # fmt: skip


def check_warps(name: str, by: Any = None) -> None:
    body, needed = OF_WARPS[name]
    out = np.zeros(32, U32)
    run(kernel(f"{COPY} {body} st.global.u32 [%d2], %r1;", 2), "f", [out, out], by=by)
    np.testing.assert_array_equal(out, needed.astype(U32), name)


@pytest.mark.parametrize("name", OF_WARPS)
def test_operations_of_a_warp(name: str) -> None:
    check_warps(name)


def check_products(by: Any = None) -> None:
    """mma with fragments that ldmatrix has loaded, as the guide of PTX shows them."""
    a, b = (RANDOM.integers(-4, 5, shape).astype(F16) for shape in ((16, 16), (16, 8)))
    out = np.zeros((16, 8), F32)
    loads = "mov.u32 %r20, memory;" + "".join(
        f"mul.wide.u32 %d5, %t, {size}; add.s64 %d{6 + i}, %d5, %A{i}; mad.lo.u32 %r{22 + i}, %t, {size}, %r20;"
        for i, size in enumerate((16, 8))
    )
    body = loads + """
        ld.global.v2.b64 {%d10, %d11}, [%d6]; st.shared.v2.b64 [%r22], {%d10, %d11};
        ld.global.b64 %d12, [%d7]; st.shared.b64 [%r23+512], %d12;
        bar.sync 0;
        and.b32 %r0, %t, 15; shr.u32 %r1, %t, 4; shl.b32 %r1, %r1, 4; mad.lo.u32 %r2, %r0, 32, %r1;
        add.u32 %r2, %r2, %r20; mad.lo.u32 %r3, %r0, 16, %r20;
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r2];
        ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r8, %r9}, [%r3+512];
        mov.f32 %f0, 0f3F800000;
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r4, %r5, %r6, %r7}, {%r8, %r9},
            {%f0, %f0, %f0, %f0};
        shr.u32 %r10, %t, 2; and.b32 %r11, %t, 3; mul.wide.u32 %d0, %r10, 32; mad.wide.u32 %d0, %r11, 8, %d0;
        add.s64 %d0, %d0, %A2; st.global.v2.f32 [%d0], {%f1, %f2}; st.global.v2.f32 [%d0+256], {%f3, %f4};
    """
    run(kernel(body, 3, 768), "f", [a, b, out], by=by)
    np.testing.assert_array_equal(out, a.astype(F32) @ b.astype(F32) + 1)


def test_products_of_matrices() -> None:
    check_products()


SUM_OF_NEIGHBOURS = """
    mov.u32 %r20, memory; mad.lo.u32 %r21, %t, 4, %r20; st.shared.u32 [%r21], %t; BARRIER
    add.u32 %r1, %t, 33; and.b32 %r1, %r1, 127; mad.lo.u32 %r1, %r1, 4, %r20; ld.shared.u32 %r2, [%r1];
    mul.wide.u32 %d0, %t, 4; add.s64 %d0, %d0, %A0; st.global.u32 [%d0], %r2;
"""


def test_a_barrier_that_is_missing_is_seen() -> None:
    needed = (np.arange(128) + 33) % 128
    for barrier, is_right in (("bar.sync 0;", True), ("", False)):
        out = np.zeros(128, U32)
        run(kernel(SUM_OF_NEIGHBOURS.replace("BARRIER", barrier), 1, 512), "f", [out], 128)
        assert np.array_equal(out, needed) == is_right


def check_copies(by: Any = None) -> None:
    x, out = RANDOM.integers(0, 9, 128).astype(U32), np.zeros(128, U32)
    for wait, is_right in (("cp.async.wait_group 0;", True), ("cp.async.wait_group 1;", False), ("", False)):
        run(kernel(f"""
            mov.u32 %r20, memory; mad.lo.u32 %r21, %t, 16, %r20; mul.wide.u32 %d0, %t, 16;
            add.s64 %d1, %d0, %A0; add.s64 %d2, %d0, %A1;
            cp.async.cg.shared.global [%r21], [%d1], 16; cp.async.commit_group; {wait}
            ld.shared.v2.b64 {{%d3, %d4}}, [%r21]; st.global.v2.b64 [%d2], {{%d3, %d4}};
        """, 2, 512), "f", [x, out], by=by)  # fmt: skip
        assert np.array_equal(out, x) == is_right, wait


def test_a_copy_is_made_when_it_is_waited_for() -> None:
    check_copies()


REFUSED = {
    "unknown": ("frobnicate.f32 %f0, %f1;", "the table of instructions has no frobnicate"),
    "a word": ("add.relu.f32 %f0, %f1, %f1;", "has no relu for add"),
    "an operand": ("add.f32 %f0, %f1;", "too few operands"),
    "misaligned": ("add.s64 %d0, %A0, 2; ld.global.u32 %r0, [%d0];", "misaligned address in f, block 0 0 0, thread"),
    "illegal": ("mov.u64 %d0, 64; ld.global.u32 %r0, [%d0];", "illegal address 0x40 in f, block 0 0 0, .* at: ld"),
    "behind shared memory": ("mov.u32 %r0, memory; ld.shared.u32 %r1, [%r0+256];", "illegal address"),
    "lanes": ("setp.lt.u32 %p0, %t, 16; @%p0 shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1; bar.sync 0;", "without lanes"),
    "endless": ("$again: bra $again;", "an endless loop"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    body, text = REFUSED[name]
    by = interpreter.library("run.cpp", "1L << 32", "1L << 16") if name == "endless" else None
    with pytest.raises(Fault, match=text):
        run(kernel(body, 1, 256), "f", [np.zeros(64, U32)], by=by)


def test_a_function_that_is_called() -> None:
    text = """
    .func (.param .b32 result) square(.param .b32 x)
    {
        .reg .b32 %r<3>;
        ld.param.u32 %r1, [x];
        mul.lo.u32 %r2, %r1, %r1;
        st.param.b32 [result], %r2;
        ret;
    }
    """
    body = """{ .param .b32 x; st.param.b32 [x], %t; .param .b32 y; call.uni (y), square, (x); ld.param.b32 %r5, [y]; }
    mul.wide.u32 %d0, %t, 4; add.s64 %d0, %d0, %A0; st.global.u32 [%d0], %r5;"""
    out = np.zeros(32, U32)
    run(text + kernel(body, 1), "f", [out])
    np.testing.assert_array_equal(out, LANES**2)


# the text in instructions.cpp, what it is replaced by, and what sees it
FAULTS: dict[str, tuple[str, str, Callable[[Any], None]]] = {
    "the high half": ("T(Wide(a) * Wide(b) >> (8 * sizeof(T)))", "T(a * b)", lambda by: check("mul.hi.u32", by)),
    "two roundings": (">) return std::fma(a, b, c);", ">) return a * b + c;", lambda by: check("mad.f32", by)),
    "flushed": ("return flush && ", "return false && ", lambda by: check("mul.ftz", by)),
    "nan": ("a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? b : a)", "a != a ? a : a == b ? a",
            lambda by: check("max.f32", by)),
    "unordered": ("case 12: return !is_ordered || a > b;", "case 12: return a > b;", lambda by: check("setp.gtu", by)),
    "the other lane": ("lane ^ b", "lane + b", lambda by: check_warps("shfl.bfly", by)),
    "a fragment": ("g + 8 * (k % 2)", "g + 8 * (k / 2)", check_products),
    "transposed": ("if (i.mode) std::swap(row, column);", "", check_products),
    "copies at once": ("t.copies.push_back({to, from, size, given, t.groups});",
                       "memcpy(to, from, given);", check_copies),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_an_instruction_is_seen(name: str) -> None:
    found, instead, sees = FAULTS[name]
    by = interpreter.library("instructions.cpp", found, instead)
    with pytest.raises((AssertionError, Fault)):
        sees(by)
