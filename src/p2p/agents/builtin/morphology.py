"""An environment's model as the grammar needs it: its root, size and limbs, and which way is up.

Everything is read off the environment's own facts; no environment is known by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from p2p.agents.builtin.goals import Goal, Parsed
from p2p.agents.builtin.grammar import parse
from p2p.agents.builtin.lexicon import ARM_WORDS, LIMBS, OBJECT_WORDS, TARGET_WORDS
from p2p.agents.builtin.lexicon import SIDES as SIDES_BY_WORD
from p2p.config import engine_of
from p2p.training.engines.table import is_engine
from p2p.training.env_spec import BodyEntry, get_env_spec
from p2p.training.model_files.facts import read_facts
from p2p.training.model_files.store import is_model, read_record
from p2p.training.specs.spec_text import TERMINATION_RULES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from p2p.training.env_spec import EnvSpec, GeomEntry, JointEntry, Vec3

SETTLE_SECONDS = 2.0
FALLEN = 0.5
"""Who points up so much less than at the start has fallen."""
CRUMPLED = 0.7
"""Who sinks without effort to less than this share of the height at which it begins does not stand
there."""
TARGETS = ("target", "goal")
OBJECTS = ("object", "ball", "puck", "cube", "block", "box")
SIDES = ("left", "right", "front", "back")
LIMB_NAMES: dict[str, tuple[str, ...]] = {
    "leg": ("leg", "thigh", "shin", "foot", "limb"),
    "arm": ("arm", "hand"),
    "hand": ("hand", "lower_arm", "wrist"),
    "foot": ("foot", "ankle", "toe"),
    "thigh": ("thigh", "hip"),
    "shin": ("shin", "knee", "leg"),
    "elbow": ("lower_arm", "elbow", "forearm"),
    "head": ("head",),
    "tail": ("tail",),
    "wheel": ("wheel", "tire", "tyre"),
}
"""A word for a limb, and what models call it."""
SIDE_MARKS: dict[str, tuple[str, ...]] = {
    "l": ("left",), "r": ("right",),
    **{a + b: (one, other)
       for a, one in (("f", "front"), ("r", "back"), ("h", "back"), ("b", "back"))
       for b, other in (("l", "left"), ("r", "right"))},
    "lf": ("front", "left"), "rf": ("front", "right"), "lh": ("back", "left"),
    "rh": ("back", "right"), "lb": ("back", "left"), "rb": ("back", "right"),
    "fore": ("front",), "hind": ("back",), "rear": ("back",),
}  # fmt: skip
"""What the letters and words of a part's name say about where it is, beside the words of SIDES."""
_ASIDE = 0.05
"""As a share of its length: nearer to the middle, a part is on neither side."""


