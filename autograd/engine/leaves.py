"""Leaves: the Tensors that users make, and their gradients.

A `Leaf` is this rank's part of a value, a `Parameter` is a leaf that is learned, and a `Constant` is a leaf that is the
same on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from sys import getrefcount
from typing import Any, NoReturn
from weakref import ref

import numpy as np
from numpy import ndarray

from ..arrays.capture import Whole, current_capture, recorded, refuse, refuse_value
from ..arrays.device import (
    as_array,
    device_of,
    dtype_named,
    is_inexact,
    require_one_device,
    runtime_of,
    to_device,
    to_host,
)
from ..arrays.half import is_half
from ..arrays.lossless import refuse_loss
from ..arrays.shape_only import Shaped, is_absent, shape_only
from ..errors import (
    AbsentError,
    ArgumentError,
    DtypeError,
    LayoutError,
    MeshError,
    SavedArrayError,
    ShapeError,
    TapeError,
    find_site,
    short,
    typed_errors,
)
from ..layouts.layout import C, Grid, I, Label, Layout, P, Shard, V, is_copy_for_part, may_relabel
from ..layouts.messages import describe
from ..layouts.stated_layout import KEEPS, PARAMETER_KEEPS, check_shape, resolve, with_own_labels
from .locks import guarded, step_check
from .recording import LEAF, Recording
from .state import state
from .sweep import Sweep
from .tensor import TENSORS, Tensor, is_followed

__all__ = [
    "Constant", "Leaf", "Parameter", "Used", "constant", "make_leaf", "refuse_unlabelled_update", "tensor",
]  # fmt: skip


class Leaf(Tensor):
    """A Tensor that the user made. With `requires_grad`, backward adds its gradient to `grad`."""

    __slots__ = ("__weakref__", "_grad", "_requires_grad", "name", "pending", "unstated", "used", "uses")
    __deepcopy__: Any = None  # the default: a leaf of its own, which has no history to lose

    def __init__(self, array: Any, layout: Layout | None = None, requires_grad: bool = False, name: str = ""):
        if not isinstance(name, str):
            raise ArgumentError(f"Leaf: name={short(name)} was given; needed: a string")
        if layout.__class__ is Layout and layout.rooted and layout.absent_beyond(()):
            array = Shaped(array.shape, array.dtype, f"its layout {layout!r} roots it on another rank")
        elif state.dry:
            array = shape_only(array)
        elif array.__class__ is ndarray and not array.shape:
            array = array[()]  # operations on NumPy's scalars take an eighth of the time
        super().__init__(array, layout)
        self._requires_grad = False
        self._grad: Any = None  # a Tensor, or a bare array until `grad` is read
        self.pending = ""  # the block, as a program writes it, at whose end its gradient is summed
        self.used: Any = None  # the step of an optimizer that has used its gradient, as a `Used`, and the gradient
        self.uses = 0  # the number of tapes that need it, if it owns its array (see `Recording.hold`)
        self.name = name
        self.unstated: tuple[str, ...] = ()  # the axes for which no label was given, so that it is V by default
        if requires_grad is not False:
            self.requires_grad = requires_grad

    @property
    def requires_grad(self) -> bool:
        """Whether tapes record the operations on it."""
        return self._requires_grad

    @requires_grad.setter
    @typed_errors
    def requires_grad(self, value: bool) -> None:
        if value and not is_inexact(self.array.dtype):
            raise DtypeError(
                f"requires_grad=True was given for dtype {self.array.dtype}, which has no derivative. "
                "Needed: a floating or complex dtype. Fix: x.astype(float)"
            )
        self._requires_grad = bool(value)

    @property
    def grad(self) -> Tensor | None:
        """The gradient, summed over all backward passes since `zero_grad`; of the leaf's dtype and the dual layout.

        A float16 or bfloat16 gradient is summed in float32, and rounded when `grad` is read. At a complex ``x + iy`` it
        is ``df/dx - i df/dy``, the conjugate of torch's; optimizers step along the conjugate.

        Raises
        ------
        ShapeError, DtypeError
            In an assignment: the shape or dtype is not the leaf's.
        LayoutError
            In an assignment: the layout is not the dual of the leaf's, or under a mesh a plain array is assigned.
        TapeError
            A block of `accumulate` is open, at the end of which the gradient is summed.
        """
        if self.pending:
            self._refuse_pending("read")
        g: Tensor | None = self._grad
        return g if g.__class__ in TENSORS else self._so_far()

    @grad.setter
    def grad(self, value: Any) -> None:
        if self.pending and value is not None:
            self._refuse_pending("set")
        if state.recorder is not None:
            if value is not None:
                refuse("a gradient was assigned", "tape.backward, which adds to it")
            self.zero_grad()
            return
        self._grad, self.used = None if value is None else self._checked_gradient(value), None

    def _so_far(self) -> Any:
        g = self._grad
        if g is not None and g.__class__ not in TENSORS:
            if g.__class__ is _Wide:
                g = g.rounded(self.array.dtype)
            g = self._grad = Tensor(g, None if self.layout is None else self.layout.dual)
        return g

    def _note_addition(self) -> None:
        """Note that a sweep adds to a gradient that an optimizer has used already, for its next step."""
        mark = self.used[0]
        if mark.is_of(self):
            mark.added = mark.added or find_site()
            self.used = mark, None
        else:
            self.used = None

    def _refuse_pending(self, verb: str) -> NoReturn:
        raise TapeError(
            f"the gradient of {self.name or 'a parameter'} was {verb} inside `with {self.pending}:`, which sums the "
            "gradients of its microbatches at its end; before it there is no gradient to clip, unscale, measure or "
            "step with\n  fix: do so after the block, where it is the gradient of all microbatches"
        )

    def _checked_gradient(self, value: Any) -> Tensor:
        """A value that is assigned to `grad`, as a Tensor of the dual layout."""
        plain = value.__class__ not in TENSORS
        g = Tensor(as_array(value)) if plain else value
        name, shape, dtype = self.name or "a leaf", self.array.shape, self.array.dtype
        if g.array.shape != shape:
            raise ShapeError(
                f"a gradient of shape {g.array.shape} was assigned to {name} of shape {shape}\n"
                f"  fix: zero_grad() to remove the gradient; otherwise an array of shape {shape}"
            )
        if g.array.dtype != dtype:
            raise DtypeError(
                f"a gradient of dtype {g.array.dtype} was assigned to {name} of dtype {dtype}. Fix: "
                + ("g.real" if g.array.dtype.kind == "c" and dtype.kind != "c" else "g.astype(p.dtype)")
            )
        if g.array.__class__ is not self.array.__class__:
            require_one_device("grad", **{name: self, "gradient": g})
        need = self.layout
        if need is None and state.grid is not None:
            need = self.labelled(state.grid)
        if need is None:
            return Tensor(g.array) if g.layout is not None or plain else g
        need = need.dual
        if g.layout is need:
            return g
        self._require_labels(g, need)
        return Tensor(g.array, need)

    def _require_labels(self, g: Tensor, need: Layout) -> None:
        """Raise LayoutError for a gradient that has not the labels of `need`, the dual of this leaf's layout."""
        name, shape = self.name or "a leaf", self.array.shape
        for k, axis in enumerate(need.grid.names):
            have, label = None if g.layout is None else g.layout.labels[k], need.labels[k]
            if have is not None and is_copy_for_part(have, label):
                from ..layouts.texts import own_part  # loaded when it is told

                raise LayoutError(own_part(
                    f"a gradient {describe(g.array, g.array.shape, g.layout)} was assigned to {name}: "
                    f"{describe(self.array, shape, self.layout)}", shape, axis, have, label,
                ))  # fmt: skip
            if have is None or not (have == label or (have is C and may_relabel(have, label))):
                fix = f"ag.tensor(gradient, layout={{{axis!r}: {label!r}}}), if that is what the ranks hold"
                if have is P:
                    fix = f"collectives.all_reduce(gradient, {axis!r}, to={label!r})"
                raise LayoutError(
                    f"{name}.grad = {describe(g.array, g.array.shape, g.layout)}, for {name}: "
                    f"{describe(self.array, shape, self.layout)}\n  axis {axis!r}: "
                    + ("a plain array has no label" if have is None else f"the gradient is {have.word}")
                    + f"; needed: {label.word}, the dual of {name}'s label\n  fix: {name}.grad = {fix}"
                )

    @property
    def data(self) -> Any:
        """This rank's part as an array; read-only while a tape needs it, None where the value is absent."""
        if state.recording is not None and self._requires_grad:
            self._refuse_exit("{x}.data", "stop_gradient({x}).data")
        if state.recorder is not None:
            refuse_value("data")
        if self.layout is not None and P in self.layout.labels:
            self._refuse_addend("data")
        return None if is_absent(self.array) else guarded(self)

    @data.setter
    @typed_errors
    def data(self, value: Any) -> None:
        if current_capture() is not None:
            refuse("the data of a leaf was assigned", "an optimizer, or the assignment outside of the step")
        value = as_array(value)
        if value.dtype != self.array.dtype:
            if type(value) is ndarray or isinstance(value, np.generic):
                refuse_loss(value, self.array.dtype, "data", self.name or "a leaf")
            value = value.astype(self.array.dtype)
        if value.shape != self.array.shape:
            is_transposed = value.ndim == 2 and value.shape[::-1] == self.array.shape
            note = ": the transpose. Weights of nn.Linear have the shape (in, out), in torch (out, in)" * is_transposed
            raise ShapeError(f"a value of shape {value.shape} was given for a leaf of shape {self.array.shape}{note}")
        if self.uses:
            step_check(self)
        if self._grad is not None:
            refuse_unlabelled_update("data", self)
        if value.__class__ is not self.array.__class__:  # the values change, the dtype and the device do not
            value = to_device(value, device_of(self.array))
        value = value.copy() if self.owns and not state.dry else value
        self.array = shape_only(value) if state.dry else value if value.shape else value[()]

    def enter_mesh(self) -> None:
        if state.grid is not None:
            self.labelled(state.grid)

    def labelled(self, grid: Grid) -> Layout:
        if self.layout is None:
            if state.dry and type(self.array) is not Shaped:
                raise AbsentError(
                    f"{self.name or 'a leaf'} of shape {self.array.shape} was made outside the dry run, which would "
                    "give it permanent labels of a mesh that does not exist. Needed: leaves made in the dry run. Fix: "
                    "make the model and the data inside the with block"
                )
            self.layout = grid.uniform(self._default)
            if self._default is V:
                self.unstated = grid.names
        return self.layout

    def _shown_class(self) -> str:
        return "Tensor" if type(self) is Leaf else type(self).__name__

    def _grad_text(self) -> str:
        g = getattr(self._grad, "array", self._grad)  # not `grad`, which rounds a sum of float16
        if g is None or isinstance(g, Shaped):
            return "None" if g is None else "set"
        return f"set, with norm {np.linalg.norm(to_host(g)):.4g}" + (" on this rank" if self.layout is not None else "")

    _default: Label = V
    owns = False  # whether no other object refers to its array

    def zero_grad(self) -> None:
        """Remove the gradient."""
        if state.recorder is not None:
            recorded(remove_gradients, Whole(self), changes=True, name="zero_grad")
        else:
            self._grad = None

    def adopt(self, ct: Any, sweep: Any) -> None:
        """`accumulate` an array of which nobody else reads or writes the memory, as a part of a gradient bucket."""
        # In C order, as `accumulate` keeps it; a part of a matrix that is divided by columns lies otherwise in a bucket
        kind, array = ct.__class__, self.array  # an array of the host, or of a device
        is_alike = kind is array.__class__ and kind is not Shaped and ct.dtype == array.dtype
        if self._grad is None and is_alike and ct.flags.c_contiguous:
            sweep.fresh.append(self)
            self._grad, self.used = ct, None  # a bucket gives the same memory again
        else:
            self.accumulate(ct, sweep)

    def accumulate(self, ct: Any, sweep: Any = None) -> None:
        """Add a cotangent to `grad`, which owns its array. In a sweep, a gradient from before it changes at its end."""
        dtype = self.array.dtype
        if self._grad is None:
            self.used = None
            if sweep is not None:
                sweep.fresh.append(self)
            if ct.__class__ is ndarray and ct.dtype is dtype:
                # In C order whether it is copied or not: an optimizer's bits may depend on the order of its memory.
                is_owned = ct.base is None and getrefcount(ct) <= _OWNED and ct.flags.c_contiguous
                self._grad = ct if is_owned else ct.copy()
                return
        elif sweep is not None:
            if self.used is not None:
                self._note_addition()
            if sweep.keep(self, ct):
                return
        if self._grad is not None and dtype.itemsize == 2 and is_half(dtype) and ct.__class__ not in TENSORS:
            wide = self._grad if self._grad.__class__ is _Wide else _Wide(getattr(self._grad, "array", self._grad))
            wide.array += ct
            self._grad = wide
            return
        if ct.__class__ in TENSORS:  # from a recorded sweep
            self._grad = ct if self._grad is None else self._so_far() + ct
            return
        if ct.dtype is not dtype and ct.dtype != dtype:
            ct = ct.astype(dtype)
        if self._grad is None:
            self._grad = ct if getattr(ct, "base", None) is None and getrefcount(ct) <= _OWNED else ct.copy()
        elif isinstance(ct, np.generic):
            known: Any = self._so_far()
            self._grad = Tensor(known.array + ct, known.layout)
        else:
            total = self._grad if self._grad.__class__ is ndarray else self._so_far().array
            total += ct


