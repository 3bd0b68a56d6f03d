import { useQuery } from "@tanstack/react-query";
import { Link, useParams, useSearchParams } from "react-router";
import { ApiError } from "../../api/client";
import { useLive } from "../../api/live";
import { iterationsQuery, sessionQuery } from "../../api/queries";
import type { Iteration, SessionDetail } from "../../api/types";
import { Missing, NotYet, Problem } from "../../ui/basics";
import { Criteria } from "../Criteria";
import { Lineage, ScoreChart } from "./History";
import { IterationView } from "./IterationView";
import { Now, SessionHeader } from "./SessionHeader";
import { Steering } from "./Steering";

/** Everything about one session, as it happens. */
export default function SessionPage() {
  const { id = "" } = useParams();
  const [params, setParams] = useSearchParams();
  const session = useQuery(sessionQuery(id));
  const iterations = useQuery(iterationsQuery(id));
  useLive(`/api/sessions/${encodeURIComponent(id)}/live`, {
    session: [["session", id], ["iterations", id]],
    event: [["events", id]],
    metrics: [["iterations", id], ["bands", id]],
  });

  if (session.error instanceof ApiError && session.error.status === 404) {
    return (
      <Missing title={session.error.message}>
        <Link to="/e2e">All sessions</Link> · <Link to="/trash">Trash</Link>
      </Missing>
    );
  }
  if (!session.data) {
    return <NotYet what="Could not load the session" error={session.error} />;
  }
  const all = iterations.data ?? [];
  const current = all.find((each) => String(each.iteration) === params.get("iteration")) ?? bestOf(session.data, all);
  function choose(iteration: number): void {
    setParams((before) => new URLSearchParams([...[...before].filter(([name]) => name !== "iteration"), ["iteration", String(iteration)]]), { replace: true });
  }
  return (
    <>
      <SessionHeader session={session.data} />
      <Now session={session.data} current={all.at(-1)} />
      {all.length > 0 && (
        <div className="columns even">
          <ScoreChart session={session.data} iterations={all} />
          <Lineage iterations={all} current={current?.iteration} onChoose={choose} />
        </div>
      )}
      <Problem what="Could not load the iterations" error={iterations.error} />
      {current && <IterationView session={session.data} iterations={all} current={current} onChoose={choose} />}
      <div className="columns">
        <Criteria session={session.data} iteration={current} />
        {session.data.config && <Steering session={session.data} />}
      </div>
    </>
  );
}

/** The best iteration of a session that has ended, the newest of one that runs. */
function bestOf(session: SessionDetail, iterations: readonly Iteration[]): Iteration | undefined {
  return iterations.find((each) => session.phase === "ended" && each.iteration === session.best_iteration) ?? iterations.at(-1);
}
