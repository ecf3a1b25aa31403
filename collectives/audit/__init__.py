"""An audit of distributed gradients of any library: collect what the optimizer steps are given, and judge it by values.

============  ====================================================================================
`collector`   is loaded into a program of PyTorch, and keeps gradients, parameters and updates
`hook`        loads it; the start of a run that differs by design, and a process group with the rows of one rank
`files`       the files of both, and the places of the pieces of parameters
`page`        an HTML page of a report
`judge`       the verdict: what is wrong, where, and how to mend it
============  ====================================================================================

``python -m collectives audit`` is the command; see the guide of audits.
"""

from .files import Cut, read_map, read_steps, write
from .judge import Judge
from .mesh import Mesh
from .page import page
from .report import Finding, Report, Verdict

__all__ = ["Cut", "Finding", "Judge", "Mesh", "Report", "Verdict", "page", "read_map", "read_steps", "write"]
