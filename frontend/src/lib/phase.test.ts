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
