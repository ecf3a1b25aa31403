"""Vector spaces of values: arrays, numbers, and tuples, lists and dictionaries of them.

HIPS autograd's programs and tests use it for sums, multiples, inner products, zeros and bases of values of any type.
Its operations are composed of differentiable ones, so they also work on Tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..engine.pytree import node_of
from ..engine.tensor import TENSORS
from ..errors import typed_errors
from ..ops.einsum import dot
from ..ops.elementwise import conj, real
from ..ops.indexing import SEQUENCES
from ..ops.shape import ravel

__all__ = ["ArrayVSpace", "ComplexArrayVSpace", "ContainerVSpace", "VSpace", "vspace"]

Function = Callable[..., Any]


@typed_errors
class VSpace:
    """A vector space. `register` registers it for a Python type.

    Examples
    --------
    >>> from autograd.extend import vspace
    >>> space = vspace({"a": 1.0, "b": [2.0, 3.0]})
    >>> space.size, space.ones()["b"][1].item()
    (3, 1.0)
    """

    mappings: dict[type, Function] = {}
    iscomplex = False

    def __init__(self, value: Any):
        pass

    @classmethod
    def register(cls, kind: type, maker: Function | None = None) -> None:
        """Use this class, or the space that ``maker(value)`` returns, for values of a type."""
        VSpace.mappings[kind] = cls if maker is None else maker

    # defined by subclasses
    def _add(self, x: Any, y: Any) -> Any:
        return x + y

    def _mut_add(self, x: Any, y: Any) -> Any:
        return self._add(x, y)  # Tensors are never written to

    def _scalar_mul(self, x: Any, a: Any) -> Any:
        return x * a

    def _inner_prod(self, x: Any, y: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} defines no _inner_prod")

    def _covector(self, x: Any) -> Any:
        return x

    def zeros(self) -> Any:
        """The zero vector."""
        raise NotImplementedError(f"{type(self).__name__} defines no zeros")

    def ones(self) -> Any:
        """The sum of the basis vectors."""
        raise NotImplementedError(f"{type(self).__name__} defines no ones")

    def standard_basis(self) -> Iterator[Any]:
        """The basis vectors."""
        raise NotImplementedError(f"{type(self).__name__} defines no standard_basis")

    def randn(self) -> Any:
        """A random vector with normal coordinates, from NumPy's global generator, which programs can seed."""
        raise NotImplementedError(f"{type(self).__name__} defines no randn")

    # called by programs
    def add(self, x: Any, y: Any) -> Any:
        """The sum of two vectors."""
        return self._add(x, y)

    def mut_add(self, x: Any, y: Any) -> Any:
        """The sum of two vectors, where None means zero."""
        return y if x is None else self._mut_add(x, y)

    def scalar_mul(self, x: Any, a: Any) -> Any:
        """A multiple of a vector."""
        return self._scalar_mul(x, a)

    def inner_prod(self, x: Any, y: Any) -> Any:
        """The real inner product of two vectors."""
        return self._inner_prod(x, y)

    def covector(self, x: Any) -> Any:
        """The cotangent that pairs with vectors as the inner product with `x` does: the conjugate."""
        return self._covector(x)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}_{self.__dict__}"


class ArrayVSpace(VSpace):
    """Real arrays of a shape and a dtype."""

    def __init__(self, value: Any):
        value = value.array if value.__class__ in TENSORS else np.asarray(value)
        self.shape = tuple(int(n) for n in value.shape)
        self.dtype = value.dtype

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return int(np.prod(self.shape, dtype=int))

    @property
    def ndim(self) -> int:
        """The number of dimensions of the arrays."""
        return len(self.shape)

    def zeros(self) -> Any:
        return np.zeros(self.shape, self.dtype)

    def ones(self) -> Any:
        return np.ones(self.shape, self.dtype)

    def standard_basis(self) -> Iterator[Any]:
        for place in np.ndindex(*self.shape):
            unit = self.zeros()
            unit[place] = 1
            yield unit

    def randn(self) -> Any:
        return np.asarray(np.random.standard_normal(self.shape)).astype(self.dtype)

    def _inner_prod(self, x: Any, y: Any) -> Any:
        return dot(ravel(x), ravel(y))


class ComplexArrayVSpace(ArrayVSpace):
    """Complex arrays, as vectors with two real coordinates per element."""

    iscomplex = True

    @property
    def size(self) -> int:
        """The number of real coordinates."""
        return 2 * super().size

    def ones(self) -> Any:
        return np.full(self.shape, 1 + 1j, self.dtype)

    def standard_basis(self) -> Iterator[Any]:
        for place in np.ndindex(*self.shape):
            for unit in (1, 1j):
                vector = self.zeros()
                vector[place] = unit
                yield vector

    def randn(self) -> Any:
        real, imaginary = (np.random.standard_normal(self.shape) for _ in range(2))
        return np.asarray(real + 1j * imaginary).astype(self.dtype)

    def _inner_prod(self, x: Any, y: Any) -> Any:
        return real(dot(conj(ravel(x)), ravel(y)))

    def _covector(self, x: Any) -> Any:
        return conj(x)


