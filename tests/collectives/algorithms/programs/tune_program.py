"""Run ``tune`` on real processes, or print the choices of rank 0.

    tune_program.py tune|choose PATH
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

import collectives as cc
from collectives.__main__ import main

if sys.argv[1] == "tune":
    main(["tune", "--to", sys.argv[2]])
else:
    axis = cc.Mesh(dp=-1, algorithm=f"auto:{sys.argv[2]}").axis("dp")
    chosen = [axis.choice(1 << k) for k in range(28)]
    assert len(set(cc.world().exchange(repr(chosen).encode()))) == 1
    if axis.rank == 0:
        print(json.dumps(chosen))
