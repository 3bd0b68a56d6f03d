"""From a prompt to a verdict: CPU seconds by phase and wall time, on two cores for each session.

python benchmarks/prompt_to_verdict.py [--before SRC] [--contenders after before eureka]
    [--prompts N] [--jobs 1] [--minutes M] [--write]

Each job is a process tree pinned to two cores of its own. `after` is this tree and `before` another
one: SRC is the folder `src` of a checkout (git worktree add .before COMMIT). Both run `p2p run
PROMPT --env ID --model builtin --iterations 1` with a cache of their own that lasts from job to
job, so that an update is compiled once for each shape. `eureka` is what such a loop does with
Stable-Baselines3: PPO with its defaults on the same reward for as many steps as the plan allows,
EvalCallback at the same number of evaluations, and after each a video of an episode. It gets our
batched environments and no criteria, judge or confirmation; its reward is the one that `after` has
written, which therefore comes first.

CPU time is read off /proc for each process of the tree, 20 times a second, and put to the phase
that the session's events say; drawing and the trainer are known by their commands. With --write,
rows are kept as they end and an interrupted benchmark resumes where it stopped.

--drawing measures pictures alone, in CPU milliseconds each: both trees draw the same episode.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from common import ONE_THREAD, Job, add_run_options, measure, table

NAME = "prompt_to_verdict"
PROMPTS = (
    ("run forward fast", "HalfCheetah-v5"),
    ("run backward", "HalfCheetah-v5"),
    ("run forward at 2 m/s", "HalfCheetah-v5"),
    ("hop forward", "Hopper-v5"),
    ("stand still", "Hopper-v5"),
    ("walk forward", "Walker2d-v5"),
    ("stand still", "Walker2d-v5"),
    ("swim forward", "Swimmer-v5"),
    ("balance the pole upright", "InvertedPendulum-v5"),
    ("reach the target", "Reacher-v5"),
)
CONTENDERS = ("after", "before", "eureka")
SECONDS = {"after": 150.0, "before": 420.0, "eureka": 420.0}
"""What a job takes at most, about, on two free cores."""
LIMIT_S = 1500.0
FILMED = 200
"""Frames of a video of `eureka`, as VecVideoRecorder records by default."""
BEFORE = "PROMPT_TO_VERDICT_BEFORE"
"""Names `src` of the other tree for the processes of single jobs."""
PHASES = ("criteria", "reward and judge", "trainer", "beside it", "judging", "drawing", "export")
NOTES = """\
- each job on two cores of its own; wall time is until the verdict stands; `beside it` is what runs
  while the trainer does: its parent, compiling, judging checkpoints
- `eureka`: Stable-Baselines3's PPO on the reward of `after` in our batched environments, for all
  steps of the plan, with EvalCallback and a video after each evaluation; its column `export` is the
  imports. It gives no verdict""".splitlines()
TICK = 1 / os.sysconf("SC_CLK_TCK")


def work_folder() -> Path:
    """Caches, sessions and locks; they stay until the machine is cleaned."""
    named = os.environ.get("PROMPT_TO_VERDICT_WORK")
    folder = Path(named) if named else Path(tempfile.gettempdir()) / NAME
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def two_cores() -> Iterator[tuple[int, ...]]:
    """Cores that no other job of this benchmark has."""
    cores = sorted(os.sched_getaffinity(0))
    pairs = [tuple(cores[i : i + 2]) for i in range(0, len(cores) - 1, 2)] or [tuple(cores)]
    while True:
        for pair in pairs:
            with (work_folder() / f"cores_{pair[0]}.lock").open("w") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield pair
                return
        time.sleep(0.5)


def processes() -> dict[int, tuple[int, int, float, str]]:
    """All of the machine: parent, start, CPU seconds, command."""
    found = {}
    for name in (path.name for path in Path("/proc").iterdir() if path.name.isdigit()):
        with contextlib.suppress(OSError, ValueError):
            stat = Path("/proc", name, "stat").read_text()
            command = Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode()
            fields = stat[stat.rindex(")") + 2 :].split()
            seconds = (int(fields[11]) + int(fields[12])) * TICK
            found[int(name)] = int(fields[1]), int(fields[19]), seconds, command
    return found


class Tree:
    """A process with all that it starts, and when which of them used the processor."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.known: dict[tuple[int, int], float] = {}
        self.kinds: dict[tuple[int, int], str] = {}
        self.used: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def look(self) -> None:
        """Note what each process of the tree has used since the last look."""
        all_of_them, now = processes(), time.time()
        children = defaultdict(list)
        for pid, (parent, *_) in all_of_them.items():
            children[parent].append(pid)
        members, left = [], [self.root]
        while left:
            pid = left.pop()
            left += children[pid]
            members += [pid] if pid in all_of_them else []
        for pid in members:
            parent, start, seconds, command = all_of_them[pid]
            key = pid, start
            kind = self.kinds.get(key, "")
            if kind in ("", "session"):  # a process may take up another program
                above = all_of_them.get(parent, (0, 0, 0.0, ""))[3]
                kind = self.kinds[key] = kind_of(command, above)
            more = seconds - self.known.get(key, 0.0)
            if more > 0:
                self.used[kind].append((now, more))
            self.known[key] = seconds


