import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";
import { send } from "../../api/client";
import type { ResumeRequest, SessionDetail, SteerRequest } from "../../api/types";
import { dollars, duration, number, score } from "../../lib/format";
import { Problem } from "../../ui/Problem";
import { Status } from "../../ui/Status";

const GOES_ON = ["running", "queued", "pending"];

/** What the session is, how it stands, and what can be done with it as a whole. */
export function SessionHeader({ session }: { session: SessionDetail }) {
  const path = `/api/sessions/${session.session_id}`;
  const navigate = useNavigate();
  const [more, setMore] = useState<number | null>(null);
  const [minutes, setMinutes] = useState<number | null>(null);
  const act = useMutation({
    mutationFn: ([method, where, body]: ["POST" | "DELETE", string, (ResumeRequest | SteerRequest)?]) => send(method, path + where, body),
  });
  const goesOn = GOES_ON.includes(session.status);
  const pausing = session.orders.some((order) => order.pause);
  const limit = more ?? Math.max(session.max_iterations ?? 0, session.iterations + (session.status === "max_iterations" ? 3 : 0));
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
            <form
              className="row"
              onSubmit={(event) => {
                event.preventDefault();
                act.mutate(["POST", "/resume", { max_iterations: limit, max_minutes: minutes }], { onSuccess: () => setMinutes(null) });
              }}
            >
              <label className="small-text row">
                up to
                <input
                  type="number"
                  className="narrow"
                  aria-label="Iterations in all"
                  min={1}
                  max={1000}
                  value={limit}
                  onChange={(event) => setMore(event.target.valueAsNumber || 1)}
                />
                iterations
              </label>
              {session.minutes_to_go_on != null && (
                <label className="small-text row">
                  and
                  <input
                    type="number"
                    className="narrow"
                    aria-label="Minutes in all"
                    min={0}
                    step="any"
                    placeholder={String(session.minutes_to_go_on)}
                    value={minutes ?? ""}
                    onChange={(event) => setMinutes(event.target.value === "" ? null : event.target.valueAsNumber)}
                  />
                  minutes
                </label>
              )}
              <button type="submit" className="button primary" disabled={act.isPending}>
                Continue
              </button>
            </form>
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
