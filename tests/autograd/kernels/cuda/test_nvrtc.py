"""All programs compile for a GPU: ``pip install 'ringtape[nvrtc]'`` has NVIDIA's compiler, which needs no GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autograd.arrays.runtime import Program

from . import compiled_report, on_cpu
from .compiled_report import compile_program, longest_loop, programs, report, widest_load


@pytest.fixture
def nvrtc() -> Any:
    found = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed (extra: nvrtc)")
    try:
        found.nvrtcVersion()
    except RuntimeError as error:  # the bindings without the compiler
        pytest.skip(f"NVRTC cannot be loaded: {error}")
    return found


@pytest.mark.parametrize("name", sorted(programs()))
def test_every_program_compiles(name: str, nvrtc: Any) -> None:
    _, works, log = compile_program(nvrtc, programs()[name])
    assert works, log


def test_a_program_with_a_mistake_does_not_compile(nvrtc: Any) -> None:
    _, works, log = compile_program(nvrtc, Program("wrong", "__global__ void f() { missing(); }", ("f",)))
    assert not works and "missing" in log


def test_the_longest_of_the_innermost_loops() -> None:
    body = """
        mov.u32 %r1, %tid.x;
    $L__BB0_1:
        ld.global.u32 %r2, [%rd1];
    $L__BB0_2:
        add.s32 %r2, %r2, 1;
        @%p1 bra $L__BB0_2;
    $L__BB0_3:
        // the longer one
        mul.lo.s32 %r2, %r2, %r1;
        add.s32 %r2, %r2, 1;
        @!%p2 bra $L__BB0_3;
        @%p3 bra $L__BB0_1;
        bra.uni $L__BB0_4;
    $L__BB0_4:
        ret;
    """
    assert longest_loop(body) == 3 and longest_loop("ret;") == 0


def test_the_widest_load() -> None:
    body = """
        ld.param.u64 %rd1, [f_param_0];
        ld.global.u16 %rs1, [%rd1];
        ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];
        ld.global.v2.u32 {%r1, %r2}, [%rd1];
        ld.shared.v2.f64 {%fd1, %fd2}, [%r1];
    """
    assert widest_load(body) == 16 and widest_load("ld.global.u16 %rs1, [%rd1];") == 2 and widest_load("ret;") == 0
    assert widest_load("cp.async.cg.shared.global [%r1], [%rd1], 16;") == 16


@pytest.mark.parametrize("name", ["activations", "biases", "casts"])
def test_arrays_are_read_in_accesses_of_sixteen_bytes(name: str, nvrtc: Any) -> None:
    found = {k: used.load_bytes for k, used in report(nvrtc, programs()[name]).items()}
    assert {k: n for k, n in found.items() if n != 16 and not k.startswith("sums_of_groups")} == {}


def test_the_table_shows_what_has_changed(nvrtc: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled_report.main(["--only", "values", "--json"])
    before = json.loads(capsys.readouterr().out)
    kernel = min(before)
    assert before[kernel]["registers"] > 0 and before[kernel]["loop"] > 0
    before[kernel]["registers"] += 1
    (tmp_path / "before.json").write_text(json.dumps(before))
    compiled_report.main(["--only", "values", "--against", str(tmp_path / "before.json")])
    _, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 1 and rows[0].startswith(kernel) and "->" in rows[0]


SPILLED_BYTES = {
    "activate<double, GeluTanh>": 16, "activate<double, GeluErf>": 64, "class_terms_backward<double>": 112,
    "norm_backward_sums<BFloat16>": 12,
}  # fmt: skip
"""Of registers that do not suffice, for each thread, by NVRTC 12.9; 0 for the others."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(programs()))
def test_what_the_kernels_use(name: str, nvrtc: Any) -> None:
    """The simulated GPU counts the same static shared memory, and only the kernels listed spill registers."""
    found = report(nvrtc, programs()[name])
    assert sorted(found) == sorted(programs()[name].kernels)
    if not on_cpu.WHY_NOT:
        assert {k: used.static_bytes for k, used in found.items()} == on_cpu.static_bytes(programs()[name])
    more = {k: used for k, used in found.items() if used.spilled_bytes > SPILLED_BYTES.get(k, 0)}
    assert more == {}
