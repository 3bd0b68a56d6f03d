/** From the metrics of an iteration to the lines of its charts. */
import type { AggregatedMetrics } from "../api/types";
import type { Line } from "../ui/Chart";

export const TERM = "reward_term_";
const COLOURS = 6;

export interface Curve {
  name: string;
  title: string;
}

/** What is drawn at once; all other metrics are in the list below it. */
export const MAIN: readonly Curve[] = [
  { name: "episodic_return", title: "Return while training" },
  { name: "episode_length", title: "Length of the episodes" },
  { name: "entropy", title: "Entropy of the policy" },
  { name: "explained_variance", title: "Variance explained by the critic" },
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

/** What each term of the reward gave, of one configuration. */
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
