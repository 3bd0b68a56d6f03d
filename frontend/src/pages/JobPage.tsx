import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useParams } from "react-router";
import { send } from "../api/client";
import { jobQuery } from "../api/queries";
import type { JobDetail } from "../api/types";
import { duration } from "../lib/format";
import { Card } from "../ui/Card";
import { Problem } from "../ui/Problem";
import { Status } from "../ui/Status";

const OVER = ["succeeded", "failed", "cancelled", "skipped", "lost"];

/** A job of the scheduler and its runs. */
export default function JobPage() {
  const { id = "" } = useParams();
  const client = useQueryClient();
  const { data: job, error } = useQuery(jobQuery(id));
  const act = useMutation({
    mutationFn: (what: "cancel" | "retry") => send("POST", `/api/scheduler/jobs/${encodeURIComponent(id)}/${what}`),
    onSuccess: () => client.invalidateQueries({ queryKey: ["job", id] }),
  });
  if (!job) return error ? <Problem what="The job cannot be shown" error={error} /> : <p className="muted">Loading …</p>;
  const open = job.runs.some((run) => !OVER.includes(run.state));
  return (
    <>
      <div className="row spread">
        <h1>{job.title || job.job_id}</h1>
        <div className="row">
          {open ? (
            <button type="button" className="button danger" disabled={act.isPending} onClick={() => act.mutate("cancel")}>
              Cancel
            </button>
          ) : (
            <button type="button" className="button" disabled={act.isPending} onClick={() => act.mutate("retry")}>
              Run again what did not succeed
            </button>
          )}
        </div>
      </div>
      <div className="row small-text muted">
        <Status status={job.state} />
        <span>{job.kind}</span>
        <span className="mono">{job.job_id}</span>
      </div>
      <Problem what="That was not done" error={act.error} />
      <Runs job={job} />
    </>
  );
}

function Runs({ job }: { job: JobDetail }) {
  return (
    <Card title={job.runs.length === 1 ? "Its run" : `Its ${job.runs.length} runs`}>
      <div className="scroll">
        <table>
          <thead>
            <tr>
              <th>Run</th>
              <th>State</th>
              <th>Node</th>
              <th className="numeric">Cores</th>
              <th className="numeric">Took</th>
              <th>Says</th>
            </tr>
          </thead>
          <tbody>
            {job.runs.map((run) => (
              <tr key={run.run_id}>
                <td>{run.folder ? <Link to={`/e2e/${run.folder}`}>{run.run_id}</Link> : run.run_id}</td>
                <td>
                  <Status status={run.state} />
                </td>
                <td>{run.node_id ?? "–"}</td>
                <td className="numeric">{run.cores}</td>
                <td className="numeric">{took(run.started_at, run.ended_at)}</td>
                <td className="muted">{run.message}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

function took(started: string | null, ended: string | null): string {
  if (started === null) return "–";
  return duration(((ended === null ? Date.now() : Date.parse(ended)) - Date.parse(started)) / 1000);
}
