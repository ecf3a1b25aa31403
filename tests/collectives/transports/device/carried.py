"""What each carrier of device arrays is tested with, over threads and over processes, simulated and on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.arrays.device import to_host
from collectives.transports.protocol import Communicator, Request

from ....autograd.arrays.devices import Device
from .. import conformance
from .on_device import OnDevice


def chosen(group: Communicator, device: Device) -> str:
    """What carries device arrays on a group, after its first call on them."""
    group.all_reduce(device.move(np.ones(1)))
    found: Any = group
    return str(found.device_choice.name) if found.device_choice else "none"


def conforms(group: Communicator, dtypes: str, device: Device, only: Sequence[str] | None = None) -> int:
    """All calls with device arrays, or those named, and the sums of long arrays, which go in several chunks."""
    over = OnDevice(group, device)
    made = conformance.calls(over, dtypes, only) + conformance.any_order(over)
    if only is None:
        made += conformance.messages(over, "d")
        conformance.several(over)
    conformance.rounding(over)
    long_arrays(group, device)
    same_bits(group, device)
    return made


def long_arrays(group: Communicator, device: Device, *more: int) -> None:
    """Arrays longer than a chunk, of sizes that no slice divides."""
    rank = int(group.rank)
    for dtype in (np.float32, np.float64, np.int32, np.int64, np.complex64):
        for size in (1, 37, 250, 1001, *more):
            parts = [conformance.values(dtype, size, r, 7) for r in range(group.size)]
            found = group.all_reduce(device.move(parts[rank]))
            assert np.array_equal(to_host(found), conformance.reduced(parts)), (dtype, size)
    counts = [211 * ((r + 1) % group.size) for r in range(group.size)]
    parts = [conformance.values(np.float32, count, r, 8) for r, count in enumerate(counts)]
    gathered = group.all_gather(device.move(parts[rank]), counts)
    assert np.array_equal(to_host(gathered), np.concatenate(parts))
    whole = [conformance.values(np.float32, sum(counts), r, 9) for r in range(group.size)]
    found = group.reduce_scatter(device.move(whole[rank]), counts)
    assert np.array_equal(to_host(found), conformance.split(conformance.reduced(whole), counts)[rank])


def same_bits(group: Communicator, device: Device) -> None:
    """Sums that depend on the order of the addends are the same on all ranks."""
    mine = np.random.default_rng(int(group.rank)).standard_normal(777).astype(np.float32)
    found = to_host(group.all_reduce(device.move(mine)))
    assert len(set(group.exchange(found.tobytes()))) == 1


# -- what waits for what -----------------------------------------------------------------------------------------------


def values(rank: int, seed: int, size: int = 37, dtype: Any = np.float64) -> Any:
    return np.random.default_rng([seed, rank]).integers(0, 9, size).astype(dtype)


def total(seed: int, ranks: int, size: int = 37, dtype: Any = np.float64) -> Any:
    return sum(values(rank, seed, size, np.float64) for rank in range(ranks)).astype(dtype)


def computed(host: Any, device: Device) -> Any:
    """An array that an operation of the device made, behind others on the current stream."""
    x = device.move(host)
    return x + x - x


def drives(group: Any, device: Device) -> None:
    """A program that uses its arrays as it may: overwrites, drops and computes without waiting for the host."""
    rank, ranks = int(group.rank), group.size

    def is_total(y: Any, *args: Any) -> bool:
        return bool(np.array_equal(device.values(y + 0), total(*args)))

    for seed in range(3):
        x = computed(values(rank, seed), device)
        y = group.all_reduce(x)
        x[...] = -1.0
        assert is_total(y, seed, ranks), "blocking"
    for seed, dtype in enumerate((np.float64, np.float16, np.float32)):
        x = computed(values(rank, seed, dtype=dtype), device)
        pending = group.start(Request("all_reduce", x))
        x[...] = -1.0  # the call owns what it was given
        del x
        filler = [device.move(np.full(37, -7, dtype)) for _ in range(3)]
        y = pending.wait()
        assert is_total(y, seed, ranks, 37, dtype), f"started, of {dtype}"
        del filler
    bucket = computed(values(rank, 5), device)
    pending = group.start(Request("all_reduce", bucket, out=bucket))
    while not pending.test():
        pass
    assert pending.wait() is bucket and is_total(bucket, 5, ranks), "in place"
    under_way = [group.start(Request("all_reduce", computed(values(rank, seed), device))) for seed in range(4)]
    for _ in range(200 * rank):  # some of them are passed on, on this rank only
        under_way[0].test()
    host = group.all_reduce(values(rank, 9))  # of the host, on the same channel
    assert (host == total(9, ranks)).all(), "a call on arrays of the host"
    part = group.all_gather(computed(values(rank, 8, 3), device), [3] * ranks)
    assert np.array_equal(to_host(part), np.concatenate([values(r, 8, 3) for r in range(ranks)])), "all_gather"
    for seed in (2, 0, 3, 1):
        assert (to_host(under_way[seed].wait()) == total(seed, ranks)).all(), "in another order"
    scanned = group.run(Request("scan", computed(values(rank, 4), device), options=(False, False)))
    x = computed(values(rank, 4, 13), device)  # its buffers are used again while the scan is copied up
    assert (to_host(group.all_reduce(x)) == total(4, ranks, 13)).all(), "the next call"
    assert (to_host(scanned) == sum(values(r, 4) for r in range(rank + 1))).all(), "scan"


def reuses(group: Any, device: Device) -> None:
    """A call whose result is still being copied up when the next one takes page-locked memory."""
    rank, ranks = int(group.rank), group.size
    for seed in range(2):
        pending = group.start(Request("all_reduce", computed(values(rank, seed), device)))
        while not pending.test():
            pass
        x = computed(values(rank, seed + 1), device)
        assert (to_host(group.all_reduce(x)) == total(seed + 1, ranks)).all()
        assert (to_host(pending.wait()) == total(seed, ranks)).all()
        group.barrier()


def dropped(group: Any, device: Device) -> None:
    """Calls that are tested and never waited for, while other arrays are made."""
    rank, made = int(group.rank), []
    for seed in range(3):
        pending = group.start(Request("all_reduce", computed(values(rank, seed), device)))
        while not pending.test():
            pass
        del pending
        made.append(device.move(values(rank, seed)))  # in memory that a call has given back
        computed(values(rank, seed), device)
    group.barrier()
    for staging in group.carriers.staging.values():  # let its streams run
        staging._down.synchronize()
        staging._up.synchronize()
    for seed, x in enumerate(made):
        assert np.array_equal(to_host(x), values(rank, seed)), "memory that a copy still writes was used again"
