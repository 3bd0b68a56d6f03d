"""Sessions over HTTP: what the files say, and no more."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from small_runs import line, make_session, signed_in, write_curve

from p2p.config import TrainConfig
from p2p.contracts import TrainScalars
from p2p.records.iteration_record import IterationRecord, SessionRecord
from p2p.session.request import loop_config
from p2p.session.start import create_session
from p2p.session.steering import all_feedback
from p2p.training.metrics import to_line

RUN = "/api/sessions/session_a/iterations/1/runs/base_seed_1"


def test_session_is_listed_and_shown(client: TestClient) -> None:
    (row,) = client.get("/api/sessions").json()
    assert (row["session_id"], row["status"], row["best_score"]) == ("session_a", "passed", 0.9)
    shown = client.get("/api/sessions/session_a").json()
    assert shown["prompt"] == "run forward fast"
    assert shown["intent"]["criteria"][0]["id"] == "goes_forward"
    assert shown["phase"] == "ended"
    assert shown["command"].startswith("p2p run 'run forward fast' --env HalfCheetah-v5")
    (iteration,) = client.get("/api/sessions/session_a/loop-iterations").json()
    assert iteration["reward_spec"]["latex"] == "r = v_x"
    assert iteration["runs"][0]["run_id"] == "base_seed_1"
    assert iteration["train"]["env_id"] == "HalfCheetah-v5"
    assert client.get(iteration["videos"][0]["url"]).headers["content-type"] == "video/mp4"


HOSTILE = ["..", "../session_a", "session_a/..", ".", "%2e%2e", "a\0b", "-rf", "x" * 5000, "ü",
           "session_a/../../etc", "/etc", "session_a\n"]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_session_id_is_not_found(client: TestClient, name: str) -> None:
    given = quote(name, safe="").replace(".", "%2e")
    for path in ("", "/events", "/loop-iterations", "/iterations/1", "/policy", "/report"):
        answer = client.get(f"/api/sessions/{given}{path}")
        assert answer.status_code == 404, path
        assert answer.headers["content-type"] == "application/problem+json"
    for path in (
        f"/iterations/{given}/runs",
        f"/iterations/1/runs/{given}/metrics",
        f"/iterations/1/runs/base_seed_1/videos/{given}",
    ):
        assert client.get(f"/api/sessions/session_a{path}").status_code == 404, path


def test_links_in_runs_folder_are_not_followed(
    client: TestClient, runs: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.mp4"
    secret.write_text("secret")
    run = runs / "session_a" / "iter_1" / "base_seed_1"
    (run / "videos" / "eval_200_median.mp4").symlink_to(secret)
    assert client.get(f"{RUN}/videos/eval_200_median.mp4").status_code == 404
    outside = make_session(tmp_path / "elsewhere", "session_b")
    (runs / "session_b").symlink_to(outside.path)
    assert client.get("/api/sessions/session_b").status_code == 404
    (runs / "session_a" / "iter_9").symlink_to(outside.iteration(1).path)
    (runs / "session_a" / "iter_1" / "base_seed_9").symlink_to(outside.iteration(1).path)
    for path in ("/iterations/9", "/iterations/9/runs", "/iterations/1/runs/base_seed_9/metrics"):
        assert client.get(f"/api/sessions/session_a{path}").status_code == 404, path
    listed = client.get("/api/sessions/session_a").text
    assert "iter_9" not in listed
    assert "base_seed_9" not in listed
    (run / "checkpoints" / "step_300").symlink_to(run / "checkpoints" / "step_100")
    assert client.get(f"{RUN}/policies/300").status_code == 404, "nor is one within"


def test_video_is_sent_by_range(client: TestClient) -> None:
    url = f"{RUN}/videos/eval_100_median.mp4"
    part = client.get(url, headers={"Range": "bytes=10-13"})
    assert part.status_code == 206
    assert part.content == bytes([10, 11, 12, 13])
    assert part.headers["content-range"] == "bytes 10-13/1024"


def test_best_policy_can_be_downloaded(client: TestClient) -> None:
    answer = client.get("/api/sessions/session_a/policy")
    assert answer.content.startswith(b"PK")
    assert "session_a.zip" in answer.headers["content-disposition"]


def test_metadata_is_kept_and_searchable(client: TestClient, runs: Path) -> None:
    make_session(runs, "session_b", prompt="stand still")
    change = {"alias": "The good one", "starred": True, "tags": ["keep", "paper"]}
    answer = client.patch("/api/sessions/session_b", json=change)
    assert answer.json() == {"id": "session_b", **change}
    client.patch("/api/sessions/session_b", json={"starred": True})

    def found(**query: object) -> list[str]:
        rows = client.get("/api/sessions", params=query).json()  # type: ignore[arg-type]
        return [row["session_id"] for row in rows]

    assert found(q="GOOD") == found(tag="paper") == found(starred=True) == ["session_b"]
    assert found(tag="pap") == []
    assert SessionRecord(runs / "session_b").read_metadata().tags == ("keep", "paper")


def test_trash_restore_and_removal(client: TestClient, runs: Path) -> None:
    there = "/api/sessions/session_a"
    assert client.delete("/api/trash/session_a").status_code == 409, "not in the trash yet"
    assert client.post(f"{there}/restore").status_code == 409
    assert client.delete(there).json() == {"id": "session_a", "status": "deleted"}
    assert client.get("/api/sessions").json() == []
    assert [item["id"] for item in client.get("/api/trash").json()] == ["session_a"]
    assert client.post(f"{there}/restore").status_code == 200
    assert len(client.get("/api/sessions").json()) == 1
    client.delete(there)
    assert client.delete("/api/trash/session_a").status_code == 200
    assert not (runs / "session_a").exists()
    assert client.get(there).status_code == 404
    assert client.get("/api/trash").json() == []


def test_running_session_is_stopped_once_and_not_trashed(client: TestClient, runs: Path) -> None:
    record = SessionRecord(runs / "session_a")
    record.set_status("running")
    assert client.delete("/api/sessions/session_a").status_code == 409
    assert client.post("/api/sessions/session_a/stop").json()["status"] == "cancelled"
    again = client.post("/api/sessions/session_a/stop")
    assert again.status_code == 409
    assert "cancelled" in again.json()["detail"]


def test_steer_writes_feedback_or_names_bad_field(client: TestClient, runs: Path) -> None:
    there = "/api/sessions/session_a/steer"
    assert client.post(there, json={"remark": "lower", "score": 0.3}).status_code == 201
    (order,) = all_feedback(runs / "session_a" / "steering").values()
    assert (order.remark, order.score) == ("lower", 0.3)
    assert client.get("/api/sessions/session_a").json()["orders"][0]["remark"] == "lower"
    for bad in ({}, {"score": 2}, {"hp_changes": {"env_id": "x"}}, {"criteria": []}, {"x": 1}):
        assert client.post(there, json=bad).status_code == 422, bad


def test_pending_feedback_is_listed_and_can_be_withdrawn(client: TestClient) -> None:
    there = "/api/sessions/session_a"
    client.post(f"{there}/steer", json={"remark": "lower", "hp_changes": {"gamma": 0.9}})
    client.post(f"{there}/steer", json={"remark": "faster"})
    assert client.get(there).json()["resumable"] is True
    assert client.delete(f"{there}/steer/1").json()["hp_changes"] == {"gamma": 0.9}
    (left,) = client.get(there).json()["orders"]
    assert (left["number"], left["remark"]) == (2, "faster")
    again = client.delete(f"{there}/steer/1")
    assert again.status_code == 409
    assert "withdrawn already; pending: 2" in again.json()["detail"]
    client.delete(f"{there}/steer/2")
    assert client.get(there).json()["orders"] == []
    assert client.get(there).json()["resumable"] is False


def test_score_is_refused_for_unjudged_iteration(client: TestClient, runs: Path) -> None:
    there = "/api/sessions/session_a/steer"
    assert client.post(there, json={"score": 0.3, "scored_iteration": 1}).status_code == 201
    assert client.get("/api/sessions/session_a").json()["resumable"] is True
    SessionRecord(runs / "session_a").create_iteration()
    late = client.post(there, json={"score": 0.3, "scored_iteration": 1})
    assert (late.status_code, late.json()["detail"]) == (
        409, "iteration 1 cannot be scored any more: the last one is 2",
    )  # fmt: skip
    early = client.post(there, json={"score": 0.3, "scored_iteration": 2})
    assert (early.status_code, "not judged yet" in early.json()["detail"]) == (409, True)


def test_settings_have_values_kinds_and_bounds(client: TestClient) -> None:
    settings = client.get("/api/sessions/session_a/settings").json()
    train = client.get("/api/sessions/session_a").json()["config"]["train"]
    listed = {each["name"]: each for each in settings}
    assert {name: each["value"] for name, each in listed.items()}.items() <= train.items()
    assert listed["learning_rate"] == {
        "name": "learning_rate", "kind": "number", "value": train["learning_rate"],
        "low": 1e-6, "high": 3e-3,
    }  # fmt: skip
    kinds = {name: each["kind"] for name, each in listed.items()}
    assert (kinds["net_arch"], kinds["normalize_obs"]) == ("layers", "boolean")
    assert (kinds["total_timesteps"], kinds["max_episode_steps"]) == ("integer", "integer")
    assert kinds["target_kl"] == "number"
    refused = client.post("/api/sessions/session_a/steer", json={"hp_changes": {"gamma": 7}})
    assert refused.status_code == 422
    assert "hp_changes.gamma=7" in refused.json()["detail"]


def test_check_reward_runs_in_sandbox(client: TestClient) -> None:
    there = "/api/sessions/session_a/check-reward"
    code = "def reward_fn(obs, action, next_obs, info):\n    v = info['x_velocity']\n"
    good = client.post(there, json={"reward_code": f"{code}    return v, {{'speed': v}}"}).json()
    assert good["fit"] is True
    assert [term["name"] for term in good["result"]["terms"]] == ["speed"]
    assert good["env_id"] == "HalfCheetah-v5"
    bad = client.post(there, json={"reward_code": "def reward_fn(:"}).json()
    assert (bad["fit"], bad["findings"][0]["line"]) == (False, 1)
    # The name of a file is no way to read it.
    named = client.post(there, json={"reward_code": "/etc/passwd"}).json()
    assert named["fit"] is False
    assert "root" not in json.dumps(named)


def test_events_are_paged_and_shortened(client: TestClient) -> None:
    there = "/api/sessions/session_a/events"
    first, second = client.get(there, params={"limit": 2}).json()
    assert (first["seq"], second["seq"]) == (1, 2)
    assert len(first["data"]["text"]) < 300
    (third,) = client.get(there, params={"after": 2}).json()
    assert len(client.get(f"{there}/{third['seq']}").json()["data"]["text"]) == 500
    assert client.get(f"{there}/99").status_code == 404


def test_long_curve_is_thinned_with_its_ends(client: TestClient, runs: Path) -> None:
    run = SessionRecord(runs / "session_a").iteration(1).runs()[0]
    write_curve(run, [line(10 * (i + 1), float(i)) for i in range(5000)])
    curve = client.get(f"{RUN}/metrics", params={"points": 100}).json()
    assert curve["total_points"] == 5000
    series = curve["training"]["episodic_return"]
    assert (series["steps"][0], series["steps"][-1]) == (10, 50_000)
    assert len(series["values"]) == 100


def test_curve_continues_and_survives_resume(client: TestClient, runs: Path) -> None:
    run = SessionRecord(runs / "session_a").iteration(1).runs()[0]
    assert client.get(f"{RUN}/metrics").json()["total_points"] == 5
    with run.scalars_path.open("a") as stream:
        stream.write(json.dumps(line(300, 7.0, loss="not a number")) + '\n{"torn')
    curve = client.get(f"{RUN}/metrics").json()
    assert curve["training"]["episodic_return"] == {"steps": [100, 200, 300], "values": [0, 1, 7]}
    write_curve(run, [line(50, 1.0)])
    assert client.get(f"{RUN}/metrics").json()["total_points"] == 1, "another file took its place"


def test_seeds_become_a_band_on_one_grid(client: TestClient, runs: Path) -> None:
    from small_runs import make_run

    iteration = SessionRecord(runs / "session_a").iteration(1)
    second = make_run(iteration.path / "base_seed_2")
    write_curve(second, [line(100 * (i + 1), float(i) + 2) for i in range(3)])
    (band,) = client.get("/api/sessions/session_a/iterations/1/metrics").json()
    returns = band["series"]["episodic_return"]
    at = dict(zip(band["steps"], zip(returns["mean"], returns["std"], strict=True), strict=True))
    assert band["run_ids"] == ["base_seed_1", "base_seed_2"]
    assert at[100] == pytest.approx((1.0, 1.0))
    assert at[500] == pytest.approx((4.0, 0.0)), "only one of them has got so far"


def test_configurations_share_a_grid_of_steps_or_time(client: TestClient, runs: Path) -> None:
    from small_runs import make_run

    iteration = SessionRecord(runs / "session_a").iteration(1)
    first, other = iteration.runs()[0], make_run(iteration.path / "fast_seed_1")
    write_curve(first, [line(100 * i, float(i), elapsed_time=2.0 * i) for i in range(1, 6)])
    evaluation = {"type": "eval", "global_step": 300, "mean_return": 7.0, "all_returns": [7.0],
                  "std_return": 0, "min_return": 7, "max_return": 7, "median_return": 7,
                  "p10_return": 7, "p90_return": 7, "episode_length": 9, "episode_lengths": [9],
                  "total_reward": 7}  # fmt: skip
    lines = [line(150 * i, float(i), elapsed_time=1.0 * i) for i in range(1, 11)]
    write_curve(other, [*lines, evaluation])
    there = "/api/sessions/session_a/iterations/1/metrics"
    base, fast = client.get(there).json()
    assert base["steps"] == fast["steps"]
    assert (base["steps"][0], base["steps"][-1]) == (100, 1500)
    assert base["series"]["episodic_return"]["mean"][-1] is None, "it has not got so far"
    assert (fast["evaluation_seconds"], fast["evaluation"]["mean"]) == ([2.0], [7.0])
    base, fast = client.get(there, params={"axis": "time"}).json()
    assert (base["steps"], base["seconds"]) == ([], fast["seconds"])
    assert (base["seconds"][0], base["seconds"][-1]) == (1.0, 10.0)
    (seed,) = fast["seeds"]
    assert seed["run_id"] == "fast_seed_1"
    assert seed["series"]["episodic_return"] == fast["series"]["episodic_return"]["mean"]
    assert client.get(there, params={"axis": "moons"}).status_code == 422


def test_session_shows_median_video_of_best_policy(client: TestClient, runs: Path) -> None:
    (row,) = client.get("/api/sessions").json()
    assert row["video"]["url"] == f"{RUN.replace('/1/', '/iter_1/')}/videos/eval_100_median.mp4"
    session = SessionRecord(runs / "session_a")
    videos = session.iteration(1).runs()[0].videos_dir
    for name in ("eval_200_p10.mp4", "eval_200_median.mp4", "eval_90_median.mp4"):
        (videos / name).write_bytes(b"newer")
    session.result.path.unlink()
    shown = client.get("/api/sessions/session_a").json()
    assert shown["video"]["name"] == "eval_200_median.mp4", "the newest where there is no result"
    assert shown["best_score"] == 0.9, "of what is judged so far"


def test_training_iteration_has_seconds_left(client: TestClient, runs: Path) -> None:
    run = SessionRecord(runs / "session_a").iteration(1).runs()[0]
    steps = (run.config.read() or TrainConfig()).total_timesteps
    scalars = TrainScalars(global_step=steps // 4, iteration=1, values={"elapsed_time": 20.0})
    run.scalars_path.write_text(to_line(scalars) + "\n")
    run.set_status("running")
    (iteration,) = client.get("/api/sessions/session_a/loop-iterations").json()
    assert iteration["seconds_left"] == pytest.approx(60, rel=0.01)
    run.set_status("completed")
    (iteration,) = client.get("/api/sessions/session_a/loop-iterations").json()
    assert iteration["seconds_left"] is None


def test_hyperparameters_of_all_runs_are_listed(client: TestClient) -> None:
    (run,) = client.get("/api/sessions/session_a/hyperparameters").json()
    assert (run["iteration"], run["run_id"]) == (1, "base_seed_1")
    assert run["config"]["env_id"] == "HalfCheetah-v5"


def test_iterations_are_found_behind_empty_sessions(runs: Path) -> None:
    loop = loop_config("HalfCheetah-v5", model="builtin")
    for number in range(3):
        create_session("later", loop, session_id=f"session_b{number}", runs_dir=runs)
    with signed_in(runs) as client:
        client.app.app.state.p2p.index.refresh()  # type: ignore[attr-defined]
        (row,) = client.get("/api/iterations", params={"limit": 2}).json()
    assert (row["session_id"], row["iteration_id"]) == ("session_a", "base_seed_1")


def test_iteration_is_shown_by_its_best_run(client: TestClient, runs: Path) -> None:
    run = IterationRecord(runs / "session_a" / "iter_1" / "base_seed_1")
    run.save_summary({
        "env_id": "HalfCheetah-v5", "seed": 1, "backend": "fast", "total_timesteps": 100,
        "training_time_s": 1.0, "total_episodes": 1, "final_episodic_return": 12.5,
        "reward_calls": "batch",
    })  # fmt: skip
    for path in ("/api/iterations/iter_1", "/api/sessions/session_a/iterations/iter_1"):
        found = client.get(path).json()
        assert (found["iteration_id"], found["env_id"]) == ("iter_1", "HalfCheetah-v5")
        assert found["config"]["seed"] == 1
        assert found["summary"]["final_episodic_return"] == found["final_episodic_return"] == 12.5
    assert client.get("/api/iterations/iter_1/metrics").json()["total_points"] == 5
    run.config.path.unlink()  # before the first run begins there is its plan
    found = client.get("/api/iterations/iter_1").json()
    assert found["env_id"] == found["config"]["env_id"] == "HalfCheetah-v5"


def test_iteration_name_is_resolved_by_session(runs: Path) -> None:
    make_session(runs, "session_b", prompt="another", lines=3)
    with signed_in(runs) as client:
        for session, points in (("session_a", 5), ("session_b", 3)):
            for name in ("iter_1", "base_seed_1"):
                query = {"session_id": session}
                found = client.get(f"/api/iterations/{name}", params=query).json()
                assert (found["session_id"], found["iteration_id"]) == (session, name)
                curves = client.get(f"/api/iterations/{name}/metrics", params=query).json()
                assert curves["total_points"] == points
        assert client.get("/api/iterations/iter_1?session_id=none").status_code == 404


def test_training_run_is_found_by_name(client: TestClient) -> None:
    found = client.get("/api/iterations/base_seed_1").json()
    assert (found["session_id"], found["iteration_id"]) == ("session_a", "base_seed_1")
    assert client.get("/api/iterations/base_seed_1/metrics").json()["total_points"] == 5
    assert client.get("/api/iterations/iter_1").json()["judgment"]["passed"] is True
    assert client.get("/api/iterations/none").status_code == 404


def test_passed_session_resumes_only_with_feedback(
    client: TestClient, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2p.api.sessions.ensure_scheduler", lambda _: None)
    there = "/api/sessions/session_a"
    assert client.get(there).json()["resumable"] is False
    refused = client.post(f"{there}/resume")
    assert refused.status_code == 409
    assert "steer" in refused.json()["detail"]
    client.post(f"{there}/steer", json={"pause": False})
    assert client.post(f"{there}/resume").status_code == 409, "nothing is asked for"
    client.post(f"{there}/steer", json={"remark": "on its hind legs"})
    assert client.get(there).json()["resumable"] is True
    before = (runs / "session_a" / "session.json").read_bytes()
    for change in ({"model": "#"}, {"vlm_model": "#"}, {"vlm_model": "builtin"}):
        assert client.post(f"{there}/resume", json=change).status_code == 422, change
    assert (runs / "session_a" / "session.json").read_bytes() == before
    assert client.post(f"{there}/resume", json={"max_iterations": 3}).status_code == 200
    assert client.get(there).json()["status"] == "queued"
    assert client.post(f"{there}/resume").status_code == 409, "it waits already"


def test_people_score_videos_blind(client: TestClient, runs: Path) -> None:
    there = "/api/sessions/session_a/labels"
    videos = client.get(there).json()["videos"]
    assert videos
    for each in videos:
        assert not re.search("iter_|median|p10|p90", each["url"] + each["video"])
        assert client.get(each["url"]).headers["content-type"] == "video/mp4"
    body = {"video": videos[0]["video"], "score": 0.25, "annotator": "ann"}
    saved = client.post(there, json=body)
    assert saved.status_code == 201, saved.text
    assert [each["score"] for each in saved.json()["videos"]].count(0.25) == 1
    assert client.get(there).json()["videos"][0]["score"] is None, "of nobody"
    assert client.get(f"{there}.csv").text.count(",ann,") == 1
    assert client.post(there, json={**body, "video": "nothing"}).status_code == 404
    (runs / "session_a" / "human_labels.json").write_text("{")
    assert client.post(there, json=body).status_code == 409
