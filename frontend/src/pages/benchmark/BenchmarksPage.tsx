import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";
import { useLive } from "../../api/live";
import { benchmarksQuery } from "../../api/queries";
import type { BenchmarkRow } from "../../api/types";
import { ago, dollars } from "../../lib/format";
import { Empty } from "../../ui/Empty";
import { Interval, spoken } from "../../ui/Interval";
import { Problem } from "../../ui/Problem";
import { Status } from "../../ui/Status";
import { Nodes } from "../Nodes";
import { StartBenchmark } from "./StartBenchmark";

/** Suites of prompts that were run, and a form to run one. */
export default function BenchmarksPage() {
  const client = useQueryClient();
  const { data, error } = useQuery(benchmarksQuery);
  useLive("/api/benchmarks/live", { benchmarks: (rows) => client.setQueryData(benchmarksQuery.queryKey, rows as BenchmarkRow[]) });
  return (
    <>
      <h1>Benchmark</h1>
      <Problem what="The benchmarks cannot be listed" error={error} />
      {data?.length === 0 && <Empty title="No benchmarks yet">A suite is many prompts, each a session, with a measurement that no agent is shown. Run one below.</Empty>}
      {data && data.length > 0 && (
        <ul className="session-list">
          {data.map((row) => (
            <Row key={row.benchmark_id} row={row} />
          ))}
        </ul>
      )}
      <StartBenchmark />
      <Nodes />
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
        {finished} of {cases} ended
      </span>
      <Status status={row.state} />
    </li>
  );
}
