"""Compare all-reduce algorithms on several hosts with a lower bound, with the MPI library, and with each other.

    python benchmarks/algorithms.py [--json] [--cluster TOOL] [--rounds N]

Needs root: it makes 4 hosts joined at 500 Mbit/s (`benchmarks/cluster`), and removes them afterwards. Arrays are
float32. All candidates of a size are interleaved round by round in one run. A time is that of the slowest rank, and
medians are compared:

- ring and halving-doubling at 32 MiB with the lower bound, ``2n(p-1)/p`` divided by the bandwidth between two ranks,
  which is measured in the same rounds;
- hierarchical on 4 hosts x 2 ranks: the payload between hosts with its formula, and the bytes on the wire with the
  payload;
- three levels, on 2 racks of 2 hosts x 2 ranks whose uplinks have a tenth of the hosts' bandwidth: a flat ring, two
  levels, three, and what the measurement chooses, with the bound ``n`` divided by an uplink's bandwidth;
- `auto`, by the table of a measurement, with the fastest of all algorithms at every size from 1 KiB to 32 MiB. It runs
  the algorithm that it has chosen, so the times of both are pooled.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# Python puts a script's own folder first on sys.path, where `import collectives` would find `collectives.py`.
sys.path = [str(ROOT), *(path for path in sys.path if Path(path).resolve() != HERE)]
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

HOSTS, RATE, RACKS, UPLINK = 4, "500mbit", 2, "50mbit"
LONG_BYTES = 32 << 20
RACK_BYTES = 4 << 20
SIZES = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 25)
MARK = "RESULT "


# -- on the ranks ------------------------------------------------------------------------------------------------------


class Bench:
    """The state that the measurements of one job share."""

    def __init__(self, rounds: int):
        import numpy as np

        import collectives as cc
        from collectives.algorithms.choices import tabulated
        from collectives.algorithms.selected import Channel

        self.world, self.rounds, self.np = cc.world(), rounds, np
        self.channel = Channel(self.world)
        self.messages = self.channel.messages
        self.x = np.ones(LONG_BYTES // 4, np.float32)
        self.choices = tabulated(self.channel.fit)

    def timed(self, run: Callable[[], Any], times: int = 1) -> float:
        """The time of one run on the slowest rank, in seconds."""
        self.world.barrier()
        start = time.perf_counter()
        for _ in range(times):
            run()
        mine = (time.perf_counter() - start) / times
        return float(self.world.all_gather(self.np.array([mine]), [1] * self.world.size).max())

    def one_way(self) -> None:
        """Send a long message from rank 0 to rank 1, in pieces as the algorithms do."""
        from collectives.transports.steps import finish, give, take

        part = self.x[: self.x.size // 4]
        if self.world.rank == 0:
            finish(give(self.messages, part, 1))
            self.messages.recv(self.np.empty(1, self.np.float32), 1)
        elif self.world.rank == 1:
            finish(take(self.messages, self.np.empty_like(part), 0))
            self.messages.send(part[:1], 0)

    def all_reduce(self, algorithm: str, size_bytes: int) -> Callable[[], Any]:
        from collectives.algorithms.selected import Selected

        name = self.choices.choose("all_reduce", size_bytes) if algorithm == "auto" else algorithm
        group, x = Selected(self.channel, name), self.x[: size_bytes // 4]
        if algorithm == "native":
            return lambda: self.world.all_reduce(x)
        return lambda: group.all_reduce(x)


def flat(rounds: int) -> dict[str, Any]:
    """Measure one rank per host: the lower bound, and `auto`."""
    from collectives.algorithms.costs import candidates

    bench = Bench(rounds)
    p, fit = bench.world.size, bench.channel.fit
    result: dict[str, Any] = {"alpha_us": fit.alpha_s * 1e6, "rate_MBps": 1e-6 / fit.beta_s_per_byte, "sizes": {}}

    compared = ("ring", "halving_doubling", "native")
    runs: dict[str, list[float]] = {name: [] for name in ("one way", *compared)}
    for at in range(rounds + 1):
        for name, seen in runs.items():
            run = bench.one_way if name == "one way" else bench.all_reduce(name, LONG_BYTES)
            seconds = bench.timed(run)
            if at:  # the first round makes connections
                seen.append(seconds)
    rate = LONG_BYTES / 4 / statistics.median(runs["one way"])
    result["one_way_MBps"] = rate / 1e6
    result["one_way_spread"] = spread(runs["one way"])
    result["bound_s"] = 2 * LONG_BYTES * (p - 1) / p / rate
    result["long"] = {name: [statistics.median(runs[name]), min(runs[name]), spread(runs[name])] for name in compared}

    for size in SIZES:
        names = ["auto", "native", *candidates("all_reduce", size, p, fit.alpha_s, fit.beta_s_per_byte)]
        seen: dict[str, list[float]] = {name: [] for name in names}
        times = 20 if size < 1 << 16 else 5 if size < 1 << 20 else 1
        for at in range(rounds + 1):
            for name in list(seen):
                seconds = bench.timed(bench.all_reduce(name, size), times)
                if at:
                    seen[name].append(seconds)
                elif size >= 1 << 22 and seconds > 3 * 2 * size * (p - 1) / p / rate and name != "auto":
                    del seen[name]  # far too slow to be the best, so not worth the time
        result["sizes"][size] = {
            "choice": bench.choices.choose("all_reduce", size),
            "predicted_s": fit.times("all_reduce", size),
            "auto": (lambda both: [statistics.median(both), spread(both)])(
                seen["auto"] + seen.get(bench.choices.choose("all_reduce", size), [])),
            "seconds": {name: [statistics.median(each), spread(each)] for name, each in seen.items()},
        }  # fmt: skip
    return result


def hosts(rounds: int) -> dict[str, Any]:
    """Measure two ranks per host: the traffic between hosts."""
    bench = Bench(rounds)
    world, traffic = bench.world, bench.world.traffic
    algorithm = "hierarchical:shared,ring"
    names = [str(host) for host in world.hosts]
    seconds: dict[str, list[float]] = {name: [] for name in (algorithm, "ring", "native")}
    wire, crossing = [], []
    for at in range(rounds + 1):
        for name, seen in seconds.items():
            traffic.clear()
            world.barrier()
            before = sent_bytes()
            took = bench.timed(bench.all_reduce(name, LONG_BYTES))
            world.barrier()
            if at:
                seen.append(took)
            if at and name == algorithm:
                wire.append(sent_bytes() - before)
                crossing.append(sum(size for peer, (_, size) in traffic.peers.items()
                                    if names[peer] != names[world.rank]))  # fmt: skip
    rows = [json.loads(row) for row in world.exchange(json.dumps([names[world.rank], wire, crossing]).encode())]
    lanes, count = bench.channel.levels.lanes, bench.channel.levels.count
    payload: dict[str, int] = {}
    for name, _, crossed in rows:
        payload[name] = payload.get(name, 0) + crossed[0]
    worst = max(max(w) / payload[name] for name, w, _ in rows)
    return {
        "hosts": count, "ranks_per_host": lanes,
        "formula_bytes": 2 * LONG_BYTES / lanes * (count - 1) / count,
        "payload_bytes": sorted({n for _, _, crossed in rows for n in crossed}),
        "wire_over_payload": worst,
        "seconds": {name: [statistics.median(each), spread(each)] for name, each in seconds.items()},
    }  # fmt: skip


def racks(rounds: int) -> dict[str, Any]:
    """Measure two racks of two hosts with two ranks each."""
    bench = Bench(rounds)
    names = dict.fromkeys((
        "native", "ring", "hierarchical:shared,ring", "hierarchical:shared,ring,ring", "hierarchical:shared,tree,ring",
        bench.choices.choose("all_reduce", RACK_BYTES),
    ))  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for at in range(rounds + 1):
        for name, seen in seconds.items():
            took = bench.timed(bench.all_reduce(name, RACK_BYTES))
            if at:
                seen.append(took)
    fit = bench.channel.fit
    return {
        "levels": fit.levels, "outermost": fit.outermost, "choice": bench.choices.choose("all_reduce", RACK_BYTES),
        "predicted_s": {name: fit.times("all_reduce", RACK_BYTES).get(name) for name in seconds},
        "seconds": {name: [statistics.median(each), spread(each)] for name, each in seconds.items()},
    }  # fmt: skip


def sent_bytes() -> int:
    """The number of bytes that this host has sent over its link."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def spread(values: list[float]) -> float:
    """The interquartile range divided by the median; with few values, the whole range divided by the median."""
    ordered = sorted(values)
    low, high = (ordered[0], ordered[-1]) if len(ordered) < 4 else (
        ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4])  # fmt: skip
    return (high - low) / statistics.median(values)


