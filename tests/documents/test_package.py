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
    later = ("algorithms", "transports.threads", "job.supervisor", "job.supervisor_client", "inspect.dry_run",
             "ops.nonblocking", "inspect.plan", "shared_arrays", "testing", "inspect.timeline")  # fmt: skip
    counts, modules = run(
        "import sys, numpy; a = len(sys.modules); import autograd; autograd.grad; b = len(sys.modules)\n"
        "import collectives; print(b - a, len(sys.modules) - b); print(*sys.modules)"
    ).splitlines()
    of_autograd, of_collectives = map(int, counts.split())
    assert of_autograd <= 165, "beyond NumPy's; 160 of them took 70 ms"
    assert of_collectives <= 75
    loaded = modules.split()
    assert not {f"collectives.{name}" for name in later} & set(loaded)
    assert "fractions" not in loaded and "statistics" not in loaded


def test_the_engine_can_be_imported_alone() -> None:
    """Two operations are declared by hand, and a gradient is computed: without `ops`, `numpy`, or anything of ranks."""
    loaded = run(
        "import sys, numpy\n"
        "import autograd.engine\n"
        "from autograd.engine.leaves import tensor\n"
        "from autograd.engine.primitive import op\n"
        "from autograd.engine.tape import Tape\n"
        "twice = op('double', 'a', lambda x: 2 * x, adjoint=(lambda ct, y, x: twice(ct),))\n"
        "total = op('total', 'a', numpy.sum, adjoint=(lambda ct, y, x: spread(ct, (2,)),))\n"
        "spread = lambda ct, shape: numpy.broadcast_to(ct, shape)\n"
        "x = tensor([1.0, 2.0], requires_grad=True)\n"
        "with Tape() as tape: y = total(twice(x))\n"
        "tape.backward(y)\n"
        "assert x.grad.numpy().tolist() == [2.0, 2.0]\n"
        "print(*sys.modules)"
    ).split()
    assert {"autograd.engine.tape", "autograd.engine.dispatch"} <= {*loaded}
    above = ("autograd.ops", "autograd.numpy", "autograd.transforms", "autograd.kernels", "collectives", "parallel")
    assert not [name for name in loaded if name.startswith(above)]


def test_importing_autograd_loads_no_engine() -> None:
    """Its names are loaded at first use."""
    counts = run(
        "import sys, autograd as ag\n"
        "of_ours = lambda: sum(name.startswith('autograd.') for name in sys.modules)\n"
        "first = of_ours(); ag.RingtapeError, dir(ag), ag.R; labels = of_ours()\n"
        "ag.grad; print(first, labels, of_ours())"
    )
    first, labels, used = map(int, counts.split())
    assert first <= 12 and labels <= 14 and used > 40


def test_a_tensor_has_its_operators_however_it_was_made() -> None:
    """Of a pickle only the engine is loaded, and the first operator, method or NumPy function loads the operations."""
    made = "import pickle, autograd as ag; print(pickle.dumps(ag.tensor([1.0, 2.0])).hex())"
    pickled = run(made).strip()
    for use, wanted in (
        ("x * 2", "[2.0, 4.0]"), ("1 - x", "[0.0, -1.0]"), ("-x", "[-1.0, -2.0]"), ("x[1:]", "[2.0]"),
        ("x == 2", "[False, True]"), ("x.reshape(2, 1)", "[[1.0], [2.0]]"), ("x.T", "[1.0, 2.0]"),
        ("numpy.negative(x)", "[-1.0, -2.0]"), ("numpy.linalg.norm(x[:1])", "1.0"),
        ("numpy.concatenate([x, x])", "[1.0, 2.0, 1.0, 2.0]"),
    ):  # fmt: skip
        code = (
            f"import pickle, sys, numpy; x = pickle.loads(bytes.fromhex({pickled!r}))\n"
            f"assert 'autograd.ops' not in sys.modules\ny = {use}\nprint(y.numpy().tolist())"
        )
        assert run(code).strip() == wanted, use
    code = f"import pickle; x = pickle.loads(bytes.fromhex({pickled!r}))"
    code += "; print(hasattr(x, 'nothing'), hasattr(x, '__no__'))"
    assert run(code) == "False False\n"


def test_tensors_take_all_operations_of_the_table_at_the_first_use_of_one() -> None:
    from autograd.engine.first_use import ATTRIBUTES
    from autograd.ops.tensor_methods import TENSOR_ATTRIBUTES

    assert len(ATTRIBUTES) == len({*ATTRIBUTES}) and {*ATTRIBUTES} == {*TENSOR_ATTRIBUTES}
    left = run(
        "import sys, autograd.engine.tensor as t, autograd.engine.first_use as f\n"
        "waiting = lambda: sum(isinstance(x, f.AtFirstUse) for x in vars(t.Tensor).values())\n"
        "first = waiting(); assert 'autograd.ops' not in sys.modules\n"
        "f.load_operations(); assert waiting() == first  # an import changes no class\n"
        "assert t.Tensor.sum.__name__ and not isinstance(t.Tensor.sum, f.AtFirstUse)  # of the class, too\n"
        "print(first, waiting())"
    )
    assert left == f"{len(ATTRIBUTES)} 0\n"


def test_threads_may_use_a_name_first_at_once() -> None:
    names = ("Tensor", "grad", "tensor", "nn", "jacobian", "optim", "numpy", "random", "Tape", "checkpoint")
    code = (
        "import sys, threading, autograd as ag\n"
        f"names, seen, barrier = {names!r} * 2, [], threading.Barrier(20)\n"
        "sys.setswitchinterval(1e-5)\n"
        "def use(i):\n"
        "    barrier.wait()\n"
        "    found = [getattr(ag, name) for name in names[i:] + names[:i]]\n"
        "    x = ag.tensor([1.0, 2.0]); assert (x * 2).sum().item() == 6 and found\n"
        "    seen.append(i)\n"
        "threads = [threading.Thread(target=use, args=(i,)) for i in range(20)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]; print(len(seen))"
    )
    for _ in range(3):
        assert run(code) == "20\n"


def test_every_name_of_star_import_is_there() -> None:
    code = "from autograd import *; import autograd; print([n for n in autograd.__all__ if n not in globals()])"
    assert run(code) == "[]\n"


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
