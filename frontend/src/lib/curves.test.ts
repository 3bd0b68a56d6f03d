import { expect, test } from "vitest";
import type { AggregatedMetrics } from "../api/types";
import { bandLines, evaluationChart, joined, smoothed, termStack, timeUnit, winRateCharts } from "./curves";

const at = (update: number | null, win_rate: number) => ({
  ckpt_uid: `ckpt-${update}`, update, games: 100, reward: 0, exploitability: null, win_rate, low: win_rate - 0.05, high: win_rate + 0.1,
});
const against = (opponent: string, env_id: string, history: ReturnType<typeof at>[]) => ({
  env_id, opponent, ckpt_uid: "ckpt-40", games: 100, win_rate: 0, low: 0, high: 1, draw_rate: 0, invalid_rate: 0, players: 2, reward: 0, reward_se: 0, exploitability: null, history,
});

test("win rates stand at the updates of their checkpoints, with both ends of their intervals", () => {
  const [chart] = winRateCharts([against("random-legal", "Nim-v0", [at(0, 0.5), at(20, 0.7), at(80, 0.9)])]);
  expect(chart?.x).toEqual([0, 20, 80]);
  expect(chart?.lines).toEqual([
    { label: "against random-legal", values: [0.5, 0.7, 0.9], band: [[0.45, 0.7 - 0.05, 0.9 - 0.05], [0.6, 0.7 + 0.1, 1]], colour: 1, points: true },
  ]);
});

test("opponents that met other checkpoints share the axis and leave gaps", () => {
  const [chart] = winRateCharts([
    against("random-legal", "Nim-v0", [at(0, 0.5), at(40, 0.8)]),
    against("minimax", "Nim-v0", [at(20, 0.1), at(40, 0.2)]),
  ]);
  expect(chart?.x).toEqual([0, 20, 40]);
  expect(chart?.lines.map((line) => line.values)).toEqual([[0.5, null, 0.8], [null, 0.1, 0.2]]);
  expect(chart?.lines.map((line) => line.band?.[0][0])).toEqual([0.45, null]);
  expect(chart?.lines.map((line) => line.colour)).toEqual([1, 2]);
});

test("every game has a chart of its own, and a checkpoint without an update is left out", () => {
  const charts = winRateCharts([
    against("random-legal", "Nim-v0", [at(null, 0.3), at(20, 0.6)]),
    against("random-legal", "TicTacToe-v0", [at(20, 0.4)]),
    against("random-legal", "Other-v0", [at(null, 0.4)]),
  ]);
  expect(charts.map((chart) => [chart.env, chart.x, chart.lines[0]?.values])).toEqual([
    ["Nim-v0", [20], [0.6]],
    ["TicTacToe-v0", [20], [0.4]],
  ]);
});

function config(id: string, part: Partial<AggregatedMetrics>): AggregatedMetrics {
  return {
    config_id: id, run_ids: [`${id}_seed_1`], steps: [], seconds: [], series: {}, seeds: [], evaluation_steps: [], evaluation_seconds: [],
    evaluation: { mean: [], std: [] }, ...part,
  };
}

test("smoothing keeps a constant, calms what jumps, and leaves gaps open", () => {
  expect(smoothed([2, 2, 2], 0.9)).toEqual([2, 2, 2].map((value) => expect.closeTo(value) as number));
  expect(smoothed([0, 10, null, 0], 0)).toEqual([0, 10, null, 0]);
  const [first, second, gap, last] = smoothed([0, 10, null, 0], 0.5);
  expect(first).toBe(0);
  expect(second).toBeCloseTo(20 / 3);
  expect(gap).toBeNull();
  expect(last).toBeCloseTo(20 / 7);
});

test("every seed is a thin line under the mean and the band of its configuration", () => {
  const seeds = ["a_seed_1", "a_seed_2"].map((run_id, index) => ({ run_id, series: { loss: [index, index] }, evaluation: [] }));
  const made = config("a", { run_ids: ["a_seed_1", "a_seed_2"], series: { loss: { mean: [0.5, 0.5], std: [0.5, 0.5] } }, seeds });
  const single = config("b", { series: { loss: { mean: [3, 4], std: [0, 0] } } });
  const lines = bandLines([made, single], "loss", { smoothing: 0, seeds: true });
  expect(lines.map((line) => [line.label, line.colour, line.faint ?? false])).toEqual([
    ["a_seed_1", 1, true], ["a_seed_2", 1, true], ["a, mean", 1, false], ["b_seed_1", 2, false],
  ]);
  expect(lines[2]?.band).toEqual([[0, 0], [1, 1]]);
  expect(bandLines([made], "loss", { smoothing: 0, seeds: false })).toHaveLength(1);
});

test("terms are stacked by their sign, and the legend keeps each term's own value", () => {
  const terms = { reward_term_speed: [3, 4], reward_term_ctrl: [-1, -2], reward_term_alive: [1, -1], loss: [9, 9] };
  const series = Object.fromEntries(Object.entries(terms).map(([name, mean]) => [name, { mean, std: [0, 0] }]));
  const [speed, ctrl, alive, sum, ...more] = termStack(config("a", { series }));
  expect(more).toEqual([]);
  expect([speed?.label, speed?.values, speed?.band?.[0]]).toEqual(["speed", [3, 4], [0, 0]]);
  expect([ctrl?.values, ctrl?.band]).toEqual([[-1, -2], [[-1, -2], [0, 0]]]);
  expect([alive?.values, alive?.band, alive?.shown]).toEqual([[4, -3], [[3, -3], [4, -2]], [1, -1]]);
  expect(sum?.values).toEqual([3, 1]);
});

test("lines with an x of their own share an axis and leave gaps", () => {
  const line = { label: "", colour: 1 };
  const { x, lines } = joined([{ x: [1, 3], line: { ...line, values: [10, 30] } }, { x: [2, null, 3], line: { ...line, values: [20, 99, 31] } }]);
  expect(x).toEqual([1, 2, 3]);
  expect(lines.map((each) => each.values)).toEqual([[10, null, 30], [null, 20, 31]]);
});

test("evaluations stand at their steps, or at the time when they were", () => {
  const part = { evaluation_steps: [100], evaluation: { mean: [7], std: [0] } };
  const first = config("a", { ...part, steps: [1], evaluation_seconds: [2] });
  const second = config("b", { ...part, steps: [1], evaluation_seconds: [5] });
  expect(evaluationChart([first, second], { smoothing: 0, seeds: true }).x).toEqual([100]);
  const timed = [first, second].map((each) => ({ ...each, steps: [], seconds: [1] }));
  expect(evaluationChart(timed, { smoothing: 0, seeds: true }).x).toEqual([2, 5]);
});

test("time is told in the unit that has few digits", () => {
  expect(timeUnit([1, 90])).toEqual(["seconds", 1]);
  expect(timeUnit([1, 600])).toEqual(["minutes", 60]);
  expect(timeUnit([null, 9000])).toEqual(["hours", 3600]);
});
