"""``python -m autograd registry`` lists all operations as a table, as JSON or as Markdown.

``python -m autograd weights FILE`` compares a file of weights with its digests.

``python -m autograd stubs`` writes the stubs of `autograd.numpy` for type checkers.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from .errors import RingtapeError, printable

_COLUMNS = ("operation", "word", "operands", "saves", "R", "I", "P", "V", "Shard(0)", "cases")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status: 0, 1 if a file is damaged, or 2 if a given name is unknown.

    Examples
    --------
    >>> from autograd.__main__ import main
    >>> main(["registry", "exp"])  # doctest: +ELLIPSIS
    operation  word  operands  saves   R  I  P        V  Shard(0)  cases
    exp        N     x         result  R  I  refused  V  Shard(0)  ...
    0
    """
    parser = argparse.ArgumentParser(prog="python -m autograd", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    registry = commands.add_parser("registry", help="list operations: word, operands, adjoint, layouts, saves, cases")
    registry.add_argument("operations", nargs="*", help="names of operations; by default all")
    form = registry.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object with an entry per operation")
    form.add_argument("--markdown", action="store_true", help="the page docs/operations.md")
    weights = commands.add_parser("weights", help="compare files that nn.save wrote with their digests")
    weights.add_argument("files", nargs="+")
    commands.add_parser("stubs", help="write the stubs of autograd.numpy for type checkers")
    arguments = parser.parse_args(argv)
    if arguments.command == "stubs":
        from .testing import stubs

        for name in stubs.STUBS:
            stubs.path(name).write_text(stubs.stub(import_module(name)))
        return 0
    if arguments.command == "weights":
        return max(map(_check_weights, arguments.files))
    from .testing.listing import rows  # loads all operations, which --help does not need

    try:
        found = list(rows(arguments.operations))
    except RingtapeError as error:
        print(error.reason, file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps({row["name"]: row for row in found}, indent=1))
    else:
        print(markdown(found) if arguments.markdown else table(found))
    return 0


def _check_weights(path: str) -> int:
    """Print what a file of weights has and whether it is as it was saved; return 0, or 1 if it is not known to be."""
    from .nn import contents

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = contents(path, check=True)
        except (RingtapeError, OSError) as error:
            print(f"{path}: {error.reason if isinstance(error, RingtapeError) else error}", file=sys.stderr)
            return 1
    arrays = {name: each for name, each in found.items() if each.kind == "array"}
    for name, each in arrays.items():
        print(printable(f"{name}  {each}"))
    kinds = {each.checksum for each in arrays.values()}
    if told:
        print(f"{path}: {told[0].message}", file=sys.stderr)
        return 1
    state = "each is as it was saved" if "" not in kinds else (
        "it has no digests, so that changed bits cannot be seen: another program wrote it")  # fmt: skip
    print(f"{path}: {len(arrays)} arrays; {state}")
    return 0


def _result_label(row: dict[str, Any], label: str) -> str:
    """Return the label of the result if every operand has `label`; "-" if the operands cannot have it."""
    layouts = row["layouts"]
    key = " ".join([label] * len(row["operands"]))
    return "-" if key not in layouts else layouts[key] or "refused"


def _cells(row: dict[str, Any]) -> list[str]:
    labels = [_result_label(row, label) for label in _COLUMNS[4:9]]
    cases = str(row["cases"] or row["without_derivative"])
    return [row["name"], row["word"], " ".join(row["operands"]), " ".join(row["saves"]) or "-", *labels, cases]


def table(found: Sequence[dict[str, Any]]) -> str:
    """Return rows of `testing.listing` as text in columns."""
    lines = [list(_COLUMNS), *map(_cells, found)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def markdown(found: Sequence[dict[str, Any]]) -> str:
    """Return rows of `testing.listing` as the page docs/operations.md."""
    lines = [
        "# Operations",
        "",
        "This page is written by `python -m tests.proofs.registry`. A test fails when it is out of date.",
        "",
        "- **word**: one letter per operand. The same letter: jointly linear. Different letters: linear in each. `N`: "
        "nonlinear. `S`: no cotangent. `*` repeats the last letter.",
        "- **saves**: the operands and results that are saved for backward.",
        "- **R, I, P, V, Shard(0)**: the label of the result on a mesh axis on which all operands have this label. "
        "*refused* means that the operation raises a `LayoutError`, `-` that its operands cannot all have the label. "
        "The function `np.mean` is the sum divided by the global count where a `Shard` is averaged, and is Partial.",
        "- **adjoint**: the rule of each operand, from the cotangent `ct`, the result `y` and the operands.",
        "",
        "| operation | word | saves | R | I | P | V | Shard(0) | adjoint |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        # lambdas as they are written, and functions by their names
        rules = [f"{name}: `{text[4 : text.index('(')] if text.startswith('def ') else text}`"
                 for name, text in row["adjoint"].items()]  # fmt: skip
        adjoint = row["without_derivative"] or "; ".join(rules)
        cells = [row["name"], f"`{row['word']}`", " ".join(row["saves"]) or "-",
                 *(_result_label(row, label) for label in _COLUMNS[4:9]), adjoint.replace("|", "\\|")]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
