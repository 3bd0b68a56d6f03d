import { useMutation, useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { send } from "../api/client";
import { jobsQuery, nodesQuery } from "../api/queries";
import type { NodeStatus } from "../api/types";
import { ago } from "../lib/format";
import { Card, Empty, Problem, Scroll, Status } from "../ui/basics";

/** The scheduler's jobs, newest first. */
export function Jobs() {
  const { data: jobs, error } = useQuery(jobsQuery);
  return (
    <Card title="Jobs">
      <Problem what="Could not load the jobs" error={error} />
      {jobs?.length === 0 && <Empty title="No jobs">Starting a session here creates one.</Empty>}
      {jobs && jobs.length > 0 && (
        <Scroll label="Table of jobs">
          <table>
            <thead>
              <tr>
                <th>Job</th>
                <th>Kind</th>
                <th>State</th>
                <th>Runs</th>
                <th>Submitted</th>
              </tr>
            </thead>
            <tbody>
              {jobs.map((job) => (
                <tr key={job.job_id}>
                  <td>
                    <Link to={`/benchmark/job/${job.job_id}`}>{job.title || job.job_id}</Link>
                  </td>
                  <td>{job.kind}</td>
                  <td>
                    <Status status={job.state} />
                  </td>
                  <td>{Object.entries(job.counts).filter(([, count]) => count > 0).map(([state, count]) => `${count} ${state}`).join(", ")}</td>
                  <td className="muted">{ago(job.created_at, Date.now())}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </Card>
  );
}

/** Where jobs can run, and how much of it is in use. */
export function Nodes() {
  const { data, error } = useQuery(nodesQuery);
  return (
    <Card title="Nodes">
      <Problem what="Could not load the nodes" error={error} />
      {data?.length === 0 && <Empty title="No nodes yet">This machine is added with the first job.</Empty>}
      {data && data.length > 0 && (
        <Scroll label="Table of nodes">
          <table>
            <thead>
              <tr>
                <th>Node</th>
                <th>Backend</th>
                <th className="numeric">Runs</th>
                <th className="numeric">Cores in use</th>
                <th className="numeric">GPUs in use</th>
                <th>Status</th>
              </tr>
            </thead>
            <tbody>
              {data.map((node) => (
                <NodeRow key={node.node_id} node={node} />
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </Card>
  );
}

function NodeRow({ node }: { node: NodeStatus }) {
  const check = useMutation({
    mutationFn: () => send<{ usable: boolean; message: string }>("POST", `/api/scheduler/nodes/${encodeURIComponent(node.node_id)}/check`),
  });
  return (
    <tr>
      <td>{node.node_id}</td>
      <td>{node.backend}</td>
      <td className="numeric">{node.runs_now}</td>
      <td className="numeric">{node.cores_in_use}</td>
      <td className="numeric">{node.gpus_in_use}</td>
      <td>
        {check.data ? (
          <span className="row">
            <span className={`badge ${check.data.usable ? "good" : "bad"}`}>{check.data.usable ? "usable" : "not usable"}</span> {check.data.message}
          </span>
        ) : (
          <button type="button" className="button small" disabled={check.isPending} onClick={() => check.mutate()}>
            {check.isPending ? "Checking …" : "Check"}
          </button>
        )}
        <Problem what="Check failed" error={check.error} />
      </td>
    </tr>
  );
}
