"""The ranks of the sweep of torch's DTensor over gloo: a line of JSON for each case, and one with its results.

    python dtensor_worker.py RANKS

The process forks the ranks. Ranks that are left waiting, because another one refused or died, are replaced.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import selectors
import signal
import socket
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DTensor loads it at its first call, which takes seconds in each process
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

STEP = 1e-5
LIMIT_S, GRACE_S = 60.0, 0.5


def full(x: Any) -> Any:
    return x.full_tensor() if isinstance(x, DTensor) else x


def random(shape: Any, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain(x: torch.Tensor) -> Any:
    return (x if x.dtype is torch.bool else x + 0).tolist()  # `+ 0` gives zeros without a storage one


def stages(f: Callable[..., Any], operands: list[Any], told: dict[str, Any]) -> None:
    """Fill `told`, by stage, with the value of `f`, its gradients, and those of their dot product with vectors."""
    def leaves() -> list[Any]:
        return [x.detach().requires_grad_(x.is_floating_point()) for x in operands]

    def filled(gs: Any, xs: list[Any]) -> list[Any]:
        return [plain(torch.zeros(x.shape) if g is None else full(g).detach()) for g, x in zip(gs, xs, strict=True)]

    for recorded in (False, True):
        xs = leaves()
        y, wanted = full(f(*xs)), [x for x in xs if x.requires_grad]
        told.setdefault("value", [plain(y.detach())])
        if not (y.requires_grad and wanted):
            return
        gs = torch.autograd.grad(y, wanted, random(y.shape, 0).to(y.dtype), allow_unused=True, create_graph=recorded)
        told["gradient of a recorded sweep" if recorded else "gradient"] = filled(gs, wanted)
    dots = [(full(g) * random(x.shape, 1 + i)).sum() for i, (g, x) in enumerate(zip(gs, wanted, strict=True))
            if g is not None and g.requires_grad]  # fmt: skip
    if dots:
        told["second order"] = filled(torch.autograd.grad(torch.stack(dots).sum(), wanted, allow_unused=True), wanted)


def by_differences(f: Callable[..., Any], operands: list[Any]) -> dict[str, Any]:
    """Central differences of the serial program: of <ct, y>, and of the dot product of gradients and vectors."""
    at = [x.clone() for x in operands]

    def weighted() -> float:
        y = f(*at)
        return float((y * random(y.shape, 0)).sum())

    def dot() -> float:
        xs = [x.clone().requires_grad_(x.is_floating_point()) for x in at]
        wanted, y = [x for x in xs if x.requires_grad], f(*xs)
        gs = torch.autograd.grad(y, wanted, random(y.shape, 0), allow_unused=True)
        return sum(float((g * random(g.shape, 1 + i)).sum()) for i, g in enumerate(gs) if g is not None)

    def slope(of: Callable[[], float], x: torch.Tensor, place: int) -> float:
        entry, values = x.view(-1), []
        kept = float(entry[place])
        for moved in (kept + STEP, kept - STEP):
            entry[place] = moved
            values.append(of())
        entry[place] = kept
        return (values[0] - values[1]) / (2 * STEP)

    def table(of: Callable[[], float]) -> list[Any]:
        return [torch.tensor([slope(of, x, i) for i in range(x.numel())]).reshape(x.shape).tolist()
                for x in at if x.is_floating_point()]  # fmt: skip

    first = table(weighted)
    return {"gradient": first, "gradient of a recorded sweep": first, "second order": table(dot)}


def placed(x: torch.Tensor, layout: str, addends: list[Any], mesh: Any) -> DTensor:
    if layout[0] == "P":
        local = torch.tensor(addends[dist.get_rank()], dtype=x.dtype)
        return DTensor.from_local(local, mesh, [Partial(layout[1:] or "sum")], run_check=False)
    return distribute_tensor(x, mesh, [Replicate() if layout == "R" else Shard(int(layout[1:]))], src_data_rank=None)


def answer(case: dict[str, Any], mesh: Any) -> dict[str, Any]:
    """The stages of one rank, and on rank 0 also those of the serial program."""
    f = eval("lambda " + ", ".join("xyzw"[: len(case["operands"])]) + ": " + case["call"], {"torch": torch, "F": F})
    operands = [torch.tensor(a, dtype=getattr(torch, t)) for a, t in zip(case["operands"], case["dtypes"], strict=True)]
    told: dict[str, Any] = {"distributed": {}, "serial": {}}
    if dist.get_rank() == 0:
        try:
            stages(f, operands, told["serial"])
            if case["differences"]:
                told["differences"] = by_differences(f, operands)
        except Exception as error:
            told["serial refuses"] = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    try:
        parts = zip(operands, case["layouts"], case["addends"], strict=True)
        stages(f, [placed(x, layout, addends, mesh) for x, layout, addends in parts], told["distributed"])
    except Exception as error:
        told["refused"] = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    return told


def rank(number: int, ranks: int, store: str, pipe: Connection) -> None:
    """Serve as one rank, in a process of its own."""
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=number, world_size=ranks,
                            timeout=datetime.timedelta(seconds=LIMIT_S))  # fmt: skip
    mesh = init_device_mesh("cpu", (ranks,))
    while True:
        pipe.send(answer(pipe.recv(), mesh))


class Job:
    """The processes of the ranks."""

    def __init__(self, ranks: int):
        self.ranks, self.pipes, self.pids, self.store = ranks, [], [], ""

    def start(self) -> None:
        handle, self.store = tempfile.mkstemp()
        os.close(handle)
        pairs = [Pipe() for _ in range(self.ranks)]
        for number, (_, theirs) in enumerate(pairs):
            pid = os.fork()
            if not pid:
                try:
                    for ours, _ in pairs:
                        ours.close()
                    rank(number, self.ranks, self.store, theirs)
                except EOFError:
                    pass
                finally:
                    os._exit(0)
            self.pids.append(pid)
        for _, theirs in pairs:
            theirs.close()
        self.pipes = [ours for ours, _ in pairs]

    def end(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for pipe in self.pipes:
            pipe.close()
        if self.store:
            Path(self.store).unlink(missing_ok=True)
        self.pids, self.pipes, self.store = [], [], ""

    def ask(self, case: dict[str, Any]) -> dict[str, Any]:
        """What the ranks say to a case."""
        if not self.pids:
            self.start()
        told: dict[int, Any] = {}
        limit_s, problem = LIMIT_S, ""
        with selectors.DefaultSelector() as waiting:
            for number, pipe in enumerate(self.pipes):
                pipe.send(case)
                waiting.register(pipe, selectors.EVENT_READ, number)
            while len(told) < self.ranks:
                ready = waiting.select(limit_s)
                if not ready:
                    problem = problem or "no answer in time"
                    break
                for key, _ in ready:
                    try:
                        told[key.data] = key.fileobj.recv()
                        problem = problem or told[key.data].get("refused", "")
                    except (EOFError, ConnectionError):
                        told[key.data] = {}
                        problem = problem or "a rank died"
                    waiting.unregister(key.fileobj)
                    limit_s = GRACE_S if problem else LIMIT_S  # it may wait for a rank that has left
        if len(told) < self.ranks or not all(told.values()) or len({bool(t.get("refused")) for t in told.values()}) > 1:
            self.end()
        answers = [told.get(number, {}).get("distributed", {}) for number in range(self.ranks)]
        return {**told.get(0, {}), "distributed": answers, "refused": problem}


def run(program: str, ranks: int) -> list[str]:
    """The errors of the ranks that run a program, each a process forked from this one, which has loaded torch."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    errors, pids = [tempfile.TemporaryFile("w+") for _ in range(ranks)], []  # noqa: SIM115 - read below
    for number, file in enumerate(errors):
        pids.append(os.fork())
        if not pids[-1]:
            os.dup2(file.fileno(), 2)
            os.environ.update(RANK=str(number), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            signal.alarm(int(LIMIT_S))
            try:
                exec(compile(program, "case.py", "exec"), {"__name__": "__main__"})
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(0)
    told = []
    for pid, file in zip(pids, errors, strict=True):
        os.waitpid(pid, 0)
        file.seek(0)
        told.append(file.read())
        file.close()
    return told


def main() -> None:
    """Answer until the input ends."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints must not get between the answers
    job = Job(int(sys.argv[1]))
    print(json.dumps({"version": torch.__version__}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        told = {"ended": run(request["program"], job.ranks)} if "program" in request else job.ask(request)
        print(json.dumps(told), file=answers)
    job.end()


if __name__ == "__main__":
    main()
