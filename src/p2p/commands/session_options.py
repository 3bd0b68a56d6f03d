"""Flags of everything that starts a session: the same names and words wherever it is started."""

from __future__ import annotations

from typing import Annotated

import typer

EnvOption = Annotated[
    str | None,
    typer.Option("--env", "-e", metavar="ID", help="Environment (default: chosen and said)."),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="PROVIDER:MODEL",
        help="Who thinks (default: the first provider with a key, else `builtin`).",
    ),
]
VlmOption = Annotated[
    str | None,
    typer.Option(metavar="PROVIDER:MODEL", help="Who looks at the videos (default: nobody)."),
]
IterationsOption = Annotated[
    int | None, typer.Option("--iterations", "-n", metavar="N", help="At most so many.")
]
TimestepsOption = Annotated[
    int | None, typer.Option(metavar="N", help="Environment steps of each training run.")
]
ConfigsOption = Annotated[
    int | None, typer.Option(metavar="N", help="Hyperparameter settings to try side by side.")
]
SeedsOption = Annotated[
    str | None, typer.Option(metavar="N|LIST", help="How many seeds, or which: 3, or 1,5,7.")
]
ThresholdOption = Annotated[
    float | None, typer.Option(metavar="0..1", help="The score that passes.")
]
BudgetOption = Annotated[
    float | None, typer.Option(metavar="USD", help="Spend at most so much on models.")
]
MinutesOption = Annotated[
    float | None, typer.Option(metavar="MINUTES", help="Work on it at most so long, in all.")
]
SettingOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Fix a TrainConfig field; repeatable."),
]
VideosOption = Annotated[bool, typer.Option(help="Render evaluation episodes.")]
