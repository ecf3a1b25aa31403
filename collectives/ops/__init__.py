"""The collectives that users call, each beside its adjoint."""
