"""Training steps of a GPT, beside the same model in PyTorch, in one run.

    python benchmarks/train_gpt.py --python-torch /path/to/an/environment/with/torch/bin/python --python-jax PATH
    python benchmarks/train_gpt.py --only tensor --rounds 9 --python-torch ... --json

one     tokens per second in one process, beside PyTorch in eager mode and compiled by torch.compile, and jax.jit
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


def measure(name: str, ranks: int, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The figures beside each peer, in tokens per second."""
    case = CASES["train_gpt"]
    assert isinstance(case, RotaryGPT)
    tokens = case.batch * case.context
    peers = [("torch", args.python_torch, ""), ("torch", args.python_torch, "compile"), ("jax", args.python_jax, "")]
    chosen = [peer for peer in peers[: 1 if ranks > 1 else 3] if peer[1]]
    with ExitStack() as stack:
        worlds = [
            stack.enter_context(World(library, python, "train_gpt", ranks, cores="0,1", program="train_gpt", mode=mode))
            for library, python, mode in [("ringtape", sys.executable, args.capture), *chosen]
        ]
        apart = agree(name, worlds)
        times = interleaved(worlds, STEPS, args.rounds)
    ours, *others = ([tokens / t for t in row] for row in times)
    if not chosen:
        return {f"gpt, {name}, tokens/s": {"ours": statistics.median(ours)}}
    found = {}
    for (library, _, mode), peer in zip(chosen, others, strict=True):
        beside = {"torch": "", "torchcompile": ", beside torch.compile", "jax": ", beside jax.jit"}[library + mode]
        found[f"gpt, {name}{beside}, tokens/s"] = {
            "ours": statistics.median(ours), "peer": statistics.median(peer),
            "ratio": statistics.median(a / b for a, b in zip(ours, peer, strict=True)), "best": max(ours) / max(peer),
            "losses_differ_by": apart,
        }  # fmt: skip
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table or JSON."""
    worlds = {"one": 1, "tensor": 2}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python-torch", metavar="PATH", help="interpreter that has torch; without, left out")
    parser.add_argument("--python-jax", metavar="PATH", help="interpreter that has jax; without, left out")
    parser.add_argument("--only", nargs="+", choices=worlds, default=list(worlds), metavar="KIND", help="one, tensor")
    parser.add_argument("--rounds", type=int, default=21, help="rounds; each world runs once in each (at least 3)")
    parser.add_argument("--capture", action="store_const", const="capture", default="", help="replay the step")
    parser.add_argument("--json", action="store_true", help="print one object: figure -> ours, peer, ratio")
    args = parser.parse_args(arguments)
    if args.rounds < 3:
        parser.error("--rounds: at least 3")
    found: dict[str, dict[str, float]] = {}
    for kind in args.only:
        found |= measure(kind, worlds[kind], args)
    if args.json:
        print(json.dumps(found))
        return
    for name, row in found.items():
        print(f"{name:40}" + "  ".join(f"{k} {v:.4g}" for k, v in row.items()))


if __name__ == "__main__":
    main()
