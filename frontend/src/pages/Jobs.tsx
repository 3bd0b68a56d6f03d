import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { jobsQuery } from "../api/queries";
import { ago } from "../lib/format";
import { Card } from "../ui/Card";
import { Empty } from "../ui/Empty";
import { Problem } from "../ui/Problem";
import { Scroll } from "../ui/Scroll";
import { Status } from "../ui/Status";

/** The scheduler's jobs, newest first. */
export function Jobs() {
  const { data: jobs, error } = useQuery(jobsQuery);
  return (
    <Card title="Jobs">
      <Problem what="The jobs cannot be listed" error={error} />
      {jobs?.length === 0 && <Empty title="No jobs">A session that is started on these pages is one.</Empty>}
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
