"""``python -m collectives TOOL``: the tools of `collectives.tools`. A tool is imported when it runs."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence

TOOLS = ("doctor", "check", "show", "replay", "tune", "audit")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a tool and return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser("python -m collectives", description="Tools for communication between ranks.")
    tools = parser.add_subparsers(dest="tool", metavar="TOOL", required=True)
    for name in TOOLS:
        if given and given[0] in TOOLS and name != given[0]:
            continue  # another tool is not needed to run this one
        full = f"collectives.tools.{name}"  # it has `SUMMARY`, `add_arguments(parser)` and `main(args) -> int`
        if importlib.util.find_spec(full) is not None:
            module = importlib.import_module(full)
            each = tools.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
            module.add_arguments(each)
            each.set_defaults(main=module.main)
    at = given.index("--") if "--" in given else len(given)
    chosen = parser.parse_args(given[:at])
    if given[at + 1 :] and not hasattr(chosen, "arguments"):
        parser.error(f"{chosen.tool} takes no arguments after --; given: {' '.join(given[at + 1 :])}")
    chosen.arguments = given[at + 1 :]
    return int(chosen.main(chosen))


if __name__ == "__main__":
    sys.exit(main())
