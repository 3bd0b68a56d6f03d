import { expect, test } from "vitest";
import { benchmarkCommand, chosen, differ, isOver, seenIn, VIEWS } from "./benchmark";

test("the command line names what was asked for, and nothing else", () => {
  const form = { suite: "mujoco_prompts", model: "builtin", filter_envs: ["Hopper-v5", "Ant-v5"], filter_categories: [], max_iterations: 2, max_parallel: Number.NaN };
  expect(benchmarkCommand(form)).toBe("p2p benchmark --csv mujoco_prompts --model builtin --filter-envs Hopper-v5,Ant-v5 --iterations 2");
  expect(benchmarkCommand({ suite: "my prompts.csv" })).toBe("p2p benchmark --csv 'my prompts.csv'");
});

test("filters leave the prompts that all of them allow", () => {
  const one = { number: 0, env_id: "Hopper-v5", instruction: "hop", category: "locomotion", difficulty: "easy" as const, truth: null, threshold: null };
  const other = { ...one, number: 1, difficulty: "hard" as const };
  expect(chosen([one, other], {})).toHaveLength(2);
  expect(chosen([one, other], { filter_envs: ["Hopper-v5"], filter_difficulties: ["hard"] })).toEqual([other]);
  expect(chosen([one, other], { filter_envs: ["Ant-v5"] })).toEqual([]);
});

test("judge and truth differ only where both have spoken", () => {
  expect(differ({ passed: true, true_pass: false })).toBe(true);
  expect(differ({ passed: false, true_pass: false })).toBe(false);
  expect(differ({ passed: true, true_pass: null })).toBe(false);
  expect(differ({ passed: null, true_pass: true })).toBe(false);
});

test("a case without a verdict is neither passed nor not passed", () => {
  const views = VIEWS.map(([view]) => view);
  const open = { passed: null, true_pass: null, outcome: "unfinished" } as const;
  expect(views.filter((view) => seenIn(view, open))).toEqual(["all", "open"]);
  expect(views.filter((view) => seenIn(view, { ...open, outcome: "unverified" }))).toEqual(["all", "unverified"]);
});

test("a case that ended without a verdict is over, too", () => {
  const states = ["passed", "unverified", "error", "running", "waiting"] as const;
  expect(states.map((state) => isOver({ state }))).toEqual([true, true, true, false, false]);
});
