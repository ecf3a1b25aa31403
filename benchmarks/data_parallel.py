"""Data-parallel training, beside PyTorch's DistributedDataParallel over gloo, in one run.

    python benchmarks/data_parallel.py --python-torch /path/to/an/environment/with/torch/bin/python
    python benchmarks/data_parallel.py --only mlp gpt --python-torch ... --json
"""

from __future__ import annotations

import argparse
import json
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
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT, PEERS = HERE.parent, HERE / "_peers"
sys.path = [str(ROOT), str(PEERS), *(path for path in sys.path if Path(path).resolve() != HERE)]

from data_parallel_case import THREADS  # noqa: E402 - from PEERS

LIMIT_S = 180.0


class World:
    """A world of one library that trains one case, in processes of its own that wait for requests."""

    def __init__(
        self, library: str, python: str, case: str, ranks: int, *, mode: str = "", cores: str = "", hosts: int = 0,
        cluster: str = "",
    ):  # fmt: skip
        self.name = f"{library} on {ranks} ranks" + (f" ({mode})" if mode else "")
        self.ranks = ranks
        self._folder = tempfile.TemporaryDirectory(prefix="ringtape-")
        address, token = f"{self._folder.name}/driver", secrets.token_hex(8)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen(ranks)
        environment = dict(os.environ, **THREADS)
        environment.pop("RINGTAPE_RANK_PID", None)
        worker = [str(PEERS / f"data_parallel_{library}.py"), "--case", case, "--connect", address, "--token", token]
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--python-torch")
    parser.add_argument("--only", nargs="+", default=["mlp", "gpt", "small"])
    args = parser.parse_args()
    for case in args.only:
        for ranks in (1, 2):
            worlds = [World("ringtape", sys.executable, case, ranks, cores="0,1"), World("torch", args.python_torch, case, ranks, cores="0,1")]
            a, b = (w.losses for w in worlds)
            print(case, ranks, "loss", a[0], a[-1], "diff", max(abs(x - y) / abs(y) for x, y in zip(a, b)))
            n = {"mlp": 60, "gpt": 3, "small": 60}[case]
            times = [[], []]
            for _ in range(11):
                for w, t in zip(worlds, times):
                    t.append(w.steps(n) * 1e3)
            o, p = map(statistics.median, times)
            print(case, ranks, f"ours {o:.3f} ms torch {p:.3f} ms ratio {statistics.median(y / x for x, y in zip(*times)):.3f}")
            for w in worlds:
                w.ask("profile", count=n * 5)
                print("  ", w.name, "fwd bwd opt ms", [[round(1e3 * x, 3) for x in r] for r in w.answers()])
            for w in worlds:
                w.close()
