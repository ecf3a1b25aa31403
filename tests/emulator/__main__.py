"""Commands of the emulated GPU; see `tests.emulator`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .build import CUDA, CUPY, Environment, build

USAGE = """usage: python -m tests.emulator build DIRECTORY
       python -m tests.emulator run DIRECTORY [arguments of pytest]
       python -m tests.emulator python DIRECTORY [arguments of python]"""


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or arguments[0] not in ("build", "run", "python"):
        print(USAGE)
        return 2
    command, place = arguments[0], Environment(Path(arguments[1]))
    if command == "build":
        build(place.root)
        return 0
    if not place.python.exists():
        print(f"{place.root} has no emulated GPU; fix: python -m tests.emulator build {place.root}")
        return 2
    given = arguments[2:]
    if command == "run":
        versions = ", ".join(f"{name} {version}" for name, version in CUDA.items())
        print(f"emulated GPU, not a GPU: CuPy {CUPY} on the CPU; {versions}", flush=True)
        given = ["-m", "pytest", "-o", "timeout=900", *given]
    return subprocess.run([str(place.python), *given], env=place.variables(), check=False).returncode


sys.exit(main(sys.argv[1:]))
