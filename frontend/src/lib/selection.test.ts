import { expect, test } from "vitest";
import { toggled } from "./selection";

test("a key is ticked and unticked, and a fifth takes the place of the first", () => {
  expect(toggled(["a"], "b")).toEqual(["a", "b"]);
  expect(toggled(["a", "b"], "a")).toEqual(["b"]);
  expect(toggled(["a", "b", "c", "d"], "e")).toEqual(["b", "c", "d", "e"]);
});
