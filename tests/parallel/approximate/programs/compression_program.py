"""Reduce buckets with every method over MPI, and compare the bits with those of ranks that are threads."""

import numpy as np

import collectives as cc
from collectives.transports.steps import finish
from parallel.approximate.low_rank import PowerSGD
from parallel.approximate.quantised import Float16, Int8, OneBit
from parallel.approximate.sparse import RandomK, TopK
from parallel.data.buckets import Bucket, Place

METHODS = [
    Float16, Int8, OneBit, lambda: OneBit(momentum=0.9), lambda: TopK(0.05, smallest=100),
    lambda: RandomK(0.05, smallest=100), PowerSGD,
]  # fmt: skip
PLACE = Place((0, 1), ("weight", "bias"), ((30, 41), (41,)), (0, 1232), 1280, np.empty(0, np.float32))


def program() -> list[bytes]:
    group, found = cc.world(), []
    for make in METHODS:
        method = make()
        for step in range(3):
            bucket = Bucket(0, PLACE, np.zeros(PLACE.size, np.float32))
            generator = np.random.default_rng([group.index, step])
            for part in bucket.parts():
                part[...] = np.round(64 * generator.normal(size=part.shape)) / 64
            bucket.flags[:] = 1
            finish(method.reduce(bucket, group))
            found.append(bucket.flat.tobytes())
    return found


mine = program()
gathered = cc.world().exchange(b"".join(mine))
assert all(other == gathered[0] for other in gathered), "the ranks have different bits"
if cc.world().index == 0:
    threads = cc.run(program, cc.world().size)[0]
    for k, (a, b) in enumerate(zip(mine, threads, strict=True)):
        x, y = np.frombuffer(a, np.float32), np.frombuffer(b, np.float32)
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4, err_msg=f"method {k // 3}, step {k % 3}")
    print("all equal to threads")
