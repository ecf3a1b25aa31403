"""Parallel layers built on the differentiable collectives, and `verify`, which compares gradients with serial ones.

`Trainer` trains one model on any mesh. It stands on `parallelize`, which divides the layers that a plan names by
styles (`Column`, `Row`, `Heads`, `Vocabulary`, `Sequence`, `Ring`, `Ulysses`, `Experts`, `Recompute`), on `Pipeline`,
which runs layers in stages, and on `DataParallel`, which divides batches, and on request the parameters. Compressions,
`LocalSGD` and `ParameterServer` send less, and `BackupWorkers` waits for the first ranks only. `StepReport` tells where
the time of a step goes. `RunLog` and `Progress` record a run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import autograd
from autograd.errors import missing_attribute

from .data.data_parallel import DataParallel
from .data.entry import enter
from .verify import Report, VerifyError, verify

if TYPE_CHECKING:  # `__getattr__` loads these names at first use
    from .approximate.backup_workers import BackupReport, BackupStep, BackupWorkers
    from .approximate.compressed_adam import CompressedAdam
    from .approximate.compression import Compression
    from .approximate.local_sgd import DiLoCo, LocalSGD
    from .approximate.low_rank import PowerSGD
    from .approximate.noise_scale import NoiseScale, gradient_noise_scale
    from .approximate.parameter_server import ParameterServer
    from .approximate.quantised import Float16, Int8, OneBit
    from .approximate.sparse import RandomK, TopK
    from .context.styles import Ring, Ulysses
    from .data.memory import Memory, memory_of, saved_bytes
    from .data.overlap import StepPrediction, predict_step
    from .data.settings import Bucketing, Zero
    from .expert import Experts, MixtureOfExperts, side_losses
    from .explain import Explanation
    from .pipeline import Pipeline, Schedule
    from .plan import Shards, Style, parallelize
    from .recompute import Recompute
    from .report import StepReport
    from .runs import CSVSink, Progress, RunLog, TensorBoardSink, plot_log, read_log
    from .tensor import Column, Heads, Row, Sequence, Vocabulary
    from .trainer import Axes, Trainer

    __version__: str

_LATER = {
    "approximate.backup_workers": ("BackupReport", "BackupStep", "BackupWorkers"),
    "approximate.compressed_adam": ("CompressedAdam",),
    "approximate.compression": ("Compression",),
    "approximate.local_sgd": ("DiLoCo", "LocalSGD"),
    "approximate.low_rank": ("PowerSGD",),
    "approximate.noise_scale": ("NoiseScale", "gradient_noise_scale"),
    "approximate.parameter_server": ("ParameterServer",),
    "approximate.quantised": ("Float16", "Int8", "OneBit"),
    "approximate.sparse": ("RandomK", "TopK"),
    "context.styles": ("Ring", "Ulysses"),
    "data.memory": ("Memory", "memory_of", "saved_bytes"),
    "data.overlap": ("StepPrediction", "predict_step"),
    "data.settings": ("Bucketing", "Zero"),
    "explain": ("Explanation",),
    "expert": ("Experts", "MixtureOfExperts", "side_losses"),
    "plan": ("Shards", "Style", "parallelize"),
    "recompute": ("Recompute",),
    "pipeline": ("Pipeline", "Schedule"),
    "report": ("StepReport",),
    "trainer": ("Axes", "Trainer"),
    "runs": ("CSVSink", "Progress", "RunLog", "TensorBoardSink", "plot_log", "read_log"),
    "tensor": ("Column", "Heads", "Row", "Sequence", "Vocabulary"),
}
_MODULES = {name: module for module, names in _LATER.items() for name in names}

__all__ = [
    "Axes", "BackupReport", "BackupStep", "BackupWorkers", "Bucketing", "CSVSink", "Column", "CompressedAdam",
    "Compression", "DataParallel", "DiLoCo", "Experts", "Explanation", "Float16", "Heads", "Int8", "LocalSGD",
    "Memory", "MixtureOfExperts", "NoiseScale", "OneBit", "ParameterServer", "Pipeline", "PowerSGD", "Progress",
    "RandomK", "Recompute", "Report", "Ring", "Row", "RunLog", "Schedule", "Sequence", "Shards", "StepPrediction",
    "StepReport", "Style", "TensorBoardSink", "TopK", "Trainer", "Ulysses", "VerifyError", "Vocabulary", "Zero",
    "enter", "gradient_noise_scale", "memory_of", "parallelize", "plot_log", "predict_step", "read_log", "saved_bytes",
    "side_losses", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load the version, and the names of `_LATER`, at first use."""
    if name == "__version__":
        return autograd.__version__
    if name not in _MODULES:
        raise missing_attribute(__name__, name)
    found = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
