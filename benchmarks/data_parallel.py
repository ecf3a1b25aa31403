"""Data-parallel training, beside PyTorch's DistributedDataParallel over gloo, in one run.

    python benchmarks/data_parallel.py --python-torch /path/to/an/environment/with/torch/bin/python
    python benchmarks/data_parallel.py --only mlp gpt --python-torch ... --json
    python benchmarks/data_parallel.py --only network --hosts 2 4 --python-torch ...      (as root)

mlp         a training step of a 784-512-512-10 network, 128 rows on each of 2 ranks of this host
gpt         the same for a GPT of 4 layers and width 256, 8 x 128 tokens a rank
small       forward and backward of 200 parameters of 256 elements: their gradients summed in one bucket, beside one by
            one, and beside the peer's bucket
captured    a step of a 64-64-64-10 network and of a GPT of 2 layers and width 32 that `autograd.capture` replays, on 2
            ranks of this host, beside the same step as it is, and beside the peer
efficiency  steps per second of 2 ranks over those of 1 rank with the same batch a rank; `ceiling` is the same for two
            processes that do not communicate, which is what this machine allows
dry         the exposed communication of the GPT on 1,024 ranks, 8 on each of 128 hosts joined at 10 Gbit/s, predicted
            from the times at which buckets were complete on this host; the peer is the step without overlap
network     the training steps on hosts joined at 500 Mbit/s (`benchmarks/cluster`), beside the peer, and beside the
            bound that `parallel.data.overlap.simulate` gives for the measured times at which buckets were complete

All run in float32, with Adam (the peer's fused form), on one thread and one core a rank. Models, initial weights and
batches are the same, and the losses of the first steps are compared. Every world runs in processes of its own. The
worlds take turns, so that other load on the machine affects all of them. A time is that of the slowest rank, and a
ratio is the peer's time over ours: the median over the rounds, and `best`, that of the shortest rounds. Without Numba
ringtape computes with NumPy alone; `--no-numba` measures that, too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT, PEERS = HERE.parent, HERE / "_peers"
sys.path = [str(ROOT), str(PEERS), *(path for path in sys.path if Path(path).resolve() != HERE)]

from data_parallel_case import CASES, THREADS, weights
from machine import print_machine

LIMIT_S = 180.0


class World:
    """A world of one library that trains one case, in processes of its own that wait for requests."""

    def __init__(
        self, library: str, python: str, case: str, ranks: int, *, mode: str = "", cores: str = "", hosts: int = 0,
        cluster: str = "", numba: bool = True, program: str = "data_parallel",
    ):  # fmt: skip
        self.library = library
        self.name = library + (f", {mode}" if mode.isalpha() else "")
        self.name += f", buckets of {int(mode) >> 10} KiB" if mode.isdigit() else ""
        self.name += "" if numba else ", no Numba"
        self.ranks = ranks
        self._folder = tempfile.TemporaryDirectory(prefix="ringtape-")
        address, token = f"{self._folder.name}/driver", secrets.token_hex(8)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen(ranks)
        environment = dict(os.environ, **THREADS)
        environment.pop("RINGTAPE_RANK_PID", None)
        if not numba:
            environment["RINGTAPE_COMPILED"] = "0"
        worker = [str(PEERS / f"{program}_{library}.py"), "--case", case, "--connect", address, "--token", token]
        worker += [f"--mode={mode}", f"--cores={cores}"]
        if library == "ringtape":
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
        else:
            environment.pop("PYTHONPATH", None)
        if hosts and library == "ringtape":
            commands = [([cluster, "mpi", str(ranks // hosts), python, *worker], environment)]
        elif hosts:
            environment["RINGTAPE_CLUSTER_PYTHON"] = python
            commands = [([cluster, "torch", str(ranks // hosts), *worker], environment)]
        elif library == "ringtape":
            commands = [([*mpiexec(python, ranks, environment), python, *worker], environment)]
        else:
            commands = [([python, *worker], {**environment, **torch_variables(rank, ranks, token)})
                        for rank in range(ranks)]  # fmt: skip
        self._processes = [
            subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
            for command, env in commands
        ]
        self._connections: list[Any] = []
        self.losses: list[float] = []
        try:
            self._accept(listener, token)
        except BaseException:
            self.close()
            raise
        finally:
            listener.close()

    def _accept(self, listener: socket.socket, token: str) -> None:
        found: dict[int, Any] = {}
        deadline = time.monotonic() + LIMIT_S
        listener.settimeout(0.5)
        while len(found) < self.ranks:
            ended = [process.returncode for process in self._processes if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                why = f"its processes ended with status {ended[0]}" if ended else f"it did not start in {LIMIT_S:g} s"
                raise SystemExit(f"data_parallel.py: {self.name}: {why}; see above")
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(LIMIT_S)
            lines = connection.makefile("rw")
            hello = json.loads(lines.readline() or "{}")
            if hello.get("token") != token or hello.get("size") != self.ranks:
                raise SystemExit(f"data_parallel.py: {self.name}: not the ranks that were started: {hello}")
            found[hello["rank"]] = lines
            self.losses = hello["losses"]
        self._connections = [found[rank] for rank in range(self.ranks)]

    def ask(self, what: str, **options: Any) -> None:
        """Send a request to all ranks."""
        for lines in self._connections:
            lines.write(json.dumps({"do": what, **options}) + "\n")
            lines.flush()

    def answers(self) -> list[Any]:
        """The answers of the ranks to the last request."""
        found = []
        for rank, lines in enumerate(self._connections):
            answer = lines.readline()
            if not answer:
                raise SystemExit(f"data_parallel.py: {self.name}: rank {rank} did not answer; see above")
            found.append(json.loads(answer))
        return found

    def steps(self, count: int) -> float:
        """Run steps, and return the time of one on the slowest rank in seconds."""
        self.ask("steps", count=count)
        return max(self.answers()) / count

    def __enter__(self) -> World:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        for lines in self._connections:
            lines.close()
        for process in self._processes:
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except OSError:
                pass
            process.wait()
        self._folder.cleanup()


def torch_variables(rank: int, ranks: int, token: str) -> dict[str, str]:
    """The environment of a rank of torch.distributed on this host."""
    port = 20000 + int(token[:6], 16) % 20000
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(ranks),
            "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip


def mpiexec(python: str, ranks: int, environment: dict[str, str]) -> list[str]:
    """The command that starts ranks by the launcher beside an interpreter."""
    beside = Path(python).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise SystemExit(f"data_parallel.py: no mpiexec beside {python} nor on PATH. Fix: install mpich beside it")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" in version or "PRRTE" in version:
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        return [found, "--bind-to", "none", "-n", str(ranks)]
    return [found, "-n", str(ranks)]


class Figures:
    """Figures by name, with the times that they come from."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}

    def add(self, name: str, ours: list[float], peer: list[float], **more: Any) -> None:
        """Add a figure from the times of the rounds, in seconds; it is in milliseconds."""
        ratio = statistics.median(t / o for t, o in zip(peer, ours, strict=True))
        self.found[name] = {
            "ours": 1e3 * statistics.median(ours), "peer": 1e3 * statistics.median(peer), "ratio": ratio,
            "best": min(peer) / min(ours), **more,
        }  # fmt: skip

    def table(self) -> str:
        """The figures as a table."""
        width = max(map(len, self.found), default=0)
        lines = [f"{'':{width}}  {'ours':>9}  {'peer':>9}  {'ratio':>6}"]
        for name, row in self.found.items():
            more = "  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            lines.append(f"{name:{width}}  {row['ours']:9.3f}  {row['peer']:9.3f}  {row['ratio']:6.2f}  "
                         + more.partition("ratio ")[2].partition("  ")[2])  # fmt: skip
        return "\n".join(lines)


