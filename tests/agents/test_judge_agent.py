"""Judging a policy: several episodes, by code, by eye, by both; a judge that is out is a state."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from recorded_hopper import hopper_policy
from scripted_client import ScriptedClient, blocks, hopper_intent, in_turn, media_of, prompt_text

from p2p.agents import judge_agent, visual_judge
from p2p.agents.judge_agent import judge_run, judge_trajectories
from p2p.agents.requests import SeenCriterion, Synthesis, VisualRequest, VisualVerdict
from p2p.agents.visual_judge import MAX_FRAMES, Film
from p2p.config import LoopConfig, TrainConfig
from p2p.contracts import JudgmentResult
from p2p.inference.question import (
    AuthenticationFailed,
    BudgetExhausted,
    ProviderUnavailable,
    Question,
)
from p2p.records.iteration_record import IterationRecord
from p2p.training.evaluation import evaluation_seed, record_episodes
from p2p.training.trajectory import RecordedEpisode

CONFIG = TrainConfig(env_id="Hopper-v5", max_episode_steps=40)
INTENT = hopper_intent()
BOTH = LoopConfig(train=CONFIG, vlm_model="openai:eyes")
BY_CODE = LoopConfig(train=CONFIG)
BY_EYE = LoopConfig(train=CONFIG, vlm_model="openai:eyes", use_code_judge=False)

JUDGE = """
def judge_fn(trajectory, summary):
    spread = summary["seed"] % 10 / 100
    return {
        "criteria": {
            "stays": {"score": 0.99 - spread, "value": 100 + summary["length"], "evidence": "x"},
            "calm": 0.5,
        },
        "diagnosis": "it stands",
        "failure_tags": ["too_slow"],
    }
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    hopper_policy().save(folder / "policy.safetensors")
    return folder


@pytest.fixture(scope="module")
def one_film(tmp_path_factory: pytest.TempPathFactory) -> Film:
    folder = tmp_path_factory.mktemp("video")
    record_episodes(CONFIG, "zero", episodes=1, seed=1)[0].save(folder / "zero.npz")
    [film] = visual_judge.film("Hopper-v5", [folder / "zero.npz"], ())
    assert (film.video, film.problem) == (None, "")
    assert [path.name for path in folder.glob("*.mp4")] == ["frames_zero.mp4"], "no whole video"
    return film


@pytest.fixture
def quick_film(monkeypatch: pytest.MonkeyPatch, one_film: Film) -> None:
    """Drawing takes seconds: where the pictures do not matter, one video stands for all."""

    def film(env_id: str, sources: Sequence[Path], _: Any, **options: bool) -> list[Film]:
        return [one_film] * len(sources)

    monkeypatch.setattr(judge_agent, "film", film)


def seen(stays: float | None, calm: float | None = 0.5) -> VisualVerdict:
    return VisualVerdict(
        analysis="it leans, then stays so",
        criteria=(
            SeenCriterion(id="stays", score=stays, evidence="at 0.1 s"),
            SeenCriterion(id="calm", score=calm),
        ),
        diagnosis="it leans on its foot",
        failure_tags=("sad",) if stays == 1 else ("wrong_posture", "sad"),
    )


class Eyes(ScriptedClient):
    model = "openai:eyes"


def only_asked(answer: Any, request: Any) -> Any:
    """The answer on the criteria of the request."""
    ids = {each.id for each in request.criteria}
    scores = tuple(each for each in answer.criteria if each.id in ids)
    return answer.model_copy(update={"criteria": scores})


def eyes(verdict: VisualVerdict) -> Eyes:
    return Eyes({"visual_judge": lambda request, question: only_asked(verdict, request)})


def failing(error: Exception) -> Eyes:
    def fail(request: Any, question: Question[Any]) -> VisualVerdict:
        raise error

    return Eyes({"visual_judge": fail})


def no_one() -> ScriptedClient:
    return ScriptedClient({})


def run(
    tmp_path: Path,
    policy: Path,
    loop: LoopConfig,
    *,
    vlm: ScriptedClient | None = None,
    client: ScriptedClient | None = None,
    code: str | None = JUDGE,
    episodes: int = 5,
    block: int = 1,
    amendments: tuple[str, ...] = (),
) -> JudgmentResult:
    return judge_run(
        client or no_one(),
        vlm,
        INTENT,
        code,
        CONFIG,
        policy,
        step=1000,
        episodes=episodes,
        block=block,
        folder=tmp_path / "judged",
        loop=loop,
        amendments=amendments,
    )


