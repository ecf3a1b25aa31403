"""``python -m parallel.launch OPTIONS -- COMMAND``: run a job, and start it again if it fails.

=========================================  ===========================================================================
the command ends                           what follows
=========================================  ===========================================================================
with 0; with ``--done``: FILE is there     the job is finished; the launcher ends with 0
with `REQUEUE`, which nobody asked it for  another start, which does not count; if it has made no step since the last
                                           such end, or after ``--requeues`` of them, the launcher ends with 1
after a signal that the launcher has got   no start; the launcher ends with `REQUEUE`, after Ctrl-C with 130
otherwise                                  another start after a while, up to ``--restarts``; then the launcher ends
                                           with the code of the command
=========================================  ===========================================================================

The program resumes from its checkpoint by itself: see `checkpoint.resume`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from autograd.environment import value
from autograd.files import PrivateFolder, replacing, temporary

from .checkpoint import REQUEUE
from .checkpoint.directory import Directory

__all__ = ["finished", "main"]

_DONE, _START = "RINGTAPE_DONE", "RINGTAPE_START"
_PROBE = "ssh -o BatchMode=yes -o ConnectTimeout=5 {host} true"
_PROBE_LIMIT_S = 30.0
_POLL_S = 0.5
_LONGEST_WAIT_S = 60.0
_BY_USER = (signal.SIGINT, signal.SIGHUP)
_BY_SCHEDULER = (signal.SIGTERM, signal.SIGUSR1)
_PLACEHOLDERS = ("{hosts}", "{hostfile}", "{ranks}")


def finished() -> None:
    """Tell `parallel.launch` that the job is finished, whatever its exit code will be.

    A rank calls it when the last step is saved: after deaths that the others have survived, an exit code does not tell
    whether the job has come to its end. It writes the file that ``--done`` names. In a job that was started in another
    way it does nothing.

    Raises
    ------
    WriteError
        The file cannot be written.

    Examples
    --------
    >>> import os, tempfile
    >>> from unittest import mock
    >>> from parallel.launch import finished
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with mock.patch.dict(os.environ, {"RINGTAPE_DONE": os.path.join(folder, "done")}):  # as --done does
    ...         finished()
    ...     os.listdir(folder)
    ['done']
    """
    given = value(_DONE)
    if given:
        with replacing(given, "finished") as file:
            file.write(time.strftime("%Y-%m-%dT%H:%M:%SZ\n", time.gmtime()).encode())


def _say(text: str) -> None:
    print(f"parallel.launch {time.strftime('%Y-%m-%d %H:%M:%S')}: {text}", file=sys.stderr, flush=True)


def _ended(code: int) -> str:
    """A text on the end of a command, given its code as `subprocess` returns it."""
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exit code {code}"
    return f"signal {name}" if code < 0 else f"exit code {code}, that of signal {name}"


# -- hosts -------------------------------------------------------------------------------------------------------------
class Hosts:
    """The hosts of a job, and a command that tells whether one is there.

    Parameters
    ----------
    lines : mapping of str to str
        By host, its line in a host file.
    per_host : int
        The number of ranks on each.
    probe : str
        A command that ends with 0 if the host ``{host}`` is there. This host is not asked by the default command.

    Examples
    --------
    >>> from parallel.launch import Hosts
    >>> hosts = Hosts({"a": "a slots=2", "b": "b slots=2"}, 2, "test {host} = a")
    >>> hosts.present()
    ['a']
    >>> hosts.filled(["mpiexec", "-n", "{ranks}", "-host", "{hosts}"], ["a"], "hosts.txt")
    ['mpiexec', '-n', '2', '-host', 'a']
    """

    def __init__(self, lines: Mapping[str, str], per_host: int = 1, probe: str = _PROBE):
        self.lines, self.per_host, self.probe = dict(lines), per_host, probe

    @classmethod
    def of_names(cls, names: str, per_host: int, probe: str) -> Hosts:
        """Hosts given as ``a,b,c``. In the host file each has a line for each rank, which MPICH and Open MPI count."""
        found = dict.fromkeys(name.strip() for name in names.split(",") if name.strip())
        return cls({name: "\n".join([name] * per_host) for name in found}, per_host, probe)

    @classmethod
    def of_file(cls, path: str, per_host: int, probe: str) -> Hosts:
        """Hosts given as a host file of MPICH (``a:4``) or Open MPI (``a slots=4``)."""
        found: dict[str, str] = {}
        for line in Path(path).read_text().splitlines():
            words = line.partition("#")[0].split()
            if words:
                host = words[0].partition(":")[0]
                found[host] = f"{found[host]}\n{line}" if host in found else line
        return cls(found, per_host, probe)

    def present(self) -> list[str]:
        """The hosts that answer, in order. All are asked at once."""
        here = {"localhost", "127.0.0.1", socket.gethostname()} if self.probe == _PROBE else set()
        asked = {
            host: subprocess.Popen(
                [word.replace("{host}", host) for word in shlex.split(self.probe)], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )
            for host in self.lines if host not in here
        }  # fmt: skip
        until = time.monotonic() + _PROBE_LIMIT_S
        codes: dict[str, int] = dict.fromkeys(here, 0)
        for host, process in asked.items():
            try:
                codes[host] = process.wait(max(until - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                codes[host] = process.wait() or 1
        return [host for host in self.lines if codes[host] == 0]

    def filled(self, command: Sequence[str], present: Sequence[str], hostfile: str) -> list[str]:
        """The command with the hosts that are present, and the number of their ranks, in its placeholders."""
        texts = (",".join(present), hostfile, str(len(present) * self.per_host))
        found = []
        for word in command:
            for placeholder, text in zip(_PLACEHOLDERS, texts, strict=True):
                word = word.replace(placeholder, text)
            found.append(word)
        return found


def _is_open_mpi(command: Sequence[str]) -> bool:
    """Whether a command is the mpiexec of Open MPI."""
    if os.path.basename(command[0]) not in ("mpiexec", "mpirun", "orterun", "prterun"):
        return False
    try:
        done = subprocess.run([command[0], "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any(name in done.stdout + done.stderr for name in ("Open MPI", "OpenRTE", "PRRTE"))


# -- the job -----------------------------------------------------------------------------------------------------------
class Launcher:
    """Starts a command until it is finished.

    Parameters
    ----------
    command : sequence of str
    restarts : int
        The number of starts after the first one.
    grace_s : float
        How long the command may go on after a signal, before it is killed.
    wait_s : float
        The wait before the second start. It is doubled for each failure, up to a minute.
    progress : str, optional
        The directory of the checkpoints. A job that fails twice at the same newest step, on the same hosts, or asks for
        another start twice, is not started again.
    requeues : int
        Without `progress`: how often the job may ask for another start.
    done : str, optional
        The file that `finished` writes.
    hosts : Hosts, optional
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        restarts: int = 0,
        grace_s: float = 60.0,
        wait_s: float = 1.0,
        progress: str | None = None,
        requeues: int = 100,
        done: str | None = None,
        hosts: Hosts | None = None,
    ):
        self.command, self.restarts, self.grace_s, self.wait_s = list(command), restarts, grace_s, wait_s
        self.progress = None if progress is None else Directory(progress)
        self.requeues = requeues
        self.done = None if done is None else Path(done).absolute()
        self.hosts = hosts
        self._asked: signal.Signals | None = None  # the first signal
        self._started = 0  # how often the command was started, also without counting
        self._process: subprocess.Popen[bytes] | None = None
        self._kill_at: float | None = None
        self._passed = {each: each for each in (*_BY_SCHEDULER, *_BY_USER)}
        if _is_open_mpi(self.command):  # at SIGTERM it kills its ranks within a second
            self._passed[signal.SIGTERM] = signal.SIGUSR1

    def run(self) -> int:
        """Run the job, and return the exit code. In the main thread it receives the signals."""
        if self._is_done():
            _say(f"the job is finished already: {self.done} is there; remove it to run the job again")
            return 0
        before: dict[signal.Signals, Any] = {}
        try:
            for each in self._passed:
                if signal.getsignal(each) != signal.SIG_IGN:  # as under nohup
                    before[each] = signal.signal(each, self._receive)
            if self.hosts is None:
                return self._starts("")
            above = temporary()
            with PrivateFolder.make(os.path.join(above, f".ringtape-launch-{os.urandom(8).hex()}")) as folder:
                return self._starts(os.path.join(folder.path, "hosts"))
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _starts(self, hostfile: str) -> int:
        failures, requeues, last, last_requeue = 0, 0, None, None
        code, reason = 1, "it was not started"
        while True:
            hosts = None if self.hosts is None else self.hosts.present()
            if self._asked is None:
                code, reason = self._start(hosts, hostfile, failures)
                if self._is_done() if self.done is not None else code == 0:
                    _say("the job is finished" + (f", though it ended with {reason}" if code else ""))
                    return 0
            if self._asked is not None:
                _say(f"the launcher was asked to end by {self._asked.name}, and starts the job no more: {reason}")
                return 130 if self._asked in _BY_USER else REQUEUE
            at = self._newest_step()
            since = "the start" if at is None else at
            if code == REQUEUE:
                requeues += 1
                if self.progress is not None and (at, hosts) == last_requeue:
                    _say(f"it is given up: it has asked for another start twice without a step after {since}")
                    return 1  # REQUEUE would ask the scheduler for another start
                if self.progress is None and requeues > self.requeues:
                    _say(
                        f"it is given up: it has asked for another start {requeues} times, and whether it makes steps "
                        "is not known\n  fix: --progress DIR, the directory of its checkpoints\n  or:  --requeues N"
                    )
                    return 1
                last_requeue = at, hosts
                _say(f"the job was asked to end, and has saved its state ({reason}); it starts again")
                self._sleep(self.wait_s)
                continue
            failures += 1
            _say(f"the job has failed: {reason}" + (f", and {self.done} is not there" if code == 0 else ""))
            if self.progress is not None and (at, hosts) == last:
                _say(f"it is given up: it has failed twice without a step after {since}")
                return _status(code)
            last = at, hosts
            if failures > self.restarts:
                _say(f"it is given up after {failures} start{'s' * (failures > 1)}")
                return _status(code)
            self._sleep(min(self.wait_s * 2 ** (failures - 1), _LONGEST_WAIT_S))

    def _start(self, hosts: list[str] | None, hostfile: str, failures: int) -> tuple[int, str]:
        """Start the command, wait for its end, and return its code, and how it has ended."""
        command = self.command
        if self.hosts is not None and hosts is not None:
            gone = [host for host in self.hosts.lines if host not in hosts]
            if gone:
                _say(f"no answer from {', '.join(gone)}")
            if not hosts:
                return 1, "no host has answered"
            Path(hostfile).write_text("".join(f"{self.hosts.lines[host]}\n" for host in hosts))
            command = self.hosts.filled(command, hosts, hostfile)
        at = self._newest_step()
        since = "" if at is None else f", after step {at}"
        _say(f"start {failures + 1} of at most {self.restarts + 1}{since}: {shlex.join(command)}")
        self._started += 1
        environment = {**os.environ, _START: str(self._started)}
        if self.done is not None:
            environment[_DONE] = str(self.done)
        try:  # in a session of its own: the terminal's Ctrl-C reaches it once, through the launcher
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            return 127, f"it cannot be started: {error}"
        if self._asked is not None:  # meanwhile
            self._pass_on(self._asked, self.grace_s)
        code = self._wait(self._process)
        self._process, self._kill_at = None, None
        return code, _ended(code)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_S)
            now = time.monotonic()
            if self._kill_at is None and self._is_done():
                self._kill_at = now + self.grace_s  # ranks that hang in MPI's end
            if self._kill_at is not None and now >= self._kill_at:
                _say(f"it has not ended within {self.grace_s:g} s, and is killed")
                self._kill_at = None if self._asked is None else now + self.grace_s
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        is_second = received == self._asked and received in _BY_USER
        self._asked = self._asked or received
        self._pass_on(received, 0 if is_second else self.grace_s)

    def _pass_on(self, received: signal.Signals, grace_s: float) -> None:
        if self._process is not None:
            self._kill_at = time.monotonic() + grace_s
            with suppress(ProcessLookupError):
                self._process.send_signal(self._passed[received])

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._asked is None and time.monotonic() < until:
            time.sleep(min(0.1, seconds))

    def _is_done(self) -> bool:
        """Whether the file is there. One of another user is an order that this one has not given."""
        if self.done is None:
            return False
        try:
            status, folder = os.lstat(self.done), os.stat(self.done.parent)
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_uid in (os.geteuid(), folder.st_uid)

    def _newest_step(self) -> int | None:
        steps = [] if self.progress is None else self.progress.steps()
        return steps[-1] if steps else None


