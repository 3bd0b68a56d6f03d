"""Criteria proposed for a sentence, to be looked at before anything is started."""

from __future__ import annotations

from fastapi import APIRouter

from p2p.api.house import TheHouse
from p2p.api.problems import BadRequest, NoAnswer
from p2p.api.schemas import ProposalRequest
from p2p.config import LoopConfig
from p2p.contracts import Intent
from p2p.inference.ledger import allowance
from p2p.inference.question import InferenceError
from p2p.records.iteration_record import SessionRecord
from p2p.session.agents import SessionAgents

router = APIRouter(prefix="/api", tags=["sessions"])
FOLDER = ".proposals"
"""Below the runs: what was asked, and what it cost. The same question is not paid for twice."""


@router.post("/criteria")
def propose_criteria(house: TheHouse, wanted: ProposalRequest) -> Intent:
    """What would be measured; asks the model, which may cost something."""
    record = SessionRecord(house.runs_dir / FOLDER)
    record.path.mkdir(parents=True, exist_ok=True)
    model = wanted.model or ""
    try:
        budget = allowance(record.llm_dir, model, wanted.budget_usd)
        agents = SessionAgents(record, LoopConfig(model=model, budget_usd=budget))
        env_id = wanted.env_id
        if not env_id:
            choice = agents.choose_environment(wanted.prompt)
            if choice.env_id is None:
                raise BadRequest(choice.reason)
            env_id = choice.env_id
        return agents.elicit(wanted.prompt, env_id)
    except InferenceError as error:
        raise NoAnswer(error) from error
    except ValueError as error:
        raise BadRequest(str(error)) from error