def test_by_code_every_episode_is_measured_and_kept(tmp_path: Path, policy: Path) -> None:
    result = run(tmp_path, policy, BY_CODE)
    first = evaluation_seed(1)
    assert [each.seed for each in result.rollouts] == list(range(first, first + 5))
    assert (result.strategy, result.step, result.agreement) == ("code", 1000, None)
    assert result.intent_score == pytest.approx(
        sum(each.score or 0 for each in result.rollouts) / 5
    )
    assert result.score_std
    assert result.criteria[0].value
    assert result.failure_tags == ("too_slow",)
    assert not result.passed  # by the tag alone: `calm` is soft
    assert result.unavailable == {}
    for each in result.rollouts:
        kept = RecordedEpisode.load(tmp_path / "judged" / f"trajectory_{each.label}.npz")
        assert 1 <= kept.length <= 40
    assert run(tmp_path / "again", policy / "policy.safetensors", BY_CODE) == result


def test_another_block_is_other_starts(tmp_path: Path, policy: Path) -> None:
    one = run(tmp_path / "a", policy, BY_CODE, episodes=2)
    other = run(tmp_path / "b", policy, BY_CODE, episodes=2, block=2)
    assert not {r.seed for r in one.rollouts} & {r.seed for r in other.rollouts}


@pytest.mark.parametrize("code", [None, "def judge_fn(trajectory, summary):\n    return 1\n"])
def test_without_a_judge_that_works_there_is_no_score(
    tmp_path: Path, policy: Path, code: str | None
) -> None:
    result = run(tmp_path, policy, BY_CODE, code=code)
    assert result.intent_score is None
    assert not result.passed
    assert list(result.unavailable) == ["code"]


def test_judges_that_agree_need_nobody_else(tmp_path: Path, policy: Path) -> None:
    looking, client = eyes(seen(0.95)), no_one()
    result = run(tmp_path, policy, BOTH, vlm=looking, client=client)
    assert not client.asked
    assert len(looking.asked) == 3
    assert result.strategy == "both"
    assert result.agreement is not None
    assert result.agreement > 0.9
    assert result.confidence is not None
    assert result.confidence > 0.9
    assert result.failure_tags[0] == "too_slow"
    looked_at = [r for r in result.rollouts if len(r.opinions) == 2]
    assert looked_at[0] is result.rollouts[0]
    others = sorted(r.opinions[0].score or 0 for r in result.rollouts[1:])
    assert sorted(r.opinions[0].score or 0 for r in looked_at[1:]) == [others[0], others[-1]]
    for each in looked_at:
        assert (tmp_path / "judged" / f"frames_{each.label}.mp4").stat().st_size > 1000
        assert not (tmp_path / "judged" / f"video_{each.label}.mp4").exists()
    pictures = media_of(looking.asked[0])
    assert 2 <= len(pictures) <= MAX_FRAMES
    assert Image.open(io.BytesIO(pictures[0].data)).size == (640, 480)
    for picture in pictures[1:]:
        assert Image.open(io.BytesIO(picture.data)).size == (640, 480)
    request = blocks(prompt_text(looking.asked[0]))[0][1]
    assert isinstance(request, VisualRequest)
    assert request.frames == len(pictures)
    assert "+x goes right" in request.camera


@pytest.mark.usefixtures("quick_film")
def test_where_they_differ_a_model_decides_and_may_ask_again(tmp_path: Path, policy: Path) -> None:
    looking = eyes(seen(0.1))
    heard: list[list[str]] = []

    def decide(request: Any, question: Question[Any]) -> Synthesis:
        reask, check = question.tools
        code = "def check_fn(trajectory, summary):\n    return len(trajectory)\n"
        heard.append([reask("does it lean?", 0.05, 0.2), check(code, "steps")])
        return Synthesis(
            analysis="the code is mistaken",
            criteria=(SeenCriterion(id="stays", score=0.2, evidence="it leans"),),
            diagnosis="the code counts leaning as standing",
            failure_tags=("wrong_posture", "odd"),
            confidence=0.9,
            amendment="stays: count only steps with a tilt below 0.2 rad",
        )

    client = ScriptedClient({"synthesiser": decide})
    earlier = ("calm: it was asleep",)
    result = run(tmp_path, policy, BOTH, vlm=looking, client=client, amendments=earlier)
    assert client.roles() == ["synthesiser"] * 3
    assert all(question.max_tool_calls == visual_judge.MAX_CALLS for question in client.asked)
    for look, steps in heard:
        assert VisualVerdict.model_validate_json(look).criteria == seen(0.1).criteria[:1]
        assert steps.startswith("steps: ")
        assert int(steps.split(": ")[1]) >= 1
    asked_again = [
        request
        for question in looking.asked
        for _, request in blocks(prompt_text(question))
        if isinstance(request, VisualRequest) and request.question
    ]
    assert [request.question for request in asked_again] == ["does it lean?"] * 3
    assert result.criteria[0].score is not None
    assert result.criteria[0].score < 0.25  # also those that nobody looked at
    assert result.confidence == pytest.approx(0.9)
    assert result.agreement is not None
    assert result.agreement < 0.7
    assert "leaning as standing Also: odd." in result.diagnosis
    assert "wrong_posture" in result.failure_tags
    # The number that was overruled is no evidence any more, in no episode.
    assert result.amendments == ("stays: count only steps with a tilt below 0.2 rad",)
    assert (result.criteria[0].value, result.criteria[0].evidence) == (None, "it leans")
    rulings = {each.criteria[0].evidence for each in result.rollouts}
    assert rulings == {"it leans", "by other episodes: it leans"}
    told = [blocks(prompt_text(each))[-1][1] for each in (*client.asked, *looking.asked[:3])]
    assert {each["amendments"] for each in told if not each.get("question")} == {earlier}


