"""Parts of 5, 4 and 3 rows in every check mode; then a global shape that one rank states differently, which raises."""

import numpy

import autograd as ag
import collectives as cc
from collectives import I, R, Shard

rank = cc.world().rank
X = numpy.arange(24.0).reshape(12, 2)
n = (5, 4, 3)
mine = X[sum(n[:rank]):sum(n[:rank + 1])]
with cc.Mesh(dp=3):
    for mode in ("off", "first", "always", "ranks"):
        cc.check(mode)
        x = cc.from_local(mine, {"dp": Shard(0)})
        w = ag.Parameter([0.5, -1.0])
        with ag.Tape() as tape:
            loss = cc.all_reduce(((x @ cc.cast(w, "dp", to=R)) ** 2).sum(), "dp", to=I) / x.global_shape[0]
        tape.backward(loss)
        numpy.testing.assert_allclose(w.grad.numpy(), 2 * X.T @ (X @ [0.5, -1.0]) / 12)
        assert x.global_shape == (12, 2) and (cc.all_gather(x, "dp").numpy() == X).all()
        try:
            shape = ag.tensor(mine, {"dp": Shard(0)}).global_shape
            raise AssertionError(shape)
        except ag.LayoutError:
            pass
    cc.check("first")
    print("done", flush=True)
    cc.barrier("dp")
    y = ag.tensor(X[:4], {"dp": Shard(0)}, global_shape=(13 if rank == 1 else 12, 2))
    cc.all_reduce(y.sum(), "dp", to=I)
