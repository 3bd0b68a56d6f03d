import { expect, test } from "vitest";
import { SESSION_STATUSES, ago, dollars, duration, number, roughly, score, short, sentence, statusWord, ticks, tone, withUnit } from "./format";

test("what is not known is not a zero", () => {
  expect(score(null)).toBe("–");
  expect(score(0)).toBe("0.00");
  expect(score(0.996)).toBe("0.99");
  expect(score(0.29)).toBe("0.29");
  expect(number(undefined)).toBe("–");
});

test("a score is rounded down, as in the sentences of a verdict", () => {
  expect([0.999, 0.8951, 0.29, 1].map(score)).toEqual(["0.99", "0.89", "0.29", "1.00"]);
});

test("numbers keep the digits that matter", () => {
  expect(number(9415)).toBe("9,415");
  expect(number(0.70944)).toBe("0.709");
  expect(number(0.000125)).toBe("1.3e-4");
  expect(short(301_056)).toBe("301.1k");
});

test("ticks of an axis can be told apart", () => {
  expect(ticks([0.001, 0.002, 0.003])).toEqual(["0.001", "0.002", "0.003"]);
  expect(ticks([0, 0.25, 0.5])).toEqual(["0.00", "0.25", "0.50"]);
  expect(ticks([0, 500, 1000])).toEqual(["0", "500", "1,000"]);
  expect(ticks([3310, 3320, 3330])).toEqual(["3,310", "3,320", "3,330"]);
  expect(ticks([0, 500, 1000, 1500])).toEqual(["0", "500", "1,000", "1,500"]);
  expect(ticks([0, 50_000, 100_000])).toEqual(["0", "50k", "100k"]);
  expect(ticks([-2, 0, 2])).toEqual(["-2", "0", "2"]);
});

test("times are said as people say them", () => {
  expect(duration(0.047)).toBe("47 ms");
  expect(duration(69)).toBe("1 min 9 s");
  expect(duration(7260)).toBe("2 h 1 min");
  const now = Date.parse("2026-01-02T00:00:00Z");
  expect(ago("2026-01-01T23:59:30Z", now)).toBe("just now");
  expect(ago("2026-01-01T20:00:00Z", now)).toBe("4 h ago");
});

test("small sums are not shown as nothing", () => {
  expect(dollars(0)).toBe("$0");
  expect(dollars(0.001)).toBe("< $0.01");
  expect(dollars(1.5)).toBe("$1.50");
});

test("sessions are looked for by the words of their badges, each a word of its own", () => {
  const words = SESSION_STATUSES.map(statusWord);
  expect(words.filter((word) => word.includes("_"))).toEqual([]);
  expect(new Set(words).size).toBe(words.length);
});

test("a status that nobody knows looks like bad news", () => {
  expect(tone("passed")).toBe("good");
  expect(tone("unverified")).toBe("open");
  expect(tone("exploded")).toBe("bad");
  expect(statusWord("max_iterations")).toBe("did not pass");
  expect(statusWord("cancelled")).toBe("cancelled");
  expect([tone("time_exhausted"), statusWord("time_exhausted")]).toEqual(["warn", "time used up"]);
});

test("a clause becomes a sentence, and a sentence stays one", () => {
  expect(sentence("passed with 0.92")).toBe("Passed with 0.92.");
  expect(sentence("It is slow.")).toBe("It is slow.");
  expect(sentence("")).toBe("");
});

test("a time that is left is no more exact than an estimate", () => {
  expect([0, 12, 61, 200, 4000].map(roughly)).toEqual(["5 s", "15 s", "1 min", "3 min", "1 h 7 min"]);
});

test("one of something is singular", () => {
  expect([withUnit(1, "turns"), withUnit(2, "turns"), withUnit(1, "m/s"), withUnit(0.5, "")]).toEqual(["1 turn", "2 turns", "1 m/s", "0.5"]);
});
