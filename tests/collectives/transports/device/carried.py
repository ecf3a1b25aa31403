"""What each carrier of device arrays is tested with, over threads and over processes."""

from __future__ import annotations

from typing import Any

import numpy as np

from autograd.arrays.device import to_host
from collectives.transports.protocol import Communicator

from ....autograd.arrays.fake_device import from_host
from .. import conformance
from .on_device import OnDevice

DTYPES = "efd"


def chosen(group: Communicator) -> str:
    """What carries device arrays on a group, after its first call on them."""
    group.all_reduce(from_host(np.ones(1)))
    found: Any = group
    return str(found.device_choice.name)


def conforms(group: Communicator, dtypes: str = DTYPES) -> int:
    """All calls with device arrays, and the sums of long arrays, which go in several chunks."""
    made = conformance.calls(OnDevice(group), dtypes) + conformance.any_order(OnDevice(group))
    made += conformance.messages(OnDevice(group), "d")
    conformance.several(OnDevice(group))
    conformance.rounding(OnDevice(group))
    long_arrays(group)
    same_bits(group)
    return made


def long_arrays(group: Communicator) -> None:
    """Arrays longer than a chunk, of sizes that no slice divides."""
    for dtype in (np.float32, np.float64, np.int32, np.int64, np.complex64):
        for size in (1, 37, 250, 1001):
            parts = [conformance.values(dtype, size, rank, 7) for rank in range(group.size)]
            mine = from_host(parts[int(group.rank)])
            assert np.array_equal(to_host(group.all_reduce(mine)), conformance.reduced(parts)), (dtype, size)
    counts = [211 * ((rank + 1) % group.size) for rank in range(group.size)]
    parts = [conformance.values(np.float32, count, rank, 8) for rank, count in enumerate(counts)]
    gathered = group.all_gather(from_host(parts[int(group.rank)]), counts)
    assert np.array_equal(to_host(gathered), np.concatenate(parts))
    whole = [conformance.values(np.float32, sum(counts), rank, 9) for rank in range(group.size)]
    found = group.reduce_scatter(from_host(whole[int(group.rank)]), counts)
    assert np.array_equal(to_host(found), conformance.split(conformance.reduced(whole), counts)[int(group.rank)])


def same_bits(group: Communicator) -> None:
    """Sums that depend on the order of the addends are the same on all ranks."""
    mine = np.random.default_rng(int(group.rank)).standard_normal(777).astype(np.float32)
    found = to_host(group.all_reduce(from_host(mine)))
    assert len(set(group.exchange(found.tobytes()))) == 1
