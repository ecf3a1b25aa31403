"""The public communication operations, blocking and nonblocking, each declared next to its adjoint."""