DRY_BUCKET_BYTES = 1 << 20
STEPS = {"mlp": 40, "gpt": 2, "small": 40}
SETTLE = {"mlp": 600, "gpt": 4, "small": 600}
"""Steps before the first round. The ranks compare their calls during the first 1,000 calls of each."""


def agree(case: str, worlds: list[World]) -> float:
    """The largest relative difference of the losses of the first steps; an error if it is not that of rounding."""
    first = worlds[0].losses
    apart = max((abs(a - b) / abs(a) for w in worlds[1:] for a, b in zip(first, w.losses, strict=True)), default=0.0)
    if not apart < 1e-5:
        raise SystemExit(f"data_parallel.py: {case}: not the same steps: " + ", ".join(
            f"{w.name}: {w.losses}" for w in worlds))  # fmt: skip
    return apart


def interleaved(worlds: list[World], count: int, rounds: int) -> list[list[float]]:
    """The times of a step of each world, in each round; no world always comes first."""
    times: list[list[float]] = [[] for _ in worlds]
    for at in range(rounds):
        pairs = list(zip(worlds, times, strict=True))
        for world, found in pairs[:: -1 if at % 2 else 1]:
            found.append(world.steps(count))
    return times


def one_host(case: str, args: argparse.Namespace, figures: Figures) -> None:
    """Two ranks on this host, beside the peer."""
    with ExitStack() as stack:
        worlds = [stack.enter_context(World("ringtape", sys.executable, case, 2, cores="0,1"))]
        for library in ("torch", "jax"):
            if python := getattr(args, f"python_{library}"):
                worlds.append(stack.enter_context(World(library, python, case, 2, cores="0,1")))
        if args.no_numba:
            worlds.append(stack.enter_context(World("ringtape", sys.executable, case, 2, cores="0,1", numba=False)))
        for world in worlds:
            world.steps(SETTLE[case])
        apart = agree(case, worlds)
        times = interleaved(worlds, STEPS[case], args.rounds)
        names = [world.library for world in worlds]
        if "torch" in names:
            peer = times[names.index("torch")]
            figures.add(f"{case}, 2 ranks, ms a step", times[0], peer, losses_differ_by=apart)
            if args.no_numba:
                figures.add(f"{case}, 2 ranks, without Numba, ms a step", times[-1], peer, losses_differ_by=apart)
        if "jax" in names:
            peer = times[names.index("jax")]
            figures.add(f"{case}, 2 ranks, beside jax.jit, ms a step", times[0], peer, losses_differ_by=apart)
        for world in worlds:
            world.ask("profile", count=10 * STEPS[case])
            parts = [1e3 * max(part) for part in zip(*world.answers(), strict=True)]
            print(f"{world.name}, {case}: forward {parts[0]:.2f}, backward with its communication {parts[1]:.2f}, "
                  f"optimizer {parts[2]:.2f} ms", file=sys.stderr)  # fmt: skip


