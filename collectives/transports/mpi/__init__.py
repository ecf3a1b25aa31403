"""Ranks as processes under mpiexec, over mpi4py."""
