"""A run as a folder to share, laid out as Stable-Baselines3 users on the hub expect it."""

from __future__ import annotations

import html
import re
import sys
import tempfile
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from p2p import files
from p2p.config import TrainConfig
from p2p.contracts import EvalResult, describe_errors
from p2p.records.formatting import describe_evidence
from p2p.records.iteration_record import IterationRecord
from p2p.records.session_view import IterationView
from p2p.training.checkpoints import checkpoint_dir, evaluated_observations, load_checkpoint
from p2p.training.engines.table import is_engine
from p2p.training.model_files.store import copy_into, is_model
from p2p.training.policies.policy import Policy
from unstable.utils.logging import printable

CARD = "export_card.md"
"""The model card, a file of this package; its fields are those of `model_card`."""

USE = """import gymnasium as gym
from stable_baselines3 import PPO

env = {make}
model = PPO.load("{zip_name}")  # takes observations as the environment gives them

obs, _ = env.reset()
for _ in range(1000):
    action, _ = model.predict(obs, deterministic=True)
    obs, reward, terminated, truncated, info = env.step(action)
    if terminated or truncated:
        obs, _ = env.reset()"""


USE_ON_ENGINE = """import json, torch

files = {{"metadata.json": ""}}
policy = torch.jit.load("policy.pt", _extra_files=files)
robot = json.loads(files["metadata.json"])  # joint order, default positions, gains, time steps
action = policy(torch.zeros(1, {obs_dim}))[0]  # the observation: robot["observation_names"]
target = action * torch.tensor(robot["action_scale"]) + torch.tensor(robot["action_offset"])"""


CLIPPING = """Some observations of the evaluation are clipped at {clip:g} standard deviations, or are constant but for rounding. The zip carries the
class that normalises them as in training, which loads on Python {python} only; the other files work everywhere.

"""


OWN_RETURN = " By the environment's own reward, the same episodes return {own:.2f}."


JUDGED = "\n\nJudged by the criteria of its prompt: {evidence}."


TIME = """The policy observes the time: the last number of its observation is the share of the episode that has passed, steps /
max_episode_steps. `TimeAwareObservation` adds it; without it the policy does not fit the environment.

"""


def zip_name(env_id: str) -> str:
    """The policy's file name by the hub's convention: algorithm, environment."""
    return f"ppo-{env_id.rsplit(':', 1)[-1].replace('/', '-')}.zip"


_NOT_MATHS = r"\\(href|url|include\w*|html\w*|input|def|gdef|newcommand|let)"
_ENV_ID = re.compile(r"[\w.:/-]+")


class ExportError(Exception):
    """The run lacks a file that an export needs; the message names it."""


