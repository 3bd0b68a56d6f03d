"""Sessions, training runs, environments and reward checks as Python objects: `import p2p`.

An object is a folder: it is read anew whenever something is asked, so that it can be asked while
another thread or process works on it. The functions do what the commands of the same names do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, overload

from p2p.config import TrainConfig
from p2p.contracts import Criterion, SteeringOrder, utc_now
from p2p.notebook import Environment, run_page, session_page
from p2p.records.find import NotFound, find_session, session_names
from p2p.records.formatting import CriterionResult, criterion_results
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.records.session_view import RunView, SessionView
from p2p.rewards.source import Reward, read_reward
from p2p.session.request import ResumeHere, RunRequest, with_settings
from p2p.session.session_id import new_session_id
from p2p.session.steering import give_feedback
from p2p.session.stopping import cancel
from p2p.session.verdict import verdict_sentence
from p2p.settings import get_settings
from p2p.training.env_spec import get_env_spec, list_env_ids
from p2p.training.hp_presets import run_config
from p2p.training.model_files.adoption import env_id_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from p2p.config import TrainConfig
    from p2p.contracts import EvalResult, StatusLiteral
    from p2p.records.iteration_record import IterationRecord
    from p2p.training.policies.policy import Policy
    from p2p.training.reward_check import CheckReport


class Run:
    """A training run: one reward, one policy."""

    def __init__(self, folder: str | Path) -> None:
        self.record = IterationRecord(Path(folder).absolute())
        self.path = self.record.path
        if not self.record.config_path.is_file():
            raise NotFound(f"{folder} is not a run: it has no config.json")

    @property
    def view(self) -> RunView:
        return RunView(self.record)

    @property
    def status(self) -> StatusLiteral:
        """`running`, `completed`, `failed`, `cancelled`, ..."""
        return self.view.status

    @property
    def config(self) -> TrainConfig:
        config = self.view.config
        if config is None:
            raise NotFound(f"{self.record.config_path} cannot be read")
        return config

    @property
    def mean_return(self) -> float | None:
        """Of its policy, by its own reward; None until it is complete."""
        return self.view.mean_return

    @property
    def curve(self) -> tuple[tuple[int, float], ...]:
        """(step, mean return) of the training episodes."""
        return self.view.training_curve

    @property
    def video(self) -> Path | None:
        """The median evaluation episode, of the newest checkpoint that was filmed."""
        videos = [(each.label == "median", each.step or 0, each.name)
                  for each in self.view.videos if each.drawn]  # fmt: skip
        return self.record.videos_dir / max(videos)[2] if videos else None

    @property
    def policy(self) -> TrainedPolicy:
        """Of the best checkpoint; raises NoSuchCheckpoint where there is none yet."""
        from p2p.training.replay import choose_step

        return TrainedPolicy(self.record, self.config, choose_step(self.record, None))

    def resume(self, *, progress: bool = True) -> Run:
        """Continue where it was stopped or killed; a complete run is left as it is."""
        from p2p.commands.working import train_in

        train_in(self.record, self.config, self.record.read_reward_source(), show=progress)
        return self

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.status})"

    def _repr_html_(self) -> str:
        return run_page(self.view, self.video)


class Session:
    """A prompt, and what was trained and judged for it."""

    def __init__(self, folder: str | Path) -> None:
        self.record = SessionRecord(Path(folder).absolute())
        self.path, self.id = self.record.path, self.record.session_id

    @property
    def view(self) -> SessionView:
        return SessionView(self.record)

    @property
    def status(self) -> StatusLiteral:
        """`running`, `passed`, `max_iterations`, `cancelled`, ..."""
        return self.view.status

    @property
    def passed(self) -> bool:
        """Whether its best policy meets every required criterion, also on unseen episodes."""
        return self.status == "passed"

    @property
    def score(self) -> float | None:
        """The best policy's, 0 to 1; None while nothing is judged."""
        return self.view.best_score

    @property
    def verdict(self) -> str:
        """What was measured and what was missed, in a sentence; else why it ended."""
        view = self.view
        return (verdict_sentence(view, view.best) if view.best else "") or view.error

    @property
    def criteria(self) -> tuple[CriterionResult, ...]:
        """What was asked, what was measured of the best policy, and whether that meets it."""
        view = self.view
        return criterion_results(view, view.best)

    @property
    def runs(self) -> list[Run]:
        """All its training runs, by iteration."""
        return [Run(run.record.path) for it in self.view.iterations.values() for run in it.runs]

    @property
    def policy(self) -> TrainedPolicy:
        """The best policy; raises NotFound while nothing is trained."""
        best = self.view.best
        if best is None or best.best_run is None:
            raise NotFound(f"{self.id} has no policy yet: it is {self.status}")
        policy = Run(best.best_run.record.path).policy
        return replace(policy, step=best.best.step) if best.best else policy

    @property
    def video(self) -> Path | None:
        """The median episode of the best policy; before there is one, of the newest checkpoint."""
        video = self.view.video
        return self.path / video.path if video else None

    def export(self, folder: str | Path) -> list[Path]:
        """Write the best policy, its reward, metrics and a model card into a new folder."""
        return self.policy.export(folder)

    def resume(self, *, progress: bool = True, **changes: object) -> Session:
        """Work on it again, with options of `p2p resume` such as `iterations=8`."""
        from p2p.commands.working import work_on

        work_on(self.record, ResumeHere.model_validate(changes), show=progress)
        return self

    def remark(self, text: str) -> int:
        """Add feedback for the next revision; return its number."""
        order = SteeringOrder(remark=text.strip(), given_at=utc_now())
        return int(give_feedback(self.path, order).stem)

    def stop(self) -> None:
        """Cancel it, from another thread or process; `resume` continues it."""
        cancel(self.record)

    def __repr__(self) -> str:
        return f"Session({self.id!r}, {self.status}, {self.view.prompt!r})"

    def _repr_html_(self) -> str:
        return session_page(self.view, self.verdict, self.video)


