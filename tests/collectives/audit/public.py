"""Wrong gradients that users of public projects have reported: what the audit must say of each, and of its right form.

python -m tests.collectives.audit.public DIR --python-torch PATH [--only NAME ...]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from collectives.audit import Judge, Report, read_map, read_steps

from .planted import Bench

JOBS = Path(__file__).with_name("public_jobs.py")
MAPS = {
    "local_of_replicated": "up.weight = 0\ndown.weight = 1",
    "replicas_in_norm": "up.weight = 0\ndown.weight = 1",
    "fused_cut_evenly": "qkv.weight = 0, parts = 3\nout.weight = 1",
    "experts_divided": "experts = 0",
    "slice_of_gathered": "experts = 0",
}
"""The dimension by which a parameter is cut."""


class Public(NamedTuple):
    """A report.

    Attributes
    ----------
    name : str
        Of the job.
    source : str
        The project, and the number of the thread.
    cause, text : str
        What the audit must say first, and words of it.
    """

    name: str
    source: str
    cause: str
    text: str


TABLE = (
    Public("norm_on_parts", "NVIDIA/Megatron-LM#1446", "missing sum", "layer.bias, layer.weight"),
    Public("router_on_parts", "NVIDIA/Megatron-LM#619", "missing sum", "layer.router.weight"),
    Public("local_of_replicated", "pytorch/torchtitan#1805", "missing sum", "first.bias, first.weight"),
    Public("replicas_in_norm", "NVIDIA-NeMo/RL#3788", "norm", "replicated parameters are counted 2 times"),
    Public("fused_cut_evenly", "hpcaitech/ColossalAI#817", "parameter", "qkv.weight right values at another place"),
    Public("loss_on_each_rank", "jax-ml/jax#3970", "factor", "2 times right: the 2 ranks of 'ranks'"),
    Public("features_of_all_ranks", "mlfoundations/open_clip#616", "factor", "2 times right: the 2 ranks of 'ranks'"),
    Public("mean_of_means", "huggingface/transformers#34242", "weights", "a mean of the parts' means"),
    Public("clip_before_sum", "horovod/horovod#1346", "weights", "as by clipping before the sum"),
    Public("moving_average", "pytorch/torchtitan#1733", "weights", "the microbatches have other weights"),
    Public("seeds", "pytorch/torchtitan#166", "parameter", "differs between ranks 0 and 1 before the step"),
    Public("used_on_one_rank", "pytorch/pytorch#28883", "missing", "no gradient on rank 1"),
    Public("sum_of_a_copy", "pytorch/pytorch#120386", "missing sum", "0.weight"),
    Public("context_factor_twice", "NVIDIA/Megatron-LM#906", "factor", "2 times right: the 2 ranks of 'ranks'"),
    Public("experts_divided", "pytorch/pytorch#160285", "factor", "0.5 times right: 1 / the 2 ranks of 'ranks'"),
    Public("slice_of_gathered", "NVIDIA-NeMo/Automodel#1260", "unknown", "first.bias"),
)
"""The last one leaves no formula: a part of each gradient is lost on the way back."""


def reports(bench: Bench, name: str) -> tuple[Report, Report]:
    """Of the right form of a job, and of the reported one."""
    reference, moved = (read_steps(bench.collect(f"{kind} {name}", 1, [name], float64=True, **options))
                        for kind, options in (("ref", {}), ("ulp", {"ulp": 1})))  # fmt: skip
    parts = []
    if next(each.cause for each in TABLE if each.name == name) == "weights":
        parts = [read_steps(bench.collect(f"part{k} {name}", 1, [name], float64=True, data=[k, 2])) for k in range(2)]
    cuts = {}
    if name in MAPS:
        lines = (line.partition(" = ") for line in MAPS[name].splitlines())
        path = bench.folder / f"{name}.toml"
        path.write_text("".join(f'"{key}" = {{axis = "ranks", dim = {dim}}}\n' for key, _, dim in lines))
        cuts = read_map(path, {"ranks": 2})
    jobs = (read_steps(bench.collect(f"{kind} {name}", 2, [name], fault, float64=True))
            for kind, fault in (("right", ""), ("wrong", "1")))  # fmt: skip
    right, wrong = (Judge(job, reference, [moved], parts, None, cuts).report() for job in jobs)
    return right, wrong


def told(each: Public, right: Report, wrong: Report) -> str:
    """How the reports are: "named", "another cause", "missed", "false alarm"."""
    if right.status or not wrong.status:
        return "false alarm" if right.status else "missed"
    return "named" if wrong.findings[0][0].cause == each.cause and each.text in str(wrong) else "another cause"


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python-torch", required=True)
    parser.add_argument("--only", nargs="*", help="names")
    args = parser.parse_args()
    bench = Bench(args.folder, args.python_torch, JOBS)
    counts: dict[str, int] = {}
    for each in TABLE:
        if args.only and each.name not in args.only:
            continue
        try:
            right, wrong = reports(bench, each.name)
            how, lines = told(each, right, wrong), str(right if right.status else wrong)
        except Exception as error:  # it is one row of many
            how, lines = "failed", str(error)[-1500:]
        counts[how] = counts.get(how, 0) + 1
        print(f"{how:14}{each.name} ({each.source})\n{lines}", flush=True)
    print(counts)


if __name__ == "__main__":
    main()