class ContainerVSpace(VSpace):
    """Containers: the product of the spaces of their items."""

    def __init__(self, value: Any):
        self.shape = value
        self.shape = self._map(vspace)

    def _map(self, f: Function, *containers: Any) -> Any:
        """The container of ``f(space, *items)``."""
        raise NotImplementedError

    def _items(self, x: Any) -> list[tuple[Any, Any]]:
        """The keys and items of a container."""
        raise NotImplementedError

    def _replaced(self, x: Any, key: Any, item: Any) -> Any:
        """A copy of a container with one item replaced."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """The number of real coordinates."""
        return sum(space.size for _, space in self._items(self.shape))

    def zeros(self) -> Any:
        return self._map(lambda space: space.zeros())

    def ones(self) -> Any:
        return self._map(lambda space: space.ones())

    def randn(self) -> Any:
        return self._map(lambda space: space.randn())

    def standard_basis(self) -> Iterator[Any]:
        zeros = self.zeros()
        for key, space in self._items(self.shape):
            for unit in space.standard_basis():
                yield self._replaced(zeros, key, unit)

    def _add(self, x: Any, y: Any) -> Any:
        return self._map(lambda space, a, b: space._add(a, b), x, y)

    def _mut_add(self, x: Any, y: Any) -> Any:
        return self._map(lambda space, a, b: space._mut_add(a, b), x, y)

    def _scalar_mul(self, x: Any, a: Any) -> Any:
        return self._map(lambda space, item: space._scalar_mul(item, a), x)

    def _inner_prod(self, x: Any, y: Any) -> Any:
        products = self._map(lambda space, a, b: space._inner_prod(a, b), x, y)
        return sum((product for _, product in self._items(products)), 0.0)

    def _covector(self, x: Any) -> Any:
        return self._map(lambda space, item: space._covector(item), x)


class SequenceVSpace(ContainerVSpace):
    """Lists, tuples and named tuples."""

    def __init__(self, value: Any):
        self.kind = type(value)
        super().__init__(value)

    def _make(self, items: Any) -> Any:
        return self.kind(*items) if hasattr(self.kind, "_fields") else self.kind(items)

    def _map(self, f: Function, *containers: Any) -> Any:
        return self._make([f(*items) for items in zip(self.shape, *containers, strict=True)])

    def _items(self, x: Any) -> list[tuple[Any, Any]]:
        return list(enumerate(x))

    def _replaced(self, x: Any, key: Any, item: Any) -> Any:
        return self._make([item if i == key else old for i, old in enumerate(x)])


class DictVSpace(ContainerVSpace):
    """Dictionaries."""

    def _map(self, f: Function, *containers: Any) -> Any:
        return {key: f(space, *(c[key] for c in containers)) for key, space in self.shape.items()}

    def _items(self, x: Any) -> list[tuple[Any, Any]]:
        return list(x.items())

    def _replaced(self, x: Any, key: Any, item: Any) -> Any:
        return {**x, key: item}


class NodeVSpace(ContainerVSpace):
    """Dataclasses and registered classes: the product of the spaces of their parts."""

    def __init__(self, value: Any):
        self.node = node_of(type(value))
        parts, self.keys, self.rest = self.node.split(value)
        self.shape = [vspace(part) for part in parts]

    def _parts(self, x: Any) -> Any:
        return x if x is self.shape else self.node.split(x)[0]

    def _make(self, parts: Any) -> Any:
        return self.node.join(self.rest, self.keys, list(parts))

    def _map(self, f: Function, *containers: Any) -> Any:
        return self._make(f(*items) for items in zip(self.shape, *map(self._parts, containers), strict=True))

    def _items(self, x: Any) -> list[tuple[Any, Any]]:
        return list(enumerate(self._parts(x)))

    def _replaced(self, x: Any, key: Any, item: Any) -> Any:
        return self._make(item if i == key else old for i, old in self._items(x))


def _of_array(value: Any) -> VSpace:
    array = value.array if value.__class__ in TENSORS else value
    return ComplexArrayVSpace(value) if np.iscomplexobj(array) else ArrayVSpace(value)


for _kind in (np.ndarray, *TENSORS, float, complex, *np.sctypeDict.values()):
    if _kind in (np.ndarray, float, complex) or _kind in TENSORS or issubclass(_kind, np.inexact):
        VSpace.register(_kind, _of_array)
for _kind in SEQUENCES:
    VSpace.register(_kind, SequenceVSpace)
VSpace.register(dict, DictVSpace)


@typed_errors
def vspace(value: Any) -> Any:
    """The vector space of a value.

    Raises
    ------
    TypeError
        A value without derivatives, such as an integer, or a value of a type that is not registered.
    """
    kind = type(value)
    maker = VSpace.mappings.get(kind)
    if maker is None and isinstance(value, tuple) and hasattr(value, "_fields"):
        maker = SequenceVSpace
    if maker is None and node_of(kind) is not None:
        maker = NodeVSpace
    if maker is None:
        raise TypeError(
            f"{value!r} of type {kind.__name__} lives in no registered vector space. Needed: floating or complex "
            f"arrays and numbers, or lists, tuples and dictionaries of them. Fix: 2.0 for 2, or VSpace.register"
        )
    return maker(value)