# -- the report --------------------------------------------------------------------------------------------------------


def launch(cluster: str, ranks: int, part: str, rounds: int) -> dict[str, Any]:
    """Run one part on the hosts."""
    command = [cluster, "mpi", str(ranks), sys.executable, str(Path(__file__).resolve()), "--part", part,
               "--rounds", str(rounds)]  # fmt: skip
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=1800)
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return json.loads(line[len(MARK) :])
    raise SystemExit(f"algorithms: the part '{part}' failed with code {done.returncode}\n{done.stdout}")


def figures(one: dict[str, Any], two: dict[str, Any], three: dict[str, Any]) -> dict[str, Any]:
    """All figures: ours, the peer's, and the ratio, which is above 1 if ours is better."""
    found: dict[str, Any] = {}
    for name, (seconds, least, noise) in one["long"].items():
        found[f"{name}_32MiB_over_bound"] = {
            "ours": seconds, "peer": one["bound_s"], "ratio": one["bound_s"] / seconds, "least": least,
            "spread": noise, "met": one["bound_s"] / seconds >= 1 / 1.1,
        }  # fmt: skip
    found["hierarchical_payload_bytes"] = {
        "ours": two["payload_bytes"], "peer": two["formula_bytes"],
        "ratio": two["formula_bytes"] / max(two["payload_bytes"]),
        "met": two["payload_bytes"] == [two["formula_bytes"]],
    }  # fmt: skip
    found["hierarchical_wire_over_payload"] = {
        "ours": two["wire_over_payload"], "peer": 1.0, "ratio": 1 / two["wire_over_payload"],
        "met": two["wire_over_payload"] <= 1.08,
    }  # fmt: skip
    bound = RACK_BYTES * 8 / (float(UPLINK.removesuffix("mbit")) * 1e6)
    for name, (seconds, noise) in three["seconds"].items():
        found[f"racks_{name}_over_bound"] = {
            "ours": seconds, "peer": bound, "ratio": bound / seconds, "spread": noise,
            "choice": "chosen" if name == three["choice"] else "", "best": f"{three['predicted_s'][name]} predicted",
            "met": not name.endswith("shared,ring,ring") or bound / seconds >= 0.8,
        }  # fmt: skip
    for size, row in one["sizes"].items():
        seconds = {name: median for name, (median, _) in row["seconds"].items() if name != "auto"}
        best = min(seconds, key=lambda name: seconds[name])
        ours, noise = row["auto"][0], max(row["seconds"][best][1], row["auto"][1])
        found[f"auto_{int(size)}B"] = {
            "ours": ours, "peer": seconds[best], "ratio": seconds[best] / ours, "best": best, "choice": row["choice"],
            "spread": noise, "met": ours <= seconds[best] * (1 + max(0.1, noise)),
        }  # fmt: skip
    return found


