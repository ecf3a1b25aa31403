"""The functions that users call, each declared beside its adjoint, blocking and nonblocking."""
