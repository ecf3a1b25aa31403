"""What computes on this machine, which each benchmark prints: figures of different machines are not compared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def print_machine() -> None:
    """Print processor, library and speed of products to standard error.

    A process of its own finds out: beside the benchmarks `import collectives` would find a benchmark.
    """
    program = "import sys; from autograd.machine import about; print(about(), file=sys.stderr, flush=True)"
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": str(_ROOT)})