class Used:
    """A step of an optimizer, and whether a second use of its gradients was told.

    Attributes
    ----------
    who : str
        The call, such as ``SGD.step()``.
    site : tuple of (str, int)
        Its line in the program.
    added : tuple of (str, int) or None
        The line of a backward that has added to its gradients since. Before the next step the program may clear them.
    """

    __slots__ = ("added", "site", "told", "who")

    def __init__(self, who: str, site: tuple[str, int]):
        self.who, self.site, self.told = who, site, False
        self.added: tuple[str, int] | None = None

    def mark(self, leaves: Iterable[Leaf]) -> None:
        """Mark the gradients of leaves as used, until they are removed."""
        for leaf in leaves:
            g = getattr(leaf._grad, "array", leaf._grad)
            if g.__class__ is ndarray or runtime_of(g.__class__) is not None:  # the mark does not keep it alive
                leaf.used = self, ref(g)

    def is_of(self, leaf: Leaf) -> bool:
        """Whether a leaf still has the gradient that the step has used, or a sum with it."""
        if leaf.used is None or leaf.used[0] is not self:
            return False
        if leaf.used[1] is None:
            return leaf._grad is not None
        g = leaf.used[1]()
        return g is not None and g is getattr(leaf._grad, "array", leaf._grad)


class _Wide:
    """The sum of several float16 or bfloat16 cotangents, in float32."""

    __slots__ = ("array",)

    def __init__(self, array: Any):
        self.array = array.astype(np.float32)

    def rounded(self, dtype: Any) -> Any:
        with np.errstate(over="ignore"):
            return self.array.astype(dtype)


