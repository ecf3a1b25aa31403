"""Tensor parallelism: each rank of an axis holds a part of the matrices of a layer."""

from __future__ import annotations

from .layers import Column, ColumnLinear, Row, RowLinear
from .sequence import EnteredModule, Sequence
from .vocabulary import Vocabulary, VocabularyEmbedding, VocabularyLogits, VocabularyLoss

__all__ = [
    "Column", "ColumnLinear", "EnteredModule", "Row", "RowLinear", "Sequence", "Vocabulary", "VocabularyEmbedding",
    "VocabularyLogits", "VocabularyLoss",
]  # fmt: skip
