"""Tensor and sequence parallelism: the ranks of an axis divide the features, the heads and the vocabulary of a model.

==============  ====================================================================================================
`regions`       the two ends of a region in which the ranks compute different features: the collectives
`layers`        linear layers divided by columns or by rows: styles `Column` and `Row`
`heads`         multi-head attention divided by heads: style `Heads`
`vocabulary`    embedding, head and cross-entropy of a vocabulary in parts: style `Vocabulary`
`sequence`      modules outside of the regions, where the stream is in parts of the sequence: style `Sequence`
==============  ====================================================================================================

The styles are the values of a plan, by which `parallel.parallelize` divides an ordinary model.
"""

from __future__ import annotations

from .heads import Heads, HeadsAttention
from .layers import Column, ColumnLinear, Row, RowLinear
from .sequence import Sequence, SequenceModule
from .vocabulary import (
    Vocabulary,
    VocabularyCrossEntropy,
    VocabularyEmbedding,
    VocabularyLinear,
    vocabulary_cross_entropy,
)

__all__ = [
    "Column", "ColumnLinear", "Heads", "HeadsAttention", "Row", "RowLinear", "Sequence", "SequenceModule",
    "Vocabulary", "VocabularyCrossEntropy", "VocabularyEmbedding", "VocabularyLinear", "vocabulary_cross_entropy",
]  # fmt: skip