@dataclass(frozen=True)
class Morphology:
    spec: EnvSpec

    def observation_index(self, source: str) -> int | None:
        """Return the index of an expression over the state in the observation, or None."""
        entries = (entry.index for entry in self.spec.observation if entry.source == source)
        return next(entries, None)

    # --- the tree of bodies -----------------------------------------------------------------------

    @cached_property
    def root(self) -> BodyEntry | None:
        """The body whose joints carry all the others about; None: nothing moves along.

        What no actuator moves is not the robot but a thing about it.
        """
        loose = [
            body
            for body in self.spec.bodies[1:]
            if body.parent == 0 and any(map(_is_unbounded, self.joints_of(body)))
        ]
        driven = {joint.body for joint in self.driven}
        return next(
            (b for b in loose if not driven or driven & {part.name for part in self.below(b)}), None
        )

    def joints_of(self, body: BodyEntry) -> tuple[JointEntry, ...]:
        """The joints that move a body against its parent."""
        return tuple(joint for joint in self.spec.joints if joint.body == body.name)

    @cached_property
    def root_joints(self) -> tuple[JointEntry, ...]:
        return self.joints_of(self.root) if self.root else ()

    @cached_property
    def free(self) -> JointEntry | None:
        """The root's free joint."""
        return next((joint for joint in self.root_joints if joint.type == "free"), None)

    @cached_property
    def knows_heading(self) -> bool:
        """Whether the policy observes which way of the world it faces."""
        if self.free is None or "heading" not in self.spec.quantities:
            return True
        quaternion = (f"qpos[{self.free.qpos_address + 3 + part}]" for part in range(4))
        return all(self.observation_index(source) is not None for source in quaternion)

    def root_axis(self, kind: str, axis: int) -> tuple[JointEntry, float] | None:
        """The root's slide or hinge along a world axis, and its sign."""
        for joint in self.root_joints:
            if joint.type == kind and joint.axis and abs(joint.axis[axis]) > 0.99:
                return joint, float(np.sign(joint.axis[axis]))
        return None

    def below(self, body: BodyEntry) -> tuple[BodyEntry, ...]:
        """Return a body and all its descendants."""
        carried = {body.id: body}
        for other in self.spec.bodies[1:]:
            if other.parent in carried:
                carried.setdefault(other.id, other)
        return tuple(carried.values())

    def ends(self, body: BodyEntry) -> tuple[BodyEntry, ...]:
        """Return the last bodies of a body's branches."""
        parents = {other.parent for other in self.spec.bodies}
        return tuple(other for other in self.below(body) if other.id not in parents)

    @cached_property
    def parts(self) -> dict[str, BodyEntry]:
        """What the model file's TOML calls its bodies."""
        if not is_model(self.spec.env_id):
            return {}
        bodies = {body.name: body for body in self.spec.bodies}
        given = read_record(self.spec.env_id).parts
        return {words.lower(): bodies[name] for words, name in given.items() if name in bodies}

    def find_body(self, *words: str) -> BodyEntry | None:
        """Return the first body that has one of these words in a part's phrase or in its name."""
        called = (part for phrase, part in self.parts.items() if {*words} & {*phrase.split()})
        by_name = (body for body in self.spec.bodies[1:] if _has_word_prefix(body.name, words))
        return next(called, None) or next(by_name, None)

    @cached_property
    def driven(self) -> tuple[JointEntry, ...]:
        """The joints that actuators move."""
        names = {name for action in self.spec.actions for name in (action.joint, *action.moves)}
        return tuple(joint for joint in self.spec.joints if joint.name in names)

    @cached_property
    def cart(self) -> JointEntry | None:
        """The driven slide that carries poles."""
        slides = {joint.body: joint for joint in self.driven if joint.type == "slide"}
        return next((slides[j.parent] for j in self.spec.joints if j.parent in slides), None)

    @cached_property
    def poles(self) -> tuple[JointEntry, ...]:
        """Level hinges, one on the other, that can be balanced: on a cart, or on a fixed pivot.

        On a cart those that no actuator moves; on a pivot a single one, or several with an actuator
        missing. With all of them driven it is an arm.
        """
        if self.root is not None:
            return ()
        carriers = {self.cart.body if self.cart else self.spec.bodies[0].name}
        chain: list[JointEntry] = []
        for joint in self.spec.joints:
            level = joint.type == "hinge" and joint.axis is not None and abs(joint.axis[2]) < 0.5
            free = joint not in self.driven if self.cart else joint.range is None
            if level and free and joint.parent in carriers:
                chain.append(joint)
                carriers.add(joint.body)
        if self.cart or (len(chain) == len(self.spec.joints) and len(self.spec.actions) == 1):
            return tuple(chain)
        return ()

    @cached_property
    def hangs(self) -> bool:
        """Whether its first pole begins hanging down, so that it has to be swung up."""
        if not self.poles or not self.poles[0].start:
            return False
        pole = self.poles[0]
        turned = pole.start[0] - pole.rest[0]
        aside = float(np.cross(pole.axis or (0.0, 1.0, 0.0), pole.lever)[2])
        return float(np.cos(turned)) * pole.lever[2] + float(np.sin(turned)) * aside < 0

    @cached_property
    def goal(self) -> BodyEntry | GeomEntry | None:
        """What is to be reached: a body, or a shape that is fixed to the world, named for it."""
        body = self.find_body(*TARGETS)
        if body is not None:
            return None if self.hand is None or body.id in self._carried else body
        fixed = (geom for geom in self.spec.geoms if geom.body == self.spec.bodies[0].name)
        return next((geom for geom in fixed if _has_word_prefix(geom.name, TARGETS)), None)

    @cached_property
    def goal_radius(self) -> float:
        """Of the ball or disc that marks what is to be reached; 0 where there is none."""
        return self._radius(self.goal) if self.goal else 0.0

    @cached_property
    def placed_distance(self) -> float:
        """How far an object is from its goal, at most, where it lies on the goal's mark.

        Its middle is over the mark, or it covers the mark's; 0 where neither has a round shape.
        """
        goal, thing = self.goal, self.find_body(*OBJECTS)
        if goal is None or thing is None:
            return 0.0
        radius = max(self.goal_radius, self._radius(thing))
        mark = goal.rest_position if isinstance(goal, BodyEntry) else goal.position
        return float(np.hypot(radius, thing.rest_position[2] - mark[2])) if radius else 0.0

    def _radius(self, thing: BodyEntry | GeomEntry) -> float:
        """Return the radius of a body's largest ball or disc, or of such a shape; else 0."""
        shapes = (g for g in self.spec.geoms if g is thing or g.body == thing.name)
        return max((g.size[0] for g in shapes if g.type in ("sphere", "cylinder")), default=0.0)

    @cached_property
    def _carried(self) -> frozenset[int]:
        """The bodies that driven joints move."""
        moved = {joint.body for joint in self.driven}
        bodies = (body for body in self.spec.bodies[1:] if body.name in moved)
        return frozenset(part.id for body in bodies for part in self.below(body))

    @cached_property
    def hand(self) -> BodyEntry | None:
        """What reaches: the last body of an arm, or the root of what goes about as a whole."""
        if self.root is not None:
            return self.root
        return self.spec.bodies[max(self._carried)] if self._carried else None

    @cached_property
    def turning_thing(self) -> JointEntry | None:
        """The hinge of a thing beside an arm that is there to be turned."""
        if self.root is not None or self.poles:
            return None
        passive = (j for j in self.spec.joints if j.type == "hinge" and j not in self.driven)
        ids = {body.name: body.id for body in self.spec.bodies}
        return next(
            (j for j in passive if j.range is None and ids[j.body] not in self._carried), None
        )

    # --- sizes ------------------------------------------------------------------------------------

    @cached_property
    def _extent(self) -> NDArray[np.float64]:
        """Of all its shapes at rest, along x, y and z."""
        bodies = self.below(self.root) if self.root else self.spec.bodies[1:]
        centres = {body.name: np.asarray(body.rest_position) for body in bodies}
        corners = list(centres.values())
        for geom in self.spec.geoms:
            if geom.body in centres and geom.size:
                centre = centres[geom.body] + np.asarray(geom.position)
                corners += [centre + max(geom.size) / 2, centre - max(geom.size) / 2]
        return np.asarray(np.max(corners, axis=0) - np.min(corners, axis=0))

    @cached_property
    def length(self) -> float:
        """Its largest extent at rest, in metres."""
        if self.root is None and not self.poles and all(j.type == "slide" for j in self.driven):
            ways = [j.range[1] - j.range[0] for j in self.driven if j.range]
            return max([float(np.max(self._extent)), *ways])
        return float(np.max(self._extent))

    @cached_property
    def is_long(self) -> bool:
        """Whether it is longer than high where it stands, so that it has a nose to point up."""
        return (
            self.height_joint is not None
            and not self.starts_lying
            and bool(self._extent[0] > self._extent[2])
        )

    @cached_property
    def is_tall(self) -> bool:
        """Whether it is higher than wide where it stands, so that lying is not standing."""
        wide, high = float(max(self._extent[:2])), float(self._extent[2])
        return self.height_joint is not None and (self.starts_lying or high > wide)

    @cached_property
    def height_joint(self) -> JointEntry | None:
        """The root's joint that says how high it is; None: it cannot fall."""
        if not self.spec.gravity[2]:
            return None
        vertical = self.root_axis("slide", 2)
        return self.free or (vertical[0] if vertical else None)

    @cached_property
    def up(self) -> Vec3:
        """The root's own axis that points up when it stands: from its limbs' ends to the root."""
        upward = np.array([0.0, 0.0, 1.0])
        if self.root is not None and self.free and not self.cannot_fall:
            ends = [body.rest_position for body in self.ends(self.root)]
            towards = np.asarray(self.root.rest_position) - np.mean(ends, axis=0)
            axis = int(np.argmax(np.abs(towards)))
            if axis != 2 and abs(towards[axis]) >= 0.25 * self.length:
                upward = np.eye(3)[axis] * np.sign(towards[axis])
        return (float(upward[0]), float(upward[1]), float(upward[2]))

    @cached_property
    def starts_lying(self) -> bool:
        return self.height_joint is not None and self.up != (0.0, 0.0, 1.0)

    @cached_property
    def front(self) -> float:
        """Which way the root's own z axis points on one that starts lying: 1 front, -1 back.

        Knees bend one way only, towards the back; 0: nothing does.
        """
        bends = 0.0
        for joint in self.driven if self.starts_lying else ():
            low, high = joint.range or (-1.0, 1.0)
            if joint.axis is not None and (low >= 0 or high <= 0):
                body = next(body for body in self.spec.bodies if body.name == joint.body)
                arm = np.subtract(self.ends(body)[0].rest_position, joint.anchor)
                bends += np.sign(low + high) * float(np.cross(joint.axis, arm)[2])
        return float(-np.sign(bends))

    @cached_property
    def standing_height(self) -> float:
        """How high the root is when the agent stands, in metres."""
        assert self.root is not None
        if self.starts_lying:
            axis = int(np.argmax(np.abs(self.up)))
            ends = [body.rest_position[axis] for body in self.ends(self.root)]
            return float(max(abs(self.root.rest_position[axis] - end) for end in ends))
        pose = usual_pose(self.spec.env_id)
        usual = self.root.rest_position[2] if pose is None else float(pose[0][self.root.id, 2])
        if is_model(self.spec.env_id) and (joint := self.height_joint) and joint.start:
            first = joint.start[2] if self.free else joint.start[0] + (joint.height_offset or 0.0)
            return first if usual < CRUMPLED * first else usual
        return usual

    @cached_property
    def has_servos(self) -> bool:
        """Whether every action is the target of a position servo."""
        return all(action.kind == "position servo" for action in self.spec.actions)

    @cached_property
    def shanks(self) -> tuple[BodyEntry, ...]:
        """The bodies that carry it on their lower end, and begin well above the ground."""
        pose = usual_pose(self.spec.env_id)
        if pose is None or not self.free:
            return ()
        high = 0.3 * self.standing_height
        carrying = (self.spec.bodies[foot.body] for foot in self.spec.feet)
        return tuple(part for part in carrying if pose[0][part.id, 2] > high)

    @cached_property
    def start_height(self) -> float:
        """How high the root is when an episode begins."""
        assert self.root is not None
        return self.root.rest_position[2] if self.starts_lying else self.standing_height

    def allowed_height(self, height: float) -> float:
        """The nearest height of the root at which the environment does not end the episode."""
        low, high = self.spec.healthy_ranges.get("z", (None, None))
        if low is not None:
            height = max(height, 1.1 * low)
        return height if high is None else min(height, 0.95 * high)

    @cached_property
    def ceiling(self) -> tuple[float, float] | None:
        """From where on the root is high, and above which the environment ends the episode.

        Of wide agents only: they rise as they tip over, where tall ones sink.
        """
        usual, end = self.standing_height, self.spec.healthy_ranges.get("z", (None, None))[1]
        tips_up = float(max(self._extent[:2])) / 2 > usual
        if end is None or not tips_up or not self.may_end_early or end <= usual:
            return None
        return usual + 0.3 * (end - usual), end

    @cached_property
    def pace(self) -> float:
        """The speed that one unit of the speed table stands for, in m/s.

        On legs, the speed of a pendulum as long as they are (half of it for those taller than
        long); in the water, where nothing falls, a share of the length.
        """
        if self.height_joint is None:
            return 0.2 * self.length
        wide = float(max(self._extent[:2])) / max(float(self._extent[2]), 1e-6)
        height = max(self.standing_height, 0.05)
        return float(np.sqrt(9.81 * height)) * float(np.clip(wide, 0.5, 1.0))

    @cached_property
    def horizon(self) -> int:
        """Steps of an episode that is not cut short."""
        return self.spec.max_episode_steps or 1000

    @cached_property
    def may_end_early(self) -> bool:
        spec = self.spec
        if is_engine(spec.engine):
            return spec.terminate_when_unhealthy is True
        documented = spec.terminate_when_unhealthy is not None or spec.name in TERMINATION_RULES
        return documented or ends_early(spec.env_id)

    # --- limbs ------------------------------------------------------------------------------------

    @cached_property
    def limb_words(self) -> dict[str, str]:
        """What the model calls its parts: each word of their names."""
        names = [*self.parts, *(body.name for body in self.spec.bodies[1:])]
        words = (word for name in names for word in _words_of(name))
        return {word: word for word in words if word not in SIDES}

    @cached_property
    def subjects(self) -> frozenset[str]:
        """Nouns for what moves or is moved, where naming it adds nothing."""
        if self.root is not None:
            return frozenset()
        return frozenset().union(
            ARM_WORDS if not self.poles else (),
            TARGET_WORDS if self.goal else (),
            OBJECT_WORDS if self.find_body(*OBJECTS) else (),
            _words_of(self.turning_thing.body) if self.turning_thing else (),
        )

    def parse(self, text: str, *, remark: bool = False) -> Parsed:
        """Return what a prompt or a remark asks of this environment."""
        parsed = parse(text, self.limb_words, subjects=self.subjects, remark=remark)
        if self.is_long or len(self.spec.feet) != 2:
            return parsed
        # Upright on two feet, `on two legs` asks for nothing more.
        parts = [tuple(g for g in part if not _is_on_two_legs(g)) for part in parsed.parts]
        return replace(parsed, parts=tuple(parts))

    def limb(self, phrase: tuple[str, ...]) -> BodyEntry | None:
        """The part that these words (sides, then a noun) name: the last link of the limb.

        By its name, else by where it is and what it is good for.
        """
        if not phrase or self.root is None:
            return None
        *sides, noun = phrase
        for words, part in self.parts.items():
            if {SIDES_BY_WORD.get(w) or LIMBS.get(w, w) for w in words.split()} == {*phrase}:
                return part
        parts = self.below(self.root)[1:]
        names = LIMB_NAMES.get(noun, (noun,))
        called = [part for part in parts if any(name in part.name.lower() for name in names)]
        inner = noun in ("thigh", "shin", "elbow")
        for part in called:
            if all(_is_on(part, side, parts) for side in sides):
                return part if inner else self.ends(part)[0]
        for part in called:
            if all(side in self.sides_of(part) for side in sides):
                return part if inner else self.ends(part)[0]
        if noun not in LIMB_NAMES:
            return None
        wanted = {*sides}
        return next((part for part in self._links(noun) if wanted <= {*self.sides_of(part)}), None)

    def sides_of(self, part: BodyEntry) -> tuple[str, ...]:
        """Return where a part is by the marks in its name, else by its place beside the root.

        Front and back are told of legs that stand in rows.
        """
        marks = [mark for word in _marks_of(part.name) for mark in SIDE_MARKS.get(word, (word,))]
        sides = [mark for mark in marks if mark in SIDES]
        ahead, aside = self._place(part)
        near = _ASIDE * self.length
        if not {"left", "right"} & {*sides} and abs(aside) > near:
            sides.append("left" if aside > 0 else "right")
        if not {"front", "back"} & {*sides} and len(self.spec.feet) != 2 and abs(ahead) > near:
            sides.append("front" if ahead > 0 else "back")
        return tuple(sides)

    def _place(self, part: BodyEntry) -> tuple[float, float]:
        """Return how far a part is ahead of the root and to its left, where episodes begin."""
        assert self.root is not None
        pose = usual_pose(self.spec.env_id)
        if pose is None:
            away = np.subtract(part.rest_position, self.root.rest_position)
        else:
            away = pose[0][part.id] - pose[0][self.root.id]
        return float(away[0]), float(away[1])

    def _links(self, noun: str) -> list[BodyEntry]:
        """The links that a noun may mean, by their place on limbs that no name tells apart."""
        assert self.root is not None
        feet = {foot.body for foot in self.spec.feet}
        limbs = [
            [part for part in self.below(self.root) if end in self.below(part)][1:]
            for end in self.ends(self.root)
        ]
        legs = [links for links in limbs if links and links[-1].id in feet]
        others = [links for links in limbs if links and links[-1].id not in feet]
        near = _ASIDE * self.length
        middle = [links for links in others if abs(self._place(links[-1])[1]) <= near]
        arms = [links for links in others if links not in middle]
        behind = [links for links in middle if self._place(links[-1])[0] < -near]
        ahead = [links for links in middle if links not in behind]
        where = {"leg": (legs, -1), "foot": (legs, -1), "thigh": (legs, 0), "shin": (legs, -2),
                 "arm": (arms, -1), "hand": (arms, -1), "elbow": (arms, -2),
                 "tail": (behind, -1), "head": (ahead, -1)}  # fmt: skip
        if noun == "wheel":
            return list(self.wheels)
        chosen, place = where[noun]
        return [links[max(place, -len(links))] for links in chosen]

    @cached_property
    def wheels(self) -> tuple[BodyEntry, ...]:
        """What it rolls on: feet on level driven hinges that turn without end."""
        feet = {self.spec.bodies[foot.body].name for foot in self.spec.feet}
        axles = {
            joint.body
            for joint in self.driven
            if joint.type == "hinge" and joint.range is None and joint.axis
            if joint.body in feet and abs(joint.axis[2]) < 0.5
        }
        return tuple(body for body in self.spec.bodies if body.name in axles)

    @cached_property
    def cannot_fall(self) -> bool:
        """Whether it stands on three wheels or more: whatever it does, it is up."""
        feet = {self.spec.bodies[foot.body].name for foot in self.spec.feet}
        return len(self.wheels) > 2 and feet == {wheel.name for wheel in self.wheels}

    def chain(self, part: BodyEntry) -> tuple[JointEntry, ...]:
        """The joints between the root and a part, from the root on, without the root's own."""
        assert self.root is not None
        if part.id == self.root.id:
            return ()
        return (*self.chain(self.spec.bodies[part.parent]), *self.joints_of(part))

    def middle(self, part: BodyEntry) -> Vec3:
        """The middle of the part's mass, in its own frame."""
        return part.centre

    def limb_length(self, part: BodyEntry) -> float:
        """Return the distance from the limb's farthest joint to the middle of the part."""
        point = np.add(part.rest_position, self.middle(part))
        distances = (np.linalg.norm(point - joint.anchor) for joint in self.chain(part))
        return float(max(distances, default=0.0))

    def usual_rise(self, part: BodyEntry) -> float:
        """Return how high the middle of a part is over the root in the usual pose."""
        assert self.root is not None
        pose = usual_pose(self.spec.env_id)
        if pose is None:
            return part.rest_position[2] - self.root.rest_position[2]
        lift = _height_of(self.middle(part), pose[1][part.id])
        return float(pose[0][part.id, 2] - pose[0][self.root.id, 2]) + lift

    @cached_property
    def head_top(self) -> float:
        """How high the top of its head is over the root where it stands upright."""
        assert self.root is not None
        tops = [
            body.rest_position[2] - self.root.rest_position[2] + geom.position[2] + max(geom.size)
            for geom in self.spec.geoms
            for body in self.spec.bodies
            if geom.body == body.name and geom.size and "head" in f"{geom.name} {body.name}".lower()
        ]
        return max(tops, default=0.3 * self.standing_height)

    def raised_height(self, part: BodyEntry) -> float:
        """Return the height of a part's middle over the root when its limb is raised.

        Well above where it usually is, and above the joint that it hangs from.
        """
        shoulder, length = self._hanging(part)
        return max(self.usual_rise(part), shoulder) + 0.3 * length

    def lowered_height(self, part: BodyEntry) -> float:
        """Return the height of a part's middle over the root when its limb hangs down.

        Below where it usually is, as far as the limb reaches.
        """
        shoulder, length = self._hanging(part)
        return max(self.usual_rise(part) - 0.3 * length, shoulder - 0.9 * length)

    def _hanging(self, part: BodyEntry) -> tuple[float, float]:
        """Return how high over the root the joint is that a limb hangs from, and its length.

        A joint that moves limbs of both sides, such as a waist, is not of the limb.
        """
        assert self.root is not None
        own: list[JointEntry] = []
        body = part
        while body.id != self.root.id and not self._carries_both_sides(body):
            own[:0] = self.joints_of(body)
            body = self.spec.bodies[body.parent]
        chain = own or self.chain(part)
        point = np.add(part.rest_position, self.middle(part))
        length = max(float(np.linalg.norm(point - joint.anchor)) for joint in chain)
        return chain[0].anchor[2] - self.root.rest_position[2], length

    def _carries_both_sides(self, body: BodyEntry) -> bool:
        """Return whether parts to the left and to the right hang from it."""
        assert self.root is not None
        aside = [
            child.rest_position[1] - self.root.rest_position[1]
            for child in self.spec.bodies
            if child.parent == body.id
        ]
        edge = 0.05 * self.length
        return min(aside, default=0.0) < -edge and max(aside, default=0.0) > edge

    @cached_property
    def leg_joints_by_side(self) -> tuple[tuple[JointEntry, ...], ...]:
        """The driven hinges of the legs on each side; empty where there are no sides."""
        if self.root is None or self.starts_lying:
            return ()
        sides: dict[bool, list[JointEntry]] = {}
        for foot in self.spec.feet:
            aside = foot.lowest_point[1] - self.root.rest_position[1]
            if abs(aside) < 0.05 * self.length:
                return ()
            chain = self.chain(self.spec.bodies[foot.body])
            driven = [j for j in chain if j.type == "hinge" and j in self.driven]
            sides.setdefault(aside > 0, []).extend(driven)
        return tuple(tuple(dict.fromkeys(side)) for side in sides.values() if side)

    def rests_on(self, part: BodyEntry) -> bool:
        """Return whether it stands on this part."""
        return not self.starts_lying and any(foot.body == part.id for foot in self.spec.feet)