class Parameter(Leaf):
    """A leaf that is learned: it requires a gradient, and without labels it is Invariant.

    Parameters
    ----------
    array : array_like
        This rank's part.
    layout : mapping from axis to label, optional
        An axis not named is I, or P or Shard if `array` is a Tensor with this label.
    global_shape : sequence of int, optional
        The whole value's shape, where the parts are those of numpy's array_split rule. For parts of other extents:
        ``Parameter(collectives.from_local(part, layout))``.
    name : str
        Its name in errors and checkpoints. Modules set it.
    device : str, optional
        Where it is put, as in `tensor`.
    """

    __slots__ = ("is_transposed",)
    _default = I
    owns = True

    is_transposed: bool | None  # whether a module stores it as [in, out], the transpose of torch's; None: none says so

    @typed_errors
    def __init__(
        self,
        array: Any,
        layout: Mapping[str, Label] | None = None,
        *,
        global_shape: Sequence[int] | None = None,
        name: str = "",
        requires_grad: bool = True,
        device: str | None = None,
    ):
        _refuse_recorded("Parameter", array)
        if array.__class__ in TENSORS:
            layout = with_own_labels("Parameter", array, layout, PARAMETER_KEEPS, state.grid)
            array = array.array
        array = as_array(array, None, device)
        if not state.dry:  # a dry world uses only the shape
            array = array.copy() if is_inexact(array.dtype) or requires_grad is False else array
        found = _layout(array, layout, I, global_shape)
        super().__init__(array, found, requires_grad, name)
        self.is_transposed = None
        if found is not None and found.special:
            state.distribution.note_declaration("Parameter", self)