def export_run(record: IterationRecord, config: TrainConfig, step: int, folder: Path) -> list[Path]:
    """Write the folder, as a whole or not at all; returns its files.

    Raises:
        FileExistsError: the folder has something in it.
        ExportError: the run lacks a file.
        OSError: it cannot be written.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; name a new folder")
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; name a folder")
    if not _ENV_ID.fullmatch(config.env_id):
        raise ExportError(f"env_id of {record.config_path}: {config.env_id[:100]!r} is not an id")
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.absolute().parent) as scratch:
        scratch_folder = Path(scratch) / "export"
        _write(record, config, step, scratch_folder)
        scratch_folder.rename(folder)  # replaces an empty folder
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _write(record: IterationRecord, config: TrainConfig, step: int, folder: Path) -> None:
    from p2p.training.policies.portable import save_onnx, save_torchscript
    from p2p.training.policies.sb3_export import save_sb3_zip

    result = _evaluation_at(record, step)
    source = checkpoint_dir(record, step)
    (folder / "metrics").mkdir(parents=True)
    wanted = {
        source / "policy.safetensors": "policy.safetensors",
        record.scalars_path: "metrics/scalars.jsonl",
        **{
            record.path / name: name for name in ("config.json", "reward_fn.py", "reward_spec.json")
        },
    }
    for path, name in wanted.items():
        try:
            files.copy_data(path, folder / name)
        except FileNotFoundError as error:
            raise ExportError(f"{path} is missing: this run cannot be exported") from error
        except OSError as error:
            if error.filename != str(path):
                raise
            raise ExportError(f"{path}: {error.strerror}") from error
    has_replay = _write_replay(record, step, folder / "replay.mp4")
    policy = load_checkpoint(record, step)
    evaluated = evaluated_observations(record, step, policy)
    save_sb3_zip(policy, config, folder / zip_name(config.env_id), evaluated)
    metadata = record.policy_metadata.read()
    save_torchscript(policy, folder / "policy.pt", metadata)
    save_onnx(policy, folder / "policy.onnx", metadata)
    files.write_json(
        folder / "results.json",
        {
            "mean_reward": result["mean_return"],
            "std_reward": result["std_return"],
            "is_deterministic": True,
            "n_eval_episodes": len(result["all_returns"]),
            "eval_datetime": datetime.now(UTC).isoformat(),
        },
    )
    copy_into(folder, config.env_id)
    card = model_card(record, config, policy, result, replay=has_replay)
    files.write_text(folder / "README.md", card)


def _write_replay(record: IterationRecord, step: int, target: Path) -> bool:
    """The video of the median episode; False where there is none to be had."""
    from p2p.training.video.rendering import VideoError, draw_video

    try:
        video = draw_video(record.videos_dir / f"eval_{step}_median.mp4")
    except VideoError:
        return False
    files.copy_data(video, target)
    return True


def model_card(
    record: IterationRecord,
    config: TrainConfig,
    policy: Policy,
    result: dict[str, Any],
    *,
    replay: bool,
) -> str:
    from p2p.training.policies.sb3_export import folding_is_exact

    spec = record.read_reward_spec()
    step = result["global_step"]
    folded = folding_is_exact(policy, evaluated_observations(record, step, policy))
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    description, latex = _as_text(spec.description), _as_formula(spec.latex)
    card = resources.files("p2p.training").joinpath(CARD).read_text("utf-8")
    return card.format(
        env_id=config.env_id,
        algorithm=config.algorithm.upper(),
        use=_use(config, policy),
        time=TIME if policy.observe_time else "",
        mean=result["mean_return"],
        own="" if (own := result["env_return"]) is None else OWN_RETURN.format(own=own),
        judged=JUDGED.format(evidence=evidence) if (evidence := _evidence(record, step)) else "",
        std=result["std_return"],
        steps=step,
        seed=config.seed,
        episodes=len(result["all_returns"]),
        description=f"{description}\n\n" if description else "",
        formula=f"$$ {latex} $$\n\n" if latex else "",
        replay="![A replay](replay.mp4)\n" if replay else "",
        replay_row="| `replay.mp4` | the median evaluation episode |\n" if replay else "",
        zip_name=zip_name(config.env_id),
        clipping="" if folded else CLIPPING.format(clip=policy.obs_clip, python=python),
        obs_dim=policy.shape.obs_dim,
        action_dim=policy.shape.action_dim,
    )


def _evidence(record: IterationRecord, step: int) -> str:
    """Return the session's verdict on this very policy; empty if there is none."""
    iteration = IterationView(IterationRecord(record.path.parent), 0, TrainConfig())
    best = iteration.best
    is_best = best is not None and (best.run_id, best.step) == (record.iteration_id, step)
    return describe_evidence(iteration) if is_best else ""


def _as_text(text: str) -> str:
    """Escape foreign text for Markdown, so that it makes no tag, link or image."""
    plain = html.escape(" ".join(printable(text).split()), quote=False)
    return re.sub(r"([\\`*_{}\[\]()#+!|~:$^=-])", r"\\\1", plain)


def _as_formula(latex: str) -> str:
    """Return a foreign formula, or nothing if it has commands for links, images or macros."""
    if re.search(_NOT_MATHS, latex):
        return ""
    plain = re.sub(r"[$`]", "", " ".join(printable(latex).split()))
    return plain.replace("<", r"\lt ").replace(">", r"\gt ")


def _use(config: TrainConfig, policy: Policy) -> str:
    """The example: of what acts on a robot, or of what acts in Gymnasium."""
    if is_engine(config.engine):
        return USE_ON_ENGINE.format(obs_dim=policy.shape.obs_dim)
    use = USE.format(make=_write_make(config), zip_name=zip_name(config.env_id))
    if is_model(config.env_id):
        own = "from p2p.training.model_files.adoption import make_env"
        return use.replace("import gymnasium as gym", own)
    return use


def _write_make(config: TrainConfig) -> str:
    """Write the expression that makes the training environment."""
    if is_model(config.env_id):
        return f'make_env(".", "{config.env_id}")'
    settings = {
        "max_episode_steps": config.max_episode_steps,
        "terminate_when_unhealthy": config.terminate_when_unhealthy,
    }
    options = (f", {name}={value}" for name, value in settings.items() if value is not None)
    made = f'gym.make("{config.env_id}"{"".join(options)})'
    wrapper = "gym.wrappers.TimeAwareObservation"
    return f"{wrapper}({made}, normalize_time=True)" if config.observe_time else made


def _evaluation_at(record: IterationRecord, step: int) -> dict[str, Any]:
    _, evaluations = record.parse_scalars()
    for line in evaluations:
        if line["global_step"] == step:
            try:
                return EvalResult.model_validate(line).model_dump()
            except ValidationError as error:
                message = f"{record.scalars_path}, step {step}: {describe_errors(error)}"
                raise ExportError(message) from error
    raise ExportError(f"{record.scalars_path} has no evaluation at step {step}")