def _status(code: int) -> int:
    """The exit status of the launcher for the code of a job that has failed: after a signal that of a shell."""
    return 128 - code if code < 0 else code or 1


def _number(kind: Callable[[str], Any], least: float) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        found = kind(text)
        if not least <= found < float("inf"):
            raise ValueError
        return found

    number.__name__ = f"number of at least {least}"  # in the error of argparse
    return number


_OPTIONS: tuple[tuple[str, Callable[[str], Any], Any, str, str], ...] = (
    ("--restarts", _number(int, 0), 3, "N", "starts after the first one (3)"),
    ("--grace", _number(float, 0), 60.0, "S", "seconds from a signal to a kill (60)"),
    ("--wait", _number(float, 0), 1.0, "S", "seconds before the second start (1), doubled for each failure (up to 60)"),
    ("--progress", str, None, "DIR", "the directory of the checkpoints: give up a job that fails twice at one step"),
    ("--requeues", _number(int, 0), 100, "N", "without --progress: how often the job may ask for another start (100)"),
    ("--done", str, None, "FILE", "it is finished if parallel.launch.finished() has written FILE, not by exit code 0"),
    ("--ranks-per-host", _number(int, 1), 1, "N", "for {ranks} (1)"),
    ("--probe", str, _PROBE, "COMMAND", f"ends with 0 if {{host}} is there ({_PROBE})"),
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m parallel.launch", usage="%(prog)s [options] -- COMMAND",
        description="Run a job, and start it again if it fails.",
        epilog="In COMMAND, {hosts}, {hostfile} and {ranks} stand for the hosts that have answered, as a,b,c and as a "
        "file, and for the number of their ranks. The job is sent SIGTERM, SIGUSR1 and Ctrl-C; Open MPI's mpiexec gets "
        f"SIGUSR1 for SIGTERM. Exit code {REQUEUE} says that the job was asked to end: start it again.",
    )  # fmt: skip
    for name, kind, default, metavar, text in _OPTIONS:
        parser.add_argument(name, type=kind, default=default, metavar=metavar, help=text)
    of_hosts = parser.add_mutually_exclusive_group()
    of_hosts.add_argument("--hosts", metavar="A,B,C", help="start on those of these hosts that answer")
    of_hosts.add_argument("--hostfile", metavar="FILE", help="the same, in a host file of MPICH or Open MPI")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m parallel.launch`` with these arguments, and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    cut = given.index("--") if "--" in given else len(given)
    options, command = parser.parse_args(given[:cut]), given[cut + 1 :]
    if not command:
        parser.error("no command was given; needed: -- COMMAND, such as -- mpiexec -n 4 python train.py")
    hosts = None
    if options.hosts is not None or options.hostfile is not None:
        if "{host}" not in options.probe:
            parser.error(f"--probe {options.probe!r}: needed: a command with {{host}}")
        try:
            program = shlex.split(options.probe)[0]
        except ValueError as error:
            parser.error(f"--probe {options.probe!r}: {error}")
        if shutil.which(program) is None:
            parser.error(
                f"--probe: {program!r} is not installed here; needed: a command that ends with 0 if {{host}} is there"
            )
        try:
            hosts = (
                Hosts.of_names(options.hosts, options.ranks_per_host, options.probe) if options.hosts is not None
                else Hosts.of_file(options.hostfile, options.ranks_per_host, options.probe)
            )  # fmt: skip
        except OSError as error:
            parser.error(f"--hostfile: {error}")
        if not hosts.lines:
            parser.error("--hosts, --hostfile: no host was given")
    uses_hosts = any(each in word for word in command for each in _PLACEHOLDERS)
    if uses_hosts and hosts is None:
        parser.error("the command has {hosts}, {hostfile} or {ranks}; needed: --hosts or --hostfile")
    if hosts is not None and not uses_hosts:
        parser.error("--hosts, --hostfile: needed: a command with {hosts} or {hostfile}, and {ranks}")
    return Launcher(
        command, restarts=options.restarts, grace_s=options.grace, wait_s=options.wait, progress=options.progress,
        requeues=options.requeues, done=options.done, hosts=hosts,
    ).run()  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
