"""The shipped prompts with the built-in author, over several seeds: judges against ground truth.

python benchmarks/mujoco_prompts.py FOLDER... [--rows FILE...] [--write]

Each FOLDER is that of a `p2p benchmark --model builtin --seed N`, finished or not; policies that
are not measured yet are measured. The suite takes hours on two cores, so folders may cover parts
of it and come from several machines: `--rows` adds what this script wrote elsewhere. With --write,
rows are kept in results/mujoco_prompts.json and added to by the next call; a later row of the same
prompt and seed replaces an earlier one, which a `--note` should say. With --cut-off, sessions that
were stopped after an iteration without a pass count as not passed, marked in the table. With
--compare, only what FOLDERS have is printed, beside the kept rows of the same prompts, and nothing
is kept.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any

from common import RESULTS, machine, table, write

from p2p.benchmark.measuring import measure
from p2p.benchmark.records import case_record, read_benchmark
from p2p.benchmark.report import OUTCOMES, CaseReport, make_report, spearman
from p2p.benchmark.suite import DIFFICULTIES, load_suite
from p2p.records.iteration_record import SessionRecord
from unstable.evaluation import wilson

SUITE = "mujoco_prompts"
Row = dict[str, Any]


# --- reading --------------------------------------------------------------------------------------


def rows_of(folder: Path, cpu: str, *, cut_off: bool) -> list[Row]:
    """The finished prompts of a benchmark, which ran on such a CPU; or also those cut off."""
    benchmark = read_benchmark(folder)
    if benchmark is None:
        raise SystemExit(f"{folder}: no benchmark.json that can be read")
    (seed,) = benchmark.options.get("seeds") or [1]
    when = f"{benchmark.created_at:%Y-%m-%d}"
    limit = benchmark.options.get("max_iterations")
    # A benchmark of some of the prompts, or in another order, numbers them by itself.
    numbers = {(case.env_id, case.instruction): case.number for case in load_suite(SUITE)}
    same = {"seed": seed, "cpu": cpu, "date": when, "max_iterations": limit}
    reports = [
        each if each.finished else measured(each, folder)
        for each in make_report(benchmark, folder).cases
        if each.finished or (cut_off and each.policy is not None)
    ]
    return [
        {**row_of(each, folder, number), **same}
        for each in reports
        if (number := numbers.get((each.case.env_id, each.case.instruction))) is not None
    ]


def measured(report: CaseReport, folder: Path) -> CaseReport:
    """With the ground truth of the best policy so far."""
    result = case_record(folder, report.case.number).result.read()
    return report.model_copy(update={"truth": measure(folder, report.case, result)})


def steps_taken(record: SessionRecord) -> int:
    """All environment steps of a session's trainings; one that continues another has its own."""
    total = 0
    for run in (run for iteration in record.iteration_records() for run in iteration.runs()):
        training, _ = run.parse_scalars()
        config = run.config.read()
        if training and config is not None:
            total += training[-1]["global_step"] - training[0]["global_step"] + config.batch_size
    return total


def row_of(report: CaseReport, folder: Path, number: int) -> Row:
    truth = report.truth
    return {
        "case": number,
        "env_id": report.case.env_id,
        "prompt": report.case.instruction,
        "difficulty": report.case.difficulty,
        "outcome": report.outcome if report.finished else "not_passed",
        "cut_off": not report.finished,
        "score": report.score,
        "truth": bool(report.truly_passed),
        "measured": truth.text if truth else (report.message or "no policy"),
        "attained": truth.attained if truth else None,
        "iterations": report.iterations,
        "steps": steps_taken(case_record(folder, report.case.number)),
        "minutes": round(report.minutes, 2),
    }


# --- counting -------------------------------------------------------------------------------------


def share(count: int, total: int) -> str:
    if not total:
        return "-"
    low, high = wilson(count, total)
    return f"{count} of {total}, {count / total:.0%} ({low:.0%} to {high:.0%})"


def mean_of(values: list[bool]) -> float:
    return fmean(values) if values else 0.0


def line_of(name: str, rows: list[Row]) -> list[str]:
    passed = [row for row in rows if row["outcome"] == "passed"]
    failed = [row for row in rows if row["outcome"] not in ("passed", "unverified")]
    return [
        name,
        share(len(passed), len(rows)),
        share(sum(row["truth"] for row in rows), len(rows)),
        str(sum(not row["truth"] for row in passed)),
        str(sum(row["truth"] for row in failed)),
        f"{median(row['minutes'] for row in rows):.1f}",
        f"{fmean(row['steps'] for row in rows) / 1e6:.2f} M",
    ]


