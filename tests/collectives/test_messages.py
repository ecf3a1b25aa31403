"""Messages of collectives: what users of other libraries write, reports of checks, and the rank that failed."""

from __future__ import annotations

import re
import traceback
from typing import Any

import numpy
import pytest

import collectives as cc
from autograd.errors import ArgumentError, OptionError

ADDING = ("all_reduce", "reduce", "reduce_scatter", "all_reduce_async", "reduce_async", "reduce_scatter_async")


class ReduceOp:
    """An option of another library, which shows itself as ``RedOpType.AVG``."""

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return f"RedOpType.{self.name}"


@pytest.mark.parametrize("function", ADDING)
@pytest.mark.parametrize(
    ("op", "fix", "value"),
    [("avg", "cc.mean", 2.0), ("mean", "cc.mean", 2.0), (ReduceOp("AVG"), "cc.mean", 2.0), ("max", "cc.all_max", 3.0),
     ("min", "cc.all_min", 1.0), (ReduceOp("PRODUCT"), "cc.all_prod", 6.0), ("sum", "cc.all_reduce", 6.0)],
    ids=str,
)  # fmt: skip
def test_another_operation_names_its_function(function: str, op: Any, fix: str, value: float) -> None:
    def program() -> float:
        with cc.Mesh(dp=3):
            x = numpy.array([cc.world().index + 1.0])
            with pytest.raises(ArgumentError, match=f"op={re.escape(repr(op))} was given; .* adds\\n  fix: ") as error:
                getattr(cc, function)(x, "dp", op=op)
            (found,) = re.findall(r'cc\.\w+\(x, "dp"\)', str(error.value))
            assert found.startswith(fix) and ("equally many" in str(error.value)) == (fix == "cc.mean")
            return float(eval(found, {"cc": cc, "x": x}).item())

    assert cc.run(program, ranks=3) == [value] * 3


@pytest.mark.parametrize(
    ("name", "fix"),
    [("AVG", "cc.mean(x"), ("SUM", "cc.all_reduce(x"), ("MAX", "cc.all_max(x"), ("MIN", "cc.all_min(x"),
     ("PRODUCT", "cc.all_prod(x"), ("ReduceOp", "cc.mean"), ("other", "")],
)  # fmt: skip
def test_names_of_other_libraries(name: str, fix: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'") as error:
        getattr(cc, name)
    assert fix in str(error.value) and ("Use" in str(error.value)) == bool(fix)
    assert not hasattr(cc, name)


def test_an_operation_of_a_transport() -> None:
    with pytest.raises(OptionError, match="op='avg'.*needed: one of sum, max, prod\n  fix: group.all_reduce"):
        cc.world().all_reduce(numpy.ones(2), op="avg")
    with pytest.raises(ArgumentError, match="all_reduce: got an unexpected keyword argument 'other'"):
        with cc.Mesh(dp=1):
            cc.all_reduce_async(numpy.ones(2), "dp", other=1)  # type: ignore[call-arg]


# -- reports of checks -------------------------------------------------------------------------------------------------
def moved(x: Any, call: Any, by: int = 1) -> Any:
    n = call.group.size
    every = call.group.all_gather(x.ravel(), [x.size] * n).reshape((n, *x.shape))
    return every[(call.group.index - by) % n]


def declared(forward: Any, adjoint: Any) -> Any:
    made = cc.Collective("mine", takes=(cc.V,), gives=cc.V, registered=False)
    made.forward(forward)
    made.adjoint(adjoint(made))
    return made


FAULTS = {
    "a wrong adjoint": (lambda: declared(moved, lambda made: lambda ct, call: made(ct, call)),
                        {"adjoint", "pairing", "second", "mixed"}, "off by"),
    "an adjoint that raises": (lambda: declared(moved, lambda made: lambda ct, call: missing(ct)),  # noqa: F821
                               {"error"}, "NameError: name 'missing' is not defined; at test_messages.py:"),
    "a forward direction that raises": (
        lambda: declared(lambda x, call: call.group.all_gather(x), lambda made: lambda ct, call: ct),
        {"error"}, "without counts; needed: counts, "),
    "an error inside NumPy": (
        lambda: declared(lambda x, call: numpy.linalg.inv(x), lambda made: lambda ct, call: ct),
        {"error"}, "LinAlgError"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_report_has_one_line_for_each_kind_of_failure(fault: str) -> None:
    make, kinds, said = FAULTS[fault]
    report = cc.testing.check(make(), ranks=(1, 3))
    head, *lines = str(report).splitlines()
    assert re.fullmatch(rf"mine: {report.cases} cases, {len(report.failures)} failures", head)
    assert {line.partition(":")[0].strip() for line in lines} == report.failed == kinds
    assert len(lines) == len(kinds) and said in lines[0], str(report)
    assert "Traceback" not in str(report) and 'File "' not in str(report)
    shown = [int(n) for n in re.findall(r"; and (\d+) more$", str(report), re.MULTILINE)]
    assert sum(shown) + len(lines) == len(report.failures)


# -- the rank that failed ----------------------------------------------------------------------------------------------
class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class WithoutNotes(Exception):
    def add_note(self, note: str) -> None:
        raise RuntimeError("no notes")


AGAIN = ValueError("the same object")


@pytest.mark.parametrize("waits", [False, True], ids=["alone", "others wait"])
@pytest.mark.parametrize(
    "error",
    [ValueError("mine"), KeyError("k"), AssertionError(), StopIteration(1), MemoryError(), GeneratorExit(), AGAIN,
     AGAIN, KeyboardInterrupt(), Unprintable(), WithoutNotes("w"), ExceptionGroup("several", [ValueError(1)])],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_an_error_of_one_rank_names_it(error: BaseException, waits: bool) -> None:
    def program() -> None:
        with cc.Mesh(dp=3):
            if cc.world().index == 1:
                raise error
            if waits:
                cc.barrier("dp")

    with pytest.raises(type(error)) as caught:
        cc.run(program, ranks=3)
    assert caught.value is error and error.__notes__.count("raised on rank 1 of 3") == 1
    if not isinstance(error, Unprintable):
        assert "raised on rank 1 of 3" in "".join(traceback.format_exception(caught.value))