@pytest.mark.usefixtures("quick_film")
def test_with_the_eye_out_the_code_stands_with_less_confidence(
    tmp_path: Path, policy: Path
) -> None:
    out = failing(ProviderUnavailable("the provider is down"))
    result = run(tmp_path, policy, BOTH, vlm=out)
    alone = run(tmp_path, policy, BY_CODE)
    assert result.unavailable == {"vlm": "the provider is down"}
    assert result.intent_score == alone.intent_score
    assert result.confidence is not None
    assert alone.confidence is not None
    assert result.confidence < alone.confidence
    assert result.agreement is None


FAILED = JUDGE.replace("100 + summary", "summary")
"""In no episode it stays for as long as it should."""


def overrule(request: Any, question: Question[Any]) -> Synthesis:
    return Synthesis(
        analysis="the program counts wrongly",
        criteria=(SeenCriterion(id="stays", score=1.0, evidence="it stays to the end"),),
        diagnosis="it stays",
        confidence=0.9,
        amendment="stays: count to the end",
    )


@pytest.mark.usefixtures("quick_film")
@pytest.mark.parametrize("stays", [0.1, None])
def test_one_look_and_no_arbiter_where_code_failed_every_episode(
    tmp_path: Path, policy: Path, stays: float | None
) -> None:
    looking, client = eyes(seen(stays, 0.0)), no_one()
    result = run(tmp_path, policy, BOTH, vlm=looking, client=client, code=FAILED, episodes=8)
    assert (len(looking.asked), client.asked) == (1, [])
    assert len(result.rollouts) == 8
    assert not result.passed
    assert result.criteria[0].value is not None


@pytest.mark.usefixtures("quick_film")
def test_an_arbiter_who_overrules_code_has_three_episodes_seen(
    tmp_path: Path, policy: Path
) -> None:
    failed = FAILED.replace("0.99 - spread", "0.2")
    looking, client = eyes(seen(1.0)), ScriptedClient({"synthesiser": overrule})
    result = run(tmp_path, policy, BOTH, vlm=looking, client=client, code=failed, episodes=8)
    assert (len(looking.asked), client.roles()) == (3, ["synthesiser"] * 3)
    assert result.amendments == ("stays: count to the end",)
    assert result.criteria[0].score == pytest.approx(1.0)


@pytest.mark.usefixtures("quick_film")
def test_soft_criteria_that_code_measures_are_shown_to_no_model(
    tmp_path: Path, policy: Path
) -> None:
    looking, client = eyes(seen(1.0)), ScriptedClient({"synthesiser": overrule})
    code = JUDGE.replace("0.99 - spread", "0.2")
    result = run(tmp_path, policy, BOTH, vlm=looking, client=client, code=code)
    asked = [blocks(prompt_text(each))[-1][1] for each in (*looking.asked, *client.asked)]
    assert {tuple(c.id for c in request["criteria"]) for request in asked} == {("stays",)}
    assert [each.score for each in result.criteria] == [pytest.approx(1.0), 0.5]


@pytest.mark.usefixtures("quick_film")
@pytest.mark.parametrize("episodes", [1, 2])
def test_few_episodes_are_all_looked_at(tmp_path: Path, policy: Path, episodes: int) -> None:
    looking = eyes(seen(0.85))
    assert run(tmp_path, policy, BOTH, vlm=looking, episodes=episodes).agreement is not None
    assert len(looking.asked) == episodes


@pytest.mark.usefixtures("quick_film")
def test_with_the_code_out_the_eye_stands(tmp_path: Path, policy: Path) -> None:
    result = run(tmp_path, policy, BOTH, vlm=eyes(seen(0.6)), code=None)
    assert result.unavailable == {"code": judge_agent.NO_CODE}
    assert result.criteria[0].score == 0.6
    assert result.confidence == pytest.approx(0.5)
    assert len([each for each in result.rollouts if each.score is not None]) == 3


