"""The commands of ``python -m collectives``. Each has `SUMMARY`, `add_arguments(parser)` and `main(args) -> int`."""
