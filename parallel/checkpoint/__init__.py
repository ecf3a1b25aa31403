"""Checkpoints of a run that cannot be lost, and that any mesh can load.

===================================  =================================================================================
``checkpoint.save(dir, state, n)``   each rank writes what it owns; step n exists when all have
``checkpoint.load(dir, state)``      each rank of any mesh reads its parts
``checkpoint.resume(dir, state)``    the same, or None at the first start of a run
``checkpoint.latest(dir)``           the newest step that is whole
``checkpoint.Checkpoints(dir)``      keeps some steps, and writes in the background
``checkpoint.Preemption()``          tells all ranks that the scheduler asks the job to end
===================================  =================================================================================
"""

from autograd.errors import CheckpointError, CheckpointWarning, DamagedCheckpoint

from .checkpoints import Checkpoints, latest, load, resume, save
from .loading import Restored
from .preemption import REQUEUE, Preemption

__all__ = [
    "REQUEUE", "CheckpointError", "CheckpointWarning", "Checkpoints", "DamagedCheckpoint", "Preemption", "Restored",
    "latest", "load", "resume", "save",
]  # fmt: skip
