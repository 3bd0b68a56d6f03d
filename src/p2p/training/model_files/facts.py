"""What is known of a model's environment: one record, kept with the model."""

from __future__ import annotations

from functools import cache

from pydantic import ValidationError

from p2p.config import ConfigurationError
from p2p.contracts import PolicyMetadata, Record
from p2p.training.env_spec import EnvSpec
from p2p.training.model_files.store import folder_of, read_record


class ModelFacts(Record):
    """The spec of a model's environment, and what it was seen to do."""

    mujoco: str
    """The version that model.mjb is of."""
    spec: EnvSpec
    """Its env_id is empty: it depends on these."""
    policy_metadata: PolicyMetadata
    """For whoever runs a policy on the robot; its env_id is empty, too."""
    settled_xpos: tuple[tuple[float, float, float], ...]
    settled_xquat: tuple[tuple[float, float, float, float], ...]
    """Of all bodies after some seconds without effort, or at the start if it falls meanwhile."""
    ends_early: bool
    """Whether an episode of random actions is seen to terminate."""
    doubts: tuple[str, ...]
    """What a trial found, each with what to change."""
    stands: bool
    """Whether it keeps upright under actions of zero; True of what cannot fall."""


@cache
def read_facts(env_id: str) -> ModelFacts:
    """A kept model's facts, with its id in the spec."""
    read_record(env_id)
    path = folder_of(env_id) / "facts.json"
    try:
        facts = ModelFacts.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    named = {"env_id": env_id}
    return facts.model_copy(
        update={
            "spec": facts.spec.model_copy(update=named),
            "policy_metadata": facts.policy_metadata.model_copy(update=named),
        }
    )
