"""The plan of a tape: one graph of all ranks, what it finds wrong, and that what it says is sent is what is sent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import nn
from autograd.engine import events
from collectives.inspect.graph import Operation
from collectives.inspect.observing import observing
from collectives.inspect.plan import Plan, _merge, _Seen
from collectives.inspect.simulator import Simulated, simulate
from collectives.testing.proof import Case, Setting, operand, prepare
from collectives.testing.registry_cases import cases
from collectives.transports.probe import Sent
from collectives.transports.protocol import Communicator, Request
from collectives.transports.request import shown
from parallel import DataParallel

from ..launch import launch


def mixed_program() -> tuple[Plan, int]:
    """Data and tensor parallel, a permute, and a send from the first rank of "tp" to the second."""
    with cc.Mesh(dp=2, tp=2) as mesh:
        model = DataParallel(nn.Sequential(nn.Linear(4, 6), nn.Tanh()), "dp")
        v = ag.Parameter(numpy.ones((6, 3), "float32"), name="v")
        x = ag.tensor(numpy.ones((2, 4), "float32"), layout={"dp": cc.Shard(0), "tp": cc.I})
        with ag.Tape() as tape:
            h = cc.cast(model(x), "tp", to=cc.R) @ cc.cast(cc.cast(v, "dp", to=cc.R), "tp", to=cc.R)
            h = cc.permute(cc.cast(h, "tp", to=cc.V), "tp", [(0, 1), (1, 0)])
            if mesh.axis("tp").rank == 0:
                cc.send(h, "tp", 1)
            else:
                h = h + cc.recv("tp", 0)
            loss = cc.all_reduce((h * h).sum(), ("dp", "tp"), to=cc.I)
        plan = tape.plan()
        tape.backward(loss)
        return plan, len(plan.operations[cc.world().rank])


def test_one_graph_the_same_on_every_rank() -> None:
    found = cc.run(mixed_program, ranks=4)
    plans = [plan.to_json() for plan, _ in found]
    assert all(plan == plans[0] for plan in plans)
    plan = found[0][0]
    assert plan.problems == [] and json.loads(json.dumps(plans[0]))["ranks"] == 4
    by_name: dict[str, list[Any]] = defaultdict(list)
    for c in plan.communications:
        by_name[c.name].append(c)
    assert [c.ranks for c in by_name["all_reduce"]] == [[0, 1, 2, 3]]
    assert sorted(c.ranks for c in by_name["parameter entry"]) == [[0, 2], [1, 3]]
    assert sorted(c.ranks for c in by_name["send -> recv"]) == [[0, 1], [2, 3]]
    send = by_name["send -> recv"][0]
    assert send.forward == [[Sent("send", 1, 24)], [Sent("recv", 0, 24)]]
    assert send.backward == [[Sent("recv", 1, 24)], [Sent("send", 0, 24)]]
    entry = by_name["parameter entry"][0]
    # one bucket in float32: 24 and 6 numbers, each on cache lines of its own, and 2 used flags
    assert entry.forward == [[], []] and [s.bytes for s in entry.backward[0]] == [(32 + 16 + 2) * 4]
    leaves = [o for o in plan.operations[0] if o.parameter == "v"]
    assert len(leaves) == 1 and leaves[0].holders == [0, 1, 2, 3]
    assert "send -> recv" in str(plan)
    for rank, operations in enumerate(plan.operations):
        for o in operations:
            assert all(operations[0].place <= p < o.place for p in o.parents)
            assert o.communication < 0 or rank in plan.communications[o.communication].ranks


def test_owner_of_a_rooted_leaf() -> None:
    def program() -> Any:
        with cc.Mesh(a=2, b=3):
            w = ag.tensor(numpy.ones(2), layout={"a": cc.I, "b": cc.Rooted(2)}, requires_grad=True)
            with ag.Tape() as tape:
                cc.broadcast(w, "b", root=2)
            return tape.plan()

    plan = cc.run(program, ranks=6)[0]
    assert [o.holders for o in plan.operations[0] if o.name == "leaf"] == [[2, 5]]


def test_drawing(tmp_path: Any) -> None:
    plan = cc.run(mixed_program, ranks=4)[0][0]
    plan.write(str(tmp_path / "plan.svg"))
    plan.write(str(tmp_path / "plan.json"))
    root = ElementTree.parse(tmp_path / "plan.svg").getroot()
    boxes = [e for e in root.iter() if e.tag.endswith("rect") and len(e)]
    tooltips = [line for box in boxes for line in (box[0].text or "").splitlines()]
    assert len(tooltips) == 2 * sum(map(len, plan.operations))  # each operation in both directions
    assert len(boxes) < len(tooltips)  # local operations are folded
    texts = drawn_texts(root)
    for needed in ("forward \u2192", "backward: the tape in reverse, first the loss \u2192", "module 0", "linear, tanh",
                   "2 parameters", "0.weight, 0.bias", "all_reduce 4 B", "all_reduce 72 B", "send 24 B", "recv 24 B",
                   "float32[6,3]"):  # fmt: skip
        assert needed in texts, texts
    assert texts[0].startswith("4 ranks, 13 communications: ")
    assert json.loads((tmp_path / "plan.json").read_text()) == plan.to_json()
    with pytest.raises(ValueError, match="json or .svg"):
        plan.write(str(tmp_path / "plan.png"))


def drawn_texts(root: ElementTree.Element) -> list[str]:
    return [e.text or "" for e in root.iter() if e.tag.endswith("text")]


def test_no_text_of_a_drawing_is_clipped_or_struck_through(tmp_path: Any) -> None:
    """By a cautious width of a character: texts are inside of boxes or of the page, and no line crosses a box."""
    plan = cc.run(mixed_program, ranks=4)[0][0]
    plan.problems.append("a problem: " + "words " * 100)
    plan.write(str(tmp_path / "plan.svg"))
    root = ElementTree.parse(tmp_path / "plan.svg").getroot()
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = [tuple(float(e.attrib[key]) for key in ("x", "y", "width", "height"))
             for e in root.iter() if e.tag.endswith("rect") and len(e)]  # fmt: skip
    for e in root.iter():
        if not e.tag.endswith("text"):
            continue
        x, y, size = float(e.attrib["x"]), float(e.attrib["y"]), 5.6 * len(e.text or "")
        assert 0 < y < height
        if e.attrib.get("text-anchor") == "middle":
            assert any(bx < x - size / 2 and x + size / 2 < bx + bw and by < y < by + bh for bx, by, bw, bh in boxes)
        else:
            assert x + size < width, e.text
    paths = [e.attrib["d"] for e in root.iter() if e.attrib.get("class") == "line"]
    assert paths
    for path in paths:
        points = [tuple(map(float, point[1:].split(","))) for point in path.split()]
        for (x0, y0), (x1, y1) in pairwise(points):
            for bx, by, bw, bh in boxes:  # the segments are horizontal or vertical
                crosses_x = max(x0, x1) > bx and min(x0, x1) < bx + bw
                assert not (crosses_x and max(y0, y1) > by and min(y0, y1) < by + bh), path


def test_the_legend_of_a_drawing_has_only_what_occurs(tmp_path: Any) -> None:
    def program() -> Any:
        with cc.Mesh(a=2), ag.Tape() as tape:
            x = ag.tensor(numpy.ones(2), requires_grad=True)
            (x * 2.0).sum()
            return tape.plan()

    cc.run(program, ranks=2)[0].write(str(tmp_path / "plan.svg"))
    root = ElementTree.parse(tmp_path / "plan.svg").getroot()
    texts = drawn_texts(root)
    assert "parameters and other leaves" in texts and "local operations" in texts
    assert "communication" not in texts and "sends nothing in this direction" not in texts
    style = next(e.text or "" for e in root.iter() if e.tag.endswith("style"))
    assert "prefers-color-scheme: dark" in style


def test_a_send_that_nobody_receives_is_a_problem() -> None:
    def program() -> Any:
        with cc.Mesh(a=2):
            x = ag.tensor(numpy.ones(2), requires_grad=True)
            with ag.Tape() as tape:
                if cc.world().rank == 0:
                    cc.send(x * 2.0, "a", 1)
                (x * 3.0).sum()
            plans.append(tape.plan())

    plans: list[Any] = []
    with pytest.raises(cc.CollectiveMismatch, match="1 message was sent and never received"):
        cc.run(program, ranks=2)
    problem, deadlock = plans[0].problems
    assert "rank 0 calls it, rank 1 does not" in problem
    assert deadlock == "backward: deadlock: rank 0 waits in recv along a from rank 1"


def test_ranks_whose_tapes_differ() -> None:
    """Fingerprints would not let this happen, so the merged descriptions are made up: rank 1 recorded one more."""
    def said(name: str, axis: str = "a") -> _Seen:
        return _Seen(name, (axis,), ("a@0", (0, 1, 2)), [], [Sent("all_reduce", None, 8)], None)

    def rank(*seen: _Seen) -> Any:
        return [Operation(i, s.name, []) for i, s in enumerate(seen)], dict(enumerate(seen))

    cast = said("cast I->R")
    plan = _merge([rank(cast), rank(cast, cast), rank(cast)])
    assert plan.problems[0] == "communication 1 of 'a@0' (cast I->R): rank 0, 2 has none"
    assert plan.problems[1].startswith("backward: deadlock: rank 1 waits in all_reduce along a of ranks 0,1,2")
    plan = _merge([rank(cast), rank(said("all_reduce")), rank(cast)])
    assert "is not the same on all ranks" in plan.problems[0] and "rank 1: all_reduce along a" in plan.problems[0]


def meeting(call: str = "all_reduce", group: tuple[int, ...] = (0, 1), axes: str = "a") -> Any:
    return Simulated((axes,), group, Sent(call, None, 8))


def letter(call: str, peer: int) -> Any:
    return Simulated(("a",), (0, 1), Sent(call, peer, 8))


def both(call: Any, number: int) -> tuple[Any, Any]:
    """The start and the wait of a nonblocking call."""
    return call._replace(phase="start", number=number), call._replace(phase="wait", number=number)


S1, W1 = both(meeting(), 1)
S2, W2 = both(meeting(), 2)
R0, H0 = both(letter("recv", 1), 3)
R1, H1 = both(letter("recv", 0), 4)


@pytest.mark.parametrize(("calls", "waiting"), [
    ([[meeting()], [meeting()]], 0),
    ([[meeting(axes="a"), meeting(axes="b")], [meeting(axes="b"), meeting(axes="a")]], 2),
    ([[meeting("all_reduce")], [meeting("broadcast")]], 2),
    ([[letter("send", 1), letter("recv", 1)], [letter("send", 0), letter("recv", 0)]], 0),
    ([[letter("recv", 1), letter("send", 1)], [letter("recv", 0), letter("send", 0)]], 2),
    ([[meeting()], []], 1),
    ([[letter("recv", 1)], []], 1),
    ([[S1, S2, W1, W2], [S1, S2, W2, W1]], 0),
    ([[S1, W1], [W1, S1]], 2),
    ([[S1, W1, meeting()], [S1, meeting(), W1]], 0),
    ([[S1, W1], [meeting()]], 2),
    ([[R0, both(letter("send", 1), 5)[0], H0], [R1, both(letter("send", 0), 6)[0], H1]], 0),
    ([[R0, H0, both(letter("send", 1), 5)[0]], [R1, H1, both(letter("send", 0), 6)[0]]], 2),
    ([[letter("send", 1), letter("recv", 1)], [R1, H1, letter("send", 0)]], 2),  # blocking sends match blocking recvs
])  # fmt: skip
def test_simulator(calls: Any, waiting: int) -> None:
    assert len(simulate(calls)) == waiting


def started_program(waits_backwards: bool) -> tuple[Plan, list[tuple[str, int]]]:
    """Nonblocking collectives that ranks wait for in different orders, and a ring of nonblocking messages."""
    with cc.Mesh(a=3) as mesh:
        rank = int(mesh.axis("a").rank)
        x = ag.tensor(numpy.ones(4) * (rank + 1), requires_grad=True)
        with ag.Tape() as tape:
            handles = [cc.all_reduce_async(x * k, "a") for k in (1.0, 2.0)]
            here = cc.irecv("a", (rank - 1) % 3)
            there = cc.isend(x * x, "a", (rank + 1) % 3)
            for handle in handles[:: -1 if waits_backwards and rank == 1 else 1]:
                handle.wait()
            y = here * 1.0 + handles[0] * handles[1]
            there.wait()
            loss = cc.all_reduce(y.sum(), "a", to=cc.I)
        plan = tape.plan()
        sent: list[tuple[str, int]] = []

        def note(group: Communicator, request: Request, is_started: bool, run: Callable[[], Any]) -> Any:
            if request.call not in ("agree", "exchange"):
                sent.append((request.call, 0 if request.x is None else request.x.nbytes))
            return run()

        with observing(note):
            tape.backward(loss)
        return plan, sent


@pytest.mark.parametrize("waits_backwards", [False, True])
def test_nonblocking_calls_are_part_of_the_plan(waits_backwards: bool) -> None:
    for rank, (plan, sent) in enumerate(cc.run(started_program, 3, waits_backwards)):
        assert plan.problems == []
        names = Counter(c.name for c in plan.communications)
        assert names == {"all_reduce (nonblocking)": 2, "send -> recv (nonblocking)": 3, "all_reduce": 1}
        reduced = [c for c in plan.communications if c.name == "all_reduce (nonblocking)"]
        for c in reduced:
            assert c.ranks == [0, 1, 2] and c.forward == [[Sent("all_reduce", None, 32)]] * 3 == c.backward
        for c in plan.communications:
            if c.name == "send -> recv (nonblocking)":
                ways = [[s.call for s in mine] for mine in c.forward + c.backward]
                assert ways == [["send"], ["recv"], ["recv"], ["send"]]
        planned = [(s.call, 0 if s.call == "recv" else s.bytes) for c in plan.communications if rank in c.ranks
                   for s in c.backward[c.ranks.index(rank)]]  # fmt: skip
        assert Counter(planned) == Counter(sent)
        waits = [o for o in plan.operations[rank] if o.waits_for >= 0]
        assert len(waits) == 4 and all(plan.operations[rank][o.waits_for].name == "start" for o in waits)
        assert "(nonblocking)" in str(plan) and json.dumps(plan.to_json())


def test_a_released_tape_has_no_plan() -> None:
    with cc.Mesh(a=1):
        w = ag.Parameter(numpy.ones(2))
        with ag.Tape() as tape:
            loss = (w * w).sum()
        tape.backward(loss)
        with pytest.raises(ag.TapeError, match="released"):
            tape.plan()
    with pytest.raises(ag.TapeError, match="released"):
        tape.plan()


def test_a_tape_without_a_mesh(tmp_path: Path) -> None:
    """Its plan is the graph of this process."""

    def record() -> ag.Tape:
        w = ag.Parameter(numpy.ones(2), name="w")
        with ag.Tape() as tape:
            _ = (w * w).sum() / 2
        return tape

    for plan in (record().plan(), *cc.run(lambda: record().plan(), ranks=2)):
        assert str(plan).startswith("1 ranks, 4 operations, 0 communications") and plan.problems == []
        plan.write(tmp_path / "plan.svg")
        plan.write(tmp_path / "plan.json")
    with cc.Mesh(a=1):
        tape = record()
        assert str(tape.plan()).startswith("1 ranks, 4 operations")
    assert str(tape.plan()).startswith("1 ranks, 4 operations")


def test_a_plan_after_the_block_of_the_mesh() -> None:
    def program() -> tuple[str, str]:
        with cc.Mesh(a=2, b=2) as mesh:
            w = ag.Parameter(numpy.ones(2), name="w")
            with ag.Tape() as tape:
                x = ag.tensor(numpy.ones(2) * int(mesh.ranks.rank))
                cc.all_reduce((cc.cast(w, ("a", "b"), to=cc.R) * x).sum(), ("a", "b"), to=cc.I)
            inside = str(tape.plan())
        return inside, str(tape.plan())

    found = cc.run(program, ranks=4)
    assert all(inside == after == found[0][0] for inside, after in found)
    assert found[0][0].startswith("4 ranks")

    def of_some() -> None:
        part = cc.world().subgroup([2, 0] if cc.world().rank % 2 == 0 else [1], "part")
        with cc.Mesh(part, a=-1):
            w = ag.Parameter(numpy.ones(2), name="w")
            with ag.Tape() as tape:
                cc.cast(w, "a", to=cc.R)
        with pytest.raises(ag.MeshError, match="some ranks of the world.*\n  fix: call it inside the"):
            tape.plan()

    cc.run(of_some, ranks=3)


def test_a_plan_makes_no_call_that_anybody_hears() -> None:
    def program() -> tuple[list[str], list[str], str, list[str]]:
        calls: list[str] = []
        heard: list[str] = []

        def observer(group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
            calls.append(shown(request))
            return run()

        with cc.Mesh(a=3) as mesh, cc.recording_operations() as found:
            w = ag.Parameter(numpy.arange(3.0), name="w")
            with ag.Tape() as tape:
                x = ag.tensor(numpy.ones(3) * int(mesh.ranks.rank + 1))
                cc.all_reduce((cc.cast(w, "a", to=cc.R) * x).sum(), "a", to=cc.I)
            before = len(found.records), sum(len(r.calls) for r in found.records)
            with observing(observer), events.listening(lambda phase, way, name: heard.append(name)):
                plan = tape.plan()
            assert (len(found.records), sum(len(r.calls) for r in found.records)) == before
        return calls, heard, plan.operations[0][2].value, plan.operations[0][2].file

    for calls, heard, value, file in cc.run(program, ranks=3):
        assert calls == heard == []
        assert value == "f64[3] 0 1 2" and file == __file__


def test_what_the_plan_says_is_sent_is_what_backward_sends() -> None:
    """Every case of the registry at 3 ranks: the calls that backward makes on its transport, counted."""
    setting = Setting({"a": 3}, ["a"])
    # a sum by an algorithm is one call in the plan and several messages on the transport
    work = [case for case in cases(setting, 2) if isinstance(case, Case) and case.dtype == numpy.float64
            and "reproducible_sum" not in case.covers]  # fmt: skip

    def program() -> list[Any]:
        found = []
        mine: Counter[str] = Counter()

        def observer(group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
            if request.call not in ("agree", "exchange", "barrier"):
                mine[shown(request)] += 1
            return run()

        with cc.Mesh(a=3) as mesh, observing(observer):
            for case in work:
                x = operand(case, setting, prepare(case, setting), mesh)
                with ag.Tape() as tape:
                    y = case.call(x, ("a",))
                plan = tape.plan()
                mine.clear()
                tape.backward((), retain=True) if y.tape is None or y.absent else tape.backward(
                    [y], [ag.tensor(numpy.ones(y.array.shape), layout=dict(y.layout.dual))]
                )
                said: Counter[str] = Counter()
                for c in plan.communications:
                    if mesh.ranks.rank in c.ranks:
                        said.update(s.call for s in c.backward[c.ranks.index(mesh.ranks.rank)])
                found.append((case.name, plan.problems, dict(said), dict(mine)))
        return found

    for found in cc.run(program, ranks=3):
        assert len(found) > 50
        for name, problems, said, sent in found:
            assert problems == [], name
            assert said == sent, name


def test_over_mpi() -> None:
    outcome = launch("plan_program.py", 3, limit_s=60)
    assert outcome.code == 0 and "PLAN 3 ranks, 0 problems" in outcome.out, f"{outcome.out}\n{outcome.err}"


def test_the_modules_of_inspect_are_found_at_their_first_use() -> None:
    code = """if True:
        import sys
        import collectives
        assert not [name for name in sys.modules if name.startswith("collectives.inspect")]
        assert "inspect" in dir(collectives)
        names = {"dry_run", "graph", "observing", "plan", "timeline", "topology"}
        assert names <= set(dir(collectives.inspect))
        assert "collectives.inspect.plan" not in sys.modules
        assert all(getattr(collectives.inspect, name).__name__.endswith(name) for name in names)
        assert collectives.inspect.plan.Plan and not hasattr(collectives.inspect, "plans")
    """
    subprocess.run([sys.executable, "-c", code], check=True)
