"""The public place of `Lineage`."""

from p2p.records.lineage import Lineage

__all__ = ["Lineage"]
