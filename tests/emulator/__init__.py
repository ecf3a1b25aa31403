"""An emulated GPU: the real CuPy and the real NVRTC, on the CPU. A run here is not a run on a GPU.

NVRTC compiles kernels to PTX, and `source/instructions.cpp` interprets it: its table is the list of what it knows. The
CUDA runtime, cuBLAS, cuFFT, cuSOLVER, cuRAND and NCCL have stand-ins there. ::

    python -m tests.emulator build DIRECTORY                           # once: 2 minutes
    python -m tests.emulator run DIRECTORY -m gpu tests/autograd       # pytest with these arguments
    python -m tests.emulator part DIRECTORY                            # the part of the tests that .ci/run runs
    python -m tests.emulator python DIRECTORY program.py               # a program
    python -m tests.emulator faults DIRECTORY                          # 42 planted faults: how many are seen

It finds wrong calls of CuPy and of NVIDIA's libraries, wrong kernels, accesses outside of memory or not aligned, waits
and barriers that are missing, and what CuPy adds or lacks. It does not know registers, bank conflicts, coalescing or
speed; approximate functions are the host's; sums have another order than cuBLAS's and NCCL's.

| variable | meaning |
|---|---|
| EMULATED_GPUS | the number of devices, 4 |
| EMULATED_SEED | chooses the order of warps and lanes |
| EMULATED_STREAMS | ``now``: work is done at once, not late |
| EMULATED_MMA | ``truncate``: products of matrices in kernels round towards zero, as tensor cores are said to do |
"""

import os

IS_USED = "EMULATED_LAPACK" in os.environ
"""Whether this process runs on the emulated GPU, where a launch of a million elements takes a second."""
LIMIT_S = 800 if IS_USED else 0
"""How long a job of a test may take there; 0 elsewhere."""