def main() -> int:
    """Make the hosts, run both parts, and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--cluster", default=str(ROOT / "benchmarks" / "cluster"), help="the command that makes hosts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--part", choices=("flat", "hosts", "racks"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        result = {"flat": flat, "hosts": hosts, "racks": racks}[args.part](args.rounds)
        from collectives import world

        if world().rank == 0:
            print(MARK + json.dumps(result), flush=True)
        return 0
    if os.geteuid() != 0 or not Path(args.cluster).exists():
        print(f"algorithms: skipped: needs root and the tool that makes hosts ({args.cluster})", file=sys.stderr)
        return 0
    subprocess.run([args.cluster, "up", str(HOSTS), RATE], check=True, stdout=subprocess.DEVNULL)
    try:
        one, two = (launch(args.cluster, *part, args.rounds) for part in ((1, "flat"), (2, "hosts")))
        up = [args.cluster, "up", str(HOSTS), RATE, str(RACKS), UPLINK]
        subprocess.run(up, check=True, stdout=subprocess.DEVNULL)
        three = launch(args.cluster, 2, "racks", args.rounds)
    finally:
        subprocess.run([args.cluster, "down"], check=True)
    found = figures(one, two, three)
    if args.json:
        print(json.dumps({**found, "measured": {"flat": one, "hosts": two, "racks": three}}))
        return 0
    print(f"{HOSTS} hosts at {RATE}; one way {one['one_way_MBps']:.1f} MB/s (spread {one['one_way_spread']:.0%}), "
          f"fit: {one['alpha_us']:.0f} us, {one['rate_MBps']:.1f} MB/s\n")  # fmt: skip
    print(f"{'figure':34}{'ours':>14}{'beside':>14}{'ratio':>8}  ")
    for name, row in found.items():
        ours, peer = (f"{x:.4g}" if isinstance(x, float) else str(x) for x in (row["ours"], row["peer"]))
        more = f"{row['choice']}; best: {row['best']}" if "best" in row else ""
        noise = f"spread {row['spread']:.0%}" if "spread" in row else ""
        met = "met" if row["met"] else "NOT MET"
        print(f"{name:34}{ours:>14}{peer:>14}{row['ratio']:8.3f}  {met:8}{noise:13}{more}")
    print("\nseconds by size and algorithm")
    for size, row in one["sizes"].items():
        each = ", ".join(f"{name} {median:.4g}" for name, (median, _) in row["seconds"].items())
        print(f"{int(size):10d}  {each}")
    print("\n4 hosts x 2 ranks, 32 MiB: " + ", ".join(f"{n} {s:.3g} s" for n, (s, _) in two["seconds"].items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
