/** What the runs of a session were trained with, side by side. */
import type { RunHyperparameters } from "../api/types";
import { NOTHING, plain } from "./format";

export interface Column {
  iteration: number;
  /** Runs that differ by their seed alone. */
  runs: string[];
  settings: Record<string, unknown>;
}

/** Of every run its own, and no setting. */
const OF_THE_RUN = ["seed", "iteration_id"];

/** Runs with the same settings share a column, within an iteration. */
export function columns(runs: readonly RunHyperparameters[]): Column[] {
  const byKey = new Map<string, Column>();
  for (const run of runs) {
    const settings = Object.fromEntries(Object.entries(run.config).filter(([name]) => !OF_THE_RUN.includes(name)));
    const key = JSON.stringify([run.iteration, settings]);
    const column = byKey.get(key) ?? { iteration: run.iteration, runs: [], settings };
    column.runs.push(run.run_id);
    byKey.set(key, column);
  }
  return [...byKey.values()];
}

export interface Row {
  name: string;
  values: string[];
  differs: boolean;
}

export function rows(compared: readonly Column[]): Row[] {
  const names = [...new Set(compared.flatMap((column) => Object.keys(column.settings)))];
  return names.map((name) => {
    const values = compared.map(({ settings }) => (settings[name] == null ? NOTHING : plain(settings[name])));
    return { name, values, differs: new Set(values).size > 1 };
  });
}
