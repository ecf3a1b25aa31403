"""`benchmarks/products.py` measures both products of a shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autograd.compiler.build import is_available

from .scripts import load


@pytest.mark.skipif(not is_available(), reason="no compiler")
def test_a_shape_has_figures_or_is_left_out(monkeypatch: Any, capsys: Any) -> None:
    products = load("products")
    monkeypatch.setattr(products, "SHAPES", [("f4", 32, 64, 64, "nt"), ("f8", 40, 8, 30, "nt")])
    products.main(["--rounds", "1", "--json"])
    out, error = capsys.readouterr()
    rows = json.loads(out)
    assert len(rows) + error.count("other bits") == 2
    assert all(row["ours"] > 0 and row["peer"] > 0 and row["ratio"] > 0 for row in rows.values())
