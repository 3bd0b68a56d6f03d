import { useMutation, useQuery } from "@tanstack/react-query";
import { type ChangeEvent, useState } from "react";
import { Link, useNavigate } from "react-router";
import { send } from "../../api/client";
import { useLive } from "../../api/live";
import { benchmarkOptionsQuery, benchmarksQuery } from "../../api/queries";
import type { BenchmarkPlan, BenchmarkRow, StartBenchmarkResponse, SuiteCase } from "../../api/types";
import { benchmarkCommand, type BenchmarkForm, chosen, type Filters, tidyForm } from "../../lib/benchmark";
import { ago, dollars } from "../../lib/format";
import { Card, Command, Empty, Interval, PageHeading, Problem, Status, spoken } from "../../ui/basics";
import { ModelField, NumberField } from "../../ui/fields";
import { Placement } from "../Scheduler";

/** Suites of prompts that were run, and a form to run one. */
export default function BenchmarksPage() {
  const { data, error } = useQuery(benchmarksQuery);
  useLive("/api/benchmarks/live", { benchmarks: [["benchmarks"]] });
  return (
    <>
      <PageHeading title="Benchmarks" />
      <Problem what="Could not load the benchmarks" error={error} />
      {data?.length === 0 && <Empty title="No benchmarks yet">A suite runs one session per prompt and measures each policy against a ground truth that no agent sees. Start one below.</Empty>}
      {data && data.length > 0 && (
        <ul className="session-list">
          {data.map((row) => (
            <Row key={row.benchmark_id} row={row} />
          ))}
        </ul>
      )}
      <StartBenchmark />
    </>
  );
}

function Row({ row }: { row: BenchmarkRow }) {
  const { cases, finished, judged } = row.overall;
  return (
    <li className="benchmark-row">
      <div className="session-what">
        <Link to={`/benchmark/${row.benchmark_id}`}>{row.alias || `${row.suite}, ${cases} prompts`}</Link>
        <span className="muted small-text">
          {[row.model, ago(row.created_at, Date.now()), row.cost_usd ? dollars(row.cost_usd) : ""].filter(Boolean).join(" · ")}
        </span>
      </div>
      <div className="benchmark-rate">
        <Interval rate={judged} label="Passed" colour={1} />
        <span className="small-text">{judged.total ? `${spoken(judged)} passed` : "no verdict yet"}</span>
      </div>
      <span className="small-text muted session-count">
        {finished} of {cases} finished
      </span>
      <Status status={row.state} />
    </li>
  );
}

const OWN = "own";

