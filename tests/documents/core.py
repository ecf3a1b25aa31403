"""Core and extras: which modules a reader may leave out, and the library without them.

    python -m tests.documents.core DIR                       copies the core and the examples into DIR
    python -m tests.documents.core DIR --test -n 2 tests     and runs the tests there with these arguments of pytest;
                                                             `without_extras.py` skips those that need an extra

The core is all that is not listed here. It imports no extra; where it reaches one, that is a row of `autograd.doors`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["EXTRAS", "copy_core", "is_extra", "run_tests"]

ROOT = Path(__file__).resolve().parents[2]
_CAPTURE = ("captured_step", "guards", "launch_graph", "memory", "proving", "reach", "recorder", "replay", "tracing",
            "verification")  # fmt: skip
_HIPS = ("builtins", "core", "custom", "differential_operators", "extend", "misc", "numpy.numpy_boxes",
         "numpy.numpy_vjps", "numpy.numpy_vspaces", "numpy.numpy_wrapper", "test_util", "tracer",
         "util", "wrap_util")  # fmt: skip
EXTRAS: dict[str, tuple[str, ...]] = {
    "captured steps": ("autograd.compiler", *(f"autograd.transforms.{name}" for name in _CAPTURE)),
    "functions of SciPy": ("autograd.scipy",),
    "HIPS autograd's import paths": tuple(f"autograd.{name}" for name in _HIPS),
    "kernels of Numba and CUDA": ("autograd.kernels.cuda", "autograd.kernels.loops"),
    "tests of gradients": ("autograd.__main__", "autograd.testing", "collectives.testing"),
    "records of operations": ("autograd.records",),
    "algorithms of collectives": ("collectives.algorithms", "collectives.ops.reproducible"),
    "memory of one host, devices": (
        "collectives.shared_arrays", "collectives.transports.device", "collectives.transports.shared_memory"),
    "records of jobs": ("collectives.transports.recording", "collectives.transports.replays"),
    "examination of scales": ("collectives.scale",),
    "tools": ("collectives.__main__", "collectives.audit", "collectives.faults", "collectives.inspect",
              "collectives.page", "collectives.tools", "parallel.explain", "parallel.launch", "parallel.report",
              "parallel.runs"),
    "the trainer and what it adds": (
        "parallel.batches", "parallel.captured", "parallel.data.gradient_tree", "parallel.pipeline.same_bits",
        "parallel.recompute", "parallel.trainer"),
    "checkpoints, elastic jobs": ("parallel.checkpoint", "parallel.elastic"),
    "approximate, context and expert parallelism": ("parallel.approximate", "parallel.context", "parallel.expert"),
    "predictions": ("parallel.data.overlap",),
}  # fmt: skip
"""The modules and folders of each extra."""

_ALL = tuple(name for names in EXTRAS.values() for name in names)


def is_extra(module: str) -> bool:
    """Whether a module belongs to an extra."""
    return any(module == name or module.startswith(f"{name}.") for name in _ALL)


def copy_core(to: Path, keep: Iterable[str] = ()) -> list[Path]:
    """Copy the packages without the extras, but for those to keep, and the examples. Returns what is left out."""
    left_out = []
    for package in ("autograd", "collectives", "parallel"):
        shutil.copytree(ROOT / package, to / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (name for extra, names in EXTRAS.items() if extra not in keep for name in names):
        path = to.joinpath(*name.split("."))
        for each in (path, path.with_suffix(".py")):
            if each.is_dir():
                shutil.rmtree(each)
                left_out.append(each)
            elif each.exists():
                each.unlink()
                left_out.append(each)
    shutil.copytree(ROOT / "examples", to / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return left_out


def run_tests(core: Path, *arguments: str) -> int:
    """Run pytest on the tests in a copy of the core. Returns its exit status."""
    for folder in ("tests", "docs", "benchmarks"):
        ignored = shutil.ignore_patterns("__pycache__", "_build")
        shutil.copytree(ROOT / folder, core / folder, ignore=ignored, dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", core)
    command = [sys.executable, "-m", "pytest", "-p", "tests.documents.without_extras", *arguments]
    return subprocess.run(command, cwd=core, env=dict(os.environ, PYTHONPATH=str(core)), check=False).returncode


def main() -> int:
    """Copy the core, and test the copy where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--keep", nargs="*", choices=EXTRAS, default=[], help="extras that are copied, too")
    parser.add_argument("--test", nargs=argparse.REMAINDER, help="run pytest with these arguments in the copy")
    args = parser.parse_args()
    copy_core(args.folder, args.keep)
    return 0 if args.test is None else run_tests(args.folder, *args.test)


if __name__ == "__main__":
    sys.exit(main())
