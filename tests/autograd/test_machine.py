"""What `doctor`, the benchmarks and records say of the processor and the library of matrix products."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from autograd.machine import about, environment_of_bits, processor, products, speed

ROOT = Path(__file__).resolve().parents[2]


def test_the_processor_is_read_from_the_system(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A Processor 9\nflags\t\t: fpu avx\n\nmodel name\t: Another\n")
    assert processor(info) == "A Processor 9"
    info.write_text("processor\t: 0\n")
    assert processor(info) == processor(tmp_path / "missing") != ""


def test_the_line_names_library_and_speed() -> None:
    assert speed("float32") > 0.01
    assert products().startswith(str(environment_of_bits()["blas"]))
    assert about().startswith(f"{processor()}; NumPy ") and about().endswith("in float64")


def test_benchmarks_print_the_line(capfd: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "benchmarks" / "_peers" / "machine.py"))["print_machine"]()
    assert capfd.readouterr().err.startswith(f"{processor()}; NumPy ")