def run(
    prompt: str,
    env: str | None = None,
    *,
    criteria: str | Path | Sequence[Criterion] | None = None,
    runs_dir: str | Path | None = None,
    progress: bool = True,
    **options: object,
) -> Session:
    """Train a policy that does what a prompt says.

    Args:
        prompt: what the agent should do.
        env: a Gymnasium id, or a model file; None: chosen from the prompt.
        criteria: your own success criteria, as a file or a list.
        runs_dir: folder of the sessions; None: P2P_RUNS_DIR, else `runs`.
        progress: show what goes on, in a terminal or a notebook.
        options: those of `p2p run` (`iterations`, `seeds`, `model`, `max_minutes`, ...) and
            fields of LoopConfig and TrainConfig.

    Raises PromptRefused where nothing can be made of the prompt, and ValueError for a wrong
    option. Ctrl-C, or a notebook's interrupt, raises KeyboardInterrupt and leaves a session that
    `p2p.load("last").resume()` continues. A thread hears no Ctrl-C: `p2p.load("last").stop()`.
    """
    from p2p.agents.intent_elicitor import parse_criteria
    from p2p.commands.working import work_on
    from p2p.session.start import start_session

    if isinstance(criteria, str | Path):
        criteria = parse_criteria(Path(criteria).read_text(encoding="utf-8"))
    asked = {"prompt": prompt, "env_id": env and env_id_of(env), "criteria": criteria}
    request = RunRequest.model_validate(asked | with_settings(RunRequest, options))
    request.check_models()
    record = start_session(request, runs_dir=_folder(runs_dir))
    work_on(record, show=progress)
    return Session(record.path)


