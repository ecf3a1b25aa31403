"""NumPy's and SciPy's functions that CuPy does not have, and the operations that need them.

NumPy passes a call with arrays of CuPy to CuPy's function of the same name; where there is none, the operation raises
`DeviceError`. The tables are those of CuPy 14. The simulated device of the tests refuses what they name, and
``pytest -m gpu`` compares them with the CuPy that is installed.
"""

from __future__ import annotations

__all__ = ["ABSENT_FROM_CUPY", "KEYWORDS_ABSENT_FROM_CUPY", "OPERATIONS_ABSENT_FROM_CUPY"]

ABSENT_FROM_CUPY: frozenset[str] = frozenset((
    "block", "einsum_path", "geomspace", "histogram_bin_edges", "insert", "isnat", "linalg.diagonal",
    "linalg.matrix_norm", "linalg.multi_dot", "linalg.outer", "linalg.svdvals", "linalg.tensordot", "linalg.trace",
    "linalg.vecdot", "linalg.vector_norm", "matvec", "nanpercentile", "nanquantile", "polyder", "polydiv", "polyint",
    "spacing", "unstack", "vecdot", "vecmat",
    # ufuncs of scipy.special; `_zeta` is a module of cupyx.scipy.special, which has the function zeta
    "_zeta", "iv", "ive", "jv",
))  # fmt: skip
"""Names below `numpy`, and of ufuncs of `scipy.special`."""

KEYWORDS_ABSENT_FROM_CUPY: dict[str, frozenset[str]] = {
    "eye": frozenset(("device",)), "full": frozenset(("device",)), "ones": frozenset(("device",)),
}  # fmt: skip
"""By function: ``numpy.ones(..., like=x)`` passes ``device=None``. `numpy.ones_like` does not."""

OPERATIONS_ABSENT_FROM_CUPY: dict[str, str] = {
    "iv": "iv", "ive": "ive", "jv": "jv",
    # those whose value CuPy has, and whose derivative it has not
    "i1": "iv", "j1": "jv",
}  # fmt: skip
"""Operations of the registry that raise `DeviceError` on a GPU, or whose derivative does: the function that is missing.

So do the operations that call functions of SciPy that are no ufuncs and run on the host only
(`tests.proofs.operations.special.ON_HOST`: the distributions of `scipy.stats`, and sqrtm, solve_sylvester,
solve_triangular and solve_banded).
"""
