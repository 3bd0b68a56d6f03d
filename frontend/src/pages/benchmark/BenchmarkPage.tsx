import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "react-router";
import { ApiError, send } from "../../api/client";
import { useLive } from "../../api/live";
import { benchmarkCasesQuery, benchmarkQuery } from "../../api/queries";
import type { Benchmark, BenchmarkCase } from "../../api/types";
import { dollars, duration, number, score } from "../../lib/format";
import { Card } from "../../ui/Card";
import { Empty } from "../../ui/Empty";
import { Facts } from "../../ui/Facts";
import { spoken } from "../../ui/Interval";
import { Meter } from "../../ui/Meter";
import { NotYet } from "../../ui/NotYet";
import { Problem } from "../../ui/Problem";
import { Status } from "../../ui/Status";
import { Agreement } from "./Agreement";
import { CaseGrid } from "./CaseGrid";
import { Rates } from "./Rates";

/** A suite that was run: how far it is, how many pass, whether the judge is right, case by case. */
export default function BenchmarkPage() {
  const { id = "" } = useParams();
  const { data: benchmark, error } = useQuery(benchmarkQuery(id));
  const { data: cases = [], error: casesError } = useQuery(benchmarkCasesQuery(id));
  useBenchmarkStream(id);
  if (error instanceof ApiError && error.status === 404) {
    return (
      <Empty title={error.message}>
        <Link to="/benchmark">All benchmarks</Link>
      </Empty>
    );
  }
  if (!benchmark) return <NotYet what="The benchmark cannot be shown" error={error} />;
  return (
    <>
      <Header benchmark={benchmark} />
      <Progress benchmark={benchmark} cases={cases} />
      <div className="columns">
        <Rates benchmark={benchmark} />
        <Agreement benchmark={benchmark} cases={cases} />
      </div>
      <Problem what="The cases cannot be shown" error={casesError} />
      <CaseGrid cases={cases} />
    </>
  );
}

/** Kept up to date by the benchmark's stream. */
export function useBenchmarkStream(id: string): void {
  const client = useQueryClient();
  useLive(`/api/benchmarks/${encodeURIComponent(id)}/live`, {
    benchmark: (data) => client.setQueryData(benchmarkQuery(id).queryKey, data as Benchmark),
    case: (data) => {
      const changed = data as BenchmarkCase;
      client.setQueryData(benchmarkCasesQuery(id).queryKey, (before) => before?.map((each) => (each.case.number === changed.case.number ? changed : each)));
    },
  });
}

function Header({ benchmark }: { benchmark: Benchmark }) {
  const path = `/api/benchmarks/${benchmark.benchmark_id}`;
  const navigate = useNavigate();
  const client = useQueryClient();
  const act = useMutation({
    mutationFn: ([method, where]: ["POST" | "DELETE", string]) => send(method, path + where),
    onSuccess: () => client.invalidateQueries({ queryKey: ["benchmark", benchmark.benchmark_id] }),
  });
  const goesOn = benchmark.state === "queued" || benchmark.state === "running";
  const { overall } = benchmark;
  return (
    <div className="stack">
      <div className="row spread">
        <h1>{benchmark.alias || `${benchmark.suite}, ${overall.cases} prompts`}</h1>
        <div className="row">
          {goesOn && (
            <button type="button" className="button danger" disabled={act.isPending} onClick={() => act.mutate(["POST", "/stop"])}>
              Stop
            </button>
          )}
          {!goesOn && benchmark.state !== "completed" && benchmark.has_job && (
            <button type="button" className="button primary" disabled={act.isPending} onClick={() => act.mutate(["POST", "/resume"])}>
              Continue
            </button>
          )}
          {!goesOn && benchmark.unmeasured > 0 && !benchmark.measuring && (
            <button type="button" className="button" disabled={act.isPending} onClick={() => act.mutate(["POST", "/report"])}>
              Measure {benchmark.unmeasured} policies
            </button>
          )}
          {!goesOn && (
            <button type="button" className="button danger" disabled={act.isPending} onClick={() => act.mutate(["DELETE", ""], { onSuccess: () => void navigate("/benchmark") })}>
              To the trash
            </button>
          )}
        </div>
      </div>
      <Problem what="That was not done" error={act.error} />
      <div className="row small-text muted">
        <Status status={benchmark.state} />
        {benchmark.model && <span>{benchmark.model}</span>}
        {benchmark.measuring && <span>measuring the policies …</span>}
        <span>{dollars(benchmark.cost_usd)}</span>
        {benchmark.has_job && <Link to={`/benchmark/job/${benchmark.benchmark_id}`}>job</Link>}
        <span className="mono">{benchmark.benchmark_id}</span>
      </div>
      <Facts
        of={[
          ["Passed by the judge", spoken(overall.judged)],
          ["Passed by the truth", spoken(overall.true)],
          ["Mean score", score(overall.mean_score)],
          ["Iterations a prompt", number(overall.iterations, 2)],
          ["Time a prompt", duration(overall.minutes * 60)],
          ["Tokens a prompt", number(overall.tokens)],
          ["Cost a prompt", dollars(overall.cost_usd)],
        ]}
      />
    </div>
  );
}

/** Stage by stage how many have a verdict, and what the gates in between said. */
function Progress({ benchmark, cases }: { benchmark: Benchmark; cases: readonly BenchmarkCase[] }) {
  const counts = Object.entries(benchmark.counts).map(([state, count]) => `${count} ${state.replaceAll("_", " ")}`);
  const gates = new Map(benchmark.gates.map((gate) => [gate.stage, gate]));
  return (
    <Card title="Progress" aside={<span className="small-text muted">{counts.join(" · ")}</span>}>
      {benchmark.stages.map((stage) => {
        const gate = gates.get(stage.stage);
        const done = cases.filter((each) => each.stage === stage.stage && each.passed !== null).length;
        return (
          <div key={stage.stage} className="stack">
            <div className="run-progress small-text">
              <span>{benchmark.stages.length > 1 ? `stage ${stage.stage + 1}` : "all prompts"}</span>
              <Meter value={done / stage.cases.length} label={`Judged of stage ${stage.stage + 1}`} tone={stage.state === "closed" ? "bad" : done === stage.cases.length ? "good" : "plain"} />
              <span className="numeric">
                {done} of {stage.cases.length}
              </span>
            </div>
            {gate && (
              <p className="small-text muted">
                {gate.passed ? "The next stage is open" : "The next stage stays closed"}: mean score {score(gate.mean_score)}, needed {score(gate.threshold)}.
              </p>
            )}
          </div>
        );
      })}
    </Card>
  );
}
