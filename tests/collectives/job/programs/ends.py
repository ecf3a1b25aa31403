"""Three ranks whose program ends in the way that is asked for: ends.py KIND POLICY END, for the table in docs/jobs.md.

`KIND` is ``mpi``, ``threads`` or ``alone``. An END that begins with ``elastic.run: `` is one of a run of three ranks,
or of two and a spare. The ends are those of `ENDS`: who does what, and at which place.
"""

from __future__ import annotations

import atexit
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

KIND, POLICY, END = sys.argv[1:4]
RANK = int(os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)  # before the import
ALL, ONE, OTHERS = (0, 1, 2), (1,), (0, 2)


def fail() -> NoReturn:
    raise ValueError("planted")


def fail_in_a_thread() -> None:
    thread = threading.Thread(target=fail, name="helper")
    thread.start()
    thread.join()


def wait_for_a_thread_that_fails() -> NoReturn:
    fail_in_a_thread()
    stay()


def fail_in_a_child() -> None:
    child = multiprocessing.get_context("fork").Process(target=fail)
    child.start()
    child.join()


def catch_it() -> None:
    """An error leaves the block of the world, and the program catches it."""
    raise Caught


def exit_with(status: Any) -> Callable[[], NoReturn]:
    return lambda: sys.exit(status)


def leave_with(status: int) -> Callable[[], NoReturn]:
    return lambda: os._exit(status)


def raise_exit() -> NoReturn:
    raise SystemExit(3)


def interrupt() -> NoReturn:
    raise KeyboardInterrupt


def exhaust() -> NoReturn:
    raise MemoryError("planted")


def killed_by(number: signal.Signals) -> Callable[[], None]:
    def die() -> None:
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        faulthandler.disable()
        os.kill(os.getpid(), number)

    return die


def wait_for(tag: int) -> Callable[[], None]:
    """Wait for a message that nobody sends: of the next rank."""

    def wait() -> None:
        everyone = cc.world()
        everyone.recv(np.empty(tag), (everyone.index + 1) % everyone.size)

    return wait


def stay() -> NoReturn:
    while True:
        threading.Event().wait()


def differ() -> None:
    """A call that the other ranks do not make."""
    cc.check("always")
    with cc.Mesh(dp=-1):
        cc.all_reduce(np.ones(2 + rank()), "dp")


def give_up() -> None:
    cc.World.current().fail("lost its disk")


class Caught(Exception):
    """The program catches it."""


class End(NamedTuple):
    who: tuple[int, ...]
    what: Callable[[], object]
    where: str


