import { expect, test } from "vitest";
import { historyOf } from "./machine";

test("the history of a machine is in percent over the time before now", () => {
  const { x, unit, lines } = historyOf([
    { time: 40, cpu: 0.5, memory: 0.25, gpus: [] },
    { time: 100, cpu: 1, memory: 0.253, gpus: [0.9] },
  ]);
  expect([x, unit]).toEqual([[-60, 0], "seconds"]);
  expect(lines.map((line) => [line.label, line.values])).toEqual([["CPU", [50, 100]], ["memory", [25, 25.3]], ["GPU", [null, 90]]]);
  expect(historyOf([]).x).toEqual([]);
});
