import { expect, test } from "vitest";
import type { Iteration, PendingFeedback } from "../api/types";
import { bounds, demand, parseSetting, parts, scorable, settingText } from "./feedback";

const NOTHING: PendingFeedback = {
  number: 1, pause: null, remark: "", score: null, scored_iteration: null, criteria: null, reward_code: null, hp_changes: {}, withdraws: [], given_at: "2026-01-01T00:00:00Z",
};

const SPEED = { id: "s", title: "Fast", description: "", measure: "mean speed", comparison: "at_least", threshold: 3, unit: "m/s", weight: 1, category: "task", visual: false, event: "", soft_reason: "" } as const;

test("an event is told as what must not happen", () => {
  expect(demand(SPEED)).toBe("Fast ≥ 3 m/s");
  expect(demand({ ...SPEED, comparison: "at_most", threshold: 0, event: "fell" })).toBe("never: fell");
  expect(demand({ ...SPEED, title: "Does not fall", comparison: "at_most", threshold: 0, event: "fell" })).toBe("Does not fall");
  expect(demand({ ...SPEED, comparison: "at_most", threshold: 2, event: "fell" })).toBe("at most 2 times: fell");
});

test("pending feedback is told in full", () => {
  const all = { ...NOTHING, pause: true, remark: "lower", score: 0.3, scored_iteration: 2, criteria: [SPEED], reward_code: "x", hp_changes: { gamma: 0.9, net_arch: [64, 32] } };
  expect(parts(all)).toEqual([
    ["remark", "lower"],
    ["score", "0.30 for iteration 2"],
    ["reward", "your own, for the next iteration"],
    ["criteria", "Fast ≥ 3 m/s"],
    ["settings", "gamma = 0.9, net_arch = 64 × 32"],
    ["pause", "after this iteration"],
  ]);
  expect(parts({ ...NOTHING, pause: false })).toEqual([["pause", "no longer"]]);
});

test("a score waits until the last iteration is judged", () => {
  const judged = { iteration: 1, intent_score: 0.4 } as Iteration;
  const training = { iteration: 2, intent_score: null } as Iteration;
  expect(scorable([]).reason).toMatch("no iteration");
  expect(scorable([judged])).toEqual({ iteration: 1, reason: null });
  expect(scorable([judged, training]).reason).toMatch("Iteration 2 is not judged yet");
});

test("settings are read by their kind", () => {
  expect(parseSetting("number", "1e-4")).toBe(1e-4);
  expect(parseSetting("integer", "1.5")).toBeNull();
  expect(parseSetting("number", " ")).toBeNull();
  expect(parseSetting("boolean", "false")).toBe(false);
  expect(parseSetting("layers", "64 x 32")).toEqual([64, 32]);
  expect(parseSetting("layers", "64, wide")).toBeNull();
  expect(settingText([64, 32])).toBe("64 32");
  expect(bounds({ name: "gamma", kind: "number", value: 0.9, low: 0.8, high: 0.9999 })).toBe("revisions stay within 0.8 and 0.9999");
});