def train(
    reward: Reward,
    env: str | None = None,
    *,
    steps: int | None = None,
    seed: int | None = None,
    preset: bool = False,
    videos: bool = True,
    runs_dir: str | Path | None = None,
    progress: bool = True,
    **config: object,
) -> Run:
    """Train a policy on a reward, which is checked first and runs in a sandbox.

    Args:
        reward: a Python file, the name of a built-in reward, a function
            `reward_fn(obs, action, next_obs, info)`, or a class derived from RewardFunction.
        env: a Gymnasium id, or a model file; None: the reward's own ENV_ID, else HalfCheetah-v5.
        steps: environment steps in total.
        seed: of everything random.
        preset: start from the environment's tuned preset.
        videos: film evaluation episodes.
        runs_dir: as of `run`.
        progress: as of `run`.
        config: further fields of TrainConfig.

    Raises RewardRefused if the reward cannot be trained on, and TrainingFailed. An interrupt
    leaves a run that `p2p.load("last").runs[0].resume()` continues.
    """
    from p2p.commands.working import train_in
    from p2p.training.reward_check import require_trainable
    from p2p.training.runner import RunOptions

    text = read_reward(reward)
    fields = {"total_timesteps": steps, "seed": seed, **config}
    chosen = run_config(
        env_id_of(env or text.env_id or TrainConfig().env_id), fields, preset=preset
    )
    require_trainable(text.code, chosen, text.name)
    record = IterationRecord(_folder(runs_dir) / new_session_id() / "iter_1")
    train_in(record, chosen, text.code, RunOptions(videos=videos), show=progress)
    return Run(record.path)


def load(session: str | Path = "last", runs_dir: str | Path | None = None) -> Session:
    """A session by its name, the start of it, `last`, `best`, or its folder; raises NotFound."""
    return Session(find_session(str(session), _folder(runs_dir)).path)


def sessions(runs_dir: str | Path | None = None) -> list[Session]:
    """Return all sessions of a folder, newest first."""
    folder = _folder(runs_dir)
    return [Session(folder / name) for name in reversed(session_names(folder))]


@overload
def envs() -> dict[str, Environment]: ...
@overload
def envs(env_id: str) -> Environment: ...
def envs(env_id: str | None = None) -> dict[str, Environment] | Environment:
    """Facts read off the live environment: of one by its id, or of all that are listed."""
    if env_id is not None:
        return Environment.model_validate(get_env_spec(env_id_of(env_id)).model_dump())
    return {known: envs(known) for known in list_env_ids()}


def check(reward: Reward, env: str | None = None) -> CheckReport:
    """Run a reward on its real environment, in a sandbox, and say what is wrong with it."""
    from p2p.training.reward_check import check_reward

    text = read_reward(reward)
    config = TrainConfig().in_environment(env_id_of(env or text.env_id or TrainConfig().env_id))
    return check_reward(f"{text.code}\n", config, name=text.name)


def _folder(runs_dir: str | Path | None) -> Path:
    return Path(runs_dir or get_settings().runs_dir).expanduser().absolute()


@dataclass(frozen=True)
class TrainedPolicy:
    """A trained policy: a checkpoint of a run."""

    record: IterationRecord
    config: TrainConfig
    step: int

    @property
    def path(self) -> Path:
        """The file that Stable-Baselines3 loads; it is written when it is first asked for."""
        from p2p.training.checkpoints import export_policy

        return export_policy(self.record, self.step)

    @cached_property
    def _network(self) -> Policy:
        from p2p.training.policies.policy import Policy

        folder = self.record.checkpoints_dir / f"step_{self.step}"
        return Policy.load(folder / "policy.safetensors")

    def act(self, obs: ArrayLike) -> NDArray[np.float32]:
        """The action for an observation of the environment, or one for each row of several."""
        import numpy as np

        rows = np.asarray(obs, dtype=np.float64)
        return self._network.act(np.atleast_2d(rows)).reshape(*rows.shape[:-1], -1)

    def evaluate(self, episodes: int = 16, seed: int = 1) -> EvalResult:
        """Play episodes that training has not seen; equal seeds give equal episodes.

        `seed` is a block of evaluation seeds; training evaluates on block 0.
        """
        from p2p.training.evaluation import evaluation_seed
        from p2p.training.replay import replay

        start = evaluation_seed(seed)
        played = replay(self.record, self.config, step=self.step, episodes=episodes, seed=start)
        return played.result

    def export(self, folder: str | Path) -> list[Path]:
        """Write weights, reward, metrics and a model card into a new folder; returns its files."""
        from p2p.training.export import export_run

        return export_run(self.record, self.config, self.step, Path(folder))
