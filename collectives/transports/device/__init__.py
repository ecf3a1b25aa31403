"""Arrays of a device on transports of host memory: staged, or carried by NCCL, CUDA IPC or a GPU-aware MPI."""
