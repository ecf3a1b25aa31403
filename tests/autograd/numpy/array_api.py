"""The official suite of the array standard, run on Tensors: ``python -m tests.autograd.numpy.array_api SUITE``.

`SUITE` is a checkout of https://github.com/data-apis/array-api-tests with its submodule. It needs `pytest-json-report`
and `ndindex`. Tests that are expected to fail stand in `array_api_exceptions.txt` with the reason; one of them that
passes is told. Further arguments go to pytest, as ``-n 2`` or ``--max-examples=20``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXCEPTIONS = HERE / "array_api_exceptions.txt"


def main() -> int:
    suite, *arguments = sys.argv[1:]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[2]), suite, os.environ.get("PYTHONPATH", "")]),
        "ARRAY_API_TESTS_MODULE": "tests.autograd.numpy.array_api_tensors",
        "ARRAY_API_TESTS_VERSION": "2024.12",
    }
    command = [sys.executable, "-m", "pytest", "array_api_tests", "-q", "-rfX", "--disable-deadline",
               "--xfails-file", str(EXCEPTIONS), *arguments]  # fmt: skip
    return subprocess.run(command, cwd=suite, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
