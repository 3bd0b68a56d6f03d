/** Feedback for a session: what is pending in words, and what can be said now. */
import type { Criterion, Iteration, PendingFeedback, TunableSetting } from "../api/types";
import { plain, score, withUnit } from "./format";

/** What a criterion asks of its measure, such as "≥ 3 m/s"; of an event how often it may happen. */
export function bound(criterion: Criterion): string {
  if (criterion.event) {
    const count = Math.floor(criterion.threshold);
    return count < 1 ? "never" : `at most ${count} time${count > 1 ? "s" : ""}`;
  }
  const sign = criterion.comparison === "at_least" ? "≥" : "≤";
  return `${sign} ${withUnit(criterion.threshold, criterion.unit)}`;
}

/** A criterion's condition, as `Criterion.demand` has it: "Fast ≥ 3 m/s"; of an event "Does not fall", or "never: fell". */
export function demand(criterion: Criterion): string {
  if (criterion.event && criterion.threshold < 1 && /^(never|does not) /i.test(criterion.title)) return criterion.title;
  return criterion.event ? `${bound(criterion)}: ${criterion.event}` : `${criterion.title} ${bound(criterion)}`;
}

/** The parts of a piece of feedback, each with its name; the code of a reward is shown apart. */
export function parts(feedback: PendingFeedback): (readonly [name: string, text: string])[] {
  const lines: (readonly [string, string])[] = [];
  if (feedback.remark) lines.push(["remark", feedback.remark]);
  if (feedback.score !== null) lines.push(["score", score(feedback.score) + (feedback.scored_iteration === null ? "" : ` for iteration ${feedback.scored_iteration}`)]);
  if (feedback.reward_code !== null) lines.push(["reward", "your own, for the next iteration"]);
  if (feedback.criteria !== null) lines.push(["criteria", feedback.criteria.map(demand).join("; ")]);
  const settings = Object.entries(feedback.hp_changes).map(([name, value]) => `${name} = ${plain(value)}`);
  if (settings.length > 0) lines.push(["settings", settings.join(", ")]);
  if (feedback.pause !== null) lines.push(["pause", feedback.pause ? "after this iteration" : "no longer"]);
  return lines;
}

export type Scorable = { iteration: number; reason: null } | { iteration: null; reason: string };

/** Which iteration a score would be for; while there is none, why. */
export function scorable(iterations: readonly Iteration[]): Scorable {
  const last = iterations.at(-1);
  if (last === undefined) return { iteration: null, reason: "There is no iteration to score yet." };
  if (last.intent_score === null) {
    return { iteration: null, reason: `Iteration ${last.iteration} is not judged yet: watch it first, then score it. Pause after this iteration to have the time.` };
  }
  return { iteration: last.iteration, reason: null };
}

/** A setting as it was typed; null if it is none. */
export function parseSetting(kind: TunableSetting["kind"], text: string): unknown {
  const typed = text.trim();
  if (kind === "boolean") return typed === "true" ? true : typed === "false" ? false : null;
  if (kind === "layers") {
    const sizes = typed.split(/[\s,x×]+/).filter(Boolean).map(Number);
    return sizes.length > 0 && sizes.every((size) => Number.isInteger(size) && size > 0) ? sizes : null;
  }
  const value = typed === "" ? Number.NaN : Number(typed);
  return Number.isFinite(value) && (kind === "number" || Number.isInteger(value)) ? value : null;
}

/** A setting's value as it is typed. */
export function settingText(value: unknown): string {
  return Array.isArray(value) ? value.join(" ") : value === null ? "" : String(value);
}

/** What revisions keep a setting within. */
export function bounds(setting: TunableSetting): string {
  return setting.low === null || setting.high === null ? "" : `revisions stay within ${plain(setting.low)} and ${plain(setting.high)}`;
}