def kind_of(command: str, parent: str) -> str:
    """What a process does: draw, train, serve the trainer, or what its session does just then."""
    if "video.rendering" in command or "import mujoco, numpy" in command:
        return "drawing"
    if "p2p.executor" in command:  # a child that has not become its own program yet, or itself
        return "" if "p2p.executor" in parent else "beside it"
    if "p2p.training.ppo" in command:
        return "beside it"
    if "p2p.executor" in parent:
        return "trainer"
    return "session"


def events_of(session: Path) -> list[tuple[float, str, dict[str, Any]]]:
    lines = (session / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return [
        (datetime.fromisoformat(each["timestamp"]).timestamp(), each["event"], each["data"])
        for each in events
    ]


def by_phase(tree: Tree, events: list[tuple[float, str, dict[str, Any]]]) -> dict[str, float]:
    """CPU seconds of each phase."""
    seconds: Counter[str] = Counter()
    for kind in ("drawing", "beside it", "trainer"):
        seconds[kind] = sum(used for _, used in tree.used[kind])
    marks = {
        "intent.end": "reward and judge",
        "train.start": "beside it",
        "train.end": "judging",
        "session.ended": "export",
    }
    changes = [(at, marks[name]) for at, name, _ in events if name in marks]
    for at, used in tree.used["session"]:
        phase = next((phase for when, phase in reversed(changes) if when <= at), "criteria")
        seconds[phase] += used
    return {phase: round(seconds[phase], 2) for phase in PHASES}


def run_session(contender: str, prompt: str, env_id: str, source: str) -> dict[str, Any]:
    """A session of `p2p run`, from the start of its process to the end of it."""
    work = work_folder()
    home = work / contender
    runs = home / "runs" / f"{env_id}_{prompt}".replace(" ", "_")  # jobs side by side, apart
    runs.mkdir(parents=True, exist_ok=True)
    session_env = {
        **{name: os.environ[name] for name in ("PATH", "LANG", "MUJOCO_GL") if name in os.environ},
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_RUNTIME_DIR": str(home),
        "PYTHONPATH": source,
        "P2P_CORE_LOCKS": str(home),
    }
    known = set(runs.iterdir())
    with two_cores() as cores, tempfile.TemporaryFile() as output:
        session_env["P2P_CORE_LOCKS"] = str(home / f"cores_{cores[0]}")
        Path(session_env["P2P_CORE_LOCKS"]).mkdir(exist_ok=True)
        began = time.time()
        process = subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, cores)), sys.executable, "-P", "-m", "p2p.cli",
             "run", prompt, "--env", env_id, "--model", "builtin", "--iterations", "1",
             "--runs-dir", str(runs)],
            env=session_env, cwd=home, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        tree = Tree(process.pid)
        while process.poll() is None:
            tree.look()
            time.sleep(0.05)
            if time.time() - began > LIMIT_S:
                os.killpg(process.pid, signal.SIGKILL)
        ended = time.time()
        output.seek(0)
        text = output.read()[-2000:].decode(errors="replace")
    mine = [path for path in set(runs.iterdir()) - known if (path / "session.json").is_file()]
    if len(mine) != 1 or not (mine[0] / "result.json").exists():
        raise SystemExit(f"{contender}, {prompt}: no result\n{text}")
    session = mine[0]
    events, result = events_of(session), json.loads((session / "result.json").read_text())
    verdict_at = max(at for at, name, _ in events if name == "session.ended")
    seconds = by_phase(tree, events)
    run = next(iter(session.glob("iter_1/*_seed_1/summary.json")), None)
    steps = json.loads(run.read_text())["total_timesteps"] if run else 0
    if contender == "after":
        keep = work / "rewards" / f"{env_id}_{prompt}".replace(" ", "_")
        keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(session / "iter_1" / "reward_fn.py", keep / "reward_fn.py")
        shutil.copy(session / "iter_1" / "plan.json", keep / "plan.json")
    return {
        "verdict": result["status"],
        "score": result["score"],
        "wall_s": round(verdict_at - began, 1),
        "exit_s": round(ended - began, 1),
        "cpu_s": round(sum(seconds.values()), 1),
        "phases": seconds,
        "steps": steps,
    }