def _words_of(name: str) -> list[str]:
    """The words of a part's name."""
    return [word for word in re.split(r"[^a-z]+", name.lower()) if len(word) > 2]


def _has_word_prefix(name: str, words: tuple[str, ...]) -> bool:
    """Return whether a word of a name starts with one of these: `box0`, but not `gearbox`."""
    return any(word.startswith(words) for word in re.split(r"[^a-z]+", name.lower()))


def _marks_of(name: str) -> list[str]:
    """The words of a name in lower case, single letters among them: `FL_calf`, `leftFoot`."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def _is_unbounded(joint: JointEntry) -> bool:
    """Return whether a root joint is unbounded: it has no stops and no spring."""
    return joint.type == "free" or (
        joint.type == "slide" and joint.range is None and not joint.stiffness
    )


def _height_of(point: Vec3, quaternion: NDArray[np.float64]) -> float:
    """Return how far a point of a turned frame is above the frame's origin."""
    w, x, y, z = quaternion
    vertical = (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y))
    return float(np.dot(vertical, point))


def _is_on(part: BodyEntry, side: str, parts: tuple[BodyEntry, ...]) -> bool:
    name = part.name.lower()
    words = re.split(r"[^a-z]+", name)
    # Where only the left ones are marked, the others are the right ones.
    unmarked = "left" not in words and any(o.name.lower() == f"{name}_left" for o in parts)
    initial = name[0] == side[0] and name[1:] in ("thigh", "shin", "foot", "leg")
    return (
        side in words
        or (side == "right" and unmarked)
        or (side in ("front", "back") and initial)
    )  # fmt: skip


