"""What computes on this machine, which each benchmark prints: figures of different machines are not compared."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_FILE = Path(__file__).resolve().parents[2] / "autograd" / "machine.py"


def print_machine() -> None:
    """Print processor, library and speed of products to standard error."""
    spec = importlib.util.spec_from_file_location("ringtape_machine", _FILE)  # it needs nothing of the package
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    print(module.about(), file=sys.stderr, flush=True)
