import { expect, test } from "vitest";
import { PHASES, nowAndNext } from "./phase";

test("every phase says what happens, and waiting goes first", () => {
  for (const [phase] of PHASES) expect(nowAndNext({ status: "running", phase, waiting: "" })).not.toBe("");
  expect(nowAndNext({ status: "running", phase: "training", waiting: "rate limit" })).toContain("rate limit");
});

test("a session that has ended says how to resume", () => {
  for (const status of ["paused", "budget_exhausted", "time_exhausted"])
    expect(nowAndNext({ status, phase: "ended", waiting: "" })).toContain("Resume");
});

test("a pass with words that nobody checked is no plain pass", () => {
  const passed = { status: "passed", phase: "ended", waiting: "" };
  expect(nowAndNext(passed)).toContain("confirmed");
  const partly = nowAndNext({ ...passed, status: "unverified", unchecked_words: ["right", "side"] });
  expect(partly).toContain("none measures: right, side");
  expect(partly).not.toContain("confirmed");
});
