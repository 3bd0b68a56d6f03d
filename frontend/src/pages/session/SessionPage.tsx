import { useQuery } from "@tanstack/react-query";
import { Link, useParams, useSearchParams } from "react-router";
import { isGone } from "../../api/client";
import { useLive } from "../../api/live";
import { iterationsQuery, sessionQuery } from "../../api/queries";
import { bestIteration } from "../../lib/videos";
import { NotYet, Problem } from "../../ui/basics";
import { BeforeAfter } from "./BeforeAfter";
import { Hero } from "./Hero";
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
    session: [["session", id], ["iterations", id], ["hyperparameters", id]],
    event: [["events", id]],
    metrics: [["iterations", id], ["bands", id]],
  });

  if (!session.data || isGone(session.error)) {
    return (
      <NotYet what="Could not load the session" error={session.error}>
        <Link to="/e2e">All sessions</Link> · <Link to="/trash">Trash</Link>
      </NotYet>
    );
  }
  const all = iterations.data ?? [];
  const current = all.find((each) => String(each.iteration) === params.get("iteration")) ??
    // Of a session that runs, what happens now.
    (session.data.phase === "ended" ? bestIteration(session.data, all) : all.at(-1));
  function choose(iteration: number): void {
    setParams((before) => new URLSearchParams([...[...before].filter(([name]) => name !== "iteration"), ["iteration", String(iteration)]]), { replace: true });
  }
  return (
    <>
      <SessionHeader session={session.data} />
      {session.data.phase !== "ended" && <Now session={session.data} current={all.at(-1)} />}
      {!iterations.isPending && <Hero session={session.data} iterations={all} />}
      {all.length > 1 && (
        <>
          <div className="columns even">
            <ScoreChart iterations={all} />
            <Lineage iterations={all} current={current?.iteration} onChoose={choose} />
          </div>
          <BeforeAfter session={session.data} iterations={all} />
        </>
      )}
      <Problem what="Could not load the iterations" error={iterations.error} />
      {current && <IterationView session={session.data} iterations={all} current={current} onChoose={choose} />}
      {session.data.config && <Steering session={session.data} />}
    </>
  );
}

