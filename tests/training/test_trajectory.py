import contextlib
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2p.training.trajectory import RecordedEpisode, TrajectoryFileError

LENGTH = 5


def arrays(length=LENGTH, **changes):
    rng = np.random.default_rng(0)
    columns = {
        "step": np.arange(length),
        "timestamp": 0.05 * np.arange(1, length + 1),
        "obs": rng.normal(size=(length, 3)),
        "action": rng.normal(size=(length, 2)),
        "next_obs": rng.normal(size=(length, 3)),
        "reward": np.ones(length),
        "cumulative_reward": np.arange(1.0, length + 1),
        "terminated": np.arange(length) == length - 1,
        "truncated": np.zeros(length, bool),
        "qpos": rng.normal(size=(length, 4)),
        "xpos": rng.normal(size=(length, 2, 3)),
        "_reward_term_names": np.array(["speed", "names"]),
        "reward_term_speed": rng.normal(size=length),
        "reward_term_names": rng.normal(size=length),
    }
    columns.update(changes)
    return {key: value for key, value in columns.items() if value is not None}


def test_a_saved_trajectory_loads_as_it_was(tmp_path):
    trajectory = RecordedEpisode.from_arrays(arrays())
    trajectory.save(tmp_path / "t.npz")
    loaded = RecordedEpisode.load(tmp_path / "t.npz")
    assert list(loaded.reward_terms) == ["speed", "names"]
    for key, column in trajectory.arrays().items():
        np.testing.assert_array_equal(loaded.arrays()[key], column)
        assert loaded.arrays()[key].dtype == column.dtype
    assert [path.name for path in tmp_path.iterdir()] == ["t.npz"]


def test_rows_are_what_judges_read():
    trajectory = RecordedEpisode.from_arrays(arrays())
    rows = trajectory.rows()
    assert len(rows) == LENGTH
    assert len(list(rows)) == LENGTH
    row = rows[-1]
    assert (type(row["step"]), row["step"]) == (int, LENGTH - 1)
    assert (type(row["reward"]), row["terminated"], row["truncated"]) == (float, True, False)
    assert set(row["reward_terms"]) == {"speed", "names"}
    assert row["xpos"].shape == (2, 3)
    assert [r["step"] for r in rows[1:3]] == [1, 2]
    assert not any(key.startswith(("reward_term_", "_")) for key in row)
    with pytest.raises(IndexError):
        rows[LENGTH]


def test_a_reader_cannot_change_the_recording():
    given = arrays()
    trajectory = RecordedEpisode.from_arrays(given)
    given["step"][0] = 99
    assert trajectory["step"][0] == 0
    with pytest.raises(ValueError, match="read-only"):
        trajectory.rows()[0]["obs"][0] = 1.0


def test_a_reward_without_terms_is_recorded_too(tmp_path):
    none = {"reward_term_speed": None, "reward_term_names": None}
    RecordedEpisode.from_arrays(arrays(_reward_term_names=np.array([], str), **none)).save(
        tmp_path / "t.npz"
    )
    assert RecordedEpisode.load(tmp_path / "t.npz").rows()[0]["reward_terms"] == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"obs": None, "reward": None}, "missing columns: reward, obs"),
        ({"_reward_term_names": None}, "_reward_term_names"),
        ({"qpos": np.zeros((LENGTH - 1, 4))}, "'qpos' has 4 rows, but 'step' has 5"),
        ({"qpos": np.float64(1.0)}, "'qpos' has no rows"),
        ({"reward_term_speed": None}, "reward terms listed"),
        ({"reward_term_other": np.zeros(LENGTH)}, "reward terms listed"),
        ({"reward_term_speed": np.zeros((LENGTH, 2))}, "'speed' is not one number per step"),
        ({"terminated": np.zeros(LENGTH)}, "'terminated' holds float64"),
        ({"reward": np.zeros((LENGTH, 1))}, "'reward' is not one number per step"),
        ({"obs": np.zeros(LENGTH)}, "'obs' is not one vector per step"),
        ({"qpos": np.full((LENGTH, 1), "x")}, "'qpos' holds <U1, not numbers"),
        ({"qpos": np.zeros((LENGTH, 1), complex)}, "'qpos' holds complex128"),
        ({"_reward_term_names": np.arange(2)}, "not a list of names"),
        ({"_reward_term_names": np.array(["speed", "speed"])}, "reward terms listed"),
    ],
)
def test_a_malformed_file_is_refused_by_name(tmp_path, changes, message):
    path = tmp_path / "t.npz"
    np.savez(path, **arrays(**changes))
    with pytest.raises(TrajectoryFileError, match=message) as caught:
        RecordedEpisode.load(path)
    assert str(path) in str(caught.value)


def test_a_pickle_is_never_opened(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, **arrays(qpos=np.array([object()] * LENGTH, dtype=object)), allow_pickle=True)
    with pytest.raises(TrajectoryFileError, match=r"not a readable \.npz"):
        RecordedEpisode.load(path)


def test_a_file_that_unpacks_too_large_is_refused_unread(tmp_path):
    path = tmp_path / "t.npz"
    np.savez_compressed(path, **arrays(obs=np.zeros((LENGTH, 100_000))))
    with pytest.raises(TrajectoryFileError, match="bytes unpacked"):
        RecordedEpisode.load(path, max_bytes=1_000_000)


def npy(header):
    text = f"{header:<117}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(80)


SHAPED = "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}"


@pytest.mark.parametrize(
    "column",
    [
        npy(SHAPED.format("9" * 60 + ",")), npy(SHAPED.format("True,")), npy(SHAPED.format("-1,")),
        npy(SHAPED.format("1 << 62,")), npy("(" * 90), npy("[" * 5000), npy("\0"), npy("'a'"), b"",
        b"no array", b"\x93NUMPY\x09\x00",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["step", "obs", "reward_term_speed", "more"])
def test_a_column_that_is_no_array_is_refused(tmp_path, name, column):
    path = tmp_path / "t.npz"
    RecordedEpisode.from_arrays(arrays()).save(path)
    with zipfile.ZipFile(path) as good:
        files = {member: good.read(member) for member in good.namelist()}
    with zipfile.ZipFile(path, "w") as damaged:
        for member, content in {**files, f"{name}.npy": column}.items():
            damaged.writestr(member, content)
    with pytest.raises(TrajectoryFileError, match=r"t\.npz"):
        RecordedEpisode.load(path)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_damaged_file_is_refused_or_read_never_anything_else(tmp_path, data):
    path = tmp_path / "t.npz"
    RecordedEpisode.from_arrays(arrays()).save(path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with contextlib.suppress(TrajectoryFileError):
        assert RecordedEpisode.load(path).length == LENGTH
