"""Latency and bandwidth of all-reduce: the algorithms of this world, or shared memory compared with its peers.

Under mpiexec it measures the world that it is started in: all_reduce of float32 with every algorithm of that world.

    mpiexec -n 4 python benchmarks/collectives.py

Without mpiexec it starts worlds of its own on this host, 2 ranks each: ringtape in shared windows, raw mpi4py (in-place
Allreduce; the MPI beside this interpreter, and Open MPI's where its interpreter is given), and gloo of PyTorch.

    python benchmarks/collectives.py --python-openmpi PATH --python-torch PATH --json

With ``--before`` it compares this tree of ringtape with another one: recorded operations over MPI on 1 and 2 ranks, and
shared memory on 2.

    python benchmarks/collectives.py --before /path/of/another/checkout --python-before PATH

Every world runs in processes of its own, with one thread each. They take turns, so that other load on the machine
affects all of them alike. A ratio is the peer's time over ours, so above 1 ours is faster. It is the median over the
rounds; the times of one round are taken close to each other. Beside it stands the ratio of the best times.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT, PEERS = HERE.parent, HERE / "_peers"
# Python puts a script's own folder first on sys.path. There `import collectives` would find this file, not the package.
sys.path = [str(ROOT), str(PEERS), *(path for path in sys.path if Path(path).resolve() != HERE)]

import before
from machine import print_machine

import collectives as cc
from autograd.errors import MeshError

KIB = 1 << 10
SIZES = tuple(KIB * n for n in (4, 16, 64, 256, 1024, 4096, 16384, 32768, 65536))
OVERSUBSCRIBED_SIZES = tuple(KIB * n for n in (4, 256, 4096))
EXTRA_BYTES = 4 * KIB  # where the recorded operation is compared with the transport's call
EXTRA_S = 5e-6  # what recording may cost
_PAIR = ("transport", "recorded")
_PAIR_BATCHES, _PAIR_CALLS = 50, 20  # in a round; a batch is over in a quarter of a millisecond
MEMORY_BYTES = 32 * KIB * KIB
_WORKER = PEERS / "collectives_worker.py"
_STREAM_MOVES = {"copy": 2, "add": 3, "scale": 2}
_ROWS = {"window": "in the window", "transport": "array outside it"}
_LIMIT_S = 120.0

# What `--before` compares: recorded operations over MPI at one size, where the cost of a call shows, and shared memory.
OPERATION_BYTES = 4 * KIB
OPERATIONS = (
    "all_reduce", "all_reduce, checked always", "all_reduce, checked ranks", "all_reduce, with backward",
    "all_gather", "all_gather, with backward", "reduce_scatter", "reduce_scatter, with backward", "broadcast", "reduce",
    "all_to_all", "permute", "scan", "cast, with backward", "all_reduce_async",
)  # fmt: skip
SHARED_CALLS = {"window": "in the window", "transport": "outside the window", "recorded": "recorded"}
SHARED_SIZES = tuple(KIB * n for n in (4, 256, 4096))


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object: figure -> ours, peer (us), ratio")
    parser.add_argument("--plot", metavar="PNG", help="draw time and bandwidth over size")
    parser.add_argument("--rounds", type=int, default=15, help="rounds; each world once in each (at least 3)")
    parser.add_argument("--sizes", type=_sizes, default=SIZES, metavar="KIB,...", help="sizes in KiB")
    parser.add_argument("--python-mpich", default=sys.executable, metavar="PATH", help="interpreter with mpi4py, MPICH")
    parser.add_argument("--python-openmpi", metavar="PATH", help="interpreter with mpi4py over Open MPI")
    parser.add_argument("--python-torch", metavar="PATH", help="interpreter with torch")
    parser.add_argument("--no-oversubscribed", action="store_true", help="leave out the worlds of 4 ranks")
    before.add_options(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 0 if it went well."""
    args = options().parse_args(arguments)
    if args.rounds < 3:
        print("collectives.py: --rounds: at least 3", file=sys.stderr)
        return 2
    if cc.world().rank == 0:
        print_machine()
    if cc.world().size > 1:
        return _this_world(args)
    return _before(args) if args.before else _peers(args)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(part) * KIB for part in text.split(","))


def shown(size_bytes: int) -> str:
    """A size in words.

    >>> shown(4096), shown(64 << 20)
    ('4 KiB', '64 MiB')
    """
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"


