import { expect, test } from "vitest";
import { laneCount, lanes, story } from "./lineage";

test("a line of iterations stays in one lane", () => {
  const rows = lanes([{ iteration: 1, parent: null }, { iteration: 2, parent: 1 }, { iteration: 3, parent: 2 }]);
  expect(rows.map((row) => row.lane)).toEqual([0, 0, 0]);
  expect(rows[2]?.from).toEqual({ row: 1, lane: 0 });
});

test("a second child opens a lane, and its own children follow there", () => {
  const rows = lanes([
    { iteration: 1, parent: null },
    { iteration: 2, parent: 1 },
    { iteration: 3, parent: 1 },
    { iteration: 4, parent: 3 },
    { iteration: 5, parent: 2 },
  ]);
  expect(rows.map((row) => row.lane)).toEqual([0, 0, 1, 1, 0]);
  expect(rows[2]?.from).toEqual({ row: 0, lane: 0 });
  expect(laneCount(rows)).toBe(2);
});

test("an iteration whose parent is not there is a root", () => {
  expect(lanes([{ iteration: 7, parent: 3 }])).toEqual([{ iteration: 7, lane: 0, from: null }]);
});

test("a change is told in words, or else by its settings", () => {
  expect(story({ parent: 1, changes: "more of speed", hp_changes: { gamma: 0.98 } })).toBe("from 1: more of speed");
  expect(story({ parent: 2, changes: "", hp_changes: { gamma: 0.98 } })).toBe("from 2: gamma 0.98");
  expect(story({ parent: null, changes: "", hp_changes: {} })).toBe("the first reward");
});
