/** From a self-play run's evaluations to its charts of win rates. */
import type { SelfPlayRun } from "../api/types";
import type { Line } from "../ui/Chart";

type WinRate = SelfPlayRun["win_rates"][number];

export interface WinRateChart {
  env: string;
  /** Updates at which some checkpoint was evaluated. */
  x: number[];
  /** One for each opponent. */
  lines: Line[];
}

const COLOURS = 6;

/** A chart for each game. A checkpoint whose name does not say its update has no place on the axis. */
export function winRateCharts(rates: readonly WinRate[]): WinRateChart[] {
  const envs = [...new Set(rates.map((rate) => rate.env_id))];
  return envs.flatMap((env) => {
    const played = rates.filter((rate) => rate.env_id === env);
    const updates = played.flatMap((rate) => rate.history.flatMap((one) => one.update ?? []));
    const x = [...new Set(updates)].sort((a, b) => a - b);
    return x.length === 0 ? [] : [{ env, x, lines: played.map((rate, index) => line(rate, x, (index % COLOURS) + 1)) }];
  });
}

function line(rate: WinRate, x: readonly number[], colour: number): Line {
  const at = new Map(rate.history.map((one) => [one.update, one]));
  const found = x.map((update) => at.get(update));
  return {
    label: `against ${rate.opponent || "?"}`,
    values: found.map((one) => one?.win_rate ?? null),
    band: [found.map((one) => one?.low ?? null), found.map((one) => one?.high ?? null)],
    colour,
    points: true,
  };
}
