"""Training steps of a GPT, beside the same model in PyTorch, in one run.

    python benchmarks/train_gpt.py --python-torch /path/to/an/environment/with/torch/bin/python
    python benchmarks/train_gpt.py --only tensor --rounds 9 --python-torch ... --json

one     tokens per second in one process, beside PyTorch's eager mode
tensor  the same with the layers divided over 2 ranks of this host (tp=2), beside DTensor's tensor parallelism over gloo

Both libraries run the model of `examples/gpt.py` in float32 with the same weights and batches (4 layers of width 256, 8
rows of 128 tokens), AdamW, and one thread and one core a rank; the losses of the first steps are compared. The worlds
take turns. A ratio is our tokens per second over the peer's: the median over the rounds, and `best`, that of the
shortest rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from data_parallel import World, agree, interleaved
from data_parallel_case import CASES, RotaryGPT

STEPS = 3


def measure(name: str, ranks: int, args: argparse.Namespace) -> dict[str, float]:
    """One figure, in tokens per second."""
    case = CASES["train_gpt"]
    assert isinstance(case, RotaryGPT)
    tokens = case.batch * case.context
    with ExitStack() as stack:
        worlds = [stack.enter_context(World("ringtape", sys.executable, "train_gpt", ranks, cores="0,1",
                                            program="train_gpt"))]  # fmt: skip
        if args.python_torch:
            worlds.append(stack.enter_context(World("torch", args.python_torch, "train_gpt", ranks, cores="0,1",
                                                    program="train_gpt")))  # fmt: skip
        apart = agree(name, worlds)
        times = interleaved(worlds, STEPS, args.rounds)
    ours = [tokens / t for t in times[0]]
    if not args.python_torch:
        return {"ours": statistics.median(ours)}
    peer = [tokens / t for t in times[1]]
    return {
        "ours": statistics.median(ours), "peer": statistics.median(peer),
        "ratio": statistics.median(a / b for a, b in zip(ours, peer, strict=True)), "best": max(ours) / max(peer),
        "losses_differ_by": apart,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table or JSON."""
    worlds = {"one": 1, "tensor": 2}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python-torch", metavar="PATH", help="interpreter that has torch; without, left out")
    parser.add_argument("--only", nargs="+", choices=worlds, default=list(worlds), metavar="KIND", help="one, tensor")
    parser.add_argument("--rounds", type=int, default=21, help="rounds; each world runs once in each (at least 3)")
    parser.add_argument("--json", action="store_true", help="print one object: figure -> ours, peer, ratio")
    args = parser.parse_args(arguments)
    if args.rounds < 3:
        parser.error("--rounds: at least 3")
    found = {f"gpt, {kind}, tokens/s": measure(kind, worlds[kind], args) for kind in args.only}
    if args.json:
        print(json.dumps(found))
        return
    for name, row in found.items():
        print(f"{name:24}" + "  ".join(f"{k} {v:.4g}" for k, v in row.items()))


if __name__ == "__main__":
    main()
