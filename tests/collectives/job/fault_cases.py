"""Seeded faults of a rank: what goes wrong, where in a training step, in which company, on which rank and MPI library.

Run many of them with a line of progress each:

    python -m tests.collectives.job.fault_cases [FIRST [LAST]]      by default all 150
"""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from ..launch import VARIABLE, Outcome, launch
from .endings import LEFT, SEGMENTATION_FAULT, SIGKILL, ended_by

FAULTS = {
    "raise": "raised RuntimeError: planted",
    "exit": "exited early",
    "_exit": ended_by(LEFT),
    "kill": ended_by(SIGKILL),
    "segv": ended_by(SEGMENTATION_FAULT),
    "memory": "raised .*MemoryError: ",
    "limit": "raised .*MemoryError",
    "stop": "does not reply",
    "loop": "computes at .*faults.py:",
}
"""The faults, and what the report says of the rank."""
TIMED = ("stop", "loop")  # they end by the time limit that is set
PLACES = ("forward", "backward", "nonblocking", "optimizer", "window", "recompute")
COMPANY = ("none", "child", "pool")
COUNT = 150

TIMEOUT_S = 4  # RINGTAPE_TIMEOUT_S
END_S = 20.0  # from the fault to the end of the job, on a busy machine
START_S = 60.0


class Fault(NamedTuple):
    """One fault of one rank."""

    seed: int
    fault: str
    place: str
    company: str
    rank: int
    on: str

    def __str__(self) -> str:
        return f"{self.seed}: {self.fault} in {self.place}, {self.company}, rank {self.rank}, {self.on}"


def drawn() -> list[Fault]:
    """All faults, in the order of their seeds: every fault in every place, nearly always in every company."""
    every = list(itertools.product(FAULTS, PLACES, COMPANY))
    shuffle = random.Random(12)
    shuffle.shuffle(every)
    libraries = ["here", "openmpi"] * (COUNT // 2)
    shuffle.shuffle(libraries)
    return [
        Fault(seed, *what, shuffle.randrange(3), on)
        for seed, (what, on) in enumerate(zip(every[:COUNT], libraries, strict=True))
    ]


def some(count: int) -> list[Fault]:
    """A few faults that together have every fault, place and company, on the library of this interpreter."""
    left, chosen = drawn(), list[Fault]()
    while len(chosen) < count:
        used = [(f.fault, f.place, f.company) for f in chosen]
        best = min(left, key=lambda f: tuple(sum(u[k] == f[k + 1] for u in used) for k in range(3)))
        left.remove(best)
        chosen.append(best._replace(on="here"))
    return chosen


def run(fault: Fault) -> tuple[Outcome, list[str]]:
    """Run the program with this fault, and list what is wrong with the way in which the job ended."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="ringtape-fault-") as folder:
        timeout = {"RINGTAPE_TIMEOUT_S": str(TIMEOUT_S)} if fault.fault in TIMED else {}
        outcome = launch(
            "faults.py", 3, fault.fault, fault.place, fault.company, str(fault.rank), folder, limit_s=START_S,
            on=fault.on, forked=False, RINGTAPE_MARK=mark, **timeout,
        )  # fmt: skip
        ended = time.time()
        children = {int(path.stem) for path in Path(folder).glob("*.child")}
        problems = judged(fault, outcome, ended)
        left = left_processes(mark, children)
        if left:
            problems.append(f"processes are left: {left}")
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
    return outcome, problems


def judged(fault: Fault, outcome: Outcome, ended: float) -> list[str]:
    """What is wrong with the end of a job."""
    problems = []
    if outcome.is_late:
        problems.append(f"the job hung for {START_S} s")
    if outcome.code == 0:
        problems.append("the exit code is 0")
    if "WENT ON" in outcome.out:
        problems.append("a rank went on")
    begun = re.search(r"FAULT <([\d.]+)>", outcome.out)
    if begun is None:
        problems.append("the fault did not happen")
    elif ended - float(begun[1]) > END_S + (TIMEOUT_S if fault.fault in TIMED else 0):
        problems.append(f"the job ended after {ended - float(begun[1]):.1f} s")
    text = FAULTS[fault.fault]
    line = rf"rank {fault.rank} {text}" if fault.fault in TIMED else rf"ringtape: .*rank {fault.rank} of 3.* {text}"
    if not re.search(line, outcome.err):
        problems.append(f"the report does not say: {line}")
    others = [str(rank) for rank in range(3) if rank != fault.rank]
    if re.search(
        rf"^ringtape: .*rank [{''.join(others)}] of 3 (raised|exited|was killed|left by)", outcome.err, re.MULTILINE
    ):
        # an error that repeats what happened to the culprit is no blame
        if fault.fault not in TIMED:
            problems.append("another rank was blamed")
    return problems


def left_processes(mark: str, children: set[int], patience_s: float = 5.0) -> list[str]:
    """Processes of the job that are still there after a moment, except for the children that the program left."""
    until = time.monotonic() + patience_s
    while True:
        left = [pid for pid in marked(mark) if pid not in children]
        if not left or time.monotonic() > until:
            return [f"{pid} {_command(pid)}" for pid in left]
        time.sleep(0.1)


def marked(mark: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            is_marked = mark.encode() in path.read_bytes()
            is_dead = (path.parent / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            continue
        if is_marked and not is_dead:
            found.append(int(path.parent.name))
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:150]
    except OSError:
        return ""


def main(first: int = 0, last: int = COUNT - 1) -> int:
    faults = [fault for fault in drawn() if first <= fault.seed <= last]
    wrong = 0
    begun = time.monotonic()
    for number, fault in enumerate(faults, 1):
        outcome, problems = run(fault)
        wrong += bool(problems)
        passed = time.monotonic() - begun
        print(f"[{number}/{len(faults)}, {passed:.0f} s] {fault}: {'; '.join(problems) or 'as promised'}", flush=True)
        if problems:
            print("\n".join(f"    {line}" for line in f"{outcome.out}\n{outcome.err}".splitlines()[-60:]), flush=True)
    print(f"{len(faults) - wrong} of {len(faults)} ended as promised")
    return int(wrong > 0)


if __name__ == "__main__":
    if VARIABLE not in os.environ:
        sys.exit(f"needed: {VARIABLE}=/path/of/a/python with Open MPI")
    sys.exit(main(*map(int, sys.argv[1:])))
