"""Numbers of a report as people read them: what Markdown and HTML share."""

from __future__ import annotations

from collections.abc import Sequence

from p2p.benchmark.report import CaseReport, Group, Rate, Report

GROUP_HEAD = (
    "", "prompts", "finished", "passed (judge)", "passed (truth)", "errors", "mean score",
    "iterations", "minutes", "tokens", "cost",
)  # fmt: skip
CASE_HEAD = (
    "case", "environment", "prompt", "category", "difficulty", "outcome", "score",
    "truth", "iterations", "minutes", "tokens", "cost",
)  # fmt: skip
OUTCOMES = {
    "passed": "passed",
    "not_passed": "not passed",
    "error": "error",
    "unfinished": "not finished",
    "not_run": "not run",
}
NOT_A_RATE = "-"


def group_row(group: Group) -> list[str]:
    """A row below GROUP_HEAD."""
    return [
        group.name,
        str(group.cases),
        str(group.finished),
        rate(group.judged),
        rate(group.true),
        str(group.errors),
        number(group.mean_score),
        f"{group.iterations:.1f}",
        f"{group.minutes:.1f}",
        f"{group.tokens:,.0f}",
        money(group.cost_usd),
    ]


def case_row(found: CaseReport) -> list[str]:
    """A row below CASE_HEAD."""
    case = found.case
    return [
        str(case.number),
        case.env_id,
        case.instruction,
        case.category,
        case.difficulty,
        OUTCOMES[found.outcome],
        number(found.score),
        truth(found),
        str(found.iterations),
        f"{found.minutes:.1f}",
        f"{found.tokens:,}",
        money(found.cost_usd),
    ]


def rate(found: Rate) -> str:
    """`3 of 4, 75 % (30 to 95 %)`."""
    if found.rate is None or found.low is None or found.high is None:
        return NOT_A_RATE
    return (
        f"{found.passed} of {found.total}, {found.rate:.0%} ({found.low:.0%} to {found.high:.0%})"
    )


def truth(found: CaseReport) -> str:
    """What was measured, and whether that is enough."""
    measured = found.truth
    if measured is None:
        return found.truth_note or ("no policy" if found.truly_passed is False else NOT_A_RATE)
    enough = "met" if measured.passed else "missed"
    wanted = f"{measured.better.replace('_', ' ')} {measured.threshold:g}"
    return f"{enough}: {measured.truth} {measured.value:.3g} {measured.unit}, {wanted} asked"


def number(value: float | None) -> str:
    """Two digits; nothing was judged is not a zero."""
    return NOT_A_RATE if value is None else f"{value:.2f}"


def money(value: float) -> str:
    """In dollars."""
    return f"${value:.4f}" if value else "$0"


def about(report: Report) -> list[str]:
    """What was run, and how to read it; one sentence each."""
    made = report.benchmark
    given = [f"{name} {value}" for name, value in made.options.items() if value != ""]
    options = ", ".join(given) or "defaults"
    stages = (
        f"{len(made.stages)} stages, each after a mean score of {made.gate_threshold:g}"
        if made.mode == "staged"
        else "flat"
    )
    return [
        f"{len(made.cases)} prompts of {made.suite}, {stages}; options: {options}.",
        (
            "A pass is the session's own: its judges' score on starts that training never saw. "
            "The truth is a measurement on the simulator that knows nothing of the judges: the "
            "mean over ten further episodes of the final policy, in plain Gymnasium."
        ),
        (
            "Rates are over prompts whose session finished, with the 95 % interval by Wilson. A "
            "session that ended with an error counts as not passed and has a column of its own. "
            "Minutes are of the session's own processes."
        ),
    ]


def agreement(report: Report) -> list[str]:
    """Judge against truth, in sentences."""
    found = report.agreement
    if not found.compared:
        return ["No prompt has both a verdict and a measurement yet."]
    lines = [f"Judge and truth agree on {found.agreed} of {found.compared} prompts."]
    if found.rank_correlation is None:
        lines.append("There are too few different values for a rank correlation.")
    else:
        lines.append(
            f"Rank correlation (Spearman) of the judge's score with the share of the threshold "
            f"that is attained: {found.rank_correlation:.2f} over {found.correlated} prompts."
        )
    lines.append(f"False passes (the judge passed, the truth is missed): {_named(report, True)}.")
    lines.append(
        f"False fails (the truth is met, the judge did not pass): {_named(report, False)}."
    )
    return lines


def _named(report: Report, passes: bool) -> str:
    numbers = report.agreement.false_passes if passes else report.agreement.false_fails
    cases = {found.case.number: found.case for found in report.cases}
    names = [f"{cases[n].env_id} {cases[n].instruction!r}" for n in numbers]
    return f"{len(names)}" + (f" ({'; '.join(names)})" if names else "")


def not_finished(report: Report) -> list[str]:
    """Cases that do not count, and why; and errors, which do."""
    return [
        f"{found.case.env_id} {found.case.instruction!r}: {OUTCOMES[found.outcome]}"
        + (f" ({' '.join(found.message.split())[:300]})" if found.message else "")
        for found in report.cases
        if found.outcome in ("error", "unfinished", "not_run")
    ]


def gates(report: Report) -> list[str]:
    """What each gate said."""
    lines = []
    for gate in report.gates:
        verdict = "the next one began" if gate.passed else "no further stage was begun"
        missing = f"; without a score, counted as 0: {_numbers(gate.missing)}"
        lines.append(
            f"stage {gate.stage + 1}: mean score {gate.mean_score:.2f} of {len(gate.scores)} "
            f"prompts, threshold {gate.threshold:g}: {verdict}" + (missing if gate.missing else "")
        )
    return lines


def _numbers(missing: dict[int, str]) -> str:
    return ", ".join(f"case {number}" for number in missing)


def tables(report: Report) -> list[tuple[str, Sequence[Group]]]:
    """The tables of groups and their titles."""
    return [
        ("All", [report.overall]),
        ("By difficulty", report.by_difficulty),
        ("By environment", report.by_env),
        ("By category", report.by_category),
    ]
