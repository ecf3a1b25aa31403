"""What each carrier of device arrays is tested with, over threads and over processes, simulated and on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.arrays.device import to_host
from collectives.transports.protocol import Communicator

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
