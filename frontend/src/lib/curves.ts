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

const UNITS: Record<string, string> = {
  loss: "loss", value_loss: "squared error", reward: "reward per game", kl: "nats", ratio_mean: "probability ratio", value_mean: "predicted reward",
  episodic_return: "reward per episode", episodic_return_min: "reward per episode", episodic_return_max: "reward per episode",
  episodic_return_std: "reward per episode", episode_length: "steps", entropy: "nats", approx_kl: "nats", kl_mean_term: "nats", kl_std_term: "nats",
  explained_variance: "share of the variance", clip_fraction: "share of the samples", learning_rate: "step size", sps: "steps per second",
  elapsed_time: "seconds", rollout_time: "seconds per update", train_time: "seconds per update", episodes_per_rollout: "episodes",
  policy_std: "standard deviation", grad_norm: "norm",
};

/** What the y axis of a metric counts; its own name where nothing better is known. */
export function unitOf(name: string): string {
  return UNITS[name] ?? name.replaceAll("_", " ");
}

type Values = readonly (number | null)[];

/** The band of a spread to both sides; a single run has none. */
export function spreadBand(values: Values, spread: Values, runs = 2): Pick<Line, "band"> {
  const edge = (sign: number) => values.map((value, i) => (value === null ? null : value + sign * (spread[i] ?? 0)));
  return runs > 1 ? { band: [edge(-1), edge(1)] } : {};
}

/** A moving average that forgets by `weight` at each point, 0 to 1; the first values count in full. */
export function smoothed(values: Values, weight: number): Values {
  if (weight <= 0) return values;
  let [sum, total] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

export interface Drawing {
  /** How much is forgotten at each point; 0: nothing is smoothed. */
  smoothing: number;
  /** Whether each seed has a thin line of its own. */
  seeds: boolean;
}

/** One metric: each configuration as its mean with a band over the seeds, and each seed by itself. */
export function bandLines(configs: readonly AggregatedMetrics[], name: string, { smoothing, seeds }: Drawing = { smoothing: 0, seeds: false }): Line[] {
  return configs.flatMap((config, index) => {
    const series = config.series[name];
    if (!series) return [];
    const colour = (index % COLOURS) + 1;
    const several = config.run_ids.length > 1;
    const each = seeds && several ? config.seeds : [];
    const [mean, std] = [smoothed(series.mean, smoothing), smoothed(series.std, smoothing)];
    return [
      ...each.map((run): Line => ({ label: run.run_id, values: smoothed(run.series[name] ?? [], smoothing), colour, faint: true })),
      { label: several ? `${config.config_id}, mean` : (config.run_ids[0] ?? config.config_id), values: mean, ...spreadBand(mean, std, config.run_ids.length), colour },
    ];
  });
}

/** The terms of the reward, of one configuration: positive ones stacked upwards, negative ones downwards; and their sum. */
export function termStack(config: AggregatedMetrics, smoothing = 0): Line[] {
  const names = Object.keys(config.series).filter((name) => name.startsWith(TERM));
  const terms = names.map((name) => smoothed(config.series[name]?.mean ?? [], smoothing));
  const heights = { up: terms[0]?.map(() => 0) ?? [], down: terms[0]?.map(() => 0) ?? [] };
  const lines = terms.map((values, index): Line => {
    const low: (number | null)[] = [];
    const high: (number | null)[] = [];
    const ends = values.map((value, i) => {
      const stack = (value ?? 0) < 0 ? heights.down : heights.up;
      const [from, to] = [stack[i] ?? 0, (stack[i] ?? 0) + (value ?? 0)];
      stack[i] = to;
      low.push(value === null ? null : Math.min(from, to));
      high.push(value === null ? null : Math.max(from, to));
      return value === null ? null : to;
    });
    return { label: (names[index] ?? "").slice(TERM.length), values: ends, shown: values, band: [low, high], colour: (index % COLOURS) + 1, area: true };
  });
  if (lines.length < 2) return lines;
  const sum = terms[0]?.map((_, i) => (terms.every((values) => values[i] == null) ? null : terms.reduce((total, values) => total + (values[i] ?? 0), 0))) ?? [];
  return [...lines, { label: "sum", values: sum, colour: 6, dashed: true }];
}

/** Lines that each have their own x, over all of these together. */
export function joined(series: readonly { x: Values; line: Line }[]): { x: number[]; lines: Line[] } {
  const x = [...new Set(series.flatMap((each) => each.x.filter((value) => value !== null)))].sort((a, b) => a - b);
  const lines = series.map(({ x: own, line }) => {
    const place = new Map(own.map((value, index) => [value, index]));
    const onto = (values: Values) =>
      x.map((value) => {
        const index = place.get(value);
        return index === undefined ? null : (values[index] ?? null);
      });
    return { ...line, values: onto(line.values), ...(line.band ? { band: [onto(line.band[0]), onto(line.band[1])] as const } : {}) };
  });
  return { x, lines };
}

/** The returns of the evaluations, over steps or over seconds. */
export function evaluationChart(configs: readonly AggregatedMetrics[], { seeds }: Drawing): { x: number[]; lines: Line[] } {
  const timed = configs.some((config) => config.seconds.length > 0);
  return joined(
    configs.flatMap((config, index) => {
      const x = timed ? config.evaluation_seconds : config.evaluation_steps;
      const colour = (index % COLOURS) + 1;
      const several = config.run_ids.length > 1;
      const { mean, std } = config.evaluation;
      const each = seeds && several ? config.seeds : [];
      const label = several ? `${config.config_id}, mean` : (config.run_ids[0] ?? config.config_id);
      return [
        ...each.map((run) => ({ x, line: { label: run.run_id, values: run.evaluation, colour, faint: true } })),
        { x, line: { label, values: mean, ...spreadBand(mean, std, config.run_ids.length), colour, points: true } },
      ];
    }),
  );
}

/** The unit in which a time axis is read best, and how many seconds it has. */
export function timeUnit(seconds: Values): readonly [unit: string, seconds: number] {
  const last = Math.max(0, ...seconds.map((value) => value ?? 0));
  if (last >= 2 * 3600) return ["hours", 3600];
  return last >= 180 ? ["minutes", 60] : ["seconds", 1];
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
