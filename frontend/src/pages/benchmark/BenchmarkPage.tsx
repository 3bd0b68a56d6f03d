import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "react-router";
import { isGone, send } from "../../api/client";
import { useLive } from "../../api/live";
import { benchmarkCasesQuery, benchmarkQuery } from "../../api/queries";
import type { Benchmark, BenchmarkCase } from "../../api/types";
import { isOver } from "../../lib/benchmark";
import { dollars, duration, number, score } from "../../lib/format";
import { Card, Facts, Meter, NotYet, PageHeading, Problem, Status, spoken } from "../../ui/basics";
import { CaseGrid } from "./CaseGrid";
import { Agreement, Rates } from "./Results";

/** A suite that was run: progress, pass rates, judge against ground truth, cases. */
export default function BenchmarkPage() {
  const { id = "" } = useParams();
  const { data: benchmark, error } = useQuery(benchmarkQuery(id));
  const { data: cases = [], error: casesError } = useQuery(benchmarkCasesQuery(id));
  useLive(`/api/benchmarks/${encodeURIComponent(id)}/live`, { benchmark: [["benchmark", id]] });
  if (!benchmark || isGone(error)) {
    return (
      <NotYet what="Could not load the benchmark" error={error}>
        <Link to="/benchmark">All benchmarks</Link> · <Link to="/trash">Trash</Link>
      </NotYet>
    );
  }
  return (
    <>
      <Header benchmark={benchmark} />
      <Progress benchmark={benchmark} cases={cases} />
      <div className="columns">
        <Rates benchmark={benchmark} />
        <Agreement benchmark={benchmark} cases={cases} />
      </div>
      <Problem what="Could not load the cases" error={casesError} />
      <CaseGrid cases={cases} />
    </>
  );
}

function Header({ benchmark }: { benchmark: Benchmark }) {
  const path = `/api/benchmarks/${benchmark.benchmark_id}`;
  const navigate = useNavigate();
  const client = useQueryClient();
  const act = useMutation({
    mutationFn: ([method, where]: ["POST" | "DELETE", string]) => send(method, path + where),
    onSuccess: () => client.invalidateQueries({ queryKey: ["benchmark", benchmark.benchmark_id] }),
  });
  const active = benchmark.state === "queued" || benchmark.state === "running";
  const { overall } = benchmark;
  const asked = benchmark.model !== "builtin";
  return (
    <div className="stack">
      <div className="row spread">
        <PageHeading title={benchmark.alias || `${benchmark.suite}, ${overall.cases} prompts`} />
        <div className="row">
          {active && (
            <button type="button" className="button danger" disabled={act.isPending} onClick={() => act.mutate(["POST", "/stop"])}>
              Stop
            </button>
          )}
          {!active && benchmark.state !== "completed" && benchmark.has_job && (
            <button type="button" className="button primary" disabled={act.isPending} onClick={() => act.mutate(["POST", "/resume"])}>
              Resume
            </button>
          )}
          {!active && benchmark.unmeasured > 0 && !benchmark.measuring && (
            <button type="button" className="button" disabled={act.isPending} onClick={() => act.mutate(["POST", "/report"])}>
              Measure {benchmark.unmeasured} policies
            </button>
          )}
          {!active && (
            <button type="button" className="button danger" disabled={act.isPending} onClick={() => act.mutate(["DELETE", ""], { onSuccess: () => void navigate("/benchmark") })}>
              Move to trash
            </button>
          )}
        </div>
      </div>
      <Problem what="Request failed" error={act.error} />
      <div className="row small-text muted">
        <Status status={benchmark.state} />
        {benchmark.model && <span>{benchmark.model}</span>}
        {benchmark.measuring && <span>measuring the policies …</span>}
        {asked && <span>{dollars(benchmark.cost_usd)}</span>}
        {benchmark.has_job && <Link to={`/benchmark/job/${benchmark.benchmark_id}`}>job</Link>}
        <span className="mono">{benchmark.benchmark_id}</span>
      </div>
      <Facts
        of={[
          ["Judge pass rate", spoken(overall.judged)],
          ["Ground-truth pass rate", spoken(overall.true)],
          ["Mean score", score(overall.mean_score)],
          ["Iterations per prompt", number(overall.iterations, 2)],
          ["Time per prompt", duration(overall.minutes * 60)],
          ...(asked ? ([["Tokens per prompt", number(overall.tokens)], ["Cost per prompt", dollars(overall.cost_usd)]] as const) : []),
        ]}
      />
    </div>
  );
}

/** Stage by stage how many have ended, and the gates in between. */
function Progress({ benchmark, cases }: { benchmark: Benchmark; cases: readonly BenchmarkCase[] }) {
  const counts = Object.entries(benchmark.counts).map(([state, count]) => `${count} ${state.replaceAll("_", " ")}`);
  const gates = new Map(benchmark.gates.map((gate) => [gate.stage, gate]));
  return (
    <Card title="Progress" aside={<span className="small-text muted">{counts.join(" · ")}</span>}>
      {benchmark.stages.map((stage) => {
        const gate = gates.get(stage.stage);
        const done = cases.filter((each) => each.stage === stage.stage && isOver(each)).length;
        return (
          <div key={stage.stage} className="stack">
            <div className="run-progress small-text">
              <span>{benchmark.stages.length > 1 ? `stage ${stage.stage + 1}` : "all prompts"}</span>
              <Meter value={done / stage.cases.length} label={`Finished in stage ${stage.stage + 1}`} tone={stage.state === "closed" ? "bad" : done === stage.cases.length ? "good" : "plain"} />
              <span className="numeric">
                {done} of {stage.cases.length}
              </span>
            </div>
            {gate && (
              <p className="small-text muted">
                {gate.passed ? "The next stage is open" : "The next stage stays closed"}: mean score {score(gate.mean_score)}, required {score(gate.threshold)}.
              </p>
            )}
          </div>
        );
      })}
    </Card>
  );
}
