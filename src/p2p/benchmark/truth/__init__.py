"""Ground truths: what a prompt asks for, measured on the simulator. No agent is shown any of it.

A new one is a small function of an episode and a line in one of the tables.
"""

from __future__ import annotations

from p2p.benchmark.truth.episode import Truth
from p2p.benchmark.truth.legged import LEGGED
from p2p.benchmark.truth.posture import POSTURE
from p2p.benchmark.truth.tasks import TASKS
from p2p.benchmark.truth.travel import TRAVEL

TRUTHS: dict[str, Truth] = {**TRAVEL, **POSTURE, **TASKS, **LEGGED}
"""By the name that stands in a suite."""
