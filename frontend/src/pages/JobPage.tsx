import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useParams, useSearchParams } from "react-router";
import { send } from "../api/client";
import { jobLogQuery, jobQuery } from "../api/queries";
import type { JobDetail } from "../api/types";
import { duration } from "../lib/format";
import { Code } from "../ui/Code";
import { Card, NotYet, PageHeading, Problem, Scroll, Status } from "../ui/basics";

const OVER = ["succeeded", "failed", "cancelled", "skipped"];

/** A job of the scheduler and its runs. */
export default function JobPage() {
  const { id = "" } = useParams();
  const client = useQueryClient();
  const [params, setParams] = useSearchParams();
  const { data: job, error } = useQuery(jobQuery(id));
  const act = useMutation({
    mutationFn: (what: "cancel" | "retry") => send("POST", `/api/scheduler/jobs/${encodeURIComponent(id)}/${what}`),
    onSuccess: () => client.invalidateQueries({ queryKey: ["job", id] }),
  });
  if (!job) {
    return (
      <NotYet what="Could not load the job" error={error}>
        <Link to="/monitor">All jobs</Link>
      </NotYet>
    );
  }
  const open = job.runs.filter((run) => !OVER.includes(run.state));
  const ending = open.every((run) => run.cancel_requested);
  const again = job.runs.some((run) => OVER.includes(run.state) && run.state !== "succeeded");
  const logged = job.runs.find((run) => run.run_id === params.get("log"));
  return (
    <>
      <div className="row spread">
        <PageHeading title={job.title || job.job_id} />
        <div className="row">
          {open.length > 0 && (
            <button type="button" className="button danger" disabled={act.isPending || ending} onClick={() => act.mutate("cancel")}>
              {ending ? "Cancelling …" : "Cancel"}
            </button>
          )}
          {open.length === 0 && again && (
            <button type="button" className="button" disabled={act.isPending} onClick={() => act.mutate("retry")}>
              Retry unsuccessful runs
            </button>
          )}
        </div>
      </div>
      <div className="row small-text muted">
        <Status status={job.state} />
        <span>{job.kind}</span>
        {job.kind === "benchmark" && <Link to={`/benchmark/${job.job_id}`}>results</Link>}
        <span className="mono">{job.job_id}</span>
      </div>
      <Problem what="Request failed" error={act.error} />
      <Runs job={job} onLog={(run) => setParams({ log: run }, { replace: true })} />
      {logged && <Log job={job} run={logged} />}
    </>
  );
}

type Run = JobDetail["runs"][number];

function Runs({ job, onLog }: { job: JobDetail; onLog: (run: string) => void }) {
  return (
    <Card title={`Runs (${job.runs.length})`}>
      <Scroll label="Table of runs">
        <table>
          <thead>
            <tr>
              <th>Run</th>
              <th>State</th>
              <th>Node</th>
              <th className="numeric">Cores</th>
              <th className="numeric">Duration</th>
              <th>Message</th>
              <th>Log</th>
            </tr>
          </thead>
          <tbody>
            {job.runs.map((run) => (
              <tr key={run.run_id}>
                <td>
                  <RunLink job={job} run={run} />
                </td>
                <td>
                  <Status status={run.state} />
                </td>
                <td>{run.node_id ?? "–"}</td>
                <td className="numeric">{run.cores}</td>
                <td className="numeric">{took(run.started_at, run.ended_at)}</td>
                <td className="muted">{run.message}</td>
                <td>
                  <button type="button" className="link" aria-label={`Log of ${run.run_id}`} disabled={run.started_at === null} onClick={() => onLog(run.run_id)}>
                    Log
                  </button>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </Card>
  );
}

/** To the page of what the run works on, where it has one. */
function RunLink({ job, run }: { job: JobDetail; run: Run }) {
  const number = /_case(\d+)$/.exec(run.run_id)?.[1];
  if (job.kind === "benchmark" && number) return <Link to={`/benchmark/job/${job.job_id}/case/${number}`}>{run.run_id}</Link>;
  if (job.kind === "selfplay" && run.folder) return <Link to={`/self-play/${run.folder}`}>{run.run_id}</Link>;
  return job.kind === "session" && run.folder ? <Link to={`/e2e/${run.folder}`}>{run.run_id}</Link> : run.run_id;
}

/** The end of a run's output, as it grows. */
function Log({ job, run }: { job: JobDetail; run: Run }) {
  const { data, error } = useQuery(jobLogQuery(job.job_id, run, !OVER.includes(run.state)));
  return (
    <Card title={`Log of ${run.run_id}`}>
      <Problem what="Could not load the log" error={error} />
      {data && (data.text ? <Code text={data.text} label={`Log of ${run.run_id}`} /> : <p className="muted">No output.</p>)}
    </Card>
  );
}

function took(started: string | null, ended: string | null): string {
  if (started === null) return "–";
  return duration(((ended === null ? Date.now() : Date.parse(ended)) - Date.parse(started)) / 1000);
}
