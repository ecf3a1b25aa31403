"""`python -m collectives check` with a planted fault: the arguments are what is planted, and those of `check`."""

from __future__ import annotations

import sys
import threading
from typing import Any

import collectives as cc
from collectives.__main__ import main
from collectives.declaration.collective import collectives
from collectives.testing.proof import mutated


def hang(x: Any, call: Any) -> Any:
    if cc.world().rank == 1:
        threading.Event().wait()
    return forward(x, call)


forward = collectives["permute"]._forward
planted = {
    "nothing": {},
    "wrong adjoint": {"adjoint": lambda ct, call: ct},  # the cotangents stay where they are
    "hang": {"forward": hang},
}[sys.argv[1]]
with mutated("permute", **planted):
    status = main(["check", *sys.argv[2:]])
sys.exit(status)
