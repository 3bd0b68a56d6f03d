import { useMutation } from "@tanstack/react-query";
import { useNavigate } from "react-router";
import { send } from "../../api/client";
import type { ResumeRequest, SessionDetail, SteerRequest } from "../../api/types";
import { dollars, duration, number, score } from "../../lib/format";
import { Problem } from "../../ui/Problem";
import { Status } from "../../ui/Status";
import { Continue } from "./Continue";

const GOES_ON = ["running", "queued", "pending"];

/** What the session is, how it stands, and what can be done with it as a whole. */
export function SessionHeader({ session }: { session: SessionDetail }) {
  const path = `/api/sessions/${session.session_id}`;
  const navigate = useNavigate();
  const act = useMutation({
    mutationFn: ([method, where, body]: ["POST" | "DELETE", string, (ResumeRequest | SteerRequest)?]) => send(method, path + where, body),
  });
  const goesOn = GOES_ON.includes(session.status);
  const pausing = session.orders.some((order) => order.pause);
  return (
    <div className="stack">
      <div className="row spread">
        <h1>{session.alias || session.prompt || session.session_id}</h1>
        <div className="row">
          {goesOn && session.config && (
            <button type="button" className="button" disabled={act.isPending} onClick={() => act.mutate(["POST", "/steer", { pause: !pausing }])}>
              {pausing ? "Do not pause" : "Pause after this iteration"}
            </button>
          )}
          {goesOn && (
            <button type="button" className="button danger" disabled={act.isPending} onClick={() => act.mutate(["POST", "/stop"])}>
              Stop
            </button>
          )}
          {!goesOn && session.resumable && (
            <Continue session={session} disabled={act.isPending} onContinue={(wanted) => act.mutate(["POST", "/resume", wanted])} />
          )}
          {!goesOn && (
            <button type="button" className="button danger" disabled={act.isPending} onClick={() => act.mutate(["DELETE", ""], { onSuccess: () => void navigate("/e2e") })}>
              To the trash
            </button>
          )}
        </div>
      </div>
      <Problem what="That was not done" error={act.error} />
      <div className="row small-text muted">
        <Status status={session.status} />
        <span>{session.env_id || "environment not chosen yet"}</span>
        {session.model && <span>{session.model}</span>}
        {session.best_score != null && (
          <span>
            score <b>{score(session.best_score)}</b>
            {session.confirmed_score != null && ` · ${score(session.confirmed_score)} on fresh starts`}
          </span>
        )}
        {session.result && (
          <span>
            {duration(session.seconds)}
            {session.config?.max_minutes != null && ` of ${duration(session.config.max_minutes * 60)}`}
          </span>
        )}
        {session.result && (
          <span>
            {session.result.model_calls} model calls · {number(session.tokens)} tokens · {dollars(session.cost_usd)}
            {session.config?.budget_usd != null && ` of ${dollars(session.config.budget_usd)}`}
          </span>
        )}
        {session.result?.policy && (
          <a href={`${path}/policy`} download>
            policy.zip
          </a>
        )}
        {session.result && (
          <a href={`${path}/report`} download={`${session.session_id}.md`}>
            report.md
          </a>
        )}
        <span className="mono">{session.session_id}</span>
      </div>
    </div>
  );
}
