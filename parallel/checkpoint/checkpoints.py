"""`save`, `load`, `latest`, `resume` and `Checkpoints`: the checkpoints of a run in a directory."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from autograd.errors import CheckpointError, CheckpointWarning, DamagedCheckpoint, OptionError, typed_errors, warn

from . import disk
from .directory import Directory
from .loading import Restored, agreed_step, leave_out, load_step, newest
from .saving import Save, begin, is_replayed
from .tree import on_a_mesh

__all__ = ["Checkpoints", "latest", "load", "resume", "save"]


class Checkpoints:
    """The checkpoints of a run in a directory: how many are kept, and whether they are written in the background.

    Parameters
    ----------
    directory : str or path
        All hosts share it. One job at a time writes into it.
    keep : int, optional
        The number of newest steps that are kept. By default all are.
    keep_every : int, optional
        With `keep`: steps that it divides are kept, too.
    background : bool
        Whether `save` returns when the values are copied in memory, and a thread writes them. The next `save`, or
        `wait`, waits until they are on the disk, and raises the error of writing them, if there was one. It takes the
        memory of this rank's part once more.

    Raises
    ------
    OptionError
        A number is less than 1.

    Examples
    --------
    >>> import tempfile
    >>> from autograd import nn
    >>> from parallel.checkpoint import Checkpoints
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = nn.Linear(2, 1)
    ...     checkpoints = Checkpoints(folder, keep=2, background=True)
    ...     for step in range(4):
    ...         checkpoints.save({"model": model}, step)
    ...     checkpoints.wait()
    ...     checkpoints.steps()
    [2, 3]
    """

    @typed_errors
    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int | None = None,
        keep_every: int | None = None,
        background: bool = False,
    ):
        for name, n in (("keep", keep), ("keep_every", keep_every)):
            if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
                raise OptionError(f"Checkpoints: {name}={n!r} was given; needed: a whole number of at least 1, or None")
        if keep is None and keep_every is not None:
            raise OptionError(
                f"Checkpoints: keep_every={keep_every} was given without keep; needed: the number of newest steps that "
                "are kept besides\n  fix: Checkpoints(..., keep=3, keep_every=...)"
            )
        self.directory = Directory(directory)
        self.keep, self.keep_every, self.background = keep, keep_every, background
        self._memory: list[Any] = []
        self._thread: threading.Thread | None = None
        self._running: Save | None = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"Checkpoints({self.directory.path!r}, steps={self.steps()})"

    def steps(self) -> list[int]:
        """The steps in the directory, in order."""
        return self.directory.steps()

    @typed_errors
    def save(self, state: Any, step: int, *, overwrite: bool = False) -> None:
        """Save a step; see `save`. All ranks of the mesh call it."""
        with on_a_mesh(state):
            self.wait()
            made = begin(
                self.directory, state, step, overwrite=overwrite, keep=self.keep, keep_every=self.keep_every
            )
            self._running = made
            if is_replayed():
                path = made.directory.path
                warn(f"checkpoint.save: a replay writes nothing to {path}: the recorded files stay", CheckpointWarning)
                self.wait()
                return
            if not self.background:
                self._write(made)
                self.wait()
                return
        made.copy_values(self._memory)
        self._thread = threading.Thread(target=self._write, args=(made, made.index), name="checkpoint")
        self._thread.start()

    def _write(self, made: Save, rank: int | None = None) -> None:
        disk.writer.rank = rank  # in a thread of its own, which is no rank
        try:
            made.write()
            if made.index == 0:
                made.wait_for_others()
                made.finish()
        except BaseException as error:
            text = f"checkpoint.save: step {made.step} could not be written: {error}"
            self._error = CheckpointError(text) if isinstance(error, OSError) else error
            made.give_up(error)

    @typed_errors
    def wait(self) -> None:
        """Wait until the last step is on the disk. All ranks of the mesh call it.

        Raises
        ------
        CheckpointError
            A rank could not write its part. The step does not exist; earlier ones do.
        """
        made, self._running = self._running, None
        if made is None:
            return
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        texts = made.group.exchange(b"" if error is None else str(error).encode(), of="checkpoint.save")
        if made.index == 0 and (error is not None or any(texts)):
            made.remove()
        if error is not None:
            raise error
        for rank, text in zip(made.group.ranks, texts, strict=True):
            if text:
                raise CheckpointError(
                    f"checkpoint.save: rank {rank} could not write step {made.step}, which therefore does not exist: "
                    f"{text.decode()}"
                )

    def abandon(self) -> None:
        """Forget a save that the death of a rank has ended. Its step does not exist; the next save removes the rest."""
        if self._thread is not None:
            self._thread.join()
        self._thread = self._running = self._error = None

    @typed_errors
    def load(self, state: Any, step: int | None = None, *, checksums: bool = True) -> Restored:
        """Load a step, by default the newest that is whole; see `load`."""
        self.wait()
        return load(self.directory.path, state, step, checksums=checksums)

    def latest(self) -> int | None:
        """The newest step that is whole; see `latest`."""
        return newest(self.directory)

    @typed_errors
    def resume(self, state: Any, *, checksums: bool = True) -> Restored | None:
        """Load the newest step that is whole, or return None if there is none; see `resume`."""
        self.wait()
        return resume(self.directory.path, state, checksums=checksums)


@typed_errors
def save(directory: str | os.PathLike[str], state: Any, step: int, *, overwrite: bool = False) -> Path:
    """Save the state of a run: each rank writes what it owns. All ranks of the mesh call it.

    A value that is divided is not gathered. One that several ranks have is written once, and they share the work. The
    step exists when this returns: until then what was written has another name, so that a run that ends at any moment
    leaves the steps before it as they were.

    Parameters
    ----------
    directory : str or path
        Of the run; all hosts share it. It is made if it is not there. Step 120 is in its directory
        ``step-000000120``: data files of safetensors, and ``manifest.json``, which says where each value is.
    state : mapping
        By name: modules, optimizers, a `Trainer`, loaders, ``autograd.random``, or any object with ``state_dict`` and
        ``load_state_dict``; plain values, made of numbers, texts, arrays, lists, tuples and dictionaries; and mappings,
        lists and tuples of both, at any depth. A single object has the name "state".
    step : int
        The number of the step.
    overwrite : bool
        Whether a whole step of this number is replaced.

    Returns
    -------
    Path
        The directory of the step.

    Raises
    ------
    CheckpointError
        The step is there already; another job writes into the directory; or a rank cannot write. The steps before it
        are as they were.
    ArgumentError, DtypeError, LayoutError, MeshError
        A value cannot be saved.
    DependencyError
        The library safetensors is not installed.

    Notes
    -----
    Bytes: each value once, over all ranks. Messages: three exchanges of a digest or an error, and with stages one of
    the names of their values.

    Examples
    --------
    >>> import tempfile
    >>> from autograd import nn, optim
    >>> from parallel import checkpoint
    >>> model = nn.Linear(2, 1)
    >>> run = {"model": model, "optimizer": optim.AdamW(model.parameters()), "best": 0.5}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = checkpoint.save(folder, run, 10)
    ...     print(path.name, checkpoint.latest(folder))
    ...     checkpoint.load(folder, run)
    step-000000010 10
    Restored(step=10, values={'best': 0.5})
    """
    Checkpoints(directory).save(state, step, overwrite=overwrite)
    return Path(directory, f"step-{step:09d}")


@typed_errors
def load(
    directory: str | os.PathLike[str], state: Any, step: int | None = None, *, checksums: bool = True
) -> Restored:
    """Load the state of a run, on any mesh: each rank reads its parts. All ranks of the mesh call it.

    All or nothing: if it raises, nothing has been changed on any rank.

    Parameters
    ----------
    directory : str or path
    state : mapping
        The objects by name, all or some of those that were saved, at the same places in mappings, lists and tuples.
        Plain values among them are ignored.
    step : int, optional
        By default the newest step that is whole. Steps that are not are left out with a `CheckpointWarning`.
    checksums : bool
        Whether the checksums of the values are compared. What no rank reads whole is divided among them.

    Returns
    -------
    Restored
        The step, and the plain values by name. A mapping of both has no entry for an object there, a list None in its
        place; what has objects alone is not there.

    Raises
    ------
    CheckpointError
        There is no such step. The state is that of other objects, in its groups or names.
    DamagedCheckpoint
        The files are not what was saved. Without `step` an older one is taken instead.
    LayoutError
        Each rank had a value of its own, on another mesh.
    ShapeError, DtypeError, OptionError, TapeError
        An object does not take its state.

    Examples
    --------
    See `save`.
    """
    where = Directory(directory)
    if step is not None:
        if isinstance(step, bool) or not isinstance(step, int):
            raise OptionError(f"checkpoint.load: step={step!r} was given; needed: a whole number, or None")
        with on_a_mesh(state):
            return load_step(where, state, step, checksums)
    found = resume(directory, state, checksums=checksums)
    if found is None:
        fault = "has no checkpoint that is whole" if os.path.isdir(where.path) else "is no directory"
        raise CheckpointError(f"checkpoint.load: {where.path} {fault}")
    return found


@typed_errors
def resume(directory: str | os.PathLike[str], state: Any, *, checksums: bool = True) -> Restored | None:
    """Load the newest step that is whole, or return None if there is none, as at the first start of a run.

    Parameters, errors and the order of steps are those of `load`. All ranks of the mesh call it.

    Examples
    --------
    >>> import tempfile
    >>> from autograd import nn
    >>> from parallel import checkpoint
    >>> model = nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(checkpoint.resume(folder, {"model": model}))
    None
    """
    where = Directory(directory)
    path = Path(directory)
    there = next((each for each in (path, *path.parents) if os.path.lexists(each)), None)
    if there is not None and not there.is_dir():  # of which a save would say it, after the first steps
        raise CheckpointError(
            f"checkpoint: {there} is no directory; needed: the directory of a run, which may not be there yet\n"
            f"  fix: another path than {where.path}"
        )
    below: int | None = None
    with on_a_mesh(state):
        while (step := agreed_step(where, below)) is not None:
            try:
                return load_step(where, state, step, checksums)
            except DamagedCheckpoint as error:
                leave_out(where, step, error)
                below = step
    return None


@typed_errors
def latest(directory: str | os.PathLike[str]) -> int | None:
    """The newest step of which the manifest is right and all files are there, or None.

    Newer steps that are not whole are left out with a `CheckpointWarning`. It sends nothing, and does not read the
    values: `load` compares their checksums, and falls back to an older step itself.

    Examples
    --------
    See `save`.
    """
    return newest(Directory(directory))
