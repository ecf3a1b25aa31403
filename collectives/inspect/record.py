"""Records of operations, under the names by which tools of communication import them; see `autograd.records.record`."""

from __future__ import annotations

from autograd.records.record import CallOf, Contribution, OperationRecord, RankRecords, Summary

__all__ = ["CallOf", "Contribution", "OperationRecord", "RankRecords", "Summary"]
