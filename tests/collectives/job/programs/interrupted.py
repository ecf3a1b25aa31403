"""Three ranks that train, compute or wait until they are interrupted: interrupted.py train|compute|recv"""

from __future__ import annotations

import sys
import warnings

import numpy as np

import autograd as ag
import collectives as cc
from autograd.errors import ReplicaWarning


def main(what: str) -> None:
    with cc.Mesh(dp=-1):
        w = ag.Parameter(np.ones(64))
        print(f"READY <{cc.world().rank}>", flush=True)
        if what == "recv" and cc.world().rank > 0:
            cc.recv("dp", 0)
        while True:
            with ag.Tape() as tape:
                h = ag.tensor(np.ones((8, 64))) * cc.cast(w, "dp", to=cc.R)
                loss = (h * h).sum()
                if what == "train":
                    loss = cc.all_reduce(loss, "dp", to=cc.I)
            if what == "train":
                tape.backward(loss)
                w.grad = None


warnings.simplefilter("ignore", ReplicaWarning)  # the rows are equal on purpose
main(sys.argv[1])
