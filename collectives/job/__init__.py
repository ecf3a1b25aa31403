"""The job that mpiexec started: launcher, failures, orderly shutdown, deadlock detection, the supervisor process."""
