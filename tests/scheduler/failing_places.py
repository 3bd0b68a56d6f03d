"""Places to run things that fail as only real ones far away would; what they start is real."""

from __future__ import annotations

from collections.abc import Mapping

from p2p.scheduler.backends import BackendError
from p2p.scheduler.backends.local import LocalBackend
from p2p.scheduler.records import Launch, LaunchReport


class ForgetsQueue(LocalBackend):
    """A place with a queue that it loses, once, and that knows what it has begun."""

    async def submit(self, launch: Launch, secrets: Mapping[str, str]) -> None:
        lost = self.base / f"{launch.launch_id}.lost"
        if lost.exists():
            await super().submit(launch, secrets)
        lost.touch()

    async def status(self, launch: Launch) -> LaunchReport:
        report = await super().status(launch)
        return report.model_copy(update={"never_began": report.state == "absent"})


class AnswersTooLate(LocalBackend):
    """A place that starts what it is asked for, and never says so in time."""

    async def submit(self, launch: Launch, secrets: Mapping[str, str]) -> None:
        await super().submit(launch, secrets)
        raise BackendError("no answer")


class OutOfReach(LocalBackend):
    """A place that is gone for longer than any lease lasts."""

    async def submit(self, launch: Launch, secrets: Mapping[str, str]) -> None:
        raise BackendError("no route")

    async def status(self, launch: Launch) -> LaunchReport:
        return LaunchReport(state="lost", message="no word for ages")