def _update_by_hand(w: str) -> str:
    return (
        f"\n  fix: an optimizer of autograd.optim; or by hand, outside of the tape's block, "
        f"{w}.data = {w}.numpy() - lr * {w}.grad.numpy()"
    )


def _not_in_place(symbol: str) -> Any:
    def refuse(self: Parameter, other: Any) -> Any:
        w = self.name or "w"
        raise SavedArrayError(
            f"{w} {symbol} ... of a Parameter: a Tensor is not changed in place, so {w} would name a new Tensor, "
            f"which is not learned" + _update_by_hand(w)
        )

    return refuse


def _no_elements(self: Parameter, key: Any, value: Any) -> None:
    w = self.name or "w"
    raise SavedArrayError(
        f"{w}[...] = ... of a Parameter of shape {self.array.shape}: a Tensor is not changed in place, because a tape "
        f"may have saved its array" + _update_by_hand(w)
    )


_IN_PLACE = {"__iadd__": "+=", "__isub__": "-=", "__imul__": "*=", "__itruediv__": "/="}
for _name, _method in {**{n: _not_in_place(s) for n, s in _IN_PLACE.items()}, "__setitem__": _no_elements}.items():
    setattr(Parameter, _name, _method)


class Constant(Leaf):
    """A leaf that is the same on every rank and has no cotangent; see `constant`."""

    __slots__ = ()
    _default = C


