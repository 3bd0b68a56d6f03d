"""A recipe as source text: a reward file as a person would write it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from p2p.agents.builtin.body import body_of
from p2p.agents.builtin.criteria import apply_goal
from p2p.agents.builtin.grammar import parse
from p2p.agents.builtin.limbs import TURNED
from p2p.agents.builtin.measures import WHOLE, Measure, read_measure
from p2p.agents.builtin.quantities import Quantity, quantities_of, reward_code
from p2p.agents.builtin.recipe import Recipe, Term, from_criteria
from p2p.agents.builtin.sheet import Sheet
from p2p.agents.requests import CodeDraft, RewardRequest
from p2p.contracts import Criterion


def write_reward(request: RewardRequest) -> CodeDraft:
    """The reward for these criteria."""
    recipe, unread = recipe_for(
        request.prompt, request.env_id, request.criteria, side_info=request.side_info
    )
    text = f"Terms: {', '.join(f'{term.name} ({term.weight:g})' for term in recipe.terms)}."
    if unread:
        text += f" No term serves: {', '.join(unread)}."
    return CodeDraft(code=render(recipe), explanation=text)


def recipe_for(
    prompt: str, env_id: str, criteria: Sequence[Criterion], *, side_info: bool = False
) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe for these criteria, and the ids of those that no term can serve."""
    quantities = quantities_of(env_id)
    read = understood(env_id, criteria)
    title = in_a_docstring(prompt)[:70].strip().rstrip(".") or "as asked"
    title = title[0].upper() + title[1:]
    recipe = from_criteria(env_id, title, read, quantities, side_info=side_info)
    served = {name for term in recipe.terms for name in term.criteria}
    return recipe, tuple(c.id for c in criteria if c.id not in served)


def in_a_docstring(text: str) -> str:
    """The text on one line, without anything that could end a string or a comment."""
    plain = " ".join(text.split()).replace("\\", " ").replace('"', "'")
    return "".join(letter for letter in plain if letter.isprintable())


def understood(env_id: str, criteria: Sequence[Criterion]) -> tuple[tuple[Criterion, Measure], ...]:
    """The criteria whose measure is one of ours, or that the grammar can make one of."""
    quantities = quantities_of(env_id)
    found: list[tuple[Criterion, Measure]] = []
    for criterion in criteria:
        measure = read_measure(criterion.measure, quantities) or _guess(env_id, criterion)
        if measure is not None:
            found.append((criterion, measure))
    return tuple(found)


def _guess(env_id: str, criterion: Criterion) -> Measure | None:
    """What a person's own criterion means: the measure that the grammar gives to its words."""
    body = body_of(env_id)
    for text in (criterion.measure, criterion.title):
        sheet = Sheet(body, quantities_of(env_id))
        for goal in parse(text, body.limb_words).goals:
            apply_goal(sheet, goal)
        for made in sheet.found:
            measure = read_measure(made.measure, sheet.quantities)
            if measure is None or made.comparison != criterion.comparison:
                continue
            is_share = measure.stat in ("share", "lasting")
            if is_share == (0 <= criterion.threshold <= 1 and not criterion.unit):
                return measure
    return None


def render(recipe: Recipe) -> str:
    """The source of a reward."""
    quantities = quantities_of(recipe.env_id)
    timed = any(term.window != WHOLE for term in recipe.terms)
    body = _statements(recipe, quantities)
    names = [term.name for term in recipe.terms]
    total = " + ".join(names) or "np.zeros(np.shape(action)[:-1])"
    result = ", ".join(f'"{name}": {name}' for name in names)
    ends = [f"terms = {{{result}}}", f"return {total}, terms"]
    latex = "r = " + (" + ".join(_latex(term, quantities) for term in recipe.terms) or "0")
    terms = {term.name: _says(term, quantities) for term in recipe.terms}
    write = _class_source if timed else _function_source
    return write(recipe, [*body, *ends], latex, terms)


def _function_source(
    recipe: Recipe, body: Sequence[str], latex: str, terms: Mapping[str, str]
) -> str:
    doc = [
        f'r"""{recipe.title}.',
        "",
        f"LaTeX: {latex}",
        "Terms:",
        *(f"    {name}: {text}" for name, text in terms.items()),
        '"""',
    ]
    lines = [
        f'"""{recipe.title}."""',
        "",
        "import numpy as np",
        "",
        f'ENV_ID = "{recipe.env_id}"',
        recipe.line(),
        *_helpers(body),
        "",
        "",
        "def reward_fn(obs, action, next_obs, info):",
        *(textwrap.indent(line, "    ") for line in (*doc, *body)),
    ]
    return "\n".join(lines) + "\n"