/** Which prompts, which model, and how many at once. */
export function StartBenchmark() {
  const navigate = useNavigate();
  const { data: options, error, isPending } = useQuery(benchmarkOptionsQuery);
  const [form, setForm] = useState<BenchmarkForm>({});
  const [filters, setFilters] = useState<Partial<Filters>>({});
  const [name, setName] = useState("");
  const [file, setFile] = useState<{ name: string; text: string } | null>(null);
  const change = (part: BenchmarkForm) => setForm((before) => ({ ...before, ...part }));
  const own = name === OWN;
  const suite = options?.suites.find((each) => each.name === name) ?? options?.suites[0];
  const wanted = own ? { ...form, suite: file?.name ?? "", csv: file?.text ?? "" } : { ...form, ...filters, suite: suite?.name ?? "" };
  const cases = own || !suite ? null : chosen(suite.cases, filters);
  const start = useMutation({
    mutationFn: () => send<StartBenchmarkResponse>("POST", "/api/benchmarks", tidyForm(wanted)),
    onSuccess: ({ benchmark_id }) => navigate(`/benchmark/${benchmark_id}`),
  });
  const asked = JSON.stringify(tidyForm(wanted));
  const [planned, setPlanned] = useState("");
  const plan = useMutation({
    mutationFn: () => send<BenchmarkPlan>("POST", "/api/benchmarks/plan", tidyForm(wanted)),
    onSuccess: () => setPlanned(asked),
  });
  // A plan of another form than this one is no plan.
  const ready = plan.data && planned === asked ? plan.data : null;

  async function upload(event: ChangeEvent<HTMLInputElement>): Promise<void> {
    const chosenFile = event.target.files?.[0];
    setFile(chosenFile ? { name: chosenFile.name, text: await chosenFile.text() } : null);
  }

  return (
    <Card title="Run a suite">
      <Problem what="Could not load the suites" error={error} />
      {isPending && (
        <p className="small-text muted" role="status">
          Loading suites …
        </p>
      )}
      <form
        className="stack"
        hidden={!options}
        onSubmit={(event) => {
          event.preventDefault();
          if (ready) start.mutate();
          else plan.mutate();
        }}
      >
        <div className="fields">
          <label className="field">
            Suite
            <select
              value={own ? OWN : (suite?.name ?? "")}
              onChange={(event) => {
                setName(event.target.value);
                setFilters({});
              }}
            >
              {options?.suites.map((each) => (
                <option key={each.name} value={each.name}>
                  {each.name} ({each.cases.length} prompts)
                </option>
              ))}
              <option value={OWN}>Upload a CSV file</option>
            </select>
          </label>
          {own && (
            <label className="field">
              CSV file
              <input type="file" accept=".csv,text/csv" required onChange={(event) => void upload(event)} />
              <small>{options?.columns.join(", ")}</small>
            </label>
          )}
          <ModelField value={form.model ?? ""} onChange={(model) => change({ model })} />
          <NumberField label="Max iterations per prompt" placeholder="5" min={1} max={1000} value={form.max_iterations} onChange={(value) => change({ max_iterations: value })} />
          <NumberField label="Parallel sessions" placeholder="as many as fit" min={1} max={1000} value={form.max_parallel ?? null} onChange={(value) => change({ max_parallel: value ?? Number.NaN })} />
        </div>
        {suite && !own && <PromptFilters cases={suite.cases} filters={filters} onChange={(part) => setFilters((before) => ({ ...before, ...part }))} />}
        <details>
          <summary>Advanced</summary>
          <div className="fields advanced">
            <NumberField label="Timesteps per training run" placeholder="environment default" min={1000} step={1000} value={form.total_timesteps} onChange={(value) => change({ total_timesteps: value })} />
            <NumberField label="Budget per prompt, USD" placeholder="no limit" min={0} step="any" value={form.budget_usd} onChange={(value) => change({ budget_usd: value })} />
            <NumberField label="Time limit per prompt, minutes" placeholder="no limit" min={0} step="any" value={form.max_minutes} onChange={(value) => change({ max_minutes: value })} />
            <label className="row small-text">
              <input type="checkbox" checked={form.mode === "staged"} onChange={(event) => change(event.target.checked ? { mode: "staged", num_stages: 5, gate_threshold: 0.5 } : { mode: "flat", num_stages: Number.NaN, gate_threshold: Number.NaN })} />
              In stages, easy prompts first
            </label>
            {form.mode === "staged" && (
              <>
                <NumberField label="Stages" placeholder="5" min={1} max={1000} value={form.num_stages} onChange={(value) => change({ num_stages: value ?? Number.NaN })} />
                <NumberField label="Mean score required for the next stage" placeholder="0.5" min={0} max={1} step="any" value={form.gate_threshold} onChange={(value) => change({ gate_threshold: value ?? Number.NaN })} />
              </>
            )}
            <NumberField label="Cores per prompt" placeholder="1" min={1} value={form.cores_per_run} onChange={(value) => change({ cores_per_run: value ?? Number.NaN })} />
          </div>
          <Placement nodes={form.nodes ?? []} backend={form.backend ?? null} onNodes={(nodes) => change({ nodes })} onBackend={(backend) => change({ backend })} />
        </details>
        {own ? <p className="small-text muted">On the command line, give the file&apos;s path to <code>p2p benchmark --csv</code>.</p> : <Command text={benchmarkCommand(wanted)} />}
        <Problem what="Could not plan the benchmark" error={plan.error} />
        <Problem what="Could not start the benchmark" error={start.error} />
        {ready && (
          <pre className="plan" role="status">
            {ready.lines.join("\n")}
          </pre>
        )}
        <div className="row">
          <button type="submit" className="button primary" disabled={start.isPending || plan.isPending || !wanted.suite || cases?.length === 0}>
            {buttonText(start.isPending, plan.isPending, ready)}
          </button>
          <span className="small-text muted">
            {ready ? "You can close this page." : `${cases ? `${cases.length} prompts. ` : ""}Shows time and cost; nothing starts yet.`}
          </span>
        </div>
      </form>
    </Card>
  );
}

function buttonText(starting: boolean, planning: boolean, plan: BenchmarkPlan | null): string {
  if (starting) return "Starting …";
  if (planning) return "Planning …";
  return plan ? `Start ${plan.workload.prompts} prompts` : "Plan";
}

interface FilterProps {
  cases: readonly SuiteCase[];
  filters: Partial<Filters>;
  onChange: (part: Partial<Filters>) => void;
}

const BY = [
  ["Environments", "filter_envs", "env_id"],
  ["Categories", "filter_categories", "category"],
  ["Difficulties", "filter_difficulties", "difficulty"],
] as const;

function PromptFilters({ cases, filters, onChange }: FilterProps) {
  return (
    <div className="fields">
      {BY.map(([title, name, field]) => {
        const there = [...new Set(cases.map((each) => each[field]))];
        const on: readonly string[] = filters[name] ?? [];
        return (
          <fieldset key={name} className="chips">
            <legend>
              {title} <span className="muted">{on.length === 0 ? "all" : `${on.length} of ${there.length}`}</span>
            </legend>
            {there.map((value) => (
              <label key={value} className="chip">
                <input
                  type="checkbox"
                  checked={on.includes(value)}
                  onChange={(event) => onChange({ [name]: event.target.checked ? [...on, value] : on.filter((each) => each !== value) })}
                />
                {value.replace(/-v\d+$/, "")}
              </label>
            ))}
          </fieldset>
        );
      })}
    </div>
  );
}