def small(case: str, args: argparse.Namespace, figures: Figures) -> None:
    """Many small gradients: in a bucket, one by one, and by the peer."""
    with ExitStack() as stack:
        fused = stack.enter_context(World("ringtape", sys.executable, case, 2, cores="0,1"))
        separate = stack.enter_context(World("ringtape", sys.executable, case, 2, cores="0,1", mode="0"))
        worlds = [fused, separate]
        if args.python_torch:
            worlds.append(stack.enter_context(World("torch", args.python_torch, case, 2, cores="0,1")))
        for world in worlds:
            world.steps(SETTLE[case])
        apart = agree(case, worlds)
        times = interleaved(worlds, STEPS[case], args.rounds)
        figures.add("200 small gradients, one bucket beside one by one, ms", times[0], times[1], losses_differ_by=apart)
        if args.python_torch:
            figures.add("200 small gradients, beside the peer's bucket, ms", times[0], times[2], losses_differ_by=apart)


def captured(args: argparse.Namespace, figures: Figures) -> None:
    """Captured steps of small models."""
    for case in ("tiny-mlp", "tiny-gpt"):
        with ExitStack() as stack:
            worlds = [stack.enter_context(World("ringtape", sys.executable, case, 2, cores="0,1", mode=mode))
                      for mode in ("capture", "")]  # fmt: skip
            if args.python_torch:
                worlds.append(stack.enter_context(World("torch", args.python_torch, case, 2, cores="0,1")))
            for world in worlds:
                world.steps(SETTLE["mlp"])
            apart = agree(case, worlds)
            times = interleaved(worlds, STEPS["mlp"], args.rounds)
            for other, found in zip(("the step", "the peer"), times[1:], strict=False):
                figures.add(f"{case}, captured, beside {other}, ms a step", times[0], found, losses_differ_by=apart)


def efficiency(args: argparse.Namespace, figures: Figures) -> None:
    """Steps per second of 2 ranks over those of 1 rank, of both libraries, and of two separate processes."""
    for case in args.efficiency:
        found = {}
        for library in ("ringtape", "torch")[: 2 if args.python_torch else 1]:
            python = sys.executable if library == "ringtape" else args.python_torch
            with ExitStack() as stack:
                one, other = (stack.enter_context(World(library, python, case, 1, cores=core)) for core in "01")
                two = stack.enter_context(World(library, python, case, 2, cores="0,1"))
                for world in (one, other, two):
                    world.steps(SETTLE[case])
                alone, beside, both = [], [], []
                count = STEPS[case]
                for _ in range(args.rounds):
                    alone.append(max(one.steps(count), other.steps(count)))
                    one.ask("steps", count=count)
                    other.ask("steps", count=count)
                    beside.append(max(*one.answers(), *other.answers()) / count)
                    both.append(two.steps(count))
            found[library] = [[a / t for a, t in zip(alone, times, strict=True)] for times in (both, beside)]
        median = {library: [statistics.median(x) for x in rows] for library, rows in found.items()}
        ours, peer = median["ringtape"], median.get("torch", [math.nan, math.nan])
        figures.found[f"{case}, efficiency from 1 to 2 ranks"] = {
            "ours": ours[0], "peer": peer[0], "ratio": ours[0] / peer[0], "ceiling": ours[1],
            "peer's ceiling": peer[1], "of the ceiling": ours[0] / ours[1],
        }  # fmt: skip


