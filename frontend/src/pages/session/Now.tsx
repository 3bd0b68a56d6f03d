import type { Iteration, SessionDetail } from "../../api/types";
import { percent } from "../../lib/format";
import { PHASES, nowAndNext } from "../../lib/phase";
import { Meter } from "../../ui/Meter";

/** Where the session is now, and what happens next. */
export function Now({ session, current }: { session: SessionDetail; current: Iteration | undefined }) {
  const at = PHASES.findIndex(([name]) => name === session.phase);
  const ended = session.phase === "ended";
  return (
    <section className="card now" aria-label="Where it is now" aria-live="polite">
      {!ended && (
        <ol className="phases">
          {PHASES.map(([name, title], index) => (
            <li key={name} className={index === at ? "current" : index < at ? "done" : ""} aria-current={index === at ? "step" : undefined}>
              {title}
            </li>
          ))}
        </ol>
      )}
      <p>
        {current && !ended && <b>Iteration {current.iteration}. </b>}
        {withCode(nowAndNext(session))}
      </p>
      {session.error && <div className="problem">{session.error}</div>}
      {session.phase === "training" &&
        current?.runs.map((run) => (
          <div key={run.run_id} className="run-progress small-text">
            <span className="mono">{run.run_id}</span>
            <Meter value={run.progress} label={`Progress of ${run.run_id}`} />
            <span>{run.status === "running" ? percent(run.progress) : run.status}</span>
          </div>
        ))}
      {session.orders.length > 0 && (
        <p className="small-text muted">
          {session.orders.length === 1 ? "One order waits" : `${session.orders.length} orders wait`} for the end of this iteration.
        </p>
      )}
    </section>
  );
}

function withCode(text: string) {
  return text.split("`").map((part, index) => (index % 2 ? <b key={index}>{part}</b> : part));
}