def _refuse_recorded(caller: str, x: Any) -> None:
    """Raise TapeError for a value of the active tape, whose gradient would be lost in a leaf made of it."""
    if x.__class__ in TENSORS and is_followed(x):
        raise TapeError(
            f"{caller}(x), where x is {describe(x.array, x.array.shape, x.layout)}, which the active tape follows: a "
            "leaf has no history, so the gradient of x would end here\n  fix: use x itself, with cast(...) for another "
            "label, or x.astype(...) for another dtype\n  or:  stop_gradient(x), if that is meant"
        )
def refuse_unlabelled_update(what: str, x: Leaf) -> None:
    """Raise LayoutError if a leaf that is to be learned is Varying only because no label was given."""
    grid = state.grid
    if grid is None:
        return
    layout, name = x.labelled(grid), x.name or "w"
    for axis in x.unstated:
        if layout[axis] is V:
            raise LayoutError(
                f"{what}({name}: {describe(x.array, x.array.shape, layout)})\n  axis {axis!r}: {name} is an ag.tensor "
                "without a label for it, so it is Varying: each rank would learn a value of its own, from the gradient "
                f"of its own data\n  fix: {name} = ag.Parameter(...), which is Invariant, and cast({name}, {axis!r}, "
                f"to=R) where it is used (free forward, all-reduce in backward)\n"
                f"  or:  layout={{{axis!r}: V}}, if each rank is to learn a value of its own"
            )


def _layout(array: Any, layout: Any, default: Label, global_shape: Any) -> Layout | None:
    grid = state.grid
    if grid is None:
        if isinstance(layout, Layout):
            return layout
        if layout is not None or global_shape is not None:
            raise MeshError(f"layout={layout!r} was given without a mesh. Fix: with cc.Mesh(...): around it")
        return None
    return resolve(layout, default, array.shape, grid, global_shape)


def tensor(
    array: Any,
    layout: Mapping[str, Label] | None = None,
    *,
    requires_grad: bool = False,
    global_shape: Sequence[int] | None = None,
    dtype: Any = None,
    name: str = "",
    device: str | None = None,
) -> Leaf:
    """A leaf: this rank's part of a value, with its layout.

    Parameters
    ----------
    array : array_like
        This rank's part, not a value that the active tape follows. An array is adopted, not copied; it is read-only
        while a tape needs it.
    layout : mapping from axis to label, optional
        An axis not named is V, or has the label of `array` if it is a Tensor. Without `global_shape` the ranks have not
        agreed on the extents of a Shard, so it has no global shape; ``collectives.from_local`` agrees on any extents.
    requires_grad : bool
        Whether backward adds a gradient to ``.grad``. Under a mesh, the same on every rank of a group.
    global_shape : sequence of int, optional
        The whole value's shape, where the parts are those of numpy's array_split rule. The ranks compare it with the
        next collective along the axis, as they compare fingerprints.

    device : str, optional
        Where it is put: "cpu", or with CuPy "cuda", the current GPU of this thread, or "cuda:0". By default it stays
        where it is; lists and numbers are on "cpu".

    Raises
    ------
    LayoutError
        `array` is a Tensor, and `layout` contradicts its label: equal copies (R, I, or drawn at random) are not parts,
        and an addend (P) is not a value.
    TapeError
        `array` is a result that the active tape follows: its gradient would end here.
    DtypeError
        `requires_grad` with an integer or boolean dtype.
    DeviceError
        `array` or `device` is on a GPU that is not the current one of this thread.
    ShapeError
        A part that does not fit `global_shape`, or a Shard of a dimension that does not exist.

    Examples
    --------
    >>> import autograd as ag
    >>> ag.tensor([1.0, 2.0], requires_grad=True)
    Tensor([1., 2.])
    """
    return make_leaf("tensor", array, layout, requires_grad, global_shape, dtype, name, device)


