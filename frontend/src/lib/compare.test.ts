import { expect, test } from "vitest";
import type { AggregatedMetrics, Criterion, Iteration, SessionDetail } from "../api/types";
import { bestConfig, choicesOf, compareAddress, comparedCriteria, comparedCurves, comparedPanes, differences, entryOf, keyOf, overlay } from "./compare";

const speed = { id: "speed", title: "Fast", measure: "mean speed", comparison: "at_least", threshold: 3 } as Criterion;
const session = (id: string, criteria: Criterion[] = []) => ({ session_id: id, alias: "", prompt: `prompt of ${id}`, best_iteration: 2, intent: { criteria } }) as unknown as SessionDetail;
const iteration = (number: number, value = 1) =>
  ({
    iteration: number, best_run_id: "base_seed_1", best_step: 100, criteria: [{ id: "speed", score: 0.5, value }],
    videos: [{ run_id: "base_seed_1", step: 100, label: "median", url: `/v${number}` }],
  }) as unknown as Iteration;

test("an address names sessions and iterations, each once and four at most", () => {
  const choices = choicesOf(new URLSearchParams("of=a&of=b:2&of=a&of=c&of=d&of=e"));
  expect(choices.map(keyOf)).toEqual(["a", "b:2", "c", "d"]);
  expect(choices[1]).toEqual({ session: "b", iteration: 2 });
  expect(compareAddress(choices.map(keyOf))).toBe("/compare?of=a&of=b%3A2&of=c&of=d");
  expect(choicesOf(new URLSearchParams(compareAddress(["b:2"]).split("?")[1])).map(keyOf)).toEqual(["b:2"]);
});

test("a session stands for its best iteration, else its last", () => {
  const all = [iteration(1), iteration(2), iteration(3)];
  expect(entryOf({ session: "a", iteration: null }, 0, session("a"), all).iteration?.iteration).toBe(2);
  expect(entryOf({ session: "a", iteration: 1 }, 1, session("a"), all)).toMatchObject({ letter: "B", title: "prompt of a", key: "a:1" });
  expect(entryOf({ session: "a", iteration: null }, 0, session("a"), [iteration(1)]).iteration?.iteration).toBe(1);
  expect(entryOf({ session: "a", iteration: 9 }, 0, session("a"), all).iteration).toBeUndefined();
});

test("each entry has its video, named by letter, prompt and iteration", () => {
  const entries = [1, 2].map((number, index) => entryOf({ session: "a", iteration: number }, index, session("a"), [iteration(1), iteration(2)]));
  expect(comparedPanes(entries, "median")).toEqual([
    { title: "A · prompt of a, iteration 1", url: "/v1" },
    { title: "B · prompt of a, iteration 2", url: "/v2" },
  ]);
  expect(comparedPanes(entries, "p10")).toEqual([]);
});

test("criteria with one measure share a row, whatever their thresholds", () => {
  const other = { ...speed, id: "speed", threshold: 5 };
  const calm = { ...speed, id: "calm", measure: "mean power", comparison: "at_most" } as Criterion;
  const entries = [
    entryOf({ session: "a", iteration: 1 }, 0, session("a", [speed]), [iteration(1, 2.5)]),
    entryOf({ session: "b", iteration: 1 }, 1, session("b", [other, calm]), [iteration(1, 6)]),
  ];
  const rows = comparedCriteria(entries);
  expect(rows.map((row) => row.criterion.measure)).toEqual(["mean speed", "mean power"]);
  expect(rows[0]?.cells.map((cell) => [cell?.criterion.threshold, cell?.result?.value])).toEqual([[3, 2.5], [5, 6]]);
  expect(rows[1]?.cells[0]).toBeNull();
});

test("only what differs is listed", () => {
  expect(differences([{ gamma: 0.9, net: [64, 64] }, { gamma: 0.99, net: [64, 64], seed: 1 }, undefined])).toEqual([
    { name: "gamma", values: [0.9, 0.99, undefined] },
    { name: "net", values: [[64, 64], [64, 64], undefined] },
    { name: "seed", values: [undefined, 1, undefined] },
  ]);
  expect(differences([{ a: 1 }, { a: 1 }])).toEqual([]);
});

test("curves with other steps lie on one axis with gaps", () => {
  const curve = { std: [0, 0], runs: 1 };
  const { x, lines } = overlay([
    { ...curve, label: "A", steps: [1, 3], mean: [10, 30], colour: 1 },
    { ...curve, label: "B", steps: [2, 3], mean: [2, 3], colour: 2 },
  ]);
  expect(x).toEqual([1, 2, 3]);
  expect(lines.map((line) => line.values)).toEqual([[10, null, 30], [null, 2, 3]]);
});

test("the curves are those of the best run's configuration", () => {
  const config = (name: string, steps: number[]) =>
    ({ config_id: name, run_ids: [`${name}_seed_1`], steps, series: { episodic_return: { mean: [1], std: [0] } }, evaluation_steps: [5], evaluation: { mean: [7], std: [0] } }) as unknown as AggregatedMetrics;
  const configs = [config("wide", [1]), config("base", [1])];
  expect(bestConfig(configs, iteration(1))?.config_id).toBe("base");
  expect(bestConfig([config("base", []), configs[0] as AggregatedMetrics], iteration(1))?.config_id).toBe("wide");
  const entries = [entryOf({ session: "a", iteration: 1 }, 0, session("a"), [iteration(1)])];
  expect(comparedCurves(entries, [configs[1]], "evaluation")).toMatchObject({ x: [5], lines: [{ label: "A · prompt of a", values: [7], colour: 1 }] });
  expect(comparedCurves(entries, [undefined], "evaluation").lines).toEqual([]);
});
