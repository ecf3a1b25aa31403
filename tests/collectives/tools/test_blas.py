"""What `doctor` and the benchmarks say of the processor and the library of matrix products."""

from __future__ import annotations

from pathlib import Path

from collectives.tools.blas import about, library, processor, speed


def test_the_processor_is_read_from_the_system(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A Processor 9\nflags\t\t: fpu avx avx2 avx512f\n\nprocessor\t: 1\n")
    assert processor(info) == "A Processor 9, avx512f"
    info.write_text("processor\t: 0\nmodel name\t: An Older One\nflags\t\t: fpu avx2x avx\n")
    assert processor(info) == "An Older One, avx"
    assert processor(tmp_path / "missing")


def test_the_line_names_library_and_speed() -> None:
    assert library().split()[0] and speed("float32") > 0.01
    text = about()
    assert text.startswith(processor()) and library() in text and text.endswith("in float64")