def _class_source(recipe: Recipe, body: Sequence[str], latex: str, terms: Mapping[str, str]) -> str:
    horizon = body_of(recipe.env_id).horizon
    clock = [
        'start = np.asarray(info["_episode_start"])',
        "self._step = np.where(start, 0, self._step + 1)",
        "now = self._step / HORIZON",
    ]
    told = [f'    "{name}": "{text}",' for name, text in terms.items()]
    lines = [
        f'"""{recipe.title}."""',
        "",
        "import numpy as np",
        "",
        f'ENV_ID = "{recipe.env_id}"',
        f"HORIZON = {horizon}",
        recipe.line(),
        *_helpers(body),
        "",
        "",
        "class Sequence(RewardFunction):",
        f'    """{recipe.title}."""',
        "",
        "    def __init__(self):",
        "        self._step = 0",
        "",
        "    def compute(self, obs, action, next_obs, info):",
        *(textwrap.indent(line, " " * 8) for line in (*clock, *body)),
        "",
        "    @property",
        "    def latex(self):",
        f'        return r"{latex}"',
        "",
        "    @property",
        "    def terms(self):",
        "        return {",
        *(textwrap.indent(line, " " * 8) for line in told),
        "        }",
    ]
    return "\n".join(lines) + "\n"


def _helpers(body: Sequence[str]) -> list[str]:
    needed = any("turned(" in line for line in body)
    return ["", "", *TURNED.splitlines()] if needed else []


def _statements(recipe: Recipe, quantities: Mapping[str, Quantity]) -> list[str]:
    used = dict.fromkeys(term.quantity for term in recipe.terms if term.quantity)
    codes = {key: reward_code(quantities[key], side_info=recipe.side_info) for key in used}
    lines = [f"{_measured(key)} = {code}" for key, code in codes.items()]
    for term in recipe.terms:
        value = _code(term)
        if term.window != WHOLE:
            first, last = term.window
            value = f"np.where((now >= {first:.4g}) & (now < {last:.4g}), {value}, 0.0)"
        lines.append(f"{term.name} = {value}")
    return lines


def _measured(key: str) -> str:
    return f"q_{key}"


def _code(term: Term) -> str:
    q, w, t, s = _measured(term.quantity), f"{term.weight:g}", f"{term.target:g}", f"{term.scale:g}"
    forms = {
        "alive": f"{w} * np.ones(np.shape(action)[:-1])",
        "more": f"{w} * np.clip({q} / {t}, {-term.cap:g}, {term.cap:g})",
        "near": f"{w} * (1.0 - np.clip(np.abs({q} - {t}) / {s}, 0.0, 2.0))",
        "reach": f"{w} * (np.exp(-np.square({q} / {t})) - np.clip({q} / {s}, 0.0, 1.0))",
        "under": f"-{w} * np.clip(({q} - {t}) / {s}, 0.0, 1.0)",
        "over": f"-{w} * np.clip(({t} - {q}) / {s}, 0.0, 1.0)",
    }
    return forms[term.shape]


def _latex(term: Term, quantities: Mapping[str, Quantity]) -> str:
    if term.shape == "alive":
        return f"{term.weight:g}"
    x, t, s = quantities[term.quantity].symbol, f"{term.target:g}", f"{term.scale:g}"
    forms = {
        "more": rf"[{x} / {t}]_{{{-term.cap:g}}}^{{{term.cap:g}}}",
        "near": rf"(1 - [\|{x} - {t}\| / {s}]^2)",
        "reach": rf"(e^{{-({x} / {t})^2}} - [{x} / {s}]_0^1)",
        "under": rf"(-[({x} - {t}) / {s}]_0^1)",
        "over": rf"(-[({t} - {x}) / {s}]_0^1)",
    }
    return f"{term.weight:g} {forms[term.shape]}"


def _says(term: Term, quantities: Mapping[str, Quantity]) -> str:
    if term.shape == "alive":
        return "for every step that the episode lasts"
    quantity = quantities[term.quantity]
    unit = f" {quantity.unit}" if quantity.unit else ""
    forms = {
        "more": f"{quantity.words}, worth more up to {term.target * term.cap:.3g}{unit}",
        "near": f"{quantity.words}, best at {term.target:.3g}{unit}",
        "reach": f"{quantity.words}, the less the better",
        "under": f"cost of {quantity.words} above {term.target:.3g}{unit}",
        "over": f"cost of {quantity.words} below {term.target:.3g}{unit}",
    }
    return forms[term.shape]
