import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { selfPlaysQuery } from "../../api/queries";
import { ago, number } from "../../lib/format";
import { Empty, Meter, PageHeading, Problem, Status } from "../../ui/basics";
import { StartSelfPlay } from "./StartSelfPlay";

/** Runs in which language models get better at games by playing themselves. */
export default function SelfPlaysPage() {
  const { data, error } = useQuery(selfPlaysQuery);
  return (
    <>
      <PageHeading title="Self-play" />
      <Problem what="Could not load the runs" error={error} />
      {data?.length === 0 && (
        <Empty title="No self-play runs yet">
          A language model plays games against itself and learns from them. Start one below; runs of <code>unstable train</code> are listed here, too.
        </Empty>
      )}
      {data && data.length > 0 && (
        <ul className="session-list">
          {data.map((run) => (
            <li key={run.run_id} className="selfplay-row">
              <div className="session-what">
                <Link to={`/self-play/${run.run_id}`}>{run.name}</Link>
                <span className="muted small-text">
                  {run.run_id.replaceAll("~", "/")} · {ago(new Date(run.changed_at * 1000).toISOString(), Date.now())}
                </span>
              </div>
              <div className="session-score">
                <Meter value={run.updates ? run.step / run.updates : null} label="Updates done" />
                <span className="small-text">
                  {number(run.step)}
                  {run.updates !== null && ` of ${number(run.updates)}`} updates
                </span>
              </div>
              <Status status={run.status || "unknown"} />
            </li>
          ))}
        </ul>
      )}
      <StartSelfPlay />
    </>
  );
}
