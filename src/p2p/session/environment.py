"""The first phase of a session that was given no environment: one is chosen, and said why."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from p2p.contracts import describe_errors
from p2p.event_log import span
from p2p.session.endings import NoEnvironment
from p2p.session.request import with_environment

if TYPE_CHECKING:
    from p2p.session.phases import Work


def on_an_environment(work: Work) -> Work:
    """The work, its session.json naming an environment; raises NoEnvironment if none fits.

    The question is one of the session's own: with its budget, in its events and in its llm/.
    """
    config = work.config
    if config.options is None:
        return work
    with span("environment") as outcome:
        choice = work.thinking.choose_environment(config.prompt)
        reason = choice.reason.strip()
        if choice.env_id is None:
            raise NoEnvironment(
                f"no environment fits: {reason.rstrip('.')}. Or name one with --env"
            )
        try:
            config = with_environment(config, choice.env_id, reason)
        except ValueError as error:
            raise NoEnvironment(
                f"{choice.env_id} fits best, but not with these options: {describe_errors(error)}"
            ) from error
        work.session.config.save(config)
        outcome |= {"env_id": choice.env_id, "reason": reason}
    return replace(work, config=config)
