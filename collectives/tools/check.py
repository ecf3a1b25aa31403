"""``python -m collectives check``: runs the registry's dot-product tests on the ranks of this job.

Under ``mpiexec -n 16`` it tests every collective on those 16 processes, over the network and the MPI library that they
use. Without mpiexec it runs on one rank, or on threads with ``--threads``. All ranks run it and exit with the same
status.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from autograd.records.plain import packed, unpacked

from ..checks import modes
from ..mesh import Mesh
from ..testing.proof import Case, Failure, Observed, Plan, Setting, Skip, judge, observe, prepare
from ..testing.registry_cases import work_and_skips
from ..transports.protocol import Communicator
from ..world import World, run, world

__all__ = ["SUMMARY", "add_arguments", "main"]

SUMMARY = "Prove every collective and its adjoint on the ranks of this job."
BATCH = 24  # cases between two exchanges of the ranks' observations
SHOWN = 20  # the largest number of failures that are printed

Work = list[tuple[Case, Setting]]
_KINDS = (Observed, Failure)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `check`."""
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="one case of each collective and pair of layouts")
    size.add_argument("--full", action="store_true", help="second derivatives, too, in many more cases")
    parser.add_argument("--threads", type=int, metavar="N", help="run on N threads of this process (not under mpiexec)")
    text = "end the job, and report what each rank does, if a rank waits longer than this (default 60)"
    parser.add_argument("--limit-s", type=float, default=60.0, metavar="S", help=text)


def main(args: argparse.Namespace) -> int:
    """Run on the current world. Returns 0 if all cases passed, 1 if not, and 2 for invalid options."""
    if args.limit_s <= 0 or (args.threads is not None and args.threads < 1):
        print(f"check: --limit-s {args.limit_s:g} and --threads {args.threads} must be positive", file=sys.stderr)
        return 2
    if args.threads is not None and world().size > 1:
        print(f"check: --threads is for one process; mpiexec has started {world().size}", file=sys.stderr)
        return 2
    with modes.waiting_limited(args.limit_s, "--limit-s"):
        return _check(args) if args.threads is None else max(run(_check, args.threads, args))


def _check(args: argparse.Namespace) -> int:
    ranks = world()
    work, skips = work_and_skips(ranks.size, processes=not args.full)
    if args.quick:
        work = list(_quick(work))
    start = time.monotonic()
    is_first = ranks.rank == 0
    if is_first:
        print(f"check: {len(work)} cases on {_described(ranks)}", flush=True)
    else:
        _described(ranks)
    ran: Counter[str] = Counter()
    failures: list[tuple[str, Failure]] = []
    progress = _Progress(len(work)) if is_first else None
    for found in _batches(work):
        for case, failed in found:
            name = "/".join(case.covers)
            ran[name] += 1
            failures += [(name, failure) for failure in failed]
        if progress is not None:
            progress.show(sum(ran.values()), len({failure.case for _, failure in failures}))
    if is_first:
        _report(ran, failures, skips, ranks.size, time.monotonic() - start)
    return int(bool(failures))


def _quick(work: Work) -> Iterator[tuple[Case, Setting]]:
    """The first case of each collective and pair of layouts in each setting, with first derivatives only."""
    seen = set()
    for case, setting in work:
        pair = str(setting), case.covers, str(case.takes).split("(")[0], str(case.gives).split("(")[0]
        if pair not in seen:
            seen.add(pair)
            yield replace(case, order=1), setting


def _batches(work: Work) -> Iterator[list[tuple[Case, list[Failure]]]]:
    """Run cases on all ranks, and yield the failures of each, the same on every rank. Rank 0 compares."""
    here, ranks = World.current(), world()
    meshes: dict[tuple[tuple[str, int], ...], Mesh] = {}
    for at in range(0, len(work), BATCH):
        plans: list[Plan] = []
        mine: list[Observed] = []
        for number, (case, setting) in enumerate(work[at : at + BATCH], at + 1):
            here.set_task(f"case {number}: {case.name} {setting}")
            key = tuple(setting.sizes.items())
            if key not in meshes:
                meshes[key] = Mesh(**setting.sizes)
            plans.append(prepare(case, setting))
            with meshes[key]:
                mine.append(observe(case, setting, plans[-1], meshes[key]))
        seen = [unpacked(data, _KINDS) for data in ranks.exchange(packed(mine, _KINDS))]
        verdicts: list[list[Failure]] = []
        if ranks.rank == 0:
            for k, ((case, setting), plan) in enumerate(zip(work[at : at + BATCH], plans, strict=True)):
                verdicts.append(judge(case, setting, plan, [of_rank[k] for of_rank in seen]))
        verdicts = unpacked(ranks.exchange(packed(verdicts, _KINDS))[0], _KINDS)
        yield [(case, failed) for (case, _), failed in zip(work[at : at + BATCH], verdicts, strict=True)]


def _described(ranks: Communicator) -> str:
    """Describe the world. All ranks call it."""
    names = [name.decode() for name in ranks.exchange(socket.gethostname().encode())]
    on_host = Counter(names[lowest] for lowest in ranks.hosts)
    if ranks.size == 1:
        return "one rank (more with mpiexec -n N, or --threads N)"
    if "Mpi" not in type(ranks).__name__:
        return f"{ranks.size} threads"
    from mpi4py import MPI

    name, version = MPI.get_vendor()
    spread = ", ".join(f"{count} on {host}" for host, count in on_host.items())
    return f"{ranks.size} ranks ({spread}) over {name} {'.'.join(map(str, version))}"


class _Progress:
    """Shows progress: on a terminal in one line that is overwritten, elsewhere in ten lines."""

    def __init__(self, total: int):
        self._total = total
        self._tenth = 0
        self._is_terminal = sys.stderr.isatty()

    def show(self, done: int, failed: int) -> None:
        text = f"{done} of {self._total} cases" + (f", {failed} failed" if failed else "")
        if self._is_terminal:
            print(f"\r{text}\033[K", end="\n" if done == self._total else "", file=sys.stderr, flush=True)
        elif done * 10 // max(self._total, 1) > self._tenth:
            self._tenth = done * 10 // self._total
            print(text, file=sys.stderr, flush=True)


def _report(
    ran: Counter[str], failures: list[tuple[str, Failure]], skips: list[Skip], ranks: int, lasted_s: float
) -> None:
    failed: dict[str, set[str]] = {}
    kinds: dict[str, Counter[str]] = {}
    for name, failure in failures:
        failed.setdefault(name, set()).add(failure.case)
        kinds.setdefault(name, Counter())[failure.check] += 1
    width = max(map(len, ran), default=10)
    print(f"{'collective':{width}}  cases  failed")
    for name in sorted(ran):
        what = ", ".join(kinds.get(name, ()))
        print(f"{name:{width}}  {ran[name]:5}  {len(failed.get(name, ())):6}" + (f"  {what}" if what else ""))
    for _, failure in failures[:SHOWN]:
        print(f"FAILED {failure.case}: {failure.check}: {failure.detail}")
    if len(failures) > SHOWN:
        print(f"and {len(failures) - SHOWN} further failures")
    for reason, times in Counter(skip.reason for skip in skips).items():
        print(f"skipped {times}: {reason}")
    count = sum(map(len, failed.values()))
    verdict = f"{count} FAILED" if count else "all passed"
    print(f"check: {sum(ran.values())} cases on {ranks} rank{'s' * (ranks > 1)} in {lasted_s:.1f} s: {verdict}",
          flush=True)  # fmt: skip
