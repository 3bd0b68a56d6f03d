import { expect, test } from "vitest";
import type { RunHyperparameters } from "../api/types";
import { columns, rows } from "./hyperparameters";

function run(iteration: number, run_id: string, config: Record<string, unknown>): RunHyperparameters {
  return { iteration, run_id, config } as unknown as RunHyperparameters;
}

const RUNS = [
  run(1, "base_seed_1", { seed: 1, gamma: 0.99, net_arch: [64, 64], target_kl: null }),
  run(1, "base_seed_2", { seed: 2, gamma: 0.99, net_arch: [64, 64], target_kl: null }),
  run(1, "fast_seed_1", { seed: 1, gamma: 0.9, net_arch: [64, 64], target_kl: null }),
  run(2, "base_seed_1", { seed: 1, gamma: 0.99, net_arch: [64, 64], target_kl: 0.02 }),
];

test("seeds of one configuration share a column, iterations do not", () => {
  expect(columns(RUNS).map((column) => [column.iteration, column.runs])).toEqual([
    [1, ["base_seed_1", "base_seed_2"]],
    [1, ["fast_seed_1"]],
    [2, ["base_seed_1"]],
  ]);
});

test("only what differs is marked as such, and what is not set is no zero", () => {
  expect(rows(columns(RUNS))).toEqual([
    { name: "gamma", values: ["0.99", "0.9", "0.99"], differs: true },
    { name: "net_arch", values: ["64 × 64", "64 × 64", "64 × 64"], differs: false },
    { name: "target_kl", values: ["–", "–", "0.02"], differs: true },
  ]);
  expect(rows([])).toEqual([]);
});
