/** Benchmarks: what the form asks for, as a command line; and what came of the cases. */
import type { BenchmarkCase, StartBenchmarkRequest, SuiteCase } from "../api/types";
import { quoted } from "./command";

export type BenchmarkForm = Partial<StartBenchmarkRequest>;
export type Filters = Pick<StartBenchmarkRequest, "filter_envs" | "filter_categories" | "filter_difficulties">;

const FLAGS: readonly (readonly [keyof StartBenchmarkRequest, string])[] = [
  ["model", "--model"],
  ["vlm_model", "--vlm"],
  ["filter_envs", "--filter-envs"],
  ["filter_categories", "--filter-categories"],
  ["filter_difficulties", "--filter-difficulties"],
  ["max_iterations", "--iterations"],
  ["total_timesteps", "--steps"],
  ["budget_usd", "--budget-usd"],
  ["max_minutes", "--max-minutes"],
  ["max_parallel", "--max-parallel"],
  ["mode", "--mode"],
  ["num_stages", "--num-stages"],
  ["gate_threshold", "--gate-threshold"],
  ["cores_per_run", "--cores-per-run"],
  ["nodes", "--nodes"],
  ["backend", "--backend"],
];

/** The form without what was left open. */
export function tidyForm(form: BenchmarkForm): BenchmarkForm {
  const given = Object.entries(form).filter(([, value]) => {
    const empty = value == null || value === "" || Number.isNaN(value) || (Array.isArray(value) && value.length === 0);
    return !empty;
  });
  return Object.fromEntries(given) as BenchmarkForm;
}

/** For a suite of ours; the page does not know where an uploaded file lies. */
export function benchmarkCommand(form: BenchmarkForm): string {
  const asked = tidyForm(form);
  const words = ["p2p", "benchmark", "--csv", quoted(asked.suite ?? "")];
  for (const [name, flag] of FLAGS) {
    const value = asked[name];
    if (value !== undefined) words.push(flag, quoted(Array.isArray(value) ? value.join(",") : String(value)));
  }
  return words.join(" ");
}

/** The prompts that the filters let through; a filter with nothing in it lets all through. */
export function chosen(cases: readonly SuiteCase[], filters: Partial<Filters>): SuiteCase[] {
  const allows = (names: readonly string[] | undefined, name: string) => !names?.length || names.includes(name);
  return cases.filter(
    (each) =>
      allows(filters.filter_envs, each.env_id) &&
      allows(filters.filter_categories, each.category) &&
      allows(filters.filter_difficulties, each.difficulty),
  );
}

const OPEN: readonly BenchmarkCase["state"][] = ["waiting", "starting", "running", "not_run", "unfinished"];

/** Whether nothing more will come of it: with a verdict, or without. */
export function isOver(each: Pick<BenchmarkCase, "state">): boolean {
  return !OPEN.includes(each.state);
}

/** Whether judge and ground truth say different things; false where one says nothing. */
export function differ(each: Pick<BenchmarkCase, "passed" | "true_pass">): boolean {
  return each.passed !== null && each.true_pass !== null && each.passed !== each.true_pass;
}

export const VIEWS = [
  ["all", "All"],
  ["passed", "Passed"],
  ["not", "Not passed"],
  ["unverified", "Unverified"],
  ["differ", "Disagree"],
  ["open", "No verdict"],
] as const;
export type View = (typeof VIEWS)[number][0];

export function seenIn(view: View, each: Pick<BenchmarkCase, "passed" | "true_pass" | "outcome">): boolean {
  if (view === "all") return true;
  if (view === "unverified" || each.outcome === "unverified") return view === each.outcome;
  if (view === "differ") return differ(each);
  return each.passed === { passed: true, not: false, open: null }[view];
}
