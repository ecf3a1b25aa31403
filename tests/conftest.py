"""For all tests: the environment of the processes that they start, and the summary at the end of the run."""

from __future__ import annotations

import faulthandler
import gc
import hashlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import hypothesis
import pytest

from autograd.arrays.runtime import Program

from . import quick, summary
from .autograd.arrays.devices import Gpu
from .autograd.kernels.cuda import on_cpu

ROOT = Path(__file__).resolve().parents[1]

# One thread per process, before NumPy is loaded here or in a worker: several tests and their ranks run at a time, and
# threads of BLAS that wait for work take the cores from them.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")


# Where Python is told to write no bytecode, keep it in pytest's own folder: the workers and the hundreds of ranks that
# tests start would otherwise compile all modules again, which takes most of their start. Workers inherit the variables.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(ROOT / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix


# On a loaded machine examples are drawn slowly, which is no fault of a test.
hypothesis.settings.register_profile(
    "ringtape", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("ringtape")


@pytest.fixture(scope="session")
def _stores_of_code() -> Path:
    """A folder for compiled loops that all runs share, until a file changes that makes the code."""
    files = sorted(path for folder in ("compiler", "kernels") for path in (ROOT / "autograd" / folder).glob("*.py"))
    key = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:12]
    folder = ROOT / ".pytest_cache" / "code"
    for other in folder.glob("*"):
        if other.name != key and other.stat().st_mtime < time.time() - 86_400:
            shutil.rmtree(other, ignore_errors=True)
    return folder / key


@pytest.fixture(scope="module", autouse=True)
def _store_of_code(_stores_of_code: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """The store of compiled loops: one for each file of tests, as the loops of all are too many for one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGTAPE_CODE", str(_stores_of_code / request.path.stem))
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_tests_compile_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """In a run of the quick tests a C++ compiler is an error, and no compiler is loaded at the end."""
    if request.config.option.markexpr == "quick":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(on_cpu, "library", _no_compiler)
            yield
        assert not {"numba", "llvmlite.binding"} & set(sys.modules), "a quick test has loaded a compiler"
    else:
        yield


def _no_compiler(program: Program) -> NoReturn:
    raise AssertionError(f"a quick test builds {program.name} with a C++ compiler: list it in LONG of tests/quick.py")


@pytest.fixture(scope="session", autouse=True)
def _environment_of_ranks() -> Iterator[None]:
    """The environment of the processes that tests start.

    Ranks that wait give up the core, also where a job alone would have enough: several tests run at a time. UCX, which
    MPICH loads, does not patch the functions that release memory: on every start that takes as long as half of NumPy.
    """
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent / "start"), os.environ.get("PYTHONPATH")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")
        patch.setenv("UCX_MEM_EVENTS", "n")
        patch.setenv("RINGTAPE_ALGORITHMS", "rule")  # and no table of choices that this machine may have
        patch.setenv("PYTHONPATH", path)
        yield


@pytest.fixture
def ranks_mode() -> Iterator[None]:
    """All checks on, under which no rank waits inside MPI."""
    from collectives.checks import modes

    mode = modes.check_mode()
    modes.set_check("ranks")
    yield
    modes.set_check(mode)


@pytest.fixture
def compiler_of_kernels(request: pytest.FixtureRequest) -> None:
    """Skip a test whose kernels run on the CPU where there is no compiler for it. On a GPU none is needed."""
    given = getattr(request.node, "callspec", None)
    if on_cpu.WHY_NOT and not any(isinstance(each, Gpu) for each in (given.params.values() if given else ())):
        pytest.skip(on_cpu.WHY_NOT)


def pytest_configure(config: pytest.Config) -> None:
    """Print where every thread is on SIGUSR1, for a run that hangs. ``-m quick`` compiles nothing, see `quick`."""
    if config.option.markexpr == "quick":
        os.environ["RINGTAPE_COMPILED"] = "0"
        if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            config.args = quick.paths()
    if hasattr(faulthandler, "register"):  # not on Windows
        faulthandler.register(signal.SIGUSR1, file=os.dup(2), all_threads=True)


# Collect garbage less often, which took a fifteenth of the tests' time. Tests of what is freed, and when, call the
# collector, or disable it.
gc.set_threshold(10_000, 20, 20)


def pytest_collection_finish() -> None:
    """Let the garbage collector skip the thousands of collected tests; some tests call it."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Collect all garbage once; pytest does it five times then, which this makes cheap."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # pytest itself deselects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the quick tests. Run the short tests last, so that no worker has a long one left when others are done."""
    for item in items:
        if quick.is_quick(item.nodeid):
            item.add_marker("quick")
    items.sort(key=lambda item: item.nodeid.startswith("tests/autograd/"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of pytest-xdist: send what its tests reported to the controller."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["ringtape_summary"] = summary.as_data()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """In the controller of pytest-xdist: a worker has ended."""
    summary.add(getattr(node, "workeroutput", {}).get("ringtape_summary", {"counts": {}, "distinct": {}, "lines": {}}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print what tests reported, and how many were skipped for which reason."""
    found = [summary.processor_time(), *summary.text(config.get_verbosity() > 0)]
    found += summary.skips(report.longrepr[2] for report in terminalreporter.stats.get("skipped", ()))
    terminalreporter.section("summary of the tests' own reports")
    for text in found:
        terminalreporter.write_line(text)
