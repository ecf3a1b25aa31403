"""A training program with data and tensor parallelism, and a transport that counts its calls.

The program has no code for dry worlds. The arrays that it sums along tp have even sizes, so that the chunks of a ring
are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn, optim, random
from collectives.checks.channel import Checks
from collectives.transports.protocol import Communicator, Pending, Request
from collectives.transports.request import shown
from collectives.world import replaced_world
from parallel import DataParallel


class Pair(nn.Module):
    """A column-parallel and a row-parallel product along tp: the cast I->R is Megatron-LM's f, the all-reduce its g."""

    def __init__(self, width: int, inner: int):
        tp = cc.current_mesh().axis("tp")
        mine = inner // tp.size
        part = slice(int(tp.rank) * mine, (int(tp.rank) + 1) * mine)
        key, whole = random.next_key("Pair"), slice(0, width)
        up = random.normal(key.fold("up"), (width, inner), std=0.1, dtype="float32", part=(whole, part))
        down = random.normal(key.fold("down"), (inner, width), std=0.1, dtype="float32", part=(part, whole))
        self.up = ag.Parameter(up, layout={"tp": cc.Shard(1)})
        self.down = ag.Parameter(down, layout={"tp": cc.Shard(0)})

    def forward(self, x: Any) -> Any:
        inside = np.tanh(cc.cast(x, "tp", to=cc.R) @ self.up)
        return x + cc.all_reduce(inside @ self.down, "tp", to=cc.I)


class Model(nn.Module):
    def __init__(self, pairs: int, width: int, inner: int, classes: int):
        self.pairs = [Pair(width, inner) for _ in range(pairs)]
        self.head = nn.Linear(width, classes)

    def forward(self, x: Any) -> Any:
        for pair in self.pairs:
            x = pair(x)
        return self.head(x)


def train(
    dp: int, tp: int, *, pairs: int = 3, width: int = 16, inner: int = 32, classes: int = 8, batch: int = 4,
    steps: int = 2, mesh: cc.Mesh | None = None,
) -> Any:  # fmt: skip
    """Some steps of Adam; returns the model."""
    random.seed(0)
    with cc.Mesh(dp=dp, tp=tp) if mesh is None else mesh as mesh:
        rank = int(mesh.axis("dp").rank)
        model = DataParallel(Model(pairs, width, inner, classes), "dp")
        optimizer = optim.Adam(model.parameters(), lr=1e-3)
        rows = slice(rank * batch, (rank + 1) * batch), slice(0, width)
        for step in range(steps):
            layout = {"dp": cc.Shard(0), "tp": cc.I}
            drawn = random.normal(random.Key(1, "x", step), (dp * batch, width), dtype="float32", part=rows)
            x = ag.tensor(drawn, layout=layout)
            y = ag.tensor(numpy.arange(batch) % classes, layout=layout)
            optimizer.zero_grad()
            with ag.Tape() as tape:
                losses = nn.cross_entropy(model(x), y, reduction="none")
                loss = cc.all_reduce(losses.sum() / (dp * batch), "dp", to=cc.I)
            tape.backward(loss)
            optimizer.step()
        return model


# -- what a real transport is given ------------------------------------------------------------------------------------

Tally = Counter[tuple[str, str, str]]
"""How many calls, or bytes, or messages: by (axis, call, what)."""


class Counted(Communicator):
    """A communicator that counts the calls to another one and the bytes of their operands. It compares nothing.

    It shares no code with the dry transport: it counts the arrays that are really passed.
    """

    def __init__(self, inner: Communicator, tally: Tally):
        super().__init__(inner.index, inner.ranks, inner.name)
        self.inner, self.tally = inner, tally
        self.traffic = inner.traffic
        self.checks = None if inner.size == 1 else Checks(never=True)

    def subgroup(self, members: Sequence[int], name: str) -> Communicator:
        return type(self)(self.inner.subgroup(members, name), self.tally)

    def _lane_of(self, name: str, key: str) -> Communicator:
        return type(self)(self.inner.lane(name.rpartition("/")[2]), self.tally)

    def agree(self, call: Any, *_: Any, **__: Any) -> None:
        assert not isinstance(call, str), "nothing is compared, so no text is made"

    def count(self, call: str, what: str, n: int) -> None:
        self.tally[self.name.partition("@")[0], call, what] += n

    def run(self, request: Request) -> Any:
        name, given = shown(request), request.out if request.x is None else request.x
        self.count(name, "calls", 1)
        self.count(name, "bytes", 0 if given is None else len(given) if name == "exchange" else given.nbytes)
        return self.inner.run(request)

    def start(self, request: Request) -> Pending[Any]:
        return Pending.done(self.run(request))


def really_run(program: Callable[[], Any], ranks: int, transport: type[Counted] = Counted) -> list[Tally]:
    """Run a program on threads over a counting transport; every rank's counts.

    The seam for another transport: a subclass of `Counted` that counts "messages" and "sent" bytes where it sends.
    """
    def rank_main() -> Tally:
        tally: Tally = Counter()
        with replaced_world(transport(cc.world(), tally)):
            program()
        return tally

    return cc.run(rank_main, ranks)