def run_eureka(prompt: str, env_id: str) -> dict[str, Any]:
    """Stable-Baselines3 on the same reward; measured as a process of its own."""
    keep = work_folder() / "rewards" / f"{env_id}_{prompt}".replace(" ", "_")
    deadline = time.time() + LIMIT_S
    while not (keep / "plan.json").exists():  # `after` writes it
        if time.time() > deadline:
            raise SystemExit(f"no reward for {prompt}: run `after` first")
        time.sleep(2)
    with two_cores() as cores:
        began = time.time()
        process = subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, cores)), sys.executable, __file__, "--train",
             str(keep)],
            env={**os.environ, **ONE_THREAD, "MUJOCO_GL": os.environ.get("MUJOCO_GL", "egl")},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        output, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"eureka, {prompt}:\n{errors[-3000:]}")
    told = json.loads(output.splitlines()[-1])
    wall = round(time.time() - began, 1)
    return {"verdict": "none", "score": None, "wall_s": wall, "exit_s": wall, **told}


def train(keep: Path) -> None:
    """What `eureka` does, in its own process."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
    from stable_baselines3.common.vec_env import VecMonitor

    from p2p.config import TrainConfig
    from p2p.training.env import RewardedVecEnv
    from p2p.training.training_loop import make_environment, make_reward

    began = os.times()
    plan = TrainConfig.model_validate(json.loads((keep / "plan.json").read_text())["train"])
    code = (keep / "reward_fn.py").read_text()

    def environment(rows: int, *, training: bool) -> VecMonitor:
        env = make_environment(plan, rows, code, training=training)
        return VecMonitor(RewardedVecEnv(env, make_reward(plan, code, env, batched=True)))

    drawn = 0.0

    class Film(BaseCallback):
        """A video of an episode, as VecVideoRecorder makes one after an evaluation."""

        def _on_step(self) -> bool:
            nonlocal drawn
            before = time.process_time()
            with contextlib.suppress(Exception):  # where nothing can be drawn
                film(self.model, plan.env_id, keep / "episode.mp4")
            drawn += time.process_time() - before
            return True

    rows = 8
    env, evaluation = environment(rows, training=True), environment(rows, training=False)
    model = PPO("MlpPolicy", env, device="cpu", seed=1, n_steps=256)
    every = max(1, plan.total_timesteps // plan.num_evals // rows)
    callback = EvalCallback(
        evaluation, callback_after_eval=Film(), n_eval_episodes=8, eval_freq=every, verbose=0
    )
    model.learn(plan.total_timesteps, callback=callback)
    ended = os.times()
    cpu = ended.user + ended.system
    start = began.user + began.system
    phases = dict.fromkeys(PHASES, 0.0) | {
        "trainer": round(cpu - start - drawn, 2),
        "drawing": round(drawn, 2),
        "export": round(start, 2),
    }
    print(json.dumps({"cpu_s": round(cpu, 1), "phases": phases, "steps": model.num_timesteps}))


def film(model: Any, env_id: str, path: Path) -> None:
    """The first FILMED steps of an episode, in Gymnasium's own pictures, as a video."""
    from fractions import Fraction

    import gymnasium

    from p2p.training.video.playback import write_video

    env = gymnasium.make(env_id, render_mode="rgb_array")
    frames, over = [], False
    obs, _ = env.reset(seed=0)
    while not over:
        obs, _, terminated, truncated, _ = env.step(model.predict(obs, deterministic=True)[0])
        frames.append(env.render())
        over = terminated or truncated or len(frames) == FILMED
    write_video(path, iter(frames), Fraction(round(1 / env.unwrapped.dt)))  # type: ignore[attr-defined]
    env.close()


DRAWN = ("HalfCheetah-v5", "Hopper-v5", "Ant-v5", "Humanoid-v5", "Reacher-v5")
DRAW = """
import sys
from pathlib import Path
from p2p.training.video.rendering import RenderJob, RenderProcess
job = RenderJob(env_id=sys.argv[1], trajectory=Path(sys.argv[2]), output=Path(sys.argv[3]),
                max_frames=200)
[outcome] = RenderProcess([job], 600.0).wait()
assert outcome.ok, outcome
print(outcome.frames, outcome.seconds)
"""


