"""The base of transports: the functions that each implements, and what they get.

A transport carries arrays between ranks. It knows nothing of tapes, layouts or meshes. It is a subclass of
`HostTransport`, and a `Job` (see `job`), which makes the channel of all ranks of a world.
`tests/collectives/transports/post.py` is a small one.

=====================  ====================================================  =========================================
implements             for                                                   else
=====================  ====================================================  =========================================
`_start`, or `_run`    the calls in the table of `request`                   each is made of the other one
`_channel_of`          this rank's end of another channel                    needed
`_lane_of`             a lane, without communication                         `_channel_of`
`hosts`                algorithms and shared memory                          all ranks are on one host
`repeats`              a repeated call without the checks of the first one   each call is checked
`_agree`, `announce`   comparing calls in fewer messages                     a maximum, and statements if it differs
`_window_of`,          memory that ranks read and write at different times   refused
`_clocks_of`,
`_arrivals_of`
`device_state`,        arrays of a device that need not be staged            staged
`device_buffers`, ...
=====================  ====================================================  =========================================
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from autograd.doors import door

from ..checks import modes, sanitizer
from ..checks.reports import print_report
from ..checks.sampling import Sampling
from ..checks.sanitizer import Addend, Copy, Statement
from ..job.marks import digest_of
from .protocol import Array, Communicator, Request

if TYPE_CHECKING:  # what carries device arrays is loaded with the first of them: programs without any start faster
    from ..job.activity import DeviceCalls

__all__ = ["HostTransport"]


class HostTransport(Communicator):
    """A transport that needs its arrays in host memory; see the module.

    A subclass implements `_run` for blocking calls, `_start` for started calls, or only one of the two. Both receive
    ``(request, x, out)``, checked, in the order of the channel's calls:

    - `request`: the request, after validation.
    - `x`: the operand, on the host, flat and contiguous. A started call owns it. The operand of a float16 reduction is
      converted to float32. In a `broadcast` it is None.
    - `out`: an uninitialised array for the result, or the caller's buffer; None where this rank receives no array. In a
      `broadcast` it holds the root's value on the root. In an `all_reduce` it may be `x`, which the sum then replaces.
      The transport fills it and returns it, or returns another array that belongs to nobody. If the caller gave a
      buffer, such a result is copied into it.

    In a group of one rank they are called only for messages of the rank to itself. Collectives are matched between the
    ranks by their order on the channel; messages by their order between two ranks, or by the number in their options.
    """

    device_choice: Any = None
    """What carries device arrays on this channel, and why (`device.choice`); None before the first such call."""
    carriers: Any = None
    """The `carriers.Carriers` of this channel; None before the first device array."""
    _statement: Any = None  # what the next call carries to be compared, for transports that combine the two

    # -- agreement ---------------------------------------------------------------------------------------------
    def _agree(self, call: str, layout: str, is_rooted: bool, addend: Addend | None) -> None:
        """Compare a digest of what the ranks state about a call; exchange the statements only if the digests differ."""
        checks = self.checks
        if checks is None:
            return
        sampling, copies = checks.sampling, checks.copies
        is_compared = sampling.agreed < modes.limit
        window = None
        if sampling.calls >= sampling.opens:  # as `is_open`, without a call
            window = sampling.note(call, [] if is_compared else copies)
        if is_compared:
            sampling.agreed += 1.0
        elif window is None:
            return
        if checks.parts:
            addend = checks.next_addend(self, addend)
        if modes.watching or copies or window is not None:
            mine, digests = self._stated(call, layout, is_rooted, copies, window)
        else:  # the text of the call is all
            mine, digests = None, _digest_and_complement(call)
        if addend is not None:  # in the lower half, so that the upper one tells whether the calls are the same
            digests = digests ^ np.uint64(addend.digest)
        if self.unsent is not None:
            self.unsent(True)
        largest = self._largest(digests, call)
        if largest[0] == ~largest[1]:
            if addend is not None:
                addend.is_equal = True
            if mine is not None and mine.places:
                sampling.order.learn([mine.places])
        elif largest[0] >> _HALF != ~largest[1] >> _HALF:
            mine = sanitizer.statement(call, layout, is_rooted, 0, copies) if mine is None else mine
            self._find_difference(mine, addend, sampling)

    def _stated(
        self, call: str, layout: str, is_rooted: bool, copies: list[Copy], window: Any
    ) -> tuple[Statement, Array]:  # fmt: skip
        """This rank's statement, and its digest with the complement."""
        if modes.watching:
            mine = sanitizer.statement(call, layout, is_rooted, self._calls_made() + 1, copies)
            if window is not None:
                mine = mine._replace(places=window[0])
            return mine, _digest_and_complement(repr(mine if mine.compares_site else mine._replace(site="")))
        mine = sanitizer.statement(call, layout, is_rooted, 0, copies)  # plain numbers used since the last comparison
        if window is not None:
            mine = mine._replace(places=window[0], copies=(*window[1], *mine.copies))
        return mine, _digest_and_complement(repr(mine))

    def _largest(self, digests: Array, call: str) -> Array:
        """The largest of all ranks' digests, one by one; reports of waiting ranks name the `call` that they are of."""
        y: Array = self._run(_AGREE, digests, digests.copy())
        return y

    def _calls_made(self) -> int:
        """The number of calls that this rank has made on the channel, for reports; 0 if it does not count them."""
        return 0

    def _find_difference(self, mine: Statement, addend: Addend | None, sampling: Sampling) -> None:
        """Exchange the statements of the ranks, which are not all equal, and raise or report the difference."""
        statements = [Statement.decode(each) for each in self.run(Request("exchange", mine.encode()))]
        error = sanitizer.compare(self.name, self.ranks, statements, sampling.order)
        if error is not None and modes.limit:
            self.is_broken = True
            raise error
        if error is not None:
            sampling.end()
            if self.index == 0:
                print_report(str(error))
        if addend is not None:
            sanitizer.note_facts(addend, self.ranks, statements)

    # -- arrays of a device ------------------------------------------------------------------------------------
    @property
    def device_state(self) -> dict[Any, Any] | None:
        """The state of this rank for device arrays, by ranks; None: they are always staged."""
        return None

    def on_close(self, release: Callable[[], None]) -> None:
        """Register a function that all ranks of this group call when their world is closed."""

    def watch(self, calls: DeviceCalls) -> None:
        """Let the monitor watch calls that wait on a device, where there is a monitor."""

    def note(self, request: Request) -> Any:
        """Note a call that the transport does not make itself, where monitors compare the calls of the ranks.

        Returns the wait for which a monitor can tell whether it ever ends; None where there is no monitor.
        """

    def device_buffers(self, runtime: Any) -> Any:
        """The carrier of device arrays that are passed to the transport as they are."""
        raise NotImplementedError

    def _on_device(self, request: Request, started: bool) -> Any:
        if self.carriers is None:
            self.carriers = door("device").Carriers(self)
        return self.carriers.carry(request, started)


_AGREE = Request("all_reduce", op="max")
_HALF = np.uint64(32)


@lru_cache(maxsize=4096)  # by the fingerprint of each call that is compared: 1 us without it
def _digest_and_complement(text: str) -> Array:
    """The digest h of a text and its complement. As max(~h) is ~min(h), one reduction finds both extremes."""
    digest = digest_of(text)
    return np.array([digest, digest ^ 0xFFFFFFFFFFFFFFFF], np.uint64)
