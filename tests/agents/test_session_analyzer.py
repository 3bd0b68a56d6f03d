"""A report on a session, in whatever state that is."""

from __future__ import annotations

import re

import pytest

from p2p.agents.requests import AnalysisRequest
from p2p.agents.session_analyzer import analyze
from p2p.contracts import SessionAnalysis
from p2p.records.iteration_record import SessionRecord
from p2p.records.session_view import SessionView
from session_folder import INTENT, Scripted, SessionFolder, tool

REPORT = SessionAnalysis(summary="It ran.", worked=("speed",))


def asked(client) -> AnalysisRequest:
    (block,) = re.findall(
        r'<request role="session_analyzer">\n(.*?)\n</request>',
        client.questions[0].prompt,
        re.DOTALL,
    )
    return AnalysisRequest.model_validate_json(block)


def test_a_report_has_its_author_and_the_session_in_short(tmp_path):
    folder = SessionFolder.create(tmp_path)
    folder.iterate(1, 0.4)
    folder.iterate(2, None, parent=1)

    def reply(question):
        assert "score 0.40" in tool(question, "get_history")()
        assert "update_lesson" not in [t.__name__ for t in question.tools]
        return REPORT

    client = Scripted([reply])
    assert analyze(client, folder.view()) == REPORT.model_copy(update={"author": "test:script"})
    request = asked(client)
    assert (request.status, request.criteria) == ("running", INTENT.criteria)
    assert [(past.iteration, past.score) for past in request.history] == [(1, 0.4), (2, None)]
    assert list(request.criterion_scores) == [1]


@pytest.mark.parametrize(
    ("status", "error", "told"),
    [
        ("cancelled", None, "cancelled"),
        ("error", "the disk is full", "error: the disk is full"),
        ("passed", None, "passed"),
    ],
)
def test_it_works_however_the_session_ended(tmp_path, status, error, told):
    folder = SessionFolder.create(tmp_path)
    folder.record.set_status(status, error)
    client = Scripted([REPORT])
    analyze(client, folder.view())
    assert asked(client).status == told
    assert asked(client).history == ()


def test_iterations_count_that_the_lineage_does_not_have_yet(tmp_path):
    folder = SessionFolder.create(tmp_path)
    folder.iterate(1, 0.4)
    (folder.record.path / "lineage.json").unlink()
    client = Scripted([REPORT])
    analyze(client, folder.view())
    assert [(past.iteration, past.score) for past in asked(client).history] == [(1, 0.4)]


def test_a_session_that_never_got_criteria_is_reported_on(tmp_path):
    record = SessionRecord(tmp_path / "session_x")
    record.set_status("auth_error", "the key was refused")
    client = Scripted([REPORT])
    analyze(client, SessionView(record))
    request = asked(client)
    assert (request.criteria, request.env_id) == ((), "")
    assert request.status == "auth_error: the key was refused"


def test_an_empty_report_is_asked_for_again(tmp_path):
    client = Scripted([SessionAnalysis(summary=" "), REPORT])
    analyze(client, SessionFolder.create(tmp_path).view())
    assert client.complaints == ["the summary is empty"]
