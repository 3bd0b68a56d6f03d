"""`p2p check`: is this reward fit to train on?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from p2p.commands.console import CommandError, JsonFlag, UnsafeFlag, err, out, print_json, shown
from p2p.commands.reward_file import check_environment, open_reward

if TYPE_CHECKING:
    from p2p.training.reward.check import CheckResult

COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


def check(
    reward: Annotated[str, typer.Argument(help="Reward file, or a name that `p2p rewards` lists.")],
    env: Annotated[
        str | None,
        typer.Option("--env", "-e", metavar="ID", help="Environment; `p2p envs` lists them."),
    ] = None,
    side_info: Annotated[
        bool, typer.Option("--side-info", help="Give it mj_model and mj_data in info.")
    ] = False,
    unsafe_local: UnsafeFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Run a reward on its real environment, in the sandbox, and say what is wrong.

    Looks at syntax, signature, what it returns, whether values are finite and
    terms sum to the total, dead and constant terms, whether one call can serve
    a whole batch, and microseconds per step.
    Exit status 1 if it cannot be trained on.

    [bold]Examples[/]

      p2p check reward.py --env Hopper-v5
      p2p check ant_run_forward --json
    """
    from p2p.config import TrainConfig
    from p2p.sandbox import SandboxUnavailable
    from p2p.training.reward.check import check_reward

    found = open_reward(reward)
    env_id = env or found.env_id or TrainConfig().env_id
    check_environment(env_id)
    try:
        with err.status(f"checking on {env_id}"):
            report = check_reward(
                found.path, env_id, unsafe_local=unsafe_local, side_info=side_info
            )
    except SandboxUnavailable as error:
        raise CommandError(error) from error
    if as_json:
        print_json(report.model_dump(mode="json") | {"ok": report.ok})
    else:
        out.print(f"[bold]{escape(shown(found.path))}[/] on {escape(env_id)}", soft_wrap=True)
        lines = Table.grid(padding=(0, 2))
        for finding in report.findings:
            colour = COLOURS[finding.level]
            lines.add_row(f"[{colour}]{finding.level}[/]", escape(finding.message))
        if report.findings:
            out.print(lines)
        if report.result is not None:
            _measured(report.result)
        out.print("[green]fit to train on[/]" if report.ok else "[red]not fit to train on[/]")
    if not report.ok:
        raise typer.Exit(1)


def _measured(result: CheckResult) -> None:
    """What values it took, and what it costs."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("per step", "minimum", "mean", "maximum"):
        table.add_column(title, justify="left" if title == "per step" else "right")
    for term in (*result.terms, result.total):
        name = "[bold]total[/]" if term is result.total else escape(term.name)
        table.add_row(name, *(f"{x:,.4g}" for x in (term.minimum, term.mean, term.maximum)))
    out.print(table)
    calls = "once for all environments" if result.batched else "for each environment"
    out.print(
        f"{result.steps} steps of {result.num_envs} environments, random and zero actions; called "
        f"{calls}, {result.us_per_step:.2f} µs per environment step"
    )
