"""`autograd.numpy` whose creation functions return Tensors: what the official suite of the array standard is run on.

Without a Tensor as an operand, `autograd.numpy` creates NumPy's arrays, of which the suite would then see nothing else.
"""

from __future__ import annotations

import functools
from typing import Any

import autograd as ag
import autograd.numpy as _np

CREATE = (
    "arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like", "linspace", "ones",
    "ones_like", "zeros", "zeros_like",
)  # fmt: skip


def _as_tensors(create: Any) -> Any:
    @functools.wraps(create)
    def function(*args: Any, **options: Any) -> Any:
        return ag.tensor(create(*args, **options))

    return function


def __getattr__(name: str) -> Any:
    return _as_tensors(getattr(_np, name)) if name in CREATE else getattr(_np, name)
