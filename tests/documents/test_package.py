"""What a user gets by importing: the names of the contract, quickly, and nothing that was not asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..forks import run_program

ROOT = Path(__file__).resolve().parents[2]


def run(code: str) -> str:
    """What a Python of its own prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_forked(code: str) -> str:
    """What a program prints for which it does not matter that the library is already imported."""
    done = run_program(code, "program.py", limit_s=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_neither_mpi_nor_gpu() -> None:
    loaded = run("import sys, autograd, collectives, parallel; print(sorted(m.split('.')[0] for m in sys.modules))")
    assert "mpi4py" not in loaded
    assert "cupy" not in loaded


def test_what_few_programs_use_is_loaded_later() -> None:
    """An import takes under 150 ms beyond NumPy because of this; ``python -X importtime -c "import autograd"``."""
    later = ("algorithms", "transports.threads", "job.supervisor_client", "inspect.dry_run", "ops.nonblocking",
             "inspect.plan", "shared_arrays", "testing", "inspect.timeline")  # fmt: skip
    counts, modules = run(
        "import sys, numpy; a = len(sys.modules); import autograd; b = len(sys.modules); import collectives\n"
        "print(b - a, len(sys.modules) - b); print(*sys.modules)"
    ).splitlines()
    of_autograd, of_collectives = map(int, counts.split())
    assert of_autograd <= 165, "beyond NumPy's; 160 of them took 70 ms"
    assert of_collectives <= 75
    loaded = modules.split()
    assert not {f"collectives.{name}" for name in later} & set(loaded)
    assert "fractions" not in loaded and "statistics" not in loaded


def test_every_public_name_is_there() -> None:
    import collectives as cc

    for name in cc.__all__:
        assert getattr(cc, name) is not None
    assert callable(cc.dry) and callable(cc.timeline)  # functions, whatever their modules are called


def test_a_world_of_one_loads_no_mpi() -> None:
    loaded = run_forked(
        "import sys, autograd as ag, collectives as cc\n"
        "with cc.Mesh(dp=1): y = cc.all_reduce(ag.tensor([1.0]), 'dp')\n"
        "print([m for m in sys.modules if 'mpi4py' in m])"
    )
    assert loaded.strip() == "[]"


def test_names_of_the_contract() -> None:
    import autograd as ag
    import autograd.numpy as np
    import collectives as cc

    for name in ("tensor", "Parameter", "Tape", "grad", "value_and_grad", "vjp", "jvp", "RingtapeError"):
        assert hasattr(ag, name)
    for name in (
        *("Mesh", "world", "run", "broadcast", "reduce", "scatter", "gather", "all_gather", "reduce_scatter"),
        *("all_reduce", "all_to_all", "permute", "send", "recv", "shard", "cast", "declare_partial", "mean"),
        *("LayoutError", "CollectiveMismatch", "DeadlockError", "R", "I", "V", "P", "Shard"),
    ):
        assert hasattr(cc, name)
    assert hasattr(np, "tanh")


def test_completion_finds_the_names_that_are_loaded_at_first_use() -> None:
    modules = "(autograd, autograd.transforms, autograd.scipy, collectives, collectives.testing)"
    names = f"for m in {modules} for n in (*m.__all__, *getattr(m, '_LAZY', ())) if n not in dir(m)"
    code = f"import autograd.scipy, collectives.testing; import autograd, collectives; print([n {names}])"
    assert run_forked(code) == "[]\n"


def test_version() -> None:
    names = "autograd.__version__, collectives.__version__, parallel.__version__, metadata.version('ringtape')"
    code = f"from importlib import metadata; import autograd, parallel, collectives; print(len({{{names}}}))"
    assert run_forked(code) == "1\n"
