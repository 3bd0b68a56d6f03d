import { expect, test } from "vitest";
import { winRateCharts } from "./curves";

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
