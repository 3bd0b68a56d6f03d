"""Log files."""

from __future__ import annotations

from unstable.utils.logging import setup_logger


def test_a_logger_writes_to_its_file(tmp_path):
    logger = setup_logger("collector", tmp_path / "logs")
    logger.info("game %d", 7)
    logger.debug("not this")
    text = (tmp_path / "logs" / "collector.log").read_text()
    assert "INFO" in text
    assert "game 7" in text
    assert "not this" not in text


def test_asked_again_it_writes_to_the_new_folder_once(tmp_path):
    setup_logger("learner", tmp_path / "a").info("first")
    setup_logger("learner", tmp_path / "b").info("second")
    assert "second" not in (tmp_path / "a" / "learner.log").read_text()
    assert (tmp_path / "b" / "learner.log").read_text().count("second") == 1
