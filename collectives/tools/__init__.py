"""Commands: ``python -m collectives NAME``. Each module has `SUMMARY`, `add_arguments(parser)` and `main(args)`."""
