/** What stands side by side on the compare page, and in what it differs. */
import type { AggregatedMetrics, Criterion, CriterionScore, Iteration, SessionDetail } from "../api/types";
import type { Line } from "../ui/Chart";
import { spreadBand } from "./curves";
import { type Label, type Pane, panes } from "./videos";

export const MOST = 4;
const LETTERS = ["A", "B", "C", "D"] as const;

/** A session, or one iteration of it. */
export interface Choice {
  session: string;
  /** None: its best. */
  iteration: number | null;
}

/** The choices of an address: `of=SESSION` or `of=SESSION:ITERATION`, each once, at most four. */
export function choicesOf(params: URLSearchParams): Choice[] {
  const keys = [...new Set(params.getAll("of").filter(Boolean))].slice(0, MOST);
  return keys.map((key) => {
    const [, session = key, iteration] = /^(.*):(\d+)$/.exec(key) ?? [];
    return { session, iteration: iteration === undefined ? null : Number(iteration) };
  });
}

export function keyOf({ session, iteration }: Choice): string {
  return iteration === null ? session : `${session}:${iteration}`;
}

/** Where these are compared. */
export function compareAddress(keys: readonly string[]): string {
  return keys.length === 0 ? "/compare" : `/compare?${keys.map((key) => `of=${encodeURIComponent(key)}`).join("&")}`;
}

/** One column of the page. */
export interface Entry {
  key: string;
  letter: string;
  title: string;
  session: SessionDetail;
  /** None while the session has no iteration. */
  iteration: Iteration | undefined;
}

export function entryOf(choice: Choice, index: number, session: SessionDetail, iterations: readonly Iteration[]): Entry {
  const wanted = choice.iteration ?? session.best_iteration;
  const iteration = iterations.find((each) => each.iteration === wanted) ?? (choice.iteration === null ? iterations.at(-1) : undefined);
  return { key: keyOf(choice), letter: LETTERS[index] ?? "?", title: session.alias || session.prompt || session.session_id, session, iteration };
}

/** The same episode of each, at its best checkpoint. */
export function comparedPanes(entries: readonly Entry[], label: Label): Pane[] {
  return entries.flatMap(({ iteration, letter, title }) => {
    if (!iteration) return [];
    const [pane] = panes([iteration], iteration, { by: "iterations", run: "", label, step: 0 });
    return pane ? [{ ...pane, title: `${letter} · ${shortened(title)}, iteration ${iteration.iteration}` }] : [];
  });
}

export interface ComparedCriterion {
  criterion: Criterion;
  /** One for each entry; null where the entry does not have it. */
  cells: ({ criterion: Criterion; result: CriterionScore | undefined } | null)[];
}

/** Criteria of all entries, each once: those with the same measure and direction stand in one row. */
export function comparedCriteria(entries: readonly Entry[]): ComparedCriterion[] {
  const rows = new Map<string, ComparedCriterion>();
  entries.forEach(({ session, iteration }, index) => {
    for (const criterion of session.intent?.criteria ?? []) {
      const name = `${criterion.measure} ${criterion.comparison}`;
      const row = rows.get(name) ?? { criterion, cells: entries.map(() => null) };
      row.cells[index] = { criterion, result: iteration?.criteria.find((each) => each.id === criterion.id) };
      rows.set(name, row);
    }
  });
  return [...rows.values()];
}

export interface Difference {
  name: string;
  values: unknown[];
}

/** The fields in which records differ; one that a record lacks is undefined there. */
export function differences(records: readonly (Record<string, unknown> | undefined)[]): Difference[] {
  const names = [...new Set(records.flatMap((record) => Object.keys(record ?? {})))];
  return names
    .map((name) => ({ name, values: records.map((record) => record?.[name]) }))
    .filter(({ values }) => new Set(values.map((value) => JSON.stringify(value))).size > 1);
}

/** The curves of the configuration that an iteration's best run had. */
export function bestConfig(configs: readonly AggregatedMetrics[], iteration: Iteration | undefined): AggregatedMetrics | undefined {
  const drawn = configs.filter((config) => config.steps.length > 0);
  return drawn.find((config) => iteration?.best_run_id && config.run_ids.includes(iteration.best_run_id)) ?? drawn[0];
}

export interface Overlay {
  x: number[];
  lines: Line[];
}

interface Curve {
  label: string;
  steps: readonly number[];
  mean: readonly (number | null)[];
  std: readonly (number | null)[];
  runs: number;
  colour: number;
}

/** Curves with steps of their own on one axis: where one has no value, it has a gap. */
export function overlay(curves: readonly Curve[]): Overlay {
  const x = [...new Set(curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  const lines = curves.map(({ label, steps, mean, std, runs, colour }) => {
    const at = new Map(steps.map((step, index) => [step, index]));
    const on = (values: readonly (number | null)[]) => x.map((step) => values[at.get(step) ?? -1] ?? null);
    return { label, values: on(mean), ...spreadBand(on(mean), on(std), runs), colour };
  });
  return { x, lines };
}

/** A metric of each entry, over each other; "evaluation" is the return of the evaluations. */
export function comparedCurves(entries: readonly Entry[], configs: readonly (AggregatedMetrics | undefined)[], name: string): Overlay {
  return overlay(
    entries.flatMap(({ letter, title }, index) => {
      const config = configs[index];
      const series = name === "evaluation" ? config?.evaluation : config?.series[name];
      const steps = name === "evaluation" ? config?.evaluation_steps : config?.steps;
      if (!config || !series || !steps) return [];
      return [{ label: `${letter} · ${shortened(title)}`, steps, mean: series.mean, std: series.std, runs: config.run_ids.length, colour: index + 1 }];
    }),
  );
}

const LEGEND_TITLE = 40;

/** A title for a legend or a caption, where room is short. */
function shortened(title: string): string {
  return title.length > LEGEND_TITLE ? `${title.slice(0, LEGEND_TITLE - 1).trimEnd()}…` : title;
}

/** The metrics that at least one entry has. */
export function metricNames(configs: readonly (AggregatedMetrics | undefined)[]): string[] {
  return [...new Set(configs.flatMap((config) => Object.keys(config?.series ?? {})))].sort();
}
