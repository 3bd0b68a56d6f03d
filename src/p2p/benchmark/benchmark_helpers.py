"""A benchmark's sessions and its manifest, under the name that the public interface gives them."""

from p2p.benchmark.records import (
    Benchmark,
    CaseStatus,
    case_record,
    case_status,
    live_score,
    read_benchmark,
)

__all__ = [
    "Benchmark", "CaseStatus", "case_record", "case_status", "live_score", "read_benchmark",
]  # fmt: skip
