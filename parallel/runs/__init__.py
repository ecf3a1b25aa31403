"""Records of training runs: a log as JSON lines, its reader and plot, and a progress display. Rank 0 writes them.

`values` makes numbers of what a program records. It refuses values that are those of one rank only. `environment` tells
the libraries, kernels and threads on which the bits of a run depend.
"""

from __future__ import annotations

from autograd.machine import environment_of_bits

from .log import RunLog, plot_log, read_log
from .progress import Progress
from .sinks import CSVSink, TensorBoardSink

__all__ = ["CSVSink", "Progress", "RunLog", "TensorBoardSink", "environment_of_bits", "plot_log", "read_log"]
