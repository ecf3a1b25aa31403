"""``python -m collectives audit``: tells what is wrong with the gradients of a distributed job, of any library.

    python -m collectives audit collect -o ref  -- torchrun --nproc-per-node 1 train.py
    python -m collectives audit collect -o ulp1 --ulp 1 -- torchrun --nproc-per-node 1 train.py
    python -m collectives audit collect -o job  -- torchrun --nproc-per-node 2 train.py
    python -m collectives audit judge job --against ref --ulp ulp1

`collectives.audit` says what is compared. The exit status of `judge` is 0 if all gradients are right, 1 if some are
not, and 2 if the runs cannot be compared; that of `collect` is the command's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from autograd.errors import RingtapeError

from ..audit.files import boxes, read_map, read_steps
from ..audit.judge import Judge
from ..audit.mesh import Mesh
from ..audit.page import page

__all__ = ["SUMMARY", "add_arguments", "main"]

SUMMARY = "Tell what is wrong with the gradients of a distributed job, from values: collect them, then judge."
_HOOK = Path(__file__).resolve().parents[1] / "audit" / "hook"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `audit`."""
    of = parser.add_subparsers(dest="verb", required=True)
    collect = of.add_parser("collect", help="run a program of PyTorch, and keep what its optimizer steps are given",
                            epilog="The command stands after --; the program is not changed.")  # fmt: skip
    collect.add_argument("-o", "--output", required=True, metavar="DIR")
    collect.add_argument("--steps", type=int, default=3, metavar="N", help="keep the first N steps (default 3)")
    collect.add_argument(
        "--ulp", type=int, metavar="N", help="move each parameter by one last bit at the start, by seed N"
    )
    collect.add_argument(
        "--float64", action="store_true", help="run in float64, where faults are told best from rounding"
    )
    collect.add_argument("--data", type=_share, metavar="K/N",
                         help="on one process: the rows of rank K of N, with no communication")  # fmt: skip
    collect.add_argument(
        "--reset", metavar="DIR", help="begin each step with the parameters of this run of one process"
    )
    collect.add_argument("--outputs", action="store_true", help="keep the first output of each module, too")
    judge = of.add_parser("judge", help="compare a job with a run of one process, and name what is wrong")
    judge.add_argument("job", metavar="DIR")
    judge.add_argument("--against", required=True, metavar="DIR", help="the same program on one process")
    judge.add_argument(
        "--ulp", action="append", default=[], metavar="DIR", help="such a run with moved bits; may be repeated"
    )
    judge.add_argument(
        "--part", action="append", default=[], metavar="DIR", help="a run with --data K/N, for each K in order"
    )
    judge.add_argument("--first", type=int, default=0, metavar="STEP", help="begin there: a job with --reset")
    judge.add_argument("--json", action="store_true", help="print one object")
    judge.add_argument("--page", metavar="FILE", help="write an HTML page of the verdicts, too")
    for each in (collect, judge):
        each.add_argument(
            "--mesh", type=_mesh, metavar="dp=2,tp=2", help="the axes of the ranks; the last varies fastest"
        )
        each.add_argument("--map", metavar="FILE", help='TOML: "qkv.weight" = {axis = "tp", dim = 0, parts = 3}')
    parser.set_defaults(arguments=[])


def main(args: argparse.Namespace) -> int:
    """Collect or judge."""
    try:
        return _collect(args) if args.verb == "collect" else _judge(args)
    except (RingtapeError, OSError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2


def _mesh(text: str) -> dict[str, int]:
    sizes = dict(each.partition("=")[::2] for each in text.split(","))
    if not all(name and size.isdecimal() and int(size) for name, size in sizes.items()):
        raise argparse.ArgumentTypeError(f"given {text!r}; needed: axes with sizes, as dp=2,tp=4")
    return {name: int(size) for name, size in sizes.items()}


def _share(text: str) -> list[int]:
    found = [int(each) for each in text.split("/") if each.isdecimal()]
    if len(found) != 2 or text.count("/") != 1 or not found[0] < found[1]:
        raise argparse.ArgumentTypeError(f"given {text!r}; needed: a rank and the number of ranks, as 0/2")
    return found


def _collect(args: argparse.Namespace) -> int:
    if not args.arguments:
        print("audit: no command\n  fix: audit collect -o DIR -- torchrun --nproc-per-node 2 train.py", file=sys.stderr)
        return 2
    output = Path(args.output)
    for old in output.glob("rank-*/step-*.npz"):
        old.unlink()
    options: dict[str, Any] = {"out": str(output.resolve()), "steps": args.steps}
    options |= {name: getattr(args, name) for name in ("ulp", "float64", "outputs") if getattr(args, name)}
    if args.data:
        options["data"] = args.data
    if args.reset:
        options["reset"] = str(Path(args.reset).resolve())
        options["boxes"] = _boxes(args)
    path = os.pathsep.join(filter(None, (str(_HOOK), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"RINGTAPE_AUDIT": json.dumps(options), "PYTHONPATH": path}
    status = subprocess.run(args.arguments, env=environment, check=False).returncode
    steps = read_steps(output)
    kept = f"{len(steps)} steps of {len(steps[0])} ranks, {len(steps[0][0].names)} parameters"
    print(f"audit: {args.output}: {kept}", file=sys.stderr)
    return status


def _boxes(args: argparse.Namespace) -> dict[str, Any]:
    """By rank and parameter: the boxes of its piece, where a map says how it is cut."""
    if args.map is None or args.mesh is None:
        return {}
    cuts = read_map(args.map, args.mesh)
    reference = read_steps(args.reset)[0][0]
    mesh = Mesh(args.mesh, range(math.prod(args.mesh.values())))
    judge = Judge([{}], [{0: reference}], cuts=cuts)
    return {
        str(rank): {name: boxes(reference.arrays[f"before:{name}"].shape, found, mesh.sizes, at)
                    for name in reference.names if (found := judge.cuts_of(name))}
        for rank, at in mesh.at.items()
    }  # fmt: skip


def _judge(args: argparse.Namespace) -> int:
    job = read_steps(args.job)
    mesh = Mesh.of(job[0], args.mesh)
    moved, parts = ([read_steps(each) for each in of] for of in (args.ulp, args.part))
    cuts = read_map(args.map, mesh.sizes) if args.map else {}
    report = Judge(job, read_steps(args.against), moved, parts, args.mesh, cuts, args.first).report()
    if args.page:
        page(report, args.job).write(args.page)
    print(json.dumps(report.as_json(), indent=1) if args.json else report)
    return report.status
