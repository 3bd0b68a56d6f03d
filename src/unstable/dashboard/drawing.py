"""The panels of the dashboard, as functions of a view and its size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from statistics import fmean

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from unstable.dashboard import Curve, Gpu, Number, RatingRow, View, WinRate
from unstable.evaluation import parse_iteration

BLOCKS = "▁▂▃▄▅▆▇█"
BLANK_AND_BLOCKS = f" {BLOCKS}"
NOTHING = Text("nothing yet", style="dim")
SHADES = ("dim", "", "cyan", "bold cyan", "bold magenta")
"""Styles of the cells of the match table, from few games to many."""
STATUS_STYLES = {"running": "green", "cancelled": "yellow", "failed": "bold red"}
MAX_HEIGHT = 4
"""Lines of a curve."""
NAME = 18
"""Characters of a name."""
MAX_PLAYERS = 24
"""Rows of the match table."""


def draw_sparkline(values: Sequence[float | None], width: int, height: int = 1) -> str:
    """Draw values as bars, each the mean of its share; a blank where none is finite."""
    width = min(width, len(values))
    bounds = [round(i * len(values) / width) for i in range(width + 1)] if width > 0 else []
    shares = [[v for v in values[a:b] if v is not None] for a, b in pairwise(bounds)]
    known = [fmean(share) for share in shares if share]
    if not known:
        return ""
    low, high = min(known), max(known)
    scale = (len(BLOCKS) * height - 1) / (high - low) if high > low else 0.0
    tall = [round((fmean(share) - low) * scale) + 1 if share else 0 for share in shares]
    rows = [
        "".join(BLANK_AND_BLOCKS[min(len(BLOCKS), max(0, t - below))] for t in tall)
        for below in range(0, len(BLOCKS) * height, len(BLOCKS))
    ]
    return "\n".join(reversed(rows))


def draw_bar(share: float, width: int) -> str:
    filled = round(min(1.0, max(0.0, share)) * width)
    return "█" * filled + "░" * (width - filled)


def draw_headline(view: View, trouble: str | None = None, now: float | None = None) -> Text:
    """Draw one line about the run: its name, progress and status."""
    games = sum(number.value for number in view.games if number.name.startswith("train"))
    steps = f"{view.step:,}" if view.updates is None else f"{view.step:,} of {view.updates:,}"
    text = Text.assemble((view.run_name or "run", "bold"), f"  step {steps}")
    text.append(f"  games {games:,.0f}")
    if view.buffer_size is not None:
        text.append(f"  buffer {view.buffer_size:,}")
    failed = sum(number.value for number in view.failures)
    if failed:
        text.append(f"  failures {failed:,.0f}", style="bold red")
    if trouble is not None:
        return text.append(f"  {trouble}", style="bold red")
    if view.written is None:
        return text.append("  live", style="green")
    if view.status:
        text.append(f"  {view.status}", style=STATUS_STYLES.get(view.status, ""))
    age = (time.time() if now is None else now) - view.written
    text.append(f"  written {format_age(age)} ago", style="dim")
    if view.message:
        text.append(f"  {view.message}", style="red")
    return text


def format_age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def draw_learner(view: View, width: int, height: int) -> RenderableType:
    if not view.curves:
        return NOTHING
    lasts = [_format_last(curve) for curve in view.curves]
    names = [Text(curve.name[:NAME]) for curve in view.curves]
    room = _remaining_width(width, names, lasts)
    slot = height // len(view.curves)
    lines, gap = (min(MAX_HEIGHT, slot - 1), "\n") if slot > 2 else (1, "")
    bars = [Text(draw_sparkline(curve.values, room, lines) + gap, "green") for curve in view.curves]
    return _make_grid(list(zip(names, lasts, bars, strict=True)))


def _format_last(curve: Curve) -> Text:
    value = curve.values[-1]
    return Text("not finite", "bold red") if value is None else Text(format_number(value))


def format_number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e8 else f"{value:.4g}"


COLLECTED_FORMATS = {"game length": "{:.1f}", "answer length": "{:.1f}", "reward": "{:+.3f}"}
"""Of means that are no shares."""


def draw_games(view: View, _: int, __: int) -> RenderableType:
    rows = [_make_row(number, f"{number.value:,.0f}") for number in view.games]
    rows += [
        _make_row(n, COLLECTED_FORMATS.get(n.name, "{:.1%}").format(n.value))
        for n in view.collected
    ]
    rows += [
        (Text(number.name, "red"), Text(f"{number.value:,.0f}", "bold red"))
        for number in view.failures
    ]
    if view.buffer_size is not None:
        rows.append((Text("steps in the buffer"), Text(f"{view.buffer_size:,}")))
    return _make_grid(rows) if rows else NOTHING


def draw_evaluation(view: View, width: int, _: int) -> RenderableType:
    if not view.win_rates:
        return NOTHING
    return Group(*(_draw_win_rate(rate, width) for rate in view.win_rates))


def _draw_win_rate(rate: WinRate, width: int) -> Text:
    share = f"{rate.win_rate:.1%} ({rate.low:.0%} to {rate.high:.0%})"
    if rate.players == 1:
        title, values = rate.env_id, [one.reward for one in rate.history]
        numbers = f"reward {rate.reward:.3f} ± {rate.reward_se:.3f}"
        shares = f"solved {share}, invalid {rate.invalid_rate:.1%}"
    else:
        title, values = (
            f"{rate.env_id} against {rate.opponent or '?'}",
            [one.win_rate for one in rate.history],
        )
        numbers = share
        shares = f"draws {rate.draw_rate:.0%}, invalid {rate.invalid_rate:.1%}"
    if rate.exploitability is not None:
        shares += f", exploitability {rate.exploitability:.3f}"
    curve = draw_sparkline(values, max(6, width - len(numbers) - 1))
    return Text.assemble(
        f"{title}\n",
        (numbers, "bold"), " ", (curve, "green"), "\n",
        (f"{rate.ckpt_uid or '?'}, {rate.games:,} games, {shares}", "dim"),
    )  # fmt: skip


def draw_engines(view: View, width: int, _: int) -> RenderableType:
    if not view.engines and not view.gpus:
        return NOTHING
    fastest = max((engine.tok_s for engine in view.engines), default=0.0)
    rows: list[tuple[Text, Text, float | Text]] = []
    for engine in view.engines:
        share = engine.tok_s / fastest if fastest else 0.0
        rows.append((Text(engine.name[:NAME]), Text(f"{engine.tok_s:,.0f} tok/s"), share))
        rows.append((Text(""), Text(f"{engine.running:.0f} running", "dim"),
                     Text(f"{engine.queued:.0f} queued", "dim")))  # fmt: skip
    rows += [row for gpu in view.gpus for row in _make_gpu_rows(gpu)]
    room = _remaining_width(width, [row[0] for row in rows], [row[1] for row in rows])
    return _make_grid(
        [(name, number, x if isinstance(x, Text) else Text(draw_bar(x, room), "cyan"))
         for name, number, x in rows]
    )  # fmt: skip


def _make_gpu_rows(gpu: Gpu) -> list[tuple[Text, Text, float | Text]]:
    details = [] if gpu.tok_s is None else [f"{gpu.tok_s:,.0f} tok/s"]
    details += [] if gpu.watts is None else [f"{gpu.watts:.0f} W"]
    busy = "" if gpu.busy is None else f"{gpu.busy:.0%} busy"
    memory = gpu.used_gib / gpu.total_gib if gpu.total_gib else 0.0
    return [
        (Text(f"GPU {gpu.index}"), Text(busy), gpu.busy or 0.0),
        (
            Text(" ".join(details), "dim"),
            Text(f"{gpu.used_gib:.0f} of {gpu.total_gib:.0f} GiB", "dim"),
            memory,
        ),
    ]


def draw_ratings(view: View, width: int, _: int) -> RenderableType:
    """Draw players by strength; the bar is mu, the shaded end one sigma."""
    if not view.ratings:
        return NOTHING
    low = min(row.mu - row.sigma for row in view.ratings)
    high = max(row.mu + row.sigma for row in view.ratings)
    names = [
        Text(f"{'●' if row.active else '○'} {shorten_name(row.uid)[:NAME]}") for row in view.ratings
    ]
    numbers = [Text(f"{row.mu:.1f} ± {row.sigma:.1f}") for row in view.ratings]
    room = _remaining_width(width, names, numbers)
    scale = room / (high - low) if high > low else 0.0
    bars = [_draw_rating(row, low, scale) for row in view.ratings]
    for row, cells in zip(view.ratings, zip(names, numbers, bars, strict=True), strict=True):
        for cell in cells if not row.active else ():
            cell.stylize("dim")
    return _make_grid(list(zip(names, numbers, bars, strict=True)))


def _draw_rating(row: RatingRow, low: float, scale: float) -> Text:
    sure = round((row.mu - row.sigma - low) * scale)
    upper = round((row.mu + row.sigma - low) * scale)
    return Text("█" * sure + "▒" * (upper - sure), "cyan")


def draw_matches(view: View, width: int, _: int) -> RenderableType:
    """Draw the number of games per pair, of as many players as fit."""
    if not view.matches:
        return NOTHING
    played: dict[str, int] = {}
    for match in view.matches:
        for uid in {match.first, match.second}:
            played[uid] = played.get(uid, 0) + match.games
    names = min(NAME, max(len(shorten_name(uid)) for uid in played))
    most = view.matches[0].games
    room = max(1, (width - names - 4) // (_format_count(most, most).cell_len + 1))
    busiest = sorted(played, key=lambda uid: -played[uid])[: min(room, MAX_PLAYERS)]
    busiest.sort(key=parse_iteration)
    games = {frozenset((m.first, m.second)): m.games for m in view.matches}
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", justify="right", style="dim")
    table.add_column("", no_wrap=True)
    for number in range(1, len(busiest) + 1):
        table.add_column(str(number), justify="right", header_style="dim")
    for i, uid in enumerate(busiest):
        cells = [
            _format_count(games.get(frozenset((uid, other)), 0), most) for other in busiest[: i + 1]
        ]
        table.add_row(str(i + 1), shorten_name(uid)[:NAME], *cells)
    left = len(played) - len(busiest)
    return Group(table, Text(f"and {left} more players", "dim")) if left else table


def _format_count(games: int, most: int) -> Text:
    shade = SHADES[min(len(SHADES) - 1, round(games / most * (len(SHADES) - 1)))]
    text = f"{games / 1000:.0f}k" if games >= 10_000 else str(games)
    return Text(text if games else "·", shade if games else "dim")


def draw_exploration(view: View, _: int, __: int) -> RenderableType:
    if not view.exploration:
        return NOTHING
    rows: list[tuple[Text, ...]] = []
    for env_id, numbers in view.exploration:
        rows.append((Text(env_id, "bold"), Text("")))
        rows += [_make_row(number, f"{number.value:.1%}") for number in numbers]
    return _make_grid(rows)


def draw_game(view: View, _: int, __: int) -> RenderableType:
    return Text(view.latest_game, overflow="fold") if view.latest_game else NOTHING


def shorten_name(uid: str) -> str:
    return uid.removeprefix("fixed-")


def _make_row(number: Number, value: str) -> tuple[Text, Text]:
    return Text(number.name), Text(value)


def _remaining_width(width: int, *columns: Sequence[Text]) -> int:
    used = sum(max(cell.cell_len for cell in column) + 1 for column in columns)
    return max(4, width - used)


def _make_grid(rows: Sequence[tuple[Text, ...]]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, overflow="crop")
    for row in rows:
        table.add_row(*row)
    return table


PANELS: dict[str, tuple[str, Callable[[View, int, int], RenderableType]]] = {
    "learner": ("Learner", draw_learner),
    "games": ("Games", draw_games),
    "evaluation": ("Win rate in evaluation", draw_evaluation),
    "engines": ("Engines", draw_engines),
    "ratings": ("Ratings", draw_ratings),
    "matches": ("Matches", draw_matches),
    "exploration": ("Exploration", draw_exploration),
    "game": ("Latest game", draw_game),
}
"""By id: the title, and what draws it."""


WIDE = 110
"""Columns from which on panels stand side by side."""


def draw_snapshot(view: View, width: int) -> RenderableType:
    """Draw all panels one below the other, or in two columns where there is room."""
    columns = 2 if width >= WIDE else 1
    inside = width // columns - 4
    panels = [Panel(draw(view, inside, 1), title=title) for title, draw in PANELS.values()]
    grid = Table.grid(expand=True)
    for _ in range(columns):
        grid.add_column(ratio=1)
    last = len(panels) - 1  # the transcript of a game takes a row of its own
    for i in range(0, last, columns):
        grid.add_row(*panels[i : min(i + columns, last)])
    return Group(draw_headline(view), grid, panels[last])


# --- HTML, for notebooks --------------------------------------------------------------------------


WIDTH, HEIGHT = 220, 44
"""Pixels of a curve."""
HEADER = "<tr><th>game</th><th>opponent</th><th>checkpoint</th><th>result</th><th></th></tr>"


def draw_run(view: View) -> str:
    """Return the status, and a row by game and opponent with the curve over checkpoints."""
    total = "" if view.updates is None else f" of {view.updates:,}"
    title = f"<b>{escape(view.run_name)}</b> {escape(view.status)}, update {view.step:,}{total}"
    rows = "".join(map(_draw_row, view.win_rates))
    message = f"<p>{escape(view.message)}</p>" if view.message else ""
    return f"<div><p>{title}</p>{message}<table>{HEADER}{rows}</table></div>"


def _draw_row(rate: WinRate) -> str:
    if rate.players == 1:
        result = f"mean reward {rate.reward:.3f} ± {rate.reward_se:.3f}"
        values = [one.reward for one in rate.history]
    else:
        result = f"win rate {rate.win_rate:.3f} ({rate.low:.3f} to {rate.high:.3f})"
        values = [one.win_rate for one in rate.history]
    cells = (rate.env_id, rate.opponent, rate.ckpt_uid, result)
    texts = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f"<tr>{texts}<td>{_draw_curve(values)}</td></tr>"


def _draw_curve(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    scale = (HEIGHT - 4) / (high - low or 1.0)
    step = WIDTH / max(1, len(values) - 1)
    points = " ".join(
        f"{i * step:.1f},{HEIGHT - 2 - (value - low) * scale:.1f}" for i, value in enumerate(values)
    )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}"><polyline points="{points}" fill="none"'
        ' stroke="currentColor" stroke-width="1.5"/></svg>'
    )