def calls_per_batch(size_bytes: int, is_crowded: bool = False) -> int:
    """How often a batch repeats a call.

    Few enough that the repeated sums stay finite, and enough that reading the clock costs nothing. Where ranks share
    processors a call may take milliseconds.
    """
    return max(1, min(5 if is_crowded else 50, (4 << 20) // size_bytes))


def batches_per_round(size_bytes: int, is_crowded: bool) -> int:
    """How many batches a round has: more where they are short, so that some are not disturbed by other processes."""
    return 15 if size_bytes <= 256 * KIB and not is_crowded else 5


# -- worlds beside each other ---------------------------------------------------------------------------------------
class World:
    """A world of ringtape or of a peer, in processes of its own that wait for requests."""

    def __init__(
        self, name: str, kind: str, python: str, ranks: int, listener: socket.socket, tree: str | Path = ROOT
    ):
        self.name = name
        self.ranks = ranks
        self.is_crowded = ranks > (os.cpu_count() or 1)
        token = secrets.token_hex(8)
        environment = dict(os.environ, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        environment.pop("RINGTAPE_RANK_PID", None)
        host, port = listener.getsockname()
        command = [python, str(_WORKER), kind, f"{host}:{port}", token]
        if kind in ("ringtape", "operations"):
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(tree), environment.get("PYTHONPATH")]))
        else:
            environment.pop("PYTHONPATH", None)
        if kind == "gloo":
            self._processes = [
                self._start(command, {**environment, **_torch_variables(rank, ranks, token)}) for rank in range(ranks)
            ]
        else:
            self._processes = [self._start([*_mpiexec(python, ranks, environment), *command], environment)]
        self._connections: list[Any] = []
        try:
            self._accept(listener, token)
        except BaseException:
            self.close()
            raise

    def _start(self, command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
        )

    def _accept(self, listener: socket.socket, token: str) -> None:
        found: dict[int, Any] = {}
        deadline = time.monotonic() + _LIMIT_S
        listener.settimeout(0.5)
        while len(found) < self.ranks:
            ended = [process.returncode for process in self._processes if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                why = f"its processes ended with status {ended[0]}" if ended else f"it did not start in {_LIMIT_S:g} s"
                raise SystemExit(f"collectives.py: {self.name}: {why}; see above")
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(_LIMIT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            lines = connection.makefile("rw")
            hello = json.loads(lines.readline() or "{}")
            if hello.get("token") != token or hello.get("size") != self.ranks:
                raise SystemExit(f"collectives.py: {self.name}: not the ranks that were started: {hello}")
            found[hello["rank"]] = lines
            self.about = hello["about"]
        self._connections = [found[rank] for rank in range(self.ranks)]

    def measure(self, call: str, size_bytes: int, batches: int) -> list[float]:
        """Seconds per call in each batch, of the rank that took longest."""
        return self.measure_in_turn([call], size_bytes, batches, calls_per_batch(size_bytes, self.is_crowded))[0]

    def measure_in_turn(self, calls: Sequence[str], size_bytes: int, batches: int, count: int) -> list[list[float]]:
        """The same for several calls: one batch of each in turn, with `count` calls each."""
        for lines in self._connections:
            lines.write(json.dumps([list(calls), size_bytes, batches, count]) + "\n")
            lines.flush()
        answers = []
        for rank, lines in enumerate(self._connections):
            try:
                answer = lines.readline()
            except OSError:
                answer = ""
            if not answer:
                what = " and ".join(calls)
                raise SystemExit(
                    f"collectives.py: {self.name}: rank {rank} did not answer for {what} of {shown(size_bytes)}"
                )
            answers.append(json.loads(answer))
        return [[max(times) for times in zip(*of_ranks, strict=True)] for of_ranks in zip(*answers, strict=True)]

    def close(self) -> None:
        """End the processes."""
        for lines in self._connections:
            lines.close()
        for process in self._processes:
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except OSError:
                pass
            process.wait()


def _torch_variables(rank: int, ranks: int, token: str) -> dict[str, str]:
    port = 20000 + int(token[:6], 16) % 20000
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(ranks),
            "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip


def _mpiexec(python: str, ranks: int, environment: dict[str, str]) -> list[str]:
    beside = Path(python).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise SystemExit(
            f"collectives.py: no mpiexec beside {python} nor on PATH. Fix: install mpich or openmpi beside it"
        )
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    command = [found, "-n", str(ranks)]
    if "Open MPI" in version or "OpenRTE" in version or "PRRTE" in version:
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        if ranks > (os.cpu_count() or 1):
            command.append("--oversubscribe")
    return command


class Series(NamedTuple):
    """Times of one call at one size: the median of each round, and the best of all batches."""

    rounds: list[float]
    best: float

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


Entry = tuple[World, str]  # a world and its call


def take_turns(entries: Sequence[Entry], size_bytes: int, rounds: int) -> list[Series]:
    """Measure every entry once in each round."""
    taken: list[list[list[float]]] = [[] for _ in entries]
    for world, call in entries:
        world.measure(call, size_bytes, 2)  # buffers are made, pages touched
    for turn in range(rounds):
        for i in range(len(entries))[:: -1 if turn % 2 else 1]:  # the order alternates: no world always comes first
            world, call = entries[i]
            taken[i].append(world.measure(call, size_bytes, batches_per_round(size_bytes, world.is_crowded)))
    return [Series([statistics.median(b) for b in found], min(min(b) for b in found)) for found in taken]


def figure(ours: Series, peer: Series) -> dict[str, float]:
    """One figure: microseconds, and the peer's time over ours."""
    ratios = [p / o for o, p in zip(ours.rounds, peer.rounds, strict=True)]
    return {"ours": ours.median * 1e6, "peer": peer.median * 1e6, "ratio": statistics.median(ratios),
            "best ratio": peer.best / ours.best}  # fmt: skip


def _peers(args: argparse.Namespace) -> int:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    figures: dict[str, dict[str, float]] = {}
    table: dict[str, dict[int, Series]] = {}
    try:
        _measure_beside(args, listener, 2, args.sizes, figures, table)
        if not args.no_oversubscribed:
            _measure_beside(args, listener, 4, OVERSUBSCRIBED_SIZES, figures, {})
    finally:
        listener.close()
    if args.json:
        print(json.dumps(figures))
    else:
        _print_figures(figures)
    if args.plot:
        plot({name: {n: s.median for n, s in row.items()} for name, row in table.items()}, args.plot,
             "all_reduce of float32 in place, 2 ranks of one host")  # fmt: skip
    return 0


def _measure_beside(
    args: argparse.Namespace,
    listener: socket.socket,
    ranks: int,
    sizes: Sequence[int],
    figures: dict[str, dict[str, float]],
    table: dict[str, dict[int, Series]],
) -> None:
    wanted = [("ringtape", "ringtape", sys.executable), ("MPICH", "mpi", args.python_mpich)]
    if args.python_openmpi:
        wanted.append(("Open MPI", "mpi", args.python_openmpi))
    if args.python_torch:
        wanted.append(("gloo", "gloo", args.python_torch))
    for name, given in (("Open MPI", args.python_openmpi), ("gloo", args.python_torch)):
        if not given and ranks == 2:
            option = "--python-openmpi" if name == "Open MPI" else "--python-torch"
            print(f"collectives.py: {name} is left out; give {option} PATH to have it measured", file=sys.stderr)
    worlds: list[World] = []
    cores = os.cpu_count() or 1
    where = f"{ranks} ranks" if ranks <= cores else f"{ranks} ranks on {cores} cores"
    try:
        for name, kind, python in wanted:
            worlds.append(World(name, kind, python, ranks, listener))
            print(f"collectives.py: {where}: {name}: {worlds[-1].about}", file=sys.stderr)
            if kind == "mpi" and name.replace(" ", "").lower() not in worlds[-1].about.replace(" ", "").lower():
                worlds[-1].name = worlds[-1].about.split(",")[0].split(" v")[0]  # what it is, whatever was expected
        ours, peers = worlds[0], worlds[1:]
        # a large message takes long: fewer rounds are enough, and each has several batches
        for size in sizes:
            rounds = args.rounds if size < 16 << 20 else max(3, args.rounds // 2)
            entries = [(ours, "window"), (ours, "transport"), *((peer, "in place") for peer in peers)]
            series = take_turns(entries, size, rounds)
            for (world, call), found in zip(entries, series, strict=True):
                table.setdefault(f"{world.name}, {_ROWS.get(call, call)}", {})[size] = found
            for (peer, _), found in zip(entries[2:], series[2:], strict=True):
                figures[f"all_reduce {shown(size)}, {where}: window beside {peer.name}"] = figure(series[0], found)
                figures[f"all_reduce {shown(size)}, {where}: array outside the window beside {peer.name}"] = figure(
                    series[1], found
                )
        if ranks == 2:
            figures.update(_recorded(ours, args.rounds))
            figures.update(_memory(ours, args.rounds))
    finally:
        for world in worlds:
            world.close()


def _recorded(ours: World, rounds: int) -> dict[str, dict[str, float]]:
    """The time that recording on the tape adds to the transport's call on the same operand, and its limit.

    The two take turns within a millisecond, in batches so short that other processes disturb few of them. Each
    difference is taken between neighbours. The figure is the median of all differences, the best that of the best
    round.
    """
    ours.measure_in_turn(_PAIR, EXTRA_BYTES, 2, _PAIR_CALLS)  # buffers are made, pages touched
    by_round = [
        extra_times(*ours.measure_in_turn(_PAIR, EXTRA_BYTES, _PAIR_BATCHES, _PAIR_CALLS)) for _ in range(rounds)
    ]
    extra = statistics.median(d for found in by_round for d in found)
    best = min(map(statistics.median, by_round))
    name = f"recorded all_reduce {shown(EXTRA_BYTES)} over the transport's call, beside {EXTRA_S * 1e6:g} us"
    return {name: {"ours": extra * 1e6, "peer": EXTRA_S * 1e6, "ratio": EXTRA_S / extra, "best ratio": EXTRA_S / best}}


def extra_times(transport: Sequence[float], recorded: Sequence[float]) -> list[float]:
    """How much longer each recorded batch took than the batch before it.

    >>> extra_times([2.0, 4.0], [3.0, 4.5])
    [1.0, 0.5]
    """
    return [r - t for t, r in zip(transport, recorded, strict=True)]


def _memory(ours: World, rounds: int) -> dict[str, dict[str, float]]:
    """The share of the memory bandwidth, in GB/s: every buffer is read once and written once."""
    names = list(_STREAM_MOVES)
    entries = [(ours, "window"), *((ours, name) for name in names)]
    found = take_turns(entries, MEMORY_BYTES, max(3, rounds // 2))
    n = MEMORY_BYTES * ours.ranks / 1e9
    streams = dict(zip(names, found[1:], strict=True))
    measured = max(_STREAM_MOVES[name] * n / series.median for name, series in streams.items())
    best = max(_STREAM_MOVES[name] * n / series.best for name, series in streams.items())
    moved = 2 * n / found[0].median
    return {f"all_reduce {shown(MEMORY_BYTES)} in the window: GB/s beside the memory's":
            {"ours": moved, "peer": measured, "ratio": moved / measured,
             "best ratio": 2 * n / found[0].best / best}}  # fmt: skip


def _print_figures(figures: dict[str, dict[str, float]]) -> None:
    width = max(map(len, figures))
    print(f"{'':{width}}  {'ours':>10}  {'peer':>10}  ratio   best")
    for name, row in figures.items():
        print(
            f"{name:{width}}  {row['ours']:10.1f}  {row['peer']:10.1f}  {row['ratio']:5.2f}  {row['best ratio']:5.2f}"
        )


# -- another tree ----------------------------------------------------------------------------------------------------
def _before(args: argparse.Namespace) -> int:
    figures: dict[str, dict[str, float]] = {}
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        for ranks in (1, 2):
            calls = [(name, OPERATION_BYTES) for name in OPERATIONS]
            figures |= _compare(args, listener, "operations", ranks, calls, "over MPI")
        calls = [(name, size) for size in SHARED_SIZES for name in SHARED_CALLS]
        figures |= _compare(args, listener, "ringtape", 2, calls, "in shared memory")
    print(json.dumps(figures) if args.json else before.table(figures))
    return 0


def _compare(
    args: argparse.Namespace,
    listener: socket.socket,
    kind: str,
    ranks: int,
    calls: Sequence[tuple[str, int]],
    where: str,
) -> dict[str, dict[str, float]]:
    """The figures of these calls in two worlds that take turns, one of each tree."""
    now: dict[str, list[list[float]]] = {}
    then: dict[str, list[list[float]]] = {}
    for start in range(args.starts):
        print(f"collectives.py: {where}, ranks: {ranks}, start {start + 1} of {args.starts}", file=sys.stderr)
        worlds: list[World] = []
        try:
            worlds.append(World("this tree", kind, sys.executable, ranks, listener))
            worlds.append(World("the tree before", kind, args.python_before, ranks, listener, args.before))
            for call, size in calls:
                ours, theirs = take_turns([(world, call) for world in worlds], size, args.rounds)
                name = call if kind == "operations" else f"all_reduce {SHARED_CALLS[call]}"
                name = f"{name}: {shown(size)}, {where}, {ranks} rank{'s' if ranks > 1 else ''}"
                now.setdefault(name, []).append([t * 1e6 for t in ours.rounds])
                then.setdefault(name, []).append([t * 1e6 for t in theirs.rounds])
        finally:
            for world in worlds:
                world.close()
    return {name: before.figure(now[name], then[name]) for name in now}


# -- the world that it is in ----------------------------------------------------------------------------------------
def _this_world(args: argparse.Namespace) -> int:
    cc.check("off")
    everyone = cc.world()
    mesh = cc.Mesh(all=-1)
    axis: Any = mesh.axis("all")
    groups: dict[str, cc.Communicator] = {"native": axis.group}
    notes: list[str] = []
    if hasattr(axis, "using"):
        algorithms: Any = importlib.import_module("collectives.algorithms")
        names = [name for name in algorithms.algorithms_of("all_reduce") if name != "shared"]
        groups.update({name: axis.using(name) for name in (*names, "auto")})
    calls: dict[str, Callable[[Any], Callable[[], Any]]] = {name: _made(group) for name, group in groups.items()}
    _add_shared(mesh, calls, notes)
    table: dict[str, dict[int, float]] = {name: {} for name in calls}
    for size in args.sizes:
        runs = {name: make(np.ones(size // 4, np.float32)) for name, make in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in runs}
        count = calls_per_batch(size)
        for turn in range(args.rounds + 1):
            for name, run in runs.items():
                everyone.barrier()
                start = time.perf_counter()
                for _ in range(count):
                    run()
                mine = (time.perf_counter() - start) / count
                if turn:  # the first touches pages and makes channels
                    times[name].append(max(json.loads(d) for d in everyone.exchange(json.dumps(mine).encode())))
        for name, found in times.items():
            table[name][size] = statistics.median(found)
    if everyone.rank == 0:
        if args.json:
            print(json.dumps({f"all_reduce {shown(n)}, {everyone.size} ranks: {name} beside native":
                              {"ours": row[n] * 1e6, "peer": table["native"][n] * 1e6,
                               "ratio": table["native"][n] / row[n]}
                              for name, row in table.items() if name != "native" for n in args.sizes}))  # fmt: skip
        else:
            _print_table(table, args.sizes, everyone.size, notes)
        if args.plot:
            plot(table, args.plot, f"all_reduce of float32, {everyone.size} ranks")
    return 0


def _made(group: cc.Communicator) -> Callable[[Any], Callable[[], Any]]:
    return lambda x: lambda: group.all_reduce(x)


def _add_shared(mesh: cc.Mesh, calls: dict[str, Any], notes: list[str]) -> None:
    from collectives.shared_arrays import along

    try:
        with mesh, along("all") as memory:
            pass
    except MeshError as error:
        notes.append(f"shared is left out: {str(error).splitlines()[0]}")
        return

    def in_window(x: Any) -> Callable[[], Any]:
        buffer = memory.empty(x.size, x.dtype)
        buffer[:] = 0  # sums of sums stay finite
        return lambda: memory.all_reduce_in_place(buffer)

    calls["shared"] = _made(memory)
    calls["shared, in the window"] = in_window


def _print_table(table: dict[str, dict[int, float]], sizes: Sequence[int], ranks: int, notes: Sequence[str]) -> None:
    print(f"all_reduce of float32 on {ranks} ranks: us, and GB/s of one rank's array")
    width = max(map(len, table))
    print(f"{'':{width}}" + "".join(f"{shown(n):>19}" for n in sizes))
    for name, row in table.items():
        print(f"{name:{width}}" + "".join(f"{row[n] * 1e6:10.1f} {n / row[n] / 1e9:8.2f}" for n in sizes))
    for note in notes:
        print(note)


def plot(table: dict[str, dict[int, float]], path: str, title: str) -> None:
    """Draw seconds a call, and bytes of one rank's array a second, over size.

    Parameters
    ----------
    table : dict
        Row name -> size in bytes -> seconds.
    path : str
        Where the image goes.
    title : str
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5.2), layout="constrained")
    markers = "osD^vP*X<>hp"
    for i, (name, row) in enumerate(table.items()):
        sizes = sorted(row)
        style = {"marker": markers[i % len(markers)], "markersize": 5, "linewidth": 1.6, "label": name}
        left.plot(sizes, [row[n] * 1e6 for n in sizes], **style)
        right.plot(sizes, [n / row[n] / 1e9 for n in sizes], **style)
    left.set(title="time of a call", ylabel="us", yscale="log")
    right.set(title="bandwidth: one rank's array over the time", ylabel="GB/s", yscale="log")
    ticks = sorted({n for row in table.values() for n in row})
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [shown(n) for n in ticks], rotation=45, ha="right")
        axes.minorticks_off()
        axes.set_xlabel("bytes of one rank's array")
        axes.grid(True, alpha=0.3)
    left.legend(fontsize="small")
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
