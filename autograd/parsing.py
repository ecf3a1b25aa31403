"""Parsing Python text on threads.

CPython 3.11 keeps the depth of the syntax tree that it makes for the whole interpreter. Two threads that parse at the
same time, as ranks on threads do, then raise ``SystemError: AST constructor recursion depth mismatch``. CPython 3.12
and 3.13 do not. `numpy.load` parses, too: the header of a ``.npy`` file is Python text.
"""

from __future__ import annotations

import ast
import threading
from typing import Any

__all__ = ["lock", "parse"]

lock = threading.RLock()
"""Held while something parses. A finalizer that the garbage collector runs meanwhile may parse, too."""


def parse(text: str, mode: str = "exec") -> Any:
    """`ast.parse`, by one thread at a time.

    Examples
    --------
    >>> parse("x + 1", "eval").body.right.value
    1
    """
    with lock:
        return ast.parse(text, mode=mode)
