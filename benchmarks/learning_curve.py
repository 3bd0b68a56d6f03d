"""Win rates over updates as a picture, drawn with Pillow: it is here anyway."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT, MARGIN = 560, 400, 60
INK, GRID, MEAN, NULL = "#222222", "#dddddd", "#1f6fb4", "#999999"
SEEDS = ("#9ecae1", "#a1d99b", "#fdae6b", "#bcbddc")


def draw(runs: list[dict[str, Any]], null: dict[str, float], path: Path) -> None:
    """One panel per game: every seed thin, their mean thick, random play dashed."""
    games = list(dict.fromkeys(one["game"] for one in runs))
    image = Image.new("RGB", (WIDTH * len(games), HEIGHT), "white")
    for number, game in enumerate(games):
        of_game = [one for one in runs if one["game"] == game]
        _panel(ImageDraw.Draw(image), number * WIDTH, game, of_game, null[game])
    image.save(path)


def _panel(
    pen: ImageDraw.ImageDraw, left: int, game: str, runs: list[dict[str, Any]], null: float
) -> None:
    small, large = ImageFont.load_default(size=13), ImageFont.load_default(size=16)
    last = 2 * runs[0]["updates"]
    x0, x1, y0, y1 = left + MARGIN, left + WIDTH - 20, HEIGHT - MARGIN, 45

    def place(update: float, rate: float) -> tuple[float, float]:
        return x0 + (x1 - x0) * update / last, y0 + (y1 - y0) * rate

    for tenth in range(0, 11, 2):
        y = place(0, tenth / 10)[1]
        pen.line([(x0, y), (x1, y)], fill=GRID)
        pen.text((x0 - 8, y), f".{tenth}0" if tenth < 10 else "1", INK, small, anchor="rm")
    for quarter in range(5):
        x = place(last * quarter / 4, 0)[0]
        pen.text((x, y0 + 8), f"{last * quarter / 4:g}", INK, small, anchor="mt")
    for dash in range(int(x0), int(x1), 10):
        y = place(0, null)[1]
        pen.line([(dash, y), (dash + 5, y)], fill=NULL, width=2)
    curves = [[(p["update"], p["win_rate"]) for p in one["points"]] for one in runs]
    for number, curve in enumerate(curves):
        pen.line([place(*point) for point in curve], fill=SEEDS[number % len(SEEDS)], width=2)
    mean = [
        (points[0][0], fmean(rate for _, rate in points)) for points in zip(*curves, strict=True)
    ]
    pen.line([place(*point) for point in mean], fill=MEAN, width=4, joint="curve")
    pen.text((x0, 18), f"{game}: win rate against random legal play", INK, large, anchor="lm")
    pen.text(((x0 + x1) / 2, y0 + 32), "updates", INK, small, anchor="mt")
    pen.text((x1, place(0, null)[1] + 6), "random", NULL, small, anchor="rt")