def network(args: argparse.Namespace, figures: Figures) -> None:
    """Training on several hosts, beside the peer and the bound."""
    cluster = args.cluster
    if os.geteuid() != 0:
        print("data_parallel.py: network is left out: it needs root", file=sys.stderr)
        return
    for hosts in args.hosts:
        subprocess.run([cluster, "up", str(hosts), args.rate], check=True, stdout=subprocess.DEVNULL)
        try:
            for case in args.efficiency:
                on_hosts(case, hosts, args, figures)
        finally:
            subprocess.run([cluster, "down"], check=True)


def on_hosts(case: str, hosts: int, args: argparse.Namespace, figures: Figures) -> None:
    """One case on the hosts that are up. The peer's worlds use one port, so each has a turn of its own."""
    name, options = f"{case}, {hosts} hosts at {args.rate}", {"cores": "0,1", "hosts": hosts, "cluster": args.cluster}
    count = max(1, STEPS[case] // 8)
    bounds: list[float] = []
    exposed: list[float] = []
    watched: list[float] = []
    sizes = ["", *([args.bucket_bytes] if args.python_torch and args.bucket_bytes.isdigit() else [])]  # of the peer
    for mode in sizes:
        with ExitStack() as stack:
            ours = stack.enter_context(
                World("ringtape", sys.executable, case, hosts, mode=args.bucket_bytes, **options)
            )
            worlds = [ours]
            if args.python_torch:
                worlds.append(stack.enter_context(World("torch", args.python_torch, case, hosts, mode=mode, **options)))
            apart = agree(case, worlds)
            for world in worlds:
                world.steps(count)
            times: list[list[float]] = [[] for _ in worlds]
            for _ in range(args.rounds):
                for world, found in zip(worlds, times, strict=True):
                    found.append(world.steps(count))
                ours.ask("link")
                rate, latency = ours.answers()[0]
                ours.ask("ready", count=count)
                for step_s, *parts in chain(*ours.answers()):
                    least_s, exposed_s = bound(hosts, rate, latency, *parts)
                    watched.append(step_s)
                    bounds.append(least_s)
                    exposed.append(exposed_s)
            for world, found in zip(worlds[1:], times[1:], strict=True):
                figures.add(f"{name}, {world.name}, ms", times[0], found, losses_differ_by=apart)
    figures.add(f"{name}, beside the bound, ms", watched, bounds, exposed_ms=1e3 * statistics.median(exposed),
                link_MBps=rate / 1e6, latency_us=1e6 * latency)  # fmt: skip


def bound(
    ranks: int, rate: float, latency: float, forward_s: float, optimizer_s: float, ready_s: list[float],
    sizes: list[int],
) -> tuple[float, float]:  # fmt: skip
    """The least time of a step, and the exposed part of its communication.

    Each bucket takes ``2(p-1) alpha + 2 n (p-1)/p beta``, which is what a ring needs, and no all-reduce sends less.
    """
    from parallel.data.overlap import simulate

    transfers = [2 * (ranks - 1) * (latency + n / ranks / rate) for n in sizes]
    sent = simulate(ready_s, transfers, ready_s[-1])
    return forward_s + sent.end_s[-1] + optimizer_s, sent.exposed_s


def dry(args: argparse.Namespace, figures: Figures) -> None:
    """The exposed communication of the GPT on 1,024 ranks, from the backward pass of a rank of this host."""
    import data_parallel_ringtape as worker

    import collectives as cc
    from parallel.data.overlap import predict_step

    # Between processes of one host a ring sends each bucket when it is complete, as between hosts.
    with World("ringtape", sys.executable, "gpt", 2, mode=f"ring,{DRY_BUCKET_BYTES}", cores="0,1") as world:
        world.steps(SETTLE["gpt"])
        world.ask("ready", count=9)
        steps = world.answers()[0]
    forward, optimizer = (statistics.median(step[i] for step in steps) for i in (1, 2))
    ready = [statistics.median(times) for times in zip(*(step[3] for step in steps), strict=True)]
    sizes = steps[0][4]
    machine = cc.Topology(8, cc.Link(2e-6, 5e9), cc.Link(25e-6, 1.25e9 / 8), reduced_bytes_per_s=5e9)
    options = argparse.Namespace(case="gpt", mode=str(DRY_BUCKET_BYTES), cores="")
    with cc.dry(ranks=1024, topology=machine) as run:
        worker.build(options).step(0)
    planned = [t for t in run.traffic() if t.direction == "backward" and t.operation == "all_reduce"]
    if [(t.calls, t.bytes) for t in planned] != [(len(sizes), sum(sizes))]:
        raise SystemExit(f"data_parallel.py: the dry run sums {planned}, the ranks {sizes} bytes")
    low_rank = low_rank_bytes(2) / sum(sizes)

    def calls(*kinds: tuple[str, float]) -> list[Any]:
        return [[(call, n * part) for call, part in kinds] for n in sizes]

    ranks = run.ranks
    forms: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "one bucket, no overlap": ([sum(sizes)], {"overlap": False}),
        "no overlap": (sizes, {"overlap": False}),
        "overlap": (sizes, {}),
        "overlap, hierarchical": (sizes, {"algorithm": "hierarchical"}),
        "overlap, float16": (calls(("all_to_all", 1 / 2), ("all_gather", 1 / 2)), {}),
        "overlap, 1-bit": (calls(("all_to_all", 1 / 32), ("all_gather", 1 / 32)), {}),
        "overlap, PowerSGD rank 2": (calls(("all_reduce", low_rank)), {"algorithm": "hierarchical"}),
        "overlap, random-k 1 %": (calls(("all_reduce", 0.01)), {"algorithm": "hierarchical"}),
        "overlap, top-k 1 %": (calls(("all_gather", ranks * 0.02)), {}),  # an index and a value from each rank
    }
    worst = 0.0
    for name, (buckets, more) in forms.items():
        found = predict_step(ready[-len(buckets) :], buckets, ready[-1], ranks=ranks, topology=machine,
                             forward_s=forward, optimizer_s=optimizer, **more)  # fmt: skip
        worst = worst or found.exposed_s
        figures.found[f"gpt, 1,024 ranks predicted, {name}: exposed ms"] = {
            "ours": 1e3 * found.exposed_s, "peer": 1e3 * worst, "ratio": worst / max(found.exposed_s, 1e-12),
            "of communication": found.exposed_share, "of the step": found.exposed_s / found.step_s,
        }  # fmt: skip