@typed_errors
def make_leaf(
    caller: str, array: Any, layout: Any, requires_grad: bool, global_shape: Any, dtype: Any = None, name: str = "",
    device: str | None = None,
) -> Leaf:
    """The leaf of `tensor`, declared to the ranks under the name of its caller."""
    _refuse_recorded(caller, array)
    if not isinstance(requires_grad, bool | np.bool_ | int):
        raise ArgumentError(f"{caller}: requires_grad={requires_grad!r} was given; needed: True or False")
    if global_shape is not None:
        check_shape(global_shape)
    labels, values = layout, array
    if array.__class__ in TENSORS:
        labels = with_own_labels(caller, array, layout, KEEPS - {C} if requires_grad else KEEPS, state.grid)
        values = array.array
    kind = None if dtype is None else dtype_named(dtype)
    if state.recorder is None:
        values = as_array(values, kind, device)
    else:
        values = state.recorder.call(_scalar_or_array, (values, kind, device))
    found = _layout(values, labels, V, global_shape)
    if requires_grad and found is not None and found.drawn:
        from ..layouts.texts import drawn_leaf  # loaded when it is told

        raise LayoutError(drawn_leaf(caller, array))
    x = Leaf(values, found, requires_grad, name)
    if found is not None and labels.__class__ is not Layout and array.__class__ not in TENSORS:
        grid = found.grid
        if not labels:
            x.unstated = grid.names
        elif len(labels) < len(grid.names):
            x.unstated = tuple(axis for axis in grid.names if axis not in labels)
            for axis in x.unstated:
                state.unstated[axis] = name, values.dtype, values.shape, found
    if layout is not None:
        if not values.shape and array.__class__ not in TENSORS:
            state.distribution.note_declaration("scalar", x)
        state.distribution.note_declaration(caller, x)
    return x


@typed_errors
def constant(array: Any, dtype: Any = None, device: str | None = None) -> Leaf:
    """An array that is the same on every rank and has no cotangent. It mixes with every layout, like a number.

    Parameters
    ----------
    array : array, sequence, number or Tensor
        Of any shape and dtype, the same on all ranks.
    dtype : dtype, optional
        By default that of the array.
    device : str, optional
        Where it is put, as in `tensor`.

    Returns
    -------
    Leaf
        Its label is C on every axis of the mesh.

    Raises
    ------
    LayoutError
        `array` is a Tensor that is Partial or Shard: the ranks hold addends or parts.
    TapeError
        `array` is a value that the active tape follows: its gradient would end here.

    Examples
    --------
    >>> import autograd as ag
    >>> ag.constant([1.0, 2.0]).requires_grad
    False
    """
    _refuse_recorded("constant", array)
    if array.__class__ in TENSORS:
        for axis, have in (array.layout or {}).items():
            if have is P or type(have) is Shard:
                from ..layouts.texts import contradiction  # loaded when it is told

                raise LayoutError(contradiction("constant", array, axis, have, C))
        array = array.array
    kind = None if dtype is None else dtype_named(dtype)
    if state.recorder is None:
        values = as_array(array, kind, device)
    else:
        values = state.recorder.call(_scalar_or_array, (array, kind, device))
    x = Constant(values, None if state.grid is None else state.grid.uniform(C))
    state.distribution.note_declaration("constant", x)
    return x


def remove_gradients(*leaves: Leaf) -> None:
    for leaf in leaves:
        leaf._grad = None


def _scalar_or_array(values: Any, dtype: Any, device: Any) -> Any:
    """The array of a leaf, which a captured step makes anew at each replay."""
    array = as_array(values, dtype, device)
    return array[()] if array.__class__ is ndarray and not array.shape else array


class _Probe:
    """Measures `getrefcount` in `accumulate` for a cotangent that nothing else refers to."""

    count = 0

    def accumulate(self, ct: Any, sweep: Any) -> None:
        self.count = getrefcount(ct)


def _owned_count() -> int:
    probe = _Probe()
    sweep = Sweep(Recording(), 0, 1, None, False)
    sweep.cts[0] = np.zeros(1)
    sweep.run([(LEAF, None, (probe,), (), (), None, None)], release=False)
    return probe.count


_OWNED = _owned_count()
