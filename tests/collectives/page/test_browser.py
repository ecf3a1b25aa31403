"""The page in a browser: what it draws, its keys, and that the document does not grow with the program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, random
from collectives import I, R
from collectives.inspect.record import CallOf, OperationRecord, RankRecords
from collectives.page import page
from parallel import Trainer

from .browser import look
from .made import programs, summary


def recorded(ranks: int) -> list[RankRecords]:
    """Two steps of data parallel training."""
    rows = np.random.default_rng(0).normal(size=(12, 3))

    def program() -> RankRecords:
        with cc.recording_operations() as found, cc.Mesh(dp=-1):
            random.seed(0)
            model = nn.Sequential(nn.Linear(3, 2, dtype=float), nn.Tanh())
            optimizer = ag.optim.SGD(model.parameters(), lr=0.1)
            x = cc.shard(ag.tensor(rows, layout={"dp": R}), "dp")
            for _ in range(2):
                optimizer.zero_grad()
                with ag.Tape() as tape:
                    w = [cc.cast(p, "dp", to=R) for p in model.parameters()]
                    loss = cc.all_reduce((ag.numpy.tanh(x @ w[0] + w[1]) ** 2).sum(), "dp", to=I) / 12
                tape.backward(loss)
                optimizer.step()
        return found

    return cc.run(program, ranks)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_program_is_drawn_without_a_word_on_the_console(ranks: int, tmp_path: Path) -> None:
    seen = look(page(recorded(ranks), title="two steps").html, """
        view.go(5);
        const all = (path) => Array.from(document.querySelectorAll(path), (each) => each.textContent);
        const texts = all("#columns .cell .name");
        return {
          ranks: run.size, moments: run.moments, texts, title: document.title,
          panel: document.querySelector("#panel h1").textContent,
          source: document.querySelector("#panel .source .here").textContent,
          lanes: all("#names text").filter((text) => text.startsWith("rank")),
        };
    """, tmp_path)  # fmt: skip
    assert seen.console == [] and seen.requests == 0
    found = seen.result
    assert found["ranks"] == ranks and found["title"] == "two steps"
    assert {"shard", "matmul"} <= set(found["texts"])
    assert found["panel"] and found["source"].split(None, 1)[0].isdigit()
    assert found["lanes"] == [f"rank {r}" for r in range(ranks)] * 2


def test_keys(tmp_path: Path) -> None:
    """Every key of the help, and that `b` goes to the adjoint and back."""
    seen = look(page(recorded(2)).html, """
        const at = {};
        press("ArrowRight"); press("ArrowRight"); at.right = view.moment;
        press("ArrowLeft"); at.left = view.moment;
        press("End"); at.end = view.moment - run.moments;
        press("Home"); at.home = view.moment;
        press("ArrowDown"); at.down = view.chosen;
        press("ArrowUp"); at.up = view.chosen;
        press("/"); const box = document.getElementById("query");
        box.value = "matmul"; box.dispatchEvent(new Event("input"));
        press("Enter"); at.name = run.texts[run.rank[0].name[view.record()]];
        at.matches = view.matches.length; at.shown = document.querySelectorAll(".cell.found").length;
        press("Escape"); at.cleared = box.value;
        const forward = view.moment;
        press("b"); at.adjoint = run.rank[0].direction[view.record()]; press("b"); at.back = view.moment - forward;
        press("m"); at.axis = view.axis; press("m"); at.order = view.axis;
        const wide = view.pitch; press("+"); at.wider = view.pitch > wide; press("-"); at.same = view.pitch === wide;
        const dark = document.documentElement.classList.contains("dark");
        press("t"); at.theme = document.documentElement.classList.contains("dark") !== dark;
        press("?"); at.help = document.getElementById("keys").open; document.getElementById("close").click();
        press(" "); at.plays = document.getElementById("play").textContent; press(" ");
        press("Escape"); at.whole = view.moment;
        return at;
    """, tmp_path)  # fmt: skip
    assert seen.console == []
    assert seen.result["matches"] >= 8 and seen.result["shown"] > 0 and "pause" in seen.result["plays"]
    expected = {
        "right": 1, "left": 0, "end": -1, "home": 0, "down": 1, "up": 0, "name": "matmul", "cleared": "", "adjoint": 1,
        "back": 0, "axis": "measured", "order": "order", "wider": True, "same": True, "theme": True, "help": True,
        "whole": -1,
    }  # fmt: skip
    assert {key: seen.result[key] for key in expected} == expected


def chain(ranks: int, count: int) -> list[RankRecords]:
    """Many operations in nested scopes; every tenth is a collective."""
    made = []
    for r in range(ranks):
        values = [summary(np.random.default_rng([r, k]).normal(size=2)) for k in range(7)]
        records = []
        for k in range(count):
            call = CallOf("all_reduce", "dp", "dp", k, tuple(range(ranks)), 16)
            records.append(OperationRecord(
                k, "forward", f"op{k % 9}", 1, k, ("net", f"block{k // 50}"), __file__, 1 + k % 40,
                (k - 1,) if k else (), layout="{dp: V}", value=values[k % 7], calls=[call] if k % 10 == 0 else [],
                begin_ns=10 * k, end_ns=10 * k + 9,
            ))  # fmt: skip
        for k in reversed(range(count)):
            records.append(OperationRecord(len(records), "backward", f"op{k % 9}", adjoint_of=k, value=values[k % 5]))
        made.append(RankRecords(r, (("dp", ranks),), (r,), records))
    return made


def test_the_document_does_not_grow_with_the_program(tmp_path: Path) -> None:
    """Elements of 8 ranks with 200 and with 20,000 operations, in order, in time and folded."""
    script = """
        view.foldTo(run.depth);
        const count = () => document.querySelectorAll("#stage *").length, at = [];
        for (let k = 0; k < 40; k++) view.go((k * 37) % run.moments);
        view.go(Math.floor(0.4 * run.moments) % 100); at.push(count());
        for (const part of [0.3, 0.5, 0.7]) { view.go(Math.floor(part * run.moments)); at.push(count()); }
        view.setAxis("measured"); at.push(count());
        view.setAxis("order"); view.foldTo(1); view.go(10); at.push(count());
        return at;
    """
    small = look(page(chain(8, 100)).html, script, tmp_path)
    large = look(page(chain(8, 10_000)).html, script, tmp_path)
    assert small.console == large.console == []
    assert max(large.result) <= 1.1 * max(small.result) < 3000


def test_folding_sums_the_calls(tmp_path: Path) -> None:
    seen = look(page(chain(3, 100)).html, """
        view.foldTo(1); const one = view.blocks.count;
        const texts = (cell) => Array.from(cell.querySelectorAll("text"), (each) => each.textContent);
        const cells = Array.from(document.querySelectorAll(".cell"), texts);
        view.foldTo(2); const all = view.blocks.count;
        view.toggleScope(run.scopeOf[0]);
        return { one, all, block: view.blocks.count, cells };
    """, tmp_path)  # fmt: skip
    assert (seen.result["one"], seen.result["all"], seen.result["block"]) == (1, 100, 51)
    assert seen.result["cells"][0] == ["net ×100", "10 all_reduce", "160 B, 10 calls"]


def test_faults_are_marked(tmp_path: Path) -> None:
    ranks = programs("exp log recv<1", "exp log recv<0")
    for r, of in enumerate(ranks):
        of.mesh, of.coordinates, of.error = (("dp", 2),), (r,), "deadlock: no rank can continue\n  fix: send first"
        for record in of.records[:2]:
            record.layout = "{dp: R}"
        of.records[0].value = summary([1.0, 2.0 + r])
        of.records[1].value = summary([1.0, np.nan])
    seen = look(page(ranks).html, """
        return {
          signs: Array.from(document.querySelectorAll("#columns .sign"), (each) => each.textContent),
          dots: document.querySelectorAll("#columns circle[fill='#c8102e']").length,
          broken: document.querySelectorAll("#links .broken").length,
          problems: Array.from(document.querySelectorAll("#problems button"), (each) => each.textContent),
          error: document.querySelector("#panel .error").textContent, moment: view.moment,
        };
    """, tmp_path)  # fmt: skip
    assert seen.result["signs"].count("≠") == 2 and seen.result["signs"].count("✕") == 2
    assert seen.result["dots"] == 2 and seen.result["broken"] == 2 and seen.result["moment"] == 2
    assert seen.result["problems"] == [
        "✕ ranks 0, 1: deadlock: no rank can continue", "≠ copies of exp differ (program.py:1)",
        "● log is not finite on ranks 0, 1 (program.py:1)",
    ]  # fmt: skip
    assert "fix: send first" in seen.result["error"]


def test_print_has_every_column(tmp_path: Path) -> None:
    seen = look(page(chain(2, 40)).html, """
        dispatchEvent(new Event("beforeprint"));
        const all = (path) => Array.from(document.querySelectorAll(path));
        const names = all("#printed svg .name").map((each) => each.textContent);
        const fills = all("#printed [fill^=url]").map((each) => each.getAttribute("fill").slice(4, -1));
        const known = fills.length > 0 && fills.every((id) => document.querySelector("#printed " + id));
        dispatchEvent(new Event("afterprint"));
        return { names, known, left: document.querySelectorAll("#printed *").length };
    """, tmp_path)  # fmt: skip
    assert len(seen.result["names"]) == 2 * 2 * 40 and seen.result["known"] and seen.result["left"] == 0


def test_predicted_times_are_an_axis(tmp_path: Path) -> None:
    ranks = chain(1, 5)
    made = page(ranks, predicted=[[(k * 1e-3, k * 1e-3 + 5e-4) for k in range(10)]])
    seen = look(made.html, """
        press("m"); press("m");
        return { axis: view.axis, span: view.times.span, choices: document.querySelectorAll("#axis option").length };
    """, tmp_path)  # fmt: skip
    assert seen.result == {"axis": "predicted", "span": pytest.approx(9.5e6), "choices": 3}


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    """Names, errors and values are text, whatever they contain."""
    evil = "<img src=x onerror=alert(1)></script><script>document.title='taken'</script>"
    records = [OperationRecord(0, "forward", evil, scope=(evil,), layout=evil, error=evil, operand_names=(evil,))]
    seen = look(page([RankRecords(0, records=records, error=evil)], title=evil).html, """
        view.go(0); view.search("img"); press("?");
        return { title: document.title, images: document.images.length };
    """, tmp_path)  # fmt: skip
    assert seen.result == {"title": evil, "images": 0} and seen.console == []


def test_comparisons_of_the_ranks_are_shown_when_they_are_asked_for(tmp_path: Path) -> None:
    def program() -> RankRecords:
        trainer = Trainer(
            lambda: nn.Sequential(nn.Linear(3, 2, key=random.Key(0)), nn.Tanh()), nn.MSELoss(reduction="sum"),
            cc.Mesh.fit(dp=2), optimizer=lambda parameters: ag.optim.SGD(parameters, lr=0.1),
        )  # fmt: skip
        with cc.recording_operations() as found:
            trainer.step(np.ones((4, 3), np.float32), np.ones((4, 2), np.float32))
        return found

    records = cc.run(program, 2)
    every = [x for of in records for x in of.records]
    asked = {x.name for x in every if x.calls and all(c.is_control and c.call == x.name for c in x.calls)}
    assert asked, "the program makes no record of a comparison"
    seen = look(page(records).html, """
        const names = () => [...new Set(Array.from(document.querySelectorAll("#columns .cell"), (cell) =>
          run.texts[run.rank[+cell.dataset.r].name[+cell.dataset.k]]))];
        const walk = () => {
          const at = new Set();
          view.go(-1);
          for (let k = 0; k < run.moments; k++) { press("ArrowRight"); at.add(view.moment); }
          return at.size;
        };
        const button = document.getElementById("checks");
        const look = () => {
          const steps = walk();
          press("End");
          return { steps, blocks: view.blocks.count, names: names() };
        };
        const found = { first: look(), hidden: button.hidden };
        press("c"); found.asked = look();
        button.click(); found.again = look();
        return found;
    """, tmp_path)  # fmt: skip
    assert seen.console == [], seen.console
    found = seen.result
    assert not found["hidden"] and not asked & {*found["first"]["names"]} and asked <= {*found["asked"]["names"]}
    assert found["again"]["blocks"] == found["first"]["blocks"] < found["asked"]["blocks"]
    assert found["again"]["steps"] == found["first"]["steps"] < found["asked"]["steps"]
