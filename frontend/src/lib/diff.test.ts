import { expect, test } from "vitest";
import { lineDiff } from "./diff";

test("changed lines are removed and added, others stay", () => {
  expect(lineDiff("a\nb\nc\n", "a\nB\nc\n")).toEqual([
    { kind: "same", text: "a" },
    { kind: "removed", text: "b" },
    { kind: "added", text: "B" },
    { kind: "same", text: "c" },
  ]);
});