def goals(rows: list[Row]) -> list[list[str]]:
    hard = [row for row in rows if row["difficulty"] == "hard"]
    passed = [row for row in rows if row["outcome"] == "passed"]
    pairs = [(r["score"], r["attained"]) for r in rows if None not in (r["score"], r["attained"])]
    scores, attained = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    ranks = spearman(scores, attained) or 0.0
    # Those that attain all of it are tied, whatever their scores: no order of scores gets beyond.
    most = spearman(sorted(scores), sorted(attained)) or 0.0
    true, true_hard = (mean_of([row["truth"] for row in some]) for some in (rows, hard))
    false = mean_of([not row["truth"] for row in passed])
    minutes = median(row["minutes"] for row in rows)
    figures = (
        ("ground-truth pass rate", f"{true:.0%}", "≥ 85 %", true >= 0.85),
        ("of the hard ones", f"{true_hard:.0%}", "≥ 50 %", true_hard >= 0.5),
        ("false passes, of all passes", f"{false:.1%}", "≤ 5 %", false <= 0.05),
        (
            "rank correlation of score and ground truth",
            f"{ranks:.2f}, of at most {most:.2f} with these ties",
            "≥ 0.8",
            ranks >= 0.8,
        ),
        ("median minutes a prompt", f"{minutes:.1f}", "< 10", minutes < 10),
    )
    rows_of_table = [
        [name, value, goal, "met" if met else "missed"] for name, value, goal, met in figures
    ]
    alike, different = ordered_alike(pairs)
    told = f"{alike / max(different, 1):.0%} of {different}"
    return [
        *rows_of_table,
        ["pairs that differ by ground truth, ordered alike by score", told, "", ""],
    ]


def ordered_alike(pairs: list[tuple[float, float]]) -> tuple[float, int]:
    """Of pairs of policies that differ by ground truth: ordered alike by score, and all of them."""
    alike, different = 0.0, 0
    for (score, attained), (other_score, other_attained) in combinations(pairs, 2):
        if attained != other_attained:
            different += 1
            same = (score - other_score) * (attained - other_attained)
            alike += 1.0 if same > 0 else 0.5 if same == 0 else 0.0
    return alike, different


def outcome_of(row: Row) -> str:
    return OUTCOMES[row["outcome"]] + (" when cut off" if row.get("cut_off") else "")


def of_prompt(rows: list[Row]) -> list[str]:
    first = rows[0]
    return [
        f"{first['env_id']}: {first['prompt']}",
        first["difficulty"],
        ", ".join(outcome_of(row) for row in rows),
        ", ".join("-" if row["score"] is None else f"{row['score']:.2f}" for row in rows),
        "; ".join(" ".join(row["measured"].split())[:120] for row in rows),
        ", ".join(str(row["iterations"]) for row in rows),
        ", ".join(f"{row['minutes']:.1f}" for row in rows),
    ]


