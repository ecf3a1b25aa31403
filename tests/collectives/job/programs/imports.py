"""What importing the package does to a rank's process. Nothing fails.

imports.py guarded | alone
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def state() -> dict[str, object]:
    return {
        "excepthook": sys.excepthook,
        "thread excepthook": threading.excepthook,
        "environment": dict(os.environ),
        "open files": sorted(os.listdir("/proc/self/fd")),
        "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
        "handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "timer": signal.getitimer(signal.ITIMER_REAL),
        "threads": threading.active_count(),
        "folder": os.getcwd(),
    }


import numpy as np  # noqa: E402 - what the next imports add is shown

before = state()
import autograd as ag  # noqa: E402 - between the two states
import collectives as cc  # noqa: E402 - between the two states

after = state()
changed = {name for name in before if before[name] != after[name]}
if sys.argv[1] == "alone":
    assert changed == {"excepthook"}, changed
    assert sys.excepthook is ag.errors.show_error  # which only prints
    assert cc.world().all_reduce(np.ones(1))[0] == 2
    os.write(1, b"ALONE\n")
else:
    assert {"excepthook", "thread excepthook", "environment"} <= changed, changed
    assert changed <= {"excepthook", "thread excepthook", "environment", "open files", "children"}, changed
    assert {name for name in os.environ if before["environment"].get(name) != os.environ[name]} == {"RINGTAPE_RANK_PID"}
    cc.world().barrier()
    os.write(1, b"GUARDED\n")
