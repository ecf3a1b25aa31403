"""Collectives hand arrays of a device to the transport as they are, and results and gradients are on that device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd.arrays.device import to_host
from autograd.arrays.shape_only import is_absent
from autograd.engine.tensor import Tensor
from collectives.inspect.observing import observing
from tests.autograd.arrays.fake_device import DeviceArray, from_host

USES: dict[str, Callable[[Any, int], Any]] = {
    "all_reduce": lambda x, r: cc.all_reduce(x, "dp"),
    "all_gather": lambda x, r: cc.all_gather(x, "dp"),
    "all_gather of columns": lambda x, r: cc.all_gather(x, "dp", 1),
    "reduce_scatter": lambda x, r: cc.reduce_scatter(x, "dp"),
    "reduce_scatter of columns": lambda x, r: cc.reduce_scatter(x, "dp", 1),
    "all_to_all": lambda x, r: cc.all_to_all(x, "dp"),
    "permute": lambda x, r: cc.permute(x, "dp", [(0, 1)]),
    "permute to itself": lambda x, r: cc.permute(x, "dp", [(0, 0), (1, 1)]),
    "broadcast": lambda x, r: cc.broadcast(x, "dp", root=1),
    "broadcast like=": lambda x, r: cc.broadcast(x if r == 0 else None, "dp", like=x),
    "scatter": lambda x, r: cc.scatter(x, "dp"),
    "reduce": lambda x, r: cc.reduce(x, "dp"),
    "gather of columns": lambda x, r: cc.gather(x, "dp", dim=1),
    "scan": lambda x, r: cc.scan(x, "dp"),
    "cast": lambda x, r: cc.cast(x, "dp", cc.P),
    "halo_exchange": lambda x, r: cc.halo_exchange(x, "dp", 1, periodic=True),
    "get": lambda x, r: cc.get(x, "dp", (r + 1) % 2, 0),
    "all_reduce_async": lambda x, r: cc.all_reduce_async(x, "dp").wait(),
}


def used(use: Callable[[Any, int], Any], make: Callable[[Any], Any]) -> list[Any]:
    """Result and gradient of two uses, as lists; they are where the operand is."""
    found = []
    with cc.Mesh(dp=2) as mesh:
        rank = int(mesh.axis("dp").rank)
        for _ in range(2):
            x = ag.tensor(make(np.arange(6.0).reshape(2, 3) + rank), requires_grad=True)
            with ag.Tape() as tape:
                y = use(x, rank)
            assert is_absent(y.array) or type(y.array) is type(x.array)
            ct = y.array if is_absent(y.array) else y.array * 0 + 1
            (g,) = tape.backward(y, Tensor(ct, y.layout.dual), wanted=[x]) or ()
            g = g.array if isinstance(g, Tensor) else g
            assert g is None or type(g) is type(x.array)
            found.append(None if is_absent(y.array) else to_host(y.local).tolist())
            found.append(None if g is None else Tensor(g).numpy().tolist())
    return found


@pytest.mark.parametrize("name", USES)
def test_the_device_is_the_operands(name: str) -> None:
    on_host = cc.run(lambda: used(USES[name], lambda a: a), 2)

    def program() -> Any:
        given: list[type] = []

        def observer(group: Any, request: Any, started: bool, run: Callable[[], Any]) -> Any:
            array = request.out if request.x is None else request.x
            if getattr(array, "dtype", None) == np.float64:  # the data, not a header or an extent
                given.append(type(array))
            return run()

        with observing(observer):
            found = used(USES[name], from_host)
        return found, set(given)

    for host, (found, given) in zip(on_host, cc.run(program, 2), strict=True):
        assert found == host
        assert given <= {DeviceArray}
