"""``python -m collectives NAME``: runs a tool of `collectives.tools`."""

from __future__ import annotations

import argparse
import importlib
import sys

TOOLS = ("bench",)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m collectives")
    tools = parser.add_subparsers(dest="tool", required=True)
    modules = {}
    for name in TOOLS:
        module = modules[name] = importlib.import_module(f"collectives.tools.{name}")
        module.add_arguments(tools.add_parser(name, help=module.SUMMARY, description=module.SUMMARY))
    args = parser.parse_args()
    return int(modules[args.tool].main(args))


if __name__ == "__main__":
    sys.exit(main())
