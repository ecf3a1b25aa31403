"""The processes that `bench` measures. `worker` runs by its path: a peer's environment needs nothing of ours."""