def report(rows: list[Row], notes: list[str]) -> str:
    seeds = sorted({row["seed"] for row in rows})
    cases = load_suite(SUITE)
    by_case = {case.number: [r for r in rows if r["case"] == case.number] for case in cases}
    missing = [
        f"seed {seed}: {', '.join(f'{n} of {env_id}' for env_id, n in left.items())}"
        for seed in seeds
        if (
            left := Counter(
                case.env_id
                for case in cases
                if seed not in {row["seed"] for row in by_case[case.number]}
            )
        )
    ]
    disputed = [
        f"{row['env_id']}: {row['prompt']} (seed {row['seed']}): {kind}; {row['measured']}"
        for row in rows
        if row["outcome"] != "unverified"
        for kind in ("false pass" if row["outcome"] == "passed" else "false fail",)
        if (row["outcome"] == "passed") != row["truth"]
    ]
    groups = [line_of("all", rows)]
    for field, names in (
        ("difficulty", DIFFICULTIES),
        ("env_id", sorted({row["env_id"] for row in rows})),
        ("seed", seeds),
    ):
        for name in names:
            some = [row for row in rows if row[field] == name]
            label = f"seed {name}" if field == "seed" else str(name)
            groups += [line_of(label, some)] if some else []
    machines = sorted({f"{row['cpu']}, {row['date']}" for row in rows})
    limits = sorted({str(row["max_iterations"]) for row in rows})
    how = (
        f"`p2p benchmark --model builtin`, one core for each prompt, at most {', '.join(limits)} "
        f"iterations, seeds {', '.join(map(str, seeds))}: {len(rows)} sessions. A pass is the "
        "session's own, on held-out seeds. With words of the prompt that no criterion measures it "
        "is unverified, and neither a false pass nor a false fail. The ground truth is the mean of "
        "ten further episodes in plain Gymnasium, measured by code that knows nothing of the "
        "judges. Intervals are Wilson's, of 95 %. A prompt that `builtin` refuses counts as not "
        "passed."
    )
    lines = [
        "# The shipped prompts, with the built-in author",
        "",
        how,
        "",
        *(f"- {line}" for line in machines),
        "- no cost: no language model is asked",
        *(f"- {note}" for note in notes),
        "",
        table(["goal", "measured", "asked", ""], goals(rows)),
        "",
        table(
            ["", "passed (judge)", "ground-truth pass rate", "false passes", "false fails",
             "median minutes", "mean steps"],
            groups,
        ),
        "",
        "Where judges and ground truth differ:",
        "",
        *([f"- {line}" for line in disputed] or ["- nowhere"]),
        "",
        *(["Not run yet: " + "; ".join(missing) + ".", ""] if missing else []),
        table(
            ["prompt", "", "outcome", "score", "ground truth", "iterations", "minutes"],
            [of_prompt(by_case[case.number]) for case in cases if by_case[case.number]],
        ),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def comparison(rows: list[Row], kept: list[Row]) -> str:
    """Each prompt of `rows` beside its kept rows, and how many are worse than all of these."""
    lines, worse = [], []
    for row in rows:
        old = [each for each in kept if each["case"] == row["case"]]
        if old and row["outcome"] != "passed" and all(e["outcome"] == "passed" for e in old):
            worse.append(f"{row['env_id']}: {row['prompt']}")
        minutes = ", ".join(f"{each['minutes']:.1f}" for each in old)
        lines.append([
            f"{row['env_id']}: {row['prompt']}",
            f"{outcome_of(row)}, {' '.join(row['measured'].split())[:60]}",
            ", ".join(outcome_of(each) for each in old),
            f"{row['iterations']} ({', '.join(str(each['iterations']) for each in old)})",
            f"{row['minutes']:.1f} ({minutes})",
        ])  # fmt: skip
    header = ["prompt", "now", "kept", "iterations (kept)", "minutes (kept)"]
    groups = [line_of("now", rows), *([line_of("kept", kept)] if kept else [])]
    titles = ["", "passed", "ground truth", "false passes", "false fails", "minutes", "steps"]
    text = f"{len(worse)} of {len(rows)} passed before and not now: {'; '.join(worse) or '-'}"
    return "\n\n".join((table(header, lines), table(titles, groups), text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, help="folders of benchmarks")
    parser.add_argument("--cpu", help="that they ran on; default: this one's")
    parser.add_argument("--rows", nargs="*", default=[], type=Path, help="written elsewhere")
    parser.add_argument("--note", action="append", default=[], help="to stand above the table")
    parser.add_argument("--cut-off", action="store_true", help="count sessions that were stopped")
    parser.add_argument("--compare", action="store_true", help="with the kept rows; keep nothing")
    parser.add_argument("--fresh", action="store_true", help="do not take over earlier rows")
    parser.add_argument("--write", action="store_true", help="keep rows and table in results/")
    args = parser.parse_args()
    kept = RESULTS / f"{SUITE}.json"
    record = {} if args.fresh or not kept.exists() else json.loads(kept.read_text())
    earlier, notes = record.get("rows", []), [*record.get("notes", []), *args.note]
    elsewhere = [row for path in args.rows for row in json.loads(path.read_text())["rows"]]
    cpu = args.cpu or machine()["cpu"]
    here = [r for folder in args.folders for r in rows_of(folder, cpu, cut_off=args.cut_off)]
    if args.compare and here:
        cases = {row["case"] for row in here}
        print(comparison(here, [row for row in earlier if row["case"] in cases]))
        return
    merged = {(row["case"], row["seed"]): row for row in (*earlier, *elsewhere, *here)}
    if not merged or args.compare:
        parser.error("no finished prompt: name folders of benchmarks, or --rows")
    rows = [merged[key] for key in sorted(merged)]
    text = report(rows, notes)
    print(text)
    if args.write:
        write(SUITE, text, {"notes": notes, "rows": rows})


if __name__ == "__main__":
    main()