def drawing_table(before: str) -> str:
    """CPU milliseconds for each picture of a video."""
    from p2p.config import TrainConfig
    from p2p.training.evaluation import record_episodes

    sources = {"before": before, "after": str(Path(__file__).resolve().parents[1] / "src")}
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for env_id in DRAWN:
            config = TrainConfig(env_id=env_id, max_episode_steps=200)
            if env_id in ("Hopper-v5", "Ant-v5", "Humanoid-v5"):
                config = config.with_updates(terminate_when_unhealthy=False)
            file, least = Path(name) / f"{env_id}.npz", dict.fromkeys(sources, float("inf"))
            record_episodes(config, "random", episodes=1, seed=1)[0].save(file)
            for number in range(3):
                for who, source in sources.items():
                    output = str(Path(name) / f"{env_id}_{who}_{number}.mp4")
                    done = subprocess.run(
                        [sys.executable, "-P", "-c", DRAW, env_id, str(file), output],
                        env={**os.environ, **ONE_THREAD, "PYTHONPATH": source},
                        stdout=subprocess.PIPE, text=True, check=True,
                    )  # fmt: skip
                    frames, seconds = map(float, done.stdout.split())
                    least[who] = min(least[who], 1e3 * seconds / frames)
            rows.append([env_id, *(f"{least[who]:.1f}" for who in sources)])
    return table(["CPU ms for a picture of 640 x 480", *sources], rows)


def job_of(run: dict[str, Any]) -> Job:
    return run["contender"], run["prompt"], run["env_id"]


def report(runs: list[dict[str, Any]], lines: list[str]) -> str:
    """The table: a row for each prompt and contender, then the medians."""
    header = ["prompt", "who", "verdict", "steps", "wall s", *PHASES, "CPU s", "of its trainer"]
    rows = []
    for prompt, env_id in PROMPTS:
        for run in (r for c in CONTENDERS for r in runs if job_of(r) == (c, prompt, env_id)):
            trainer = run["phases"]["trainer"] or 1.0
            score = "" if run["score"] is None else f" {run['score']:.2f}"
            rows.append([
                f"{prompt} ({env_id})", run["contender"], f"{run['verdict']}{score}",
                f"{run['steps']:,}", f"{run['wall_s']:.0f}",
                *(f"{run['phases'][phase]:.1f}" for phase in PHASES), f"{run['cpu_s']:.0f}",
                f"{run['cpu_s'] / trainer:.1f}",
            ])  # fmt: skip
    for name in CONTENDERS:
        own = [run for run in runs if run["contender"] == name]
        if own:
            ratios = [run["cpu_s"] / (run["phases"]["trainer"] or 1.0) for run in own]
            passes = sum(run["verdict"] == "passed" for run in own)
            middle = [median(run["phases"][phase] for run in own) for phase in PHASES]
            rows.append([
                f"**median of {len(own)}**", name, f"{passes} passed",
                f"{median(run['steps'] for run in own):,.0f}",
                f"{median(run['wall_s'] for run in own):.0f}",
                *(f"{value:.1f}" for value in middle),
                f"{median(run['cpu_s'] for run in own):.0f}", f"{median(ratios):.1f}",
            ])  # fmt: skip
    text = ["# From a prompt to a verdict", *lines, *NOTES, "", table(header, rows)]
    return "\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_run_options(parser)
    parser.add_argument("--before", help="the folder src of the tree to compare with")
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="only the first N")
    parser.add_argument("--drawing", action="store_true", help="only the cost of pictures")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(Path(options.train))
        return
    if options.drawing:
        if not options.before:
            raise SystemExit("--drawing compares with --before SRC")
        text = drawing_table(str(Path(options.before).resolve()))
        print(text)
        if options.write:
            notes = [
                "# What a picture costs",
                "",
                (
                    "`prompt_to_verdict.py --drawing`: of a video of"
                    " 200, encoding included, the start of the process not; the least of three."
                ),
            ]
            (Path(__file__).parent / "results" / "drawing.md").write_text(
                "\n".join([*notes, "", text, ""])
            )
        return
    if options.one:
        contender, prompt, env_id = json.loads(options.one)
        sources = {
            "after": str(Path(__file__).resolve().parents[1] / "src"),
            "before": os.environ.get(BEFORE, ""),
        }
        run = (
            run_eureka(prompt, env_id)
            if contender == "eureka"
            else run_session(contender, prompt, env_id, sources[contender])
        )
        own = {"contender": contender, "prompt": prompt, "env_id": env_id}
        print(json.dumps({**own, **run}))
        return
    names = [n for n in CONTENDERS if n in options.contenders and (n != "before" or options.before)]
    wanted: list[Job] = [
        (name, prompt, env_id) for name in names for prompt, env_id in PROMPTS[: options.prompts]
    ]
    if options.before:
        os.environ[BEFORE] = str(Path(options.before).resolve())
    measure(
        options, __file__, NAME, wanted,
        job_of=job_of, report=report, seconds_of=lambda job: SECONDS[str(job[0])],
    )  # fmt: skip


if __name__ == "__main__":
    main()