@pytest.mark.usefixtures("quick_film")
def test_by_eye_alone(tmp_path: Path, policy: Path) -> None:
    looking = eyes(seen(1.0, None))
    result = run(tmp_path, policy, BY_EYE, vlm=looking)
    assert (result.strategy, result.intent_score, result.passed) == ("vlm", 1.0, True)
    assert len(looking.asked) == len(result.rollouts) == 3
    assert result.criteria[1].score is None
    assert "Also: sad." in result.diagnosis


@pytest.mark.usefixtures("quick_film")
def test_a_tag_without_a_missed_hard_criterion_is_sent_back(tmp_path: Path, policy: Path) -> None:
    tagged = seen(1.0, 0.0).model_copy(update={"failure_tags": ("wasteful",)})
    looking = Eyes({"visual_judge": in_turn(tagged, seen(1.0, 0.0))})
    result = run(tmp_path, policy, BY_EYE, vlm=looking, episodes=1)
    assert "failure_tags has wasteful, but every hard criterion scores 1" in looking.refusals[0]
    assert (result.passed, result.failure_tags) == (True, ())


@pytest.mark.usefixtures("quick_film")
@pytest.mark.parametrize("loop", [BOTH, BY_EYE])
def test_no_judge_no_score_never_a_zero(tmp_path: Path, policy: Path, loop: LoopConfig) -> None:
    out = failing(ProviderUnavailable("down"))
    result = run(tmp_path, policy, loop, vlm=out, code=None)
    assert result.intent_score is None
    assert result.unavailable["vlm"] == "down"
    assert all(each.score is None for each in result.rollouts)


@pytest.mark.usefixtures("quick_film")
def test_eyes_that_can_tell_nothing_are_out(tmp_path: Path, policy: Path) -> None:
    result = run(tmp_path, policy, BOTH, vlm=eyes(seen(None, None)))
    assert "the pictures show nothing conclusive" in result.unavailable["vlm"]
    assert result.intent_score is not None


@pytest.mark.usefixtures("quick_film")
def test_a_spent_budget_is_no_outage(tmp_path: Path, policy: Path) -> None:
    with pytest.raises(BudgetExhausted):
        run(tmp_path, policy, BOTH, vlm=failing(BudgetExhausted("spent")))


@pytest.mark.usefixtures("quick_film")
def test_a_refused_key_ends_it_only_where_nobody_else_judges(tmp_path: Path, policy: Path) -> None:
    refused = failing(AuthenticationFailed("no such key"))
    with pytest.raises(AuthenticationFailed):
        run(tmp_path, policy, BY_EYE, vlm=refused)
    assert run(tmp_path, policy, BOTH, vlm=refused).intent_score is not None


@pytest.mark.usefixtures("quick_film")
def test_what_cannot_be_settled_is_the_measured_with_little_confidence(
    tmp_path: Path, policy: Path
) -> None:
    def fail(request: Any, question: Question[Any]) -> Synthesis:
        raise ProviderUnavailable("down")

    client = ScriptedClient({"synthesiser": fail})
    result = run(tmp_path, policy, BOTH, vlm=eyes(seen(0.1)), client=client)
    assert result.criteria[0].score is not None
    assert result.criteria[0].score > 0.8
    assert result.confidence == pytest.approx(0.4)
    assert "could not be settled" in result.diagnosis


def test_no_picture_without_a_renderer(
    tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_driver(env_id: str, files: Sequence[Path], _: Any, **options: bool) -> list[Film]:
        return [Film(file, (), problem="no driver") for file in files]

    monkeypatch.setattr(judge_agent, "film", no_driver)
    result = run(tmp_path, policy, BOTH, vlm=eyes(seen(1.0)))
    assert "no driver" in result.unavailable["vlm"]
    assert result.intent_score is not None


def test_what_training_recorded_can_be_judged_by_code(trained_run: IterationRecord) -> None:
    config = trained_run.config.read()
    assert config is not None
    code = """
def judge_fn(trajectory, summary):
    speed = trajectory["x_velocity"].mean()
    return {"criteria": {"stays": summary["step"] == 512, "calm": {"score": 0.5, "value": speed}}}
"""
    files = [trained_run.trajectory_file(512, label) for label in ("p10", "median", "p90")]
    result = judge_trajectories(INTENT, code, config, files, step=512, loop=BY_CODE)
    assert [each.label for each in result.rollouts] == ["p10", "median", "p90"]
    assert result.criteria[0].score == 1.0
    assert result.criteria[1].value is not None
