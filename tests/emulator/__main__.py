"""Commands of the emulated GPU; see `tests.emulator`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from . import faults
from .build import CUDA, CUPY, Environment, Unavailable, build

USAGE = """usage: python -m tests.emulator build DIRECTORY
       python -m tests.emulator run DIRECTORY [arguments of pytest]
       python -m tests.emulator part DIRECTORY [arguments of pytest]
       python -m tests.emulator python DIRECTORY [arguments of python]
       python -m tests.emulator faults DIRECTORY [words of the kinds or names of planted faults]"""

KERNELS = "tests/autograd/kernels/cuda"
PART = [
    "tests/emulator/test_device.py",
    f"{KERNELS}/test_attention.py::test_attention_in_float16",
    f"{KERNELS}/test_adam.py::test_adam_of_many_parameters",
    f"{KERNELS}/test_rows.py::test_labels_of_every_dtype_and_out_of_range",
    f"{KERNELS}/test_segments.py::test_one_place_places_in_order_and_segments_that_end_with_a_chunk",
    "tests/autograd/arrays/test_cublas.py",
    "tests/autograd/transforms/test_launch_graph.py::test_threads_capture_on_devices_of_their_own",
    "tests/parallel/test_device.py::test_processes[nccl]",
    "tests/parallel/test_device.py::test_processes[staged]",
    "tests/collectives/transports/device/test_gpu.py::test_the_probe_finds_ipc",
]
"""Kernels, calls of libraries, waits, a step of each layer on two ranks over two carriers: what `.ci/run` runs."""
CANNOT = 77
"""The status of `build` where the packages are not to be had."""


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or arguments[0] not in ("build", "run", "part", "python", "faults"):
        print(USAGE)
        return 2
    command, place = arguments[0], Environment(Path(arguments[1]))
    if command == "build":
        try:
            build(place.root)
        except Unavailable as error:
            print(f"no emulated GPU: {error}; needed: the packages at the top of tests/emulator/build.py")
            return CANNOT
        return 0
    if not place.python.exists():
        print(f"{place.root} has no emulated GPU; fix: python -m tests.emulator build {place.root}")
        return 2
    given = arguments[2:]
    if command == "faults":
        return faults.run(place, given)
    if command == "part":
        options = ["-n", "2", "--dist", "loadfile", "-q", "-m", "gpu and not slow", "--disable-warnings", "--tb=short"]
        given = [*options, *PART, *given]
    if command in ("run", "part"):
        versions = ", ".join(f"{name} {version}" for name, version in CUDA.items())
        print(f"emulated GPU, not a GPU: CuPy {CUPY} on the CPU; {versions}", flush=True)
        given = ["-m", "pytest", "-o", "timeout=900", *given]
    return subprocess.run([str(place.python), *given], env=place.variables(), check=False).returncode


sys.exit(main(sys.argv[1:]))
