"""Check modes: which calls the ranks compare, and how long a rank may wait. They apply to all transports.

The mode is read once from ``RINGTAPE_CHECK``, and changed with `set_check` (``cc.check``):

=========  ==========================================  ==========================================================
mode       what is compared                            what it costs
=========  ==========================================  ==========================================================
off        samples (`sampling`), whose first           that of a sample
           difference is reported on stderr
first      the fingerprints of the first 1000 calls    over MPI one all-reduce of 16 bytes before each of these
           of every communicator (the default)         calls; on threads the text travels with the call itself
always     the fingerprint of every call               the same for every call
ranks      the fingerprint, the layouts, the call      as ``always``, a walk up the stack, and one pass over the
           site, the number of the call, and digests   bytes of every operand that is R, I or a constant on some
           of copies (`sanitizer`)                     axis; no further message
=========  ==========================================  ==========================================================

A *fingerprint* is one line of text: the collective, the axis, shape, dtype, root, extents, the label of the result, and
whether the call is recorded. On threads ``first`` compares every call, as ``always`` does, because the comparison is
cheap next to the synchronization of threads.

Samples, copies, numbers (`numbers`), addends (`addends`), the monitors' comparison and the limits of waits are in
`docs/checking.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autograd import environment
from autograd.errors import OptionError

__all__ = ["MODES", "check_mode", "is_due", "set_check", "time_limit_s"]

MODES = environment.VARIABLES["RINGTAPE_CHECK"].values
SCALES = environment.VARIABLES["RINGTAPE_SCALE"].values
FIRST_CALLS = 1000
PATIENCE_S = 300.0

watching = False
"""Whether the mode is ``ranks``; a plain variable, because hot paths read it."""
limit = 0.0
"""The number of calls of a communicator that are compared."""
sites = True
"""Whether call sites are compared under ``ranks``. Reports show them in either case."""

scale = "warn"
"""What becomes of a probable fault of scale: see `collectives.scale`."""

_limits = {"off": 0.0, "first": float(FIRST_CALLS), "always": float("inf"), "ranks": float("inf")}
_mode = "first"
_timeout: tuple[float | None, str] = None, ""  # in seconds, and what sets it


def set_check(
    mode: str | None = None, timeout_s: float | None = None, *, sites: bool = True, scale: str | None = None
) -> None:  # fmt: skip
    """Set the check mode. All ranks set the same mode at the same place of the program. Exported as ``cc.check``.

    Parameters
    ----------
    mode : {"off", "first", "always", "ranks"}, optional
        Selects what is compared: see the table of the module `collectives.checks.modes`, and `docs/checking.md`.
        Without it the mode stays.
    timeout_s : float, optional
        How long a rank may wait for another one. The default is ``RINGTAPE_TIMEOUT_S`` if it is set, else 300 under
        ``ranks``, else no limit.
    sites : bool
        Whether ``ranks`` also compares the call sites. Set it to False for a program whose ranks make the same call at
        different lines, as in ``if rank == 0: broadcast(x, "dp") else: broadcast(None, "dp")``. Then the other modes
        do not look for two calls in swapped order either.

    scale : {"warn", "error", "off"}, optional
        What becomes of a gradient that is probably a power of the number of ranks too large or too small: see
        `docs/guides/scale.md`. Without it the setting stays; at first it is that of ``RINGTAPE_SCALE``, or "warn".

    Raises
    ------
    OptionError
        The mode or `scale` is unknown, or the limit is not positive.

    Examples
    --------
    >>> import collectives as cc
    >>> cc.check("ranks", timeout_s=60)
    >>> cc.check("first")
    """
    global _mode, _timeout, limit, watching
    if scale is not None:
        if not isinstance(scale, str) or scale not in SCALES:
            raise OptionError(f"scale={scale!r} was given; needed: one of {', '.join(SCALES)}")
        globals()["scale"] = scale
    if mode is None:
        if timeout_s is None:
            return
        mode = _mode
    if not isinstance(mode, str) or mode not in MODES:
        raise OptionError(f"check mode {mode!r}: needed one of {', '.join(MODES)}")
    if timeout_s is not None and (not isinstance(timeout_s, int | float) or not timeout_s > 0):
        raise OptionError(f"timeout_s={timeout_s!r} was given; needed: a positive number of seconds")
    _mode, _timeout, watching = mode, (timeout_s, "timeout_s= of cc.check"), mode == "ranks"
    limit = _limits[mode]
    globals()["sites"] = sites


@contextmanager
def waiting_limited(limit_s: float, by: str) -> Iterator[None]:
    """Limit how long a rank may wait for another one inside the block. All ranks enter the block.

    `by` is what sets the limit, for messages.
    """
    global _timeout
    before, _timeout = _timeout, (limit_s, by)
    try:
        yield
    finally:
        _timeout = before


def check_mode() -> str:
    """The current check mode."""
    return _mode


def is_due(n: int, every: int = 0) -> bool:
    """Whether the n-th event, counted from 1, is compared: the 1st, 2nd, 4th, 8th, ..., and every `every`-th."""
    return n & (n - 1) == 0 or (every > 0 and n % every == 0)


def time_limit_s() -> float | None:
    """The longest wait of a rank for another one, in seconds; None without a limit."""
    given_s = given_limit_s()
    return PATIENCE_S if given_s is None and watching else given_s


def given_limit_s() -> float | None:
    """The limit that the program or the environment has set; None without one."""
    return _timeout[0] if _timeout[0] is not None else _environment_s


def time_limit_source() -> str:
    """The setting that `time_limit_s` is from, for messages."""
    if _timeout[0] is not None:
        return _timeout[1]
    return "RINGTAPE_TIMEOUT_S" if _environment_s is not None else "the limit of the check mode ranks"


def report_s() -> float | None:
    """The length of a wait that is reported while the job goes on, in seconds; None for no report."""
    return _report_s


_environment_s = environment.seconds("RINGTAPE_TIMEOUT_S")
_report_s = environment.seconds("RINGTAPE_REPORT_S")
set_check(environment.value("RINGTAPE_CHECK"), scale=environment.value("RINGTAPE_SCALE"))
