"""Transfers of activations and cotangents between the ranks of a pipeline, as raw arrays on a channel of their own.

Sends do not block. A receive is started as soon as its shape is known, and waited for where the value is needed.
Messages from one rank to another are numbered in the order in which they are sent, which both ranks know from the
schedule. The first activation of a kind is preceded by a header with its shape, dtype and labels.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from autograd.arrays.device import is_inexact
from autograd.arrays.shape_only import Shaped
from autograd.engine import events
from autograd.engine.leaves import Leaf
from autograd.engine.state import state
from autograd.engine.tensor import TENSORS, Tensor
from autograd.errors import ArgumentError, ShapeError
from autograd.layouts.layout import C, D, Layout, V
from autograd.layouts.messages import describe
from collectives.ops import headers
from collectives.transports.protocol import Request

from .schedules import Message, Schedule

__all__ = ["Outline", "Transfers"]


class Outline(NamedTuple):
    """The properties of the Tensors that one stage passes to the next.

    Attributes
    ----------
    tensors : tuple
        The shape, dtype and layout of each, and whether it needs a cotangent.
    is_single : bool
        Whether the stage passes a Tensor, not a tuple of Tensors.
    """

    tensors: tuple[tuple[tuple[int, ...], Any, Layout | None, bool], ...]
    is_single: bool

    @classmethod
    def of(cls, values: Sequence[Tensor], is_single: bool, differentiates: bool) -> Outline:
        """That of the values of a stage.

        Where the stage `differentiates`, its values need cotangents in every microbatch, also in one of which none of
        its parameters is used: the next stage has to know it before.
        """
        of: tuple[Any, ...] = ()
        for x in values:
            labels = () if x.layout is None else x.layout.labels
            needs = x.tape is not None or bool(
                differentiates and C not in labels and D not in labels and is_inexact(x.array.dtype)
            )
            of += ((tuple(x.array.shape), x.array.dtype, x.layout, needs),)
        return cls(of, is_single)

    def __str__(self) -> str:
        return ", ".join(describe(np.empty(0, dtype), shape, layout) for shape, dtype, layout, _ in self.tensors)

    def leaves(self, arrays: Sequence[Any], requires_grad: bool) -> list[Leaf]:
        """The values as leaves. Those that need a cotangent require a gradient, if that is to be in their `grad`."""
        return [
            Leaf(a, layout, requires_grad and needs)
            for a, (_, _, layout, needs) in zip(arrays, self.tensors, strict=True)
        ]


_MOST = 16  # Tensors between two stages
_SUB = 2 * _MOST  # the numbers of the parts of a message: headers, and arrays


class Transfers:
    """One rank's end of the transfers.

    Parameters
    ----------
    group : Communicator
        A channel of the ranks along the pipeline's axis that nothing else uses.
    axis : str
        The axis.
    """

    def __init__(self, group: Any, axis: str):
        self.group, self.axis = group, axis
        self.lane = group.lane("stages")  # where messages are matched by their numbers
        self.outlines: dict[Hashable, Outline] = {}
        """By stage and kind of microbatch: what the stage passes on. The sender and the receiver both have it."""
        self._base = 0  # the number of the first message of this step, between any two ranks
        self._announced: dict[Hashable, Message] = {}  # the first message of each kind, which has a header
        self._started: dict[Message, list[Any]] = {}  # the receives of each: of its first header, or of its arrays
        self._empty: Callable[[Any, Any], Any] = np.empty

    def arrive_beside(self, x: Any) -> None:
        """Let values arrive on the device of an array of the batch."""
        is_on_host = isinstance(x, np.ndarray | np.generic | Shaped)
        like = None if is_on_host else np.empty_like(x, shape=(0,))
        self._empty = np.empty if is_on_host else lambda shape, dtype: np.empty_like(like, shape=shape, dtype=dtype)

    def finish(self, schedule: Schedule) -> None:
        """Number the messages of the next schedule after those of one that has run."""
        self._base += max(map(len, schedule.actions))  # no rank sends more messages than it has actions

    def _numbered(self, message: Message) -> tuple[int, str]:
        """The number of a message's first part, and its text for reports."""
        return (self._base + message.number) * _SUB, message.text

    # -- between two stages ------------------------------------------------------------------------------------
    def send(self, message: Message, values: Sequence[Any], outline: Outline | None, kind: Hashable) -> None:
        """Send the result of a stage, which has an outline; or cotangents as arrays, None where none is needed."""
        if outline is not None:
            key = message.stage, kind
            known = self.outlines.get(key)
            if known is None:
                self._send_headers(message, values, outline)
                self.outlines[key] = outline
            elif known != outline:
                raise ShapeError(
                    f"Pipeline: stage {message.stage} gave {outline} for microbatch {message.microbatch}, and {known} "
                    "for an earlier microbatch of the same shape and labels; needed: the same, because the next stage "
                    "has started to receive it\n  fix: a result whose shape, dtype and labels follow from those of the "
                    "input"
                )
        first, text = self._numbered(message)
        for i, x in enumerate(values):
            if x is not None:
                flat = (x.array if x.__class__ in TENSORS else x).ravel()
                self.lane.run(Request("send", flat, peer=message.target, options=(first + _MOST + i, text)))
                if events.listeners:
                    self._tell(message, i, x)

    def _send_headers(self, message: Message, values: Sequence[Tensor], outline: Outline) -> None:
        if not 0 < len(values) <= _MOST:
            raise ArgumentError(f"Pipeline: stage {message.stage} gave {len(values)} Tensors; needed: 1 to {_MOST}")
        first, text = self._numbered(message)
        for i, (x, (_, _, layout, needs)) in enumerate(zip(values, outline.tensors, strict=True)):
            others = layout if layout is None else layout.replace((self.axis,), V)
            numbers = float(needs), 0.0 if outline.is_single else float(len(values))
            header = headers.write(x.array, others, needs, "a stage of a pipeline", numbers=numbers)
            self.lane.run(Request("send", header, peer=message.target, options=(first + i, text)))

    def _read(self, message: Message, first: Any) -> Outline:
        """Wait for the headers of a message, of which the first has been started."""
        found, count = [], 1
        for i in range(_MOST):
            if i == count:
                break
            data = (first if not i else self._header(message, i)).wait()
            needs, several = headers.projection_in(data)
            shape, dtype, labels = headers.read(data, bool(needs), "a stage of a pipeline", f"rank {message.source}")
            layout = None if state.grid is None else state.grid.layout([labels.get(a, V) for a in state.grid.names])
            found.append((shape, dtype, layout, bool(needs)))
            count, is_single = max(1, int(several)), not several
        return Outline(tuple(found), is_single)

    def start(self, message: Message, kind: Hashable) -> None:
        """Start to receive a message. Of the first activation of a kind that is its header; a message whose shape is
        not known yet is started later, by `receive`."""
        is_activation = message.kind == "activation"
        key = message.stage - (not is_activation), kind
        outline = self.outlines.get(key)
        if outline is None:
            if is_activation and key not in self._announced:
                self._announced[key] = message
                self._started[message] = [self._header(message, 0)]
            return
        found: list[Any] = []
        first, text = self._numbered(message)
        for i, (shape, dtype, _, needs) in enumerate(outline.tensors, _MOST):
            if is_activation or needs:
                buffer = self._empty(shape, dtype)
                request = Request("recv", out=buffer.reshape(-1), peer=message.source, options=(first + i, text))
                found.append((buffer, self.lane.start(request)))
            else:
                found.append(None)
        self._started[message] = found

    def _header(self, message: Message, i: int) -> Any:
        """Start to receive the header of a message's i-th Tensor."""
        header = np.empty(headers.HEADER_BYTES, np.uint8)
        first, text = self._numbered(message)
        return self.lane.start(Request("recv", out=header, peer=message.source, options=(first + i, text)))

    def receive(self, message: Message, kind: Hashable) -> tuple[Outline, list[Any]]:
        """Wait for the result of a stage."""
        key = message.stage, kind
        if key not in self.outlines:
            first = self._announced[key]
            self.outlines[key] = self._read(first, self._started[first][0])
            self.start(first, kind)
        return self.outlines[key], self._arrays(message, kind)

    def receive_cotangents(self, message: Message, kind: Hashable) -> list[Any]:
        """Wait for the cotangents of a stage's result: one for each Tensor that needs one, None for the others."""
        return self._arrays(message, kind)

    def _arrays(self, message: Message, kind: Hashable) -> list[Any]:
        """Wait for the arrays of a message."""
        if message not in self._started:
            self.start(message, kind)
        arrays: list[Any] = []
        for each in self._started.pop(message):
            if each is not None:
                buffer, pending = each
                pending.wait()
                each = buffer if buffer.shape else buffer[()]
            arrays.append(each)
        if events.listeners:
            is_activation = message.kind == "activation"
            tensors = self.outlines[message.stage - (not is_activation), kind].tensors
            for i, (a, (_, _, layout, _)) in enumerate(zip(arrays, tensors, strict=True)):
                if a is not None:
                    self._tell(message, i, a, layout if is_activation else None)
        return arrays

    def _tell(self, message: Message, i: int, x: Any, layout: Layout | None = None) -> None:
        """Tell recorders the value and the layout of a message's i-th array, and by which key its adjoint is found."""
        is_sent = int(self.group.index) == message.source
        peer = self.group.ranks[message.target if is_sent else message.source]
        channel = f"{self.lane.name}#{self._numbered(message)[0] + _MOST + i}"
        is_cotangent = message.kind == "cotangent"
        key = id(self), message.stage - is_cotangent, message.microbatch, i
        events.tell("transferred", ("send" if is_sent else "recv", channel, peer), is_cotangent, key, x, layout)

    # -- single values -----------------------------------------------------------------------------------------
    def send_value(self, target: int, x: Tensor, needs: bool, text: str) -> None:
        """Send a value with its header, matched by the order of such messages."""
        others = None if x.layout is None else x.layout.replace((self.axis,), V)
        header = headers.write(x.array, others, needs, "a pipeline's value", numbers=(float(needs), 0.0))
        for a in (header, x.array.ravel()):
            self.group.run(Request("send", a, peer=target, options=(None, text)))

    def receive_value(self, source: int, text: str) -> tuple[Any, Layout | None, bool]:
        """Receive the array and the layout of a value, and whether it needs a cotangent."""
        data = np.empty(headers.HEADER_BYTES, np.uint8)
        self.group.run(Request("recv", out=data, peer=source, options=(None, text)))
        needs = bool(headers.projection_in(data)[0])
        shape, dtype, labels = headers.read(data, needs, "a pipeline's value", f"rank {source}")
        buffer = self._empty(shape, dtype)
        self.group.run(Request("recv", out=buffer.reshape(-1), peer=source, options=(None, text)))
        layout = None if state.grid is None else state.grid.layout([labels.get(a, V) for a in state.grid.names])
        return buffer, layout, needs

    def send_gradient(self, target: int, array: Any, text: str) -> None:
        """Send a cotangent, or that there is none."""
        self.group.run(Request("send", np.array([array is not None]), peer=target, options=(None, text)))
        if array is not None:
            self.group.run(Request("send", array.ravel(), peer=target, options=(None, text)))

    def receive_gradient(self, source: int, like: Any, text: str) -> Any:
        """Receive a cotangent for an array; None if there is none."""
        flag = np.empty(1, np.bool_)
        self.group.run(Request("recv", out=flag, peer=source, options=(None, text)))
        if not flag[0]:
            return None
        buffer = np.empty_like(like, order="C")
        self.group.run(Request("recv", out=buffer.reshape(-1), peer=source, options=(None, text)))
        return buffer