def low_rank_bytes(rank: int) -> int:
    """The bytes that PowerSGD sends of the GPT: two factors of each matrix, and the vectors as they are."""
    shapes = [a.shape for a in weights(CASES["gpt"]).values()]
    return 4 * sum(rank * sum(shape) if len(shape) == 2 else shape[0] for shape in shapes)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table or JSON."""
    kinds = ("mlp", "gpt", "small", "captured", "efficiency", "dry", "network")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python-torch", metavar="PATH", help="interpreter that has torch; without, left out")
    parser.add_argument("--python-jax", metavar="PATH", help="interpreter that has jax; without, left out")
    parser.add_argument("--only", nargs="+", choices=kinds, default=list(kinds[:6]), metavar="KIND",
                        help=", ".join(kinds))  # fmt: skip
    parser.add_argument("--rounds", type=int, default=21, help="rounds; each world runs once in each (at least 3)")
    parser.add_argument("--no-numba", action="store_true", help="measure ringtape without Numba, too")
    parser.add_argument("--efficiency", nargs="+", choices=("mlp", "gpt"), default=["gpt"], metavar="CASE",
                        help="the cases of efficiency and network: mlp, gpt")  # fmt: skip
    parser.add_argument("--hosts", nargs="+", type=int, default=[2, 4], metavar="N", help="hosts of network")
    parser.add_argument("--rate", default="500mbit", help="of a host's link, in tc's notation")
    parser.add_argument("--bucket-bytes", default="measured", help="of ringtape on several hosts: a number, or "
                        "'measured'; the peer has its default, and a number, too")  # fmt: skip
    parser.add_argument("--cluster", default=str(HERE / "cluster"), help="the command that makes hosts")
    parser.add_argument("--json", action="store_true", help="print one object: figure -> ours, peer, ratio")
    args = parser.parse_args(arguments)
    if args.rounds < 3:
        parser.error("--rounds: at least 3")
    print_machine()
    figures = Figures()
    for kind in args.only:
        if kind in ("mlp", "gpt"):
            one_host(kind, args, figures)
        elif kind == "small":
            small(kind, args, figures)
        else:
            {"captured": captured, "efficiency": efficiency, "dry": dry, "network": network}[kind](args, figures)
    print(json.dumps(figures.found) if args.json else figures.table())


if __name__ == "__main__":
    main()
