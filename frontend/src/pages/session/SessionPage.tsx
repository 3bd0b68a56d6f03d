import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useParams, useSearchParams } from "react-router";
import { ApiError } from "../../api/client";
import { useLive } from "../../api/live";
import { bandsQuery, eventsQuery, iterationsQuery, sessionQuery } from "../../api/queries";
import type { Iteration, SessionDetail, SessionEvent } from "../../api/types";
import { Empty } from "../../ui/Empty";
import { NotYet } from "../../ui/NotYet";
import { Problem } from "../../ui/Problem";
import { Criteria } from "./Criteria";
import { IterationView } from "./IterationView";
import { Lineage } from "./Lineage";
import { Now } from "./Now";
import { ScoreChart } from "./ScoreChart";
import { SessionHeader } from "./SessionHeader";
import { Steering } from "./Steering";

/** Everything about one session, as it happens. */
export default function SessionPage() {
  const { id = "" } = useParams();
  const [params, setParams] = useSearchParams();
  const session = useQuery(sessionQuery(id));
  const iterations = useQuery(iterationsQuery(id));
  useSessionStream(id);

  if (session.error instanceof ApiError && session.error.status === 404) {
    return (
      <Empty title={session.error.message}>
        <Link to="/e2e">All sessions</Link> · <Link to="/trash">Trash</Link>
      </Empty>
    );
  }
  if (!session.data) {
    return <NotYet what="The session cannot be shown" error={session.error} />;
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
      <Problem what="The iterations cannot be shown" error={iterations.error} />
      {current && <IterationView session={session.data} iterations={all} current={current} onChoose={choose} />}
      <div className="columns">
        <Criteria session={session.data} iteration={current} />
        {session.data.config && session.data.status !== "passed" && <Steering session={session.data} />}
      </div>
    </>
  );
}

/** The best iteration of a session that has ended, the newest of one that goes on. */
function bestOf(session: SessionDetail, iterations: readonly Iteration[]): Iteration | undefined {
  return iterations.find((each) => session.phase === "ended" && each.iteration === session.best_iteration) ?? iterations.at(-1);
}

function useSessionStream(id: string): void {
  const client = useQueryClient();
  useLive(`/api/sessions/${encodeURIComponent(id)}/live`, {
    session: (data) => client.setQueryData(sessionQuery(id).queryKey, data as SessionDetail),
    iterations: (data) => {
      client.setQueryData(iterationsQuery(id).queryKey, data as Iteration[]);
      void client.invalidateQueries({ queryKey: ["bands", id] }, { cancelRefetch: false });
    },
    event: (data) =>
      client.setQueryData(eventsQuery(id).queryKey, (before: SessionEvent[] = []) => {
        const event = data as SessionEvent;
        return event.seq > (before.at(-1)?.seq ?? 0) ? [...before, event] : before;
      }),
    metrics: (data) => {
      const { run_id, iteration_id, progress } = data as { run_id: string; iteration_id: string; progress: number };
      void client.invalidateQueries({ queryKey: bandsQuery(id, iteration_id).queryKey }, { cancelRefetch: false });
      client.setQueryData(iterationsQuery(id).queryKey, (before) =>
        before?.map((each, index) => ({
          ...each,
          runs: index < before.length - 1 ? each.runs : each.runs.map((run) => (run.run_id === run_id ? { ...run, progress } : run)),
        })),
      );
    },
  });
}
