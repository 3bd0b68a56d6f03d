"""Runs that wait for other runs: what the end of one means for the others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

UNMET = """
  SELECT COUNT(*) FROM waits JOIN runs AS needed ON needed.run_id = waits.needs
  WHERE waits.run_id = ?
    AND CASE WHEN waits.strict THEN needed.state <> 'succeeded'
        ELSE needed.state IN ('pending', 'starting', 'running') END
"""
HOPELESS = """
  SELECT needed.run_id, needed.state FROM waits JOIN runs AS needed ON needed.run_id = waits.needs
  WHERE waits.run_id = ? AND waits.strict
    AND needed.state IN ('failed', 'cancelled', 'skipped')
  ORDER BY needed.number LIMIT 1
"""


def settle_dependents(connection: sqlite3.Connection, run_id: str) -> None:
    """After a change of a run: those that waited for it alone may start, or never will."""
    pending = [run_id]
    while pending:
        waiting = connection.execute(
            "SELECT DISTINCT waits.run_id FROM waits JOIN runs USING (run_id) "
            "WHERE waits.needs = ? AND runs.state = 'pending'",
            (pending.pop(),),
        ).fetchall()
        pending += [name for (name,) in waiting if recount(connection, name)]


def recount(connection: sqlite3.Connection, run_id: str) -> bool:
    """Count anew what a pending run waits for; True if it will never be met, and it is skipped."""
    hopeless = connection.execute(HOPELESS, (run_id,)).fetchone()
    if hopeless is not None:
        connection.execute(
            "UPDATE runs SET state = 'skipped', message = ?, ended_at = ? "
            "WHERE run_id = ? AND state = 'pending'",
            (f"it needs {hopeless[0]}, which is {hopeless[1]}", time.time(), run_id),
        )
        return True
    (unmet,) = connection.execute(UNMET, (run_id,)).fetchone()
    connection.execute(
        "UPDATE runs SET blocked = ? WHERE run_id = ? AND state = 'pending'", (unmet, run_id)
    )
    return False
