"""Ranks that make 2,000 equal calls, and then go on with a difference, or with none, until they are told.

    late_differences.py MODE[/ALGORITHM[/TP]] KIND [KIND...]

TP divides the ranks into groups of that size, whose calls are those along the axis dp. A kind of `WRONG` must be told,
one of `LEGAL` must not. Over MPI a program has one wrong kind, as it ends the job.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from autograd.errors import ReplicaWarning
from collectives.checks.modes import check_mode
from collectives.checks.reports import print_report
from collectives.transports import host_transport

BEFORE, MOST_S = 1000, 9.0
STEPS = 1500  # of a legal program
Step = Callable[[int, bool, Any], object]  # of the number of the step, whether this rank is the odd one, and its values


class Values:
    """What a rank computes with: its rank, its own numbers and one number of all."""

    def __init__(self) -> None:
        self.rank, self.size = int(cc.world().rank), cc.world().size
        draw = np.random.default_rng(self.rank)
        self.x, self.y = draw.standard_normal((2, 5))
        self.r = ag.tensor(np.arange(1.0, 6.0), {"dp": cc.R})


def total(x: Any) -> Any:
    return cc.all_reduce(x, "dp")


# -- numbers -----------------------------------------------------------------------------------------------------------
def factor(n: int, odd: bool, v: Values) -> None:
    _ = v.r * (2.0 if odd else 1.0)
    total(v.x)


def divisor(n: int, odd: bool, v: Values) -> None:
    total(v.x)
    total(v.y)
    _ = v.r / (3 if odd else 4)


def array(n: int, odd: bool, v: Values) -> None:
    total(v.x)
    _ = v.r + ag.constant(np.arange(5.0) + odd)


def index(n: int, odd: bool, v: Values) -> None:
    _ = v.r[: 2 + odd]
    total(v.x)


def exponent(n: int, odd: bool, v: Values) -> None:
    for k in range(7):
        _ = v.r ** (2 + (odd and k == 4))
        total(v.x)


def count(n: int, odd: bool, v: Values) -> None:
    rows = n % 3 + odd
    cc.barrier("dp")
    _ = v.r * float(rows)
    total(v.x)


def on_a_tape(n: int, odd: bool, v: Values) -> None:
    w = v.w = ag.tensor(v.r.numpy(), {"dp": cc.I}, requires_grad=True) if n == 0 else v.w
    with ag.Tape() as tape:
        loss = cc.all_reduce((cc.cast(w, "dp", to=cc.R) * v.x).sum(), "dp", to=cc.I) * (1.5 if odd else 1.0)
    tape.backward(loss)


# -- order -------------------------------------------------------------------------------------------------------------
def two_sums(n: int, odd: bool, v: Values) -> None:
    def first() -> Any:
        return cc.all_reduce(v.x, "dp")

    def second() -> Any:
        return cc.all_reduce(v.y, "dp")

    for call in (second, first) if odd else (first, second):
        call()


def one_helper(n: int, odd: bool, v: Values) -> None:
    calls = [lambda: total(v.x),
             lambda: total(v.y)]  # fmt: skip
    for call in calls[::-1] if odd else calls:
        call()


def of_three(n: int, odd: bool, v: Values) -> None:
    calls = [lambda: cc.all_max(v.x, "dp"),
             lambda: cc.all_max(v.y, "dp"),
             lambda: cc.all_max(v.x + v.y, "dp")]  # fmt: skip
    for call in [calls[2], calls[1], calls[0]] if odd else calls:
        call()


def gathers(n: int, odd: bool, v: Values) -> None:
    calls = [lambda: cc.all_gather(v.x, "dp"),
             lambda: cc.barrier("dp"),
             lambda: cc.all_gather(v.y, "dp")]  # fmt: skip
    for call in calls[::-1] if odd else calls:
        call()


def broadcasts(n: int, odd: bool, v: Values) -> None:
    calls = [lambda: cc.broadcast(v.x, "dp", like=v.x),
             lambda: cc.broadcast(v.y, "dp", like=v.y)]  # fmt: skip
    for call in calls[::-1] if odd else calls:
        call()


def started(n: int, odd: bool, v: Values) -> None:
    calls = [lambda: cc.all_reduce_async(v.x, "dp"),
             lambda: cc.all_reduce_async(v.y, "dp")]  # fmt: skip
    for waiting in [call() for call in (calls[::-1] if odd else calls)]:
        waiting.numpy()


def casts(n: int, odd: bool, v: Values) -> None:
    w = ag.tensor(v.r.numpy(), {"dp": cc.I}, requires_grad=True)
    u = ag.tensor(v.r.numpy(), {"dp": cc.I}, requires_grad=True)
    with ag.Tape() as tape:
        calls = [lambda: cc.cast(w, "dp", to=cc.R),
                 lambda: cc.cast(u, "dp", to=cc.R)]  # fmt: skip
        made = [call() for call in (calls[::-1] if odd else calls)]
        loss = cc.all_reduce((made[0] * v.x + made[1] * v.y).sum(), "dp", to=cc.I)
    tape.backward(loss)


# -- calls -------------------------------------------------------------------------------------------------------------
def dtype(n: int, odd: bool, v: Values) -> None:
    total(v.x.astype(np.int64) if odd else v.x)


def root(n: int, odd: bool, v: Values) -> None:
    cc.broadcast(v.x, "dp", root=1 if odd else 0, like=v.x)


def extremum(n: int, odd: bool, v: Values) -> None:
    if odd:
        cc.all_max(v.x, "dp")
    else:
        cc.all_min(v.x, "dp")


def missing(n: int, odd: bool, v: Values) -> None:
    if not odd:
        total(v.x)
    cc.all_gather(v.x, "dp")


def length(n: int, odd: bool, v: Values) -> None:
    total(v.x[:3] if odd else v.x)


def other_start(n: int, odd: bool, v: Values) -> None:
    (cc.broadcast_async(v.x, "dp", like=v.x) if odd else cc.all_reduce_async(v.x, "dp")).numpy()


NUMBERS = [factor, divisor, array, index, exponent, count, on_a_tape]
ORDER = [two_sums, one_helper, of_three, gathers, broadcasts, started, casts]
CALLS = [dtype, root, extremum, missing, length, other_start]


# -- legal: lines and numbers that depend on the rank ------------------------------------------------------------------
def branches(n: int, odd: bool, v: Values) -> None:
    if v.rank == 0:
        cc.all_reduce(v.x, "dp")
    else:
        cc.all_reduce(v.y, "dp")


def in_turn(n: int, odd: bool, v: Values) -> None:
    if v.rank == n % v.size:
        cc.all_reduce(v.x, "dp")
    else:
        cc.all_reduce(0 * v.x, "dp")


def two_branches(n: int, odd: bool, v: Values) -> None:
    if v.rank == 0:
        cc.all_reduce(v.x, "dp")
        cc.all_reduce(v.y, "dp")
    else:
        cc.all_reduce(v.y, "dp")
        cc.all_reduce(v.x, "dp")


def ran_out(n: int, odd: bool, v: Values) -> None:
    """A rank without rows adds zeros; which one changes, and at times none has any."""
    if (n + 3 * v.rank) % 11 and n % 13:
        cc.all_reduce(v.x, "dp")
    else:
        cc.all_reduce(np.zeros(5), "dp")


def ran_out_late(n: int, odd: bool, v: Values) -> None:
    if n < BEFORE + 7 * v.rank:
        cc.all_reduce(v.x, "dp")
    else:
        cc.all_reduce(np.zeros(5), "dp")


def from_other_lines(n: int, odd: bool, v: Values) -> None:
    if v.rank % 2:
        total(v.x)
    else:
        total(v.y)


def roots(n: int, odd: bool, v: Values) -> None:
    for at in range(v.size):
        if v.rank == at:
            cc.broadcast(v.x, "dp", root=at, like=v.y)
        else:
            cc.broadcast(v.y, "dp", root=at, like=v.x)


def gathered(n: int, odd: bool, v: Values) -> None:
    if v.rank == 0:
        sum(np.sum(part) for part in [cc.gather(v.x, "dp").local])
    else:
        cc.gather(v.y, "dp")


def logs(n: int, odd: bool, v: Values) -> None:
    loss = cc.all_reduce(v.x, "dp")
    if v.rank == 0 and n % 10 == 0:
        f"{loss.numpy().sum():.3f} {float((v.r * 2.0).numpy()[0])}"


def some_numbers(n: int, odd: bool, v: Values) -> None:
    """One rank uses a number that the others leave out, and it changes."""
    total(v.x)
    if v.rank == n % v.size:
        _ = v.r * float(n)


def steps(n: int, odd: bool, v: Values) -> None:
    _ = v.r * (1.0 / (n + 1))
    total(v.x)


def pipeline(n: int, odd: bool, v: Values) -> None:
    if v.rank > 0:
        cc.recv("dp", v.rank - 1, like=ag.tensor(v.x))
    if v.rank + 1 < v.size:
        cc.send(ag.tensor(v.x), "dp", v.rank + 1)
    total(v.x)


def phases(n: int, odd: bool, v: Values) -> None:
    if n % 50 < 40:
        cc.all_reduce(v.x, "dp")
    else:
        cc.all_reduce(v.y, "dp")


def own_values(n: int, odd: bool, v: Values) -> None:
    _ = ag.tensor(v.x, {"dp": cc.V}) * float(v.rank)
    total(v.x)


def started_by_branch(n: int, odd: bool, v: Values) -> None:
    if v.rank:
        cc.all_reduce_async(v.x, "dp").numpy()
    else:
        cc.all_reduce_async(v.y, "dp").numpy()


def retried(n: int, odd: bool, v: Values) -> None:
    try:
        if (n + v.rank) % 3 == 0:
            raise OSError("a file of this rank")
        rows = v.x
    except OSError:
        rows = v.y
        total(rows)
    else:
        total(rows)


def by_table(n: int, odd: bool, v: Values) -> None:
    {0: lambda: total(v.x),
     1: lambda: total(v.y)}.get(v.rank, lambda: total(v.x + v.y))()  # fmt: skip


def loops(n: int, odd: bool, v: Values) -> None:
    for _ in range(v.rank % 2):
        total(v.x)
    for _ in range(1 - v.rank % 2):
        total(v.y)


def while_training(n: int, odd: bool, v: Values) -> None:
    w = v.w = ag.tensor(v.r.numpy(), {"dp": cc.I}, requires_grad=True) if n == 0 else v.w
    with ag.Tape() as tape:
        local = (cc.cast(w, "dp", to=cc.R) * v.x).sum()
        loss = cc.all_reduce(local if v.rank else local * 1.0, "dp", to=cc.I)
    tape.backward(loss)
    w.grad = None


def reported(n: int, odd: bool, v: Values) -> None:
    if v.rank == 0:
        total(v.y)
    else:
        total(v.x)
    cc.barrier("dp")


LEGAL = [branches, in_turn, two_branches, ran_out, ran_out_late, from_other_lines, roots, gathered, logs, some_numbers,
         steps, pipeline, phases, own_values, started_by_branch, retried, by_table, loops,
         while_training, reported]  # fmt: skip
WRONG = {step.__name__: step for step in (*NUMBERS, *ORDER, *CALLS)}
KINDS = {**WRONG, **{step.__name__: step for step in LEGAL}}


def main(kind: str, algorithm: str = "native", tp: int = 1, steps: int = 0) -> str:
    """Run a kind on this rank, and return when it was not told.

    A legal kind goes on for `STEPS` steps, a wrong one for some seconds or for `steps` steps.
    """
    step, is_wrong = KINDS[kind], kind in WRONG
    with cc.Mesh(**({"tp": tp} if tp > 1 else {}), dp=-1, algorithm=algorithm):
        values = Values()
        for n in range(BEFORE):
            step(n, False, values)
            total(values.x)
        if values.rank == 0:
            sys.stdout.write(f"AT {time.time()}\n")
            sys.stdout.flush()
        odd = is_wrong and values.rank == values.size - 1
        until, n = time.monotonic() + MOST_S, BEFORE
        is_timed = is_wrong and not steps
        goes_on = _all_go_on if check_mode() == "off" else bool
        while n < BEFORE + (10 if is_timed else steps or STEPS) or (is_timed and goes_on(time.monotonic() < until)):
            step(n, odd, values)
            total(values.x)
            n += 1
    return "NOT TOLD"


def _all_go_on(mine: bool) -> bool:
    """In mode ``off`` a program goes on after a report, so its ranks must end together. No watched call decides it."""
    from mpi4py import MPI  # here: it initializes MPI, which the tests on threads do without

    return bool(MPI.COMM_WORLD.allreduce(int(mine), MPI.MIN))


def _report(text: str) -> None:
    print_report(text)
    sys.stdout.write(f"REPORTED {time.time()}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    warnings.simplefilter("ignore", ReplicaWarning)
    mode, *how = sys.argv[1].split("/")
    host_transport.print_report = _report
    cc.check(mode, sites=mode != "ranks" or sys.argv[2] in WRONG)
    for name in sys.argv[2:]:
        sys.stdout.write(f"{main(name, *how[:1], *map(int, how[1:]))} {name}\n")
        sys.stdout.flush()