ENDS: dict[str, list[End]] = {
    "all return": [],
    "all raise in the world": [End(ALL, fail, "in the world")],
    "one raises, the others wait for it": [End(ONE, fail, "in the world")],
    "one raises, the others go on without it": [End(ONE, fail, "in the world"), End(OTHERS, stay, "go on")],
    "one raises, the others have come to the end": [End(ONE, fail, "after the last call")],
    "all raise before they import collectives": [End(ALL, fail, "before the import")],
    "all raise right after the import": [End(ALL, fail, "after the import")],
    "one raises right after the import": [End(ONE, fail, "after the import")],
    "all raise before they make a world": [End(ALL, fail, "before the world")],
    "all raise after the world": [End(ALL, fail, "after the world")],
    "one raises after the world": [End(ONE, fail, "after the world")],
    "all raise in a thread": [End(ALL, fail_in_a_thread, "in the world")],
    "one raises in a thread, and its main thread waits for ever": [
        End(ONE, wait_for_a_thread_that_fails, "in the world")],
    "all raise in an exit handler": [End(ALL, fail, "exit handler")],
    "a forked child of each raises": [End(ALL, fail_in_a_child, "in the world")],
    "all raise, and catch it outside of the world": [End(ALL, catch_it, "in the world")],
    "all call World.fail": [End(ALL, give_up, "after the last call")],
    "all call sys.exit(0) in the world": [End(ALL, exit_with(0), "in the world")],
    "all call sys.exit(3) in the world": [End(ALL, exit_with(3), "in the world")],
    'all call sys.exit("text") in the world': [End(ALL, exit_with("planted"), "in the world")],
    "all call sys.exit(3) right after the import": [End(ALL, exit_with(3), "after the import")],
    "all call sys.exit(3) after the world": [End(ALL, exit_with(3), "after the world")],
    "all raise SystemExit(3) after the world": [End(ALL, raise_exit, "after the world")],
    "one calls sys.exit(0), the others wait for it": [End(ONE, exit_with(0), "in the world")],
    "one calls sys.exit(3), the others wait for it": [End(ONE, exit_with(3), "in the world")],
    "one returns, the others wait for it": [End(ONE, exit_with(None), "open world")],
    "all raise KeyboardInterrupt": [End(ALL, interrupt, "in the world")],
    "all raise MemoryError": [End(ALL, exhaust, "in the world")],
    "one calls os._exit(0), the others wait for it": [End(ONE, leave_with(0), "in the world")],
    "one calls os._exit(3), the others wait for it": [End(ONE, leave_with(3), "in the world")],
    "all call os._exit(0)": [End(ALL, leave_with(0), "in the world")],
    "all call os._exit(0) before they make a world": [End(ALL, leave_with(0), "before the world")],
    "all call os._exit(3)": [End(ALL, leave_with(3), "in the world")],
    "one is killed by SIGKILL, the others wait for it": [End(ONE, killed_by(signal.SIGKILL), "in the world")],
    "one is killed by SIGKILL, the others go on without it": [
        End(ONE, killed_by(signal.SIGKILL), "in the world"), End(OTHERS, stay, "go on")],
    "two are killed by SIGKILL": [End(OTHERS, killed_by(signal.SIGKILL), "in the world")],
    "all are killed by SIGKILL": [End(ALL, killed_by(signal.SIGKILL), "in the world")],
    "all are killed by SIGTERM": [End(ALL, killed_by(signal.SIGTERM), "in the world")],
    "all are killed by SIGSEGV": [End(ALL, killed_by(signal.SIGSEGV), "in the world")],
    "one is killed before it makes a world": [End(ONE, killed_by(signal.SIGKILL), "before the world")],
    "all are killed before they make a world": [End(ALL, killed_by(signal.SIGKILL), "before the world")],
    "one has ended before it imports collectives": [End(ONE, exit_with(0), "before the import")],
    "all wait for each other": [End(ALL, wait_for(1), "in the world")],
    "all make different calls": [End(ALL, differ, "in the world")],
    "a time limit in a call": [End(ONE, stay, "in the world")],
    "a time limit before the first world": [End(ONE, stay, "before the world")],
    "a time limit at the end of the world": [End(ONE, stay, "after the last call")],
    "a time limit in an exit handler": [End(ONE, stay, "exit handler")],
    "elastic.run: all come to the end": [],
    "elastic.run: all raise": [End(ALL, fail, "step")],
    "elastic.run: one raises": [End(ONE, fail, "step")],
    "elastic.run: all call sys.exit(3)": [End(ALL, exit_with(3), "step")],
    "elastic.run: one is killed": [End(ONE, killed_by(signal.SIGKILL), "step")],
    "elastic.run: one is killed, and a spare takes its place": [End(ONE, killed_by(signal.SIGKILL), "step")],
    "elastic.run: two are killed": [End(OTHERS, killed_by(signal.SIGKILL), "step")],
    "elastic.run: all are killed": [End(ALL, killed_by(signal.SIGKILL), "step")],
    "elastic.run: a time limit": [End(ONE, stay, "step")],
}  # fmt: skip


def rank() -> int:
    return cc.world().index if KIND == "threads" else RANK


def at(place: str, number: int = RANK) -> None:
    """Do what the end says of this place."""
    for each in ENDS[END]:
        if each.where == place and number in each.who:
            each.what()


def goes_on() -> bool:
    return any(each.where == "go on" and rank() in each.who for each in ENDS[END])


at("before the import")

import numpy as np  # noqa: E402

import collectives as cc  # noqa: E402


def program() -> None:
    world = cc.World.current()
    world.communicator.barrier()
    at("in the world", rank())
    try:
        world.communicator.barrier()
    except cc.RankFailed:
        if not goes_on():
            raise
        world.survivors().barrier()
    at("after the last call", rank())


def elastic_program() -> None:
    from parallel import elastic

    def train(run: elastic.Run) -> None:
        values = {"x": [0]}
        run.restore(values)
        for step in run.steps(3):
            cc.all_reduce(np.ones(2), "dp")
            if step == 1:
                cc.barrier("dp")
                at("step")
            values["x"][0] += 1

    with cc.World(policy=POLICY):
        elastic.run(train, mesh={"dp": -1}, spares=int("spare" in END))


at("after the import")
atexit.register(at, "exit handler")
at("before the world")
if KIND == "threads":
    with cc.World("threads", 3, policy=POLICY) as world:
        world.run(program)
elif END.startswith("elastic.run: "):
    elastic_program()
elif any(each.where == "open world" for each in ENDS[END]):
    world = cc.World(policy=POLICY)
    world.communicator.barrier()
    at("open world")
    world.communicator.barrier()
else:
    try:
        with cc.World(policy=POLICY):
            program()
    except Caught:
        pass
at("after the world")
print("END", flush=True)
