"""Places to run things that fail as only real ones far away would; what they start is real."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from p2p.scheduler.backends import BackendError
from p2p.scheduler.backends.local import LocalBackend
from p2p.scheduler.launch import RunStatus
from p2p.scheduler.records import Launch


class ForgetsQueue(LocalBackend):
    """A place with a queue that it loses, once, and that knows what it has begun."""

    async def start(self, launch: Launch, secrets: Mapping[str, str]) -> RunStatus:
        lost = self.base / f"{launch.launch_id}.lost"
        if lost.exists():
            return await super().start(launch, secrets)
        lost.touch()
        return RunStatus("waiting")

    async def status(self, launch: Launch) -> RunStatus:
        status = await super().status(launch)
        return replace(status, never_began=status.state == "absent")


class AnswersTooLate(LocalBackend):
    """A place that starts what it is asked for, and never says so in time."""

    async def start(self, launch: Launch, secrets: Mapping[str, str]) -> RunStatus:
        await super().start(launch, secrets)
        raise BackendError("no answer")


class OutOfReach(LocalBackend):
    """A place that is gone for longer than any lease lasts."""

    async def start(self, launch: Launch, secrets: Mapping[str, str]) -> RunStatus:
        raise BackendError("no route")

    async def status(self, launch: Launch) -> RunStatus:
        return RunStatus("lost", message="no word for ages")
