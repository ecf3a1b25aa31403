"""Times the attention kernels of a GPU for several tiles: which to write in `autograd.kernels.cuda.attention`.

    python benchmarks/attention_tiles.py --width 128 --tokens 4096 --dtype float16

For each of the three kernels the milliseconds of each tile, the fastest first, with the floating-point operations a
second. A tile that does not compile or needs too much shared memory is left out. Causal attention counts half.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from autograd.arrays import allow_tf32, runtime_of
from autograd.arrays.device import to_device
from autograd.kernels.attention import parts
from autograd.kernels.cuda import attention
from autograd.kernels.cuda.attention import Tile

SHARED_BYTES = 227 << 10


def tiles(part: str, full: int, size: int) -> Iterator[Tile]:
    """Tiles whose shared memory fits, for one kernel."""
    row_bytes = full * size + 16
    for warps, per_warp, streamed in product((4, 8), (16, 32), (16, 32, 64, 128) if size == 2 else (16, 32, 64)):
        own = per_warp * warps
        memory = ((1 if part == "FORWARD" else 2) * own + 4 * streamed) * row_bytes + 16 * streamed
        if memory <= SHARED_BYTES and own <= 128 and (part != "KEYS" or streamed <= 32 * warps):
            blocks = max(1, min(3, SHARED_BYTES // memory, 16 // warps))
            yield Tile(streamed, own, warps, blocks) if part == "KEYS" else Tile(own, streamed, warps, blocks)


def seconds(run: Callable[[], Any], stream: Any, repetitions: int = 10) -> float:
    """The median of some runs, after two for the compiler and the caches."""
    times = []
    for at in range(repetitions + 2):
        stream.synchronize()
        start = time.perf_counter()
        run()
        stream.synchronize()
        times.append(time.perf_counter() - start)
        if at == 1 and times[1] > 0.2:
            break
    return float(np.median(times[2:] or times[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=64, help="of all batches")
    parser.add_argument("--dtype", default="float16", choices=["float16", "float32", "tf32", "float64"])
    parser.add_argument("--full", action="store_true", help="not causal")
    given = parser.parse_args()
    allow_tf32(given.dtype == "tf32")
    dtype = np.dtype("float32" if given.dtype == "tf32" else given.dtype)
    host = np.random.default_rng(0).standard_normal((1, given.tokens, 3, given.heads, given.width)).astype(dtype)
    q, k, v = parts(to_device(host, "cuda"))
    options = not given.full, given.width**-0.5
    runtime: Any = runtime_of(type(q))
    stream = runtime.current_stream()
    full = next(w for w in attention.WIDTHS if w >= given.width)
    column = (full > 64) + (full > 128)
    kernel = attention.attention_kernel
    out, kept = kernel.forward((q, k, v), options, True)
    products = 2 * given.heads * given.tokens**2 * given.width * (1.0 if given.full else 0.5)

    def forward() -> Any:
        return kernel.forward((q, k, v), options, True)

    def backward(wanted: tuple[bool, bool, bool]) -> Callable[[], Any]:
        return lambda: kernel.backward(out, kept, (q, k, v), options, wanted, False)

    for part, run, count in (("FORWARD", forward, 2), ("QUERIES", backward((True, False, False)), 3),
                             ("KEYS", backward((False, True, True)), 4)):  # fmt: skip
        table = getattr(attention, part)
        default = table[dtype.itemsize]
        found = []
        for tile in dict.fromkeys([default[column], *tiles(part, full, dtype.itemsize)]):
            table[dtype.itemsize] = (*default[:column], tile, *default[column + 1 :])
            attention._kernels.cache_clear()
            try:
                found.append((seconds(run, stream), tile))
            except Exception as error:  # the compiler's and the driver's own types
                print(f"  {part} {tile}: {type(error).__name__} {str(error)[:60]!r}")
        table[dtype.itemsize] = default
        attention._kernels.cache_clear()
        print(f"{part}, of {default[column]}:")
        for taken, tile in sorted(found)[:8]:
            print(f"  {1e3 * taken:8.3f} ms  {count * products / taken / 1e12:6.1f} TFLOP/s  {tile}")


if __name__ == "__main__":
    main()
