"""Typed access to the folders of sessions and iterations; see p2p.records."""

from p2p.records.iteration_record import IterationRecord, SessionRecord

__all__ = ["IterationRecord", "SessionRecord"]
