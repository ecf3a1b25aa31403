"""Faults planted in jobs of PyTorch, what the audit must say of each, and jobs without fault, of which it says nothing.

python -m tests.collectives.audit.planted DIR --python-torch PATH [--only NAME ...]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from collectives.audit import Judge, Mesh, Report, read_map, read_steps

ROOT = Path(__file__).resolve().parents[3]
JOB = Path(__file__).with_name("job.py")
COLLECTOR = ROOT / "collectives" / "audit" / "hook" / "sitecustomize.py"
TP_MAP = """
"attention.qkv.weight" = {axis = "tp", dim = 0, parts = 3}
"attention.out.weight" = {axis = "tp", dim = 1}
"up.*" = {axis = "tp", dim = 0}
"down.weight" = {axis = "tp", dim = 1}
"""
EP_MAP = """
"experts.up" = {axis = "ep", dim = 0}
"experts.down" = {axis = "ep", dim = 0}
"""
MESHES: dict[str, dict[str, int] | None] = {
    "dp": {"dp": 2}, "ddp": {"dp": 2}, "fsdp": None, "tp": {"tp": 2}, "sp": {"tp": 2}, "dtensor": None, "cp": {"cp": 2},
    "ep": {"ep": 2}, "dp_tp": {"dp": 2, "tp": 2},
}  # fmt: skip


FAULTS = """
dp      missing sum   no_sum  one_missing  bias_missing  no_sum_later
dp      one part      rank_0_only  rank_0_all  zero_on_rank_1
dp      factor        divided  times  twice  world_loss  loss_scale  minus_one  sign  rank_1_scaled
dp      weights       mean_of_means  sum_of_means  clip_first  clip_first_by_hand
dp      stale         stale  stale_all
dp      not cleared   not_cleared
dp      update        left_out  rate_of_rank_1
dp      steps         skipped
dp      parameter     seeds
dp      missing       no_grad_on_rank_1
dp      missing sum   no_sum(float32)  no_sum(bfloat16,float32)
dp      factor        times(float32)  divided(adam,clip)  world_loss(hand)  divided(bfloat16,float32)
dp      factor        divided_twice(accumulate)
dp      weights       mean_of_means(float32)  mean_of_batches(accumulate)
dp      one part      last_batch_only(accumulate)
dp      stale         stale(adam)
dp      norm          norm_before_sum(hand)  norm_twice(hand)
ddp     factor        no_world  divided  no_world(adam,clip,float32)
ddp     weights       mean_of_means
ddp     missing sum   no_sync  no_sync_later  late_parameter
fsdp    factor        divide_factor  no_world
fsdp    weights       mean_of_means
fsdp    missing sum   ignored_parameter
fsdp    norm          norm_local(hand)  max_local(hand,max)
tp      missing sum   tp_no_copy_sum  tp_no_copy_sum(float32)
tp      factor        tp_reduce_twice
tp      forward       tp_other_data
tp      unknown       tp_bias_each
tp      parameter     tp_fused_even  tp_order
tp      norm          norm_twice(hand)  norm_local(hand)  norm_of_shards(hand)
sp      missing sum   sp_norm_not_summed
sp      factor        sp_gather_sums
dtensor factor        dtensor_twice
dp_tp   missing sum   shards_missing  no_sum
dp_tp   factor        world_sum
dp_tp   unknown       wrong_group
dp_tp   weights       mean_of_means
cp      unknown       cp_no_sum_of_keys  mean_of_means
cp      missing sum   no_sum
ep      unknown       ep_experts_summed
ep      factor        ep_divided
ep      missing sum   ep_gate_not_summed
"""
"""How the job is divided, the cause that must be named first, and the faults, with options of the job. Where it is
"unknown", the fault is one of forward or lies in a layer's way back, and leaves no formula. The jobs run in float64,
unless float32 is an option."""
RIGHT = """
dp ddp fsdp tp sp cp ep dtensor dp_tp
dp(float32) ddp(float32) tp(float32) fsdp(float32)
dp(dropout) dp(tied) dp(frozen) dp(accumulate) dp(adam,clip) dp(hand) tp(hand) fsdp(hand)
ddp(adam,clip,float32) ddp(tied,float32) dp(bfloat16,float32) ddp(bfloat16,adam,float32)
"""
"""Jobs without fault."""


class Planted(NamedTuple):
    """A job: its fault, and the cause that the audit must name first; "" if the job is right."""

    how: str
    cause: str
    fault: str
    options: tuple[str, ...]

    @property
    def name(self) -> str:
        return " ".join((self.how, self.fault or "right", *self.options))


def _table() -> Iterator[Planted]:
    for line in FAULTS.strip().splitlines():
        for fault, options in re.findall(r"(\w+)(?:\((\S+)\))?", line[22:]):
            yield Planted(line[:8].strip(), line[8:22].strip(), fault, tuple(filter(None, options.split(","))))
    for how, options in re.findall(r"(\w+)(?:\((\S+)\))?", RIGHT):
        yield Planted(how, "", "", tuple(filter(None, options.split(","))))


TABLE = tuple(_table())


class Bench:
    """Runs jobs in a folder; a run that several need is made once."""

    def __init__(self, folder: Path, python: str, program: Path = JOB):
        self.folder, self.program = folder, program
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tp.toml").write_text(TP_MAP)
        (folder / "ep.toml").write_text(EP_MAP)
        self.made: dict[str, Path] = {}
        self.log = (folder / "log").open("w")
        zygote = Path(__file__).with_name("zygote.py")
        self.zygote = subprocess.Popen([python, str(zygote)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                       stderr=self.log, env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip

    def collect(self, name: str, ranks: int, arguments: list[str], fault: str = "", **options: object) -> Path:
        """The folder of a run of the program."""
        name = name.replace(" ", "_").replace("--", "")
        if name in self.made:
            return self.made[name]
        out = self.folder / name
        for old in out.glob("rank-*/step-*.npz"):
            old.unlink()
        environment = {"FAULT": fault, "RINGTAPE_AUDIT": json.dumps({"out": str(out), "steps": 3, **options})}
        request = {"ranks": ranks, "environment": environment, "program": str(self.program), "arguments": arguments,
                   "collector": str(COLLECTOR)}  # fmt: skip
        assert self.zygote.stdin is not None and self.zygote.stdout is not None
        print(json.dumps(request), file=self.zygote.stdin, flush=True)
        statuses = self.zygote.stdout.readline()
        if not (out / "rank-0" / "step-0.npz").exists():
            raise RuntimeError(f"{name}: no step was collected, statuses {statuses}; see {self.log.name}")
        self.made[name] = out
        return out

    def close(self) -> None:
        """End the process that starts ranks."""
        assert self.zygote.stdin is not None
        self.zygote.stdin.close()
        self.zygote.wait()
        self.log.close()

    def judge(self, job: Planted) -> Report:
        """The report of a job."""
        key = " ".join((job.how, *job.options))
        options: dict[str, object] = {} if "float32" in job.options else {"float64": True}
        arguments, of_rows = [job.how, *job.options], ["dp", *job.options]
        reference = read_steps(self.collect(f"ref {key}", 1, arguments, **options))
        moved = [read_steps(self.collect(f"ulp{seed} {key}", 1, arguments, ulp=seed, **options)) for seed in (1, 2)]
        parts = []
        if job.how in ("dp", "ddp", "fsdp", "dp_tp"):
            parts = [read_steps(self.collect(f"part{k} {key}", 1, of_rows, data=[k, 2], **options)) for k in range(2)]
        ranks = 4 if job.how == "dp_tp" else 2
        found = read_steps(self.collect(f"job {job.name}", ranks, arguments, job.fault, **options))
        mesh = Mesh.of(found[0], MESHES[job.how]).sizes
        cuts = {}
        if job.how in ("tp", "sp", "dp_tp", "ep"):
            cuts = read_map(self.folder / ("ep.toml" if job.how == "ep" else "tp.toml"), mesh)
        return Judge(found, reference, moved, parts, MESHES[job.how], cuts).report()


def verdict(job: Planted, report: Report) -> str:
    """How a report is: "right" of a job without fault, "named", "another cause", "missed", "false alarm"."""
    if not job.cause:
        return "false alarm" if report.status else "right"
    if not report.status:
        return "missed"
    return "named" if report.findings[0][0].cause == job.cause else "another cause"


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python-torch", required=True)
    parser.add_argument("--only", nargs="*", help="parts of names")
    args = parser.parse_args()
    bench = Bench(args.folder, args.python_torch)
    table = [job for job in TABLE if not args.only or any(part in job.name for part in args.only)]

    def one(job: Planted) -> tuple[str, str]:
        try:
            report = bench.judge(job)
        except Exception as error:  # it is one row of many
            return "failed", str(error)[-1500:]
        told = "; ".join(f"{finding.cause} ({len(names)}): {finding.text}" for finding, names in report.findings)
        return verdict(job, report), f"[step {report.step}] {told}"

    counts: dict[str, int] = {}
    for job in table:
        how, told = one(job)
        counts[how] = counts.get(how, 0) + 1
        print(f"{how:14}{job.name}: {told}", flush=True)
    print(counts)


if __name__ == "__main__":
    main()
