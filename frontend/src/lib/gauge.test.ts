import { expect, test } from "vitest";
import { gauge, isMet } from "./gauge";

const at = (threshold: number, value: number | null, score = 1) => gauge({ threshold }, { score, value });

test("the bar reaches the threshold's tick exactly where the value is the threshold", () => {
  const { from, width, threshold } = at(3, 3);
  expect(from).toBe(0);
  expect(width).toBeCloseTo(threshold ?? 0);
});

test("both the value and the threshold are on the scale, whichever is larger", () => {
  for (const [threshold, value] of [[3, 0.1], [0.1, 3], [1, -2], [-1, 2], [-3, -1], [0, 0], [0, 5]] as const) {
    const made = at(threshold, value);
    for (const share of [made.from, made.from + made.width, made.threshold ?? 0]) {
      expect(share).toBeGreaterThanOrEqual(0);
      expect(share).toBeLessThanOrEqual(1);
    }
    expect(value < threshold).toBe(made.from + (value < 0 ? 0 : made.width) < (made.threshold ?? 0));
  }
});

test("what was not measured shows its score, and what was not judged shows nothing", () => {
  expect(at(3, null, 0.4)).toEqual({ from: 0, width: 0.4, threshold: null });
  expect(gauge({ threshold: 3 }, undefined).width).toBe(0);
});

test("a criterion is met by its value and by enough episodes", () => {
  const fast = { comparison: "at_least", threshold: 3 } as const;
  const low = { comparison: "at_most", threshold: 3 } as const;
  expect(isMet(fast, { score: 0.99, value: 3 }, 0.8)).toBe(true);
  expect(isMet(fast, { score: 0.99, value: 2.9 }, 0.8)).toBe(false);
  expect(isMet(low, { score: 0.99, value: 2.9 }, 0.8)).toBe(true);
  expect(isMet(fast, { score: 0.5, value: 4 }, 0.8)).toBe(false);
  expect(isMet(fast, { score: 0.9, value: null }, 0.8)).toBe(true);
  expect(isMet(fast, { score: null, value: null }, 0.8)).toBe(false);
  expect(isMet(fast, undefined, 0.8)).toBe(false);
});
