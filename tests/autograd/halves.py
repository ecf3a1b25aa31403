"""The dtypes of 16 bits: float16, and bfloat16 where ml_dtypes is installed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy

HALVES: dict[str, numpy.dtype[Any]] = {"float16": numpy.dtype(numpy.float16)}
with suppress(ImportError):
    import ml_dtypes

    HALVES["bfloat16"] = numpy.dtype(ml_dtypes.bfloat16)
