"""Parallel layers built on the differentiable collectives, and `verify`, which compares gradients with serial ones.

`DataParallel` divides batches, and on request the parameters; `Pipeline` divides the layers. Compressions, `LocalSGD`
and `ParameterServer` send less. `StepReport` tells where the time of a step goes. `RunLog` and `Progress` record a
training run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import autograd

from .data.data_parallel import DataParallel
from .data.entry import enter
from .verify import Report, VerifyError, verify

if TYPE_CHECKING:  # `__getattr__` loads these names at first use
    from .data.compressed_adam import CompressedAdam
    from .data.compression import Compression, Float16, Int8, OneBit, PowerSGD, RandomK, TopK
    from .data.local_sgd import DiLoCo, LocalSGD
    from .data.memory import Memory, memory_of
    from .data.noise_scale import NoiseScale, gradient_noise_scale
    from .data.overlap import StepPrediction, predict_step
    from .data.parameter_server import ParameterServer
    from .pipeline import Pipeline, Schedule
    from .report import StepReport
    from .runs import Progress, RunLog, plot_log, read_log

    __version__: str

_LATER = {
    "data.compression": ("Compression", "Float16", "Int8", "OneBit", "PowerSGD", "RandomK", "TopK"),
    "data.local_sgd": ("DiLoCo", "LocalSGD"),
    "data.memory": ("Memory", "memory_of"),
    "data.noise_scale": ("NoiseScale", "gradient_noise_scale"),
    "data.overlap": ("StepPrediction", "predict_step"),
    "data.compressed_adam": ("CompressedAdam",),
    "data.parameter_server": ("ParameterServer",),
    "pipeline": ("Pipeline", "Schedule"),
    "report": ("StepReport",),
    "runs": ("Progress", "RunLog", "plot_log", "read_log"),
}
_MODULES = {name: module for module, names in _LATER.items() for name in names}

__all__ = [
    "CompressedAdam", "Compression", "DataParallel", "DiLoCo", "Float16", "Int8", "LocalSGD", "Memory", "NoiseScale",
    "OneBit", "ParameterServer", "Pipeline", "PowerSGD", "Progress", "RandomK", "Report", "RunLog", "Schedule",
    "StepPrediction", "StepReport", "TopK", "VerifyError", "enter", "gradient_noise_scale", "memory_of", "plot_log",
    "predict_step", "read_log", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load the version, and the names of `_LATER`, at first use."""
    if name == "__version__":
        return autograd.__version__
    if name not in _MODULES:
        raise AttributeError(f"module 'parallel' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
