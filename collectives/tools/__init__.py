"""What ``python -m collectives`` runs. Each module has `SUMMARY`, `add_arguments(parser)` and `main(args) -> int`."""
