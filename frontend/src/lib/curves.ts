/** From the metrics of an iteration to the lines of its charts. */
import type { AggregatedMetrics, SelfPlayRun } from "../api/types";
import type { Line } from "../ui/Chart";

export const TERM = "reward_term_";
const COLOURS = 6;

export interface Curve {
  name: string;
  title: string;
}

/** What is drawn at once; all other metrics are in the list below it. */
export const MAIN: readonly Curve[] = [
  { name: "episodic_return", title: "Training return" },
  { name: "episode_length", title: "Episode length" },
  { name: "entropy", title: "Policy entropy" },
  { name: "explained_variance", title: "Explained variance" },
];

type Values = readonly (number | null)[];

/** The band of a spread to both sides; a single run has none. */
export function spreadBand(values: Values, spread: Values, runs = 2): Pick<Line, "band"> {
  const edge = (sign: number) => values.map((value, i) => (value === null ? null : value + sign * (spread[i] ?? 0)));
  return runs > 1 ? { band: [edge(-1), edge(1)] } : {};
}

/** One metric, with a band over the seeds for each configuration. */
export function bandLines(configs: readonly AggregatedMetrics[], name: string): Line[] {
  return configs.flatMap((config, index) => {
    const series = config.series[name];
    if (!series) return [];
    return [{ label: config.config_id, values: series.mean, ...spreadBand(series.mean, series.std, config.run_ids.length), colour: (index % COLOURS) + 1 }];
  });
}

/** The terms of the reward, of one configuration. */
export function termLines(config: AggregatedMetrics): Line[] {
  const names = Object.keys(config.series).filter((name) => name.startsWith(TERM));
  return names.map((name, index) => {
    const { mean, std } = config.series[name] ?? { mean: [], std: [] };
    return { label: name.slice(TERM.length), values: mean, ...spreadBand(mean, std, config.run_ids.length), colour: (index % COLOURS) + 1, dashed: index >= COLOURS };
  });
}

/** The metrics that are neither drawn at once nor a term. */
export function otherNames(configs: readonly AggregatedMetrics[]): string[] {
  const main = new Set(MAIN.map((curve) => curve.name));
  const names = new Set(configs.flatMap((config) => Object.keys(config.series)));
  return [...names].filter((name) => !main.has(name) && !name.startsWith(TERM)).sort();
}

/** From a self-play run's evaluations to its charts of win rates. */

type WinRate = SelfPlayRun["win_rates"][number];

export interface WinRateChart {
  env: string;
  /** Updates at which some checkpoint was evaluated. */
  x: number[];
  /** One for each opponent. */
  lines: Line[];
}

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