@cache
def usual_pose(env_id: str) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Positions and orientations of all bodies after some seconds without any effort.

    Of the first moment if it falls meanwhile, which many environments do not end; None if there is
    no MuJoCo behind it.
    """
    import gymnasium as gym

    from p2p.training.envs.registry import quiet_loading

    if is_engine(engine_of(env_id)):
        return _first_pose(env_id)
    if is_model(env_id):
        facts = read_facts(env_id)
        return np.array(facts.settled_xpos), np.array(facts.settled_xquat)
    with quiet_loading():
        env = gym.make(env_id)
    try:
        env.reset(seed=0)
        data = getattr(env.unwrapped, "data", None)
        if data is None:
            return None
        first = data.xpos.copy(), data.xquat.copy()
        up = float(data.xmat[1, 8])
        still = np.zeros(env.action_space.shape or ())
        for _ in range(int(SETTLE_SECONDS / get_env_spec(env_id).dt)):
            _, _, terminated, truncated, _ = env.step(still)
            if terminated:
                return first
            if truncated:
                break
        fell = abs(data.xmat[1, 8] - up) > FALLEN
        return first if fell else (data.xpos.copy(), data.xquat.copy())
    finally:
        env.close()


def _first_pose(env_id: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The pose in which an engine's episodes begin, by the model that it left."""
    import mujoco

    from p2p.training.video.scene import open_model

    model, _ = open_model(env_id)
    data = mujoco.MjData(model)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_kinematics(model, data)
    return data.xpos.copy(), data.xquat.copy()


@cache
def ends_early(env_id: str) -> bool:
    """Return whether an episode of random actions is seen to terminate within some seconds."""
    import gymnasium as gym

    from p2p.training.envs.registry import quiet_loading

    if is_model(env_id):
        return read_facts(env_id).ends_early
    with quiet_loading():
        env = gym.make(env_id)
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        for _ in range(int(SETTLE_SECONDS / get_env_spec(env_id).dt)):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                return bool(terminated)
        return False
    finally:
        env.close()


def _is_on_two_legs(goal: Goal) -> bool:
    return goal.motion == "reared" and all("two legs" in phrase for phrase in goal.words)


@cache
def morphology_of(env_id: str) -> Morphology:
    """Raises UnknownEnvironmentError and its like."""
    return Morphology(get_env_spec(env_id))
