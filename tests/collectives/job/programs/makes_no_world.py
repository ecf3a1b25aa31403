"""Nothing fails: no rank makes a world, and the processes that the ranks start are no ranks."""

from __future__ import annotations

import subprocess
import sys

import collectives  # noqa: F401 - importing it prepares for failures

CHILD = "from collectives.job import launcher; assert launcher.launched_size() == 1"
if __name__ == "__main__":
    subprocess.run([sys.executable, "-c", CHILD], check=True)
    print("child of rank", flush=True)
