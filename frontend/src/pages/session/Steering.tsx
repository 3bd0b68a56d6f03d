import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { send } from "../../api/client";
import type { Criterion, SessionDetail, SteerRequest } from "../../api/types";
import { Card, Problem } from "../../ui/basics";
import { CriteriaEditor } from "../Criteria";

/** Feedback for the session: applied when the current iteration ends. */
export function Steering({ session }: { session: SessionDetail }) {
  const [remark, setRemark] = useState("");
  const [ownScore, setOwnScore] = useState<number | null>(null);
  const [criteria, setCriteria] = useState<readonly Criterion[] | null>(null);
  const steer = useMutation({
    mutationFn: (feedback: SteerRequest) => send("POST", `/api/sessions/${session.session_id}/steer`, feedback),
    onSuccess: () => {
      setRemark("");
      setOwnScore(null);
      setCriteria(null);
    },
  });
  const nothing = !remark.trim() && ownScore === null && criteria === null;
  return (
    <Card title="Feedback">
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault();
          steer.mutate({
            ...(remark.trim() ? { remark: remark.trim() } : {}),
            ...(ownScore === null ? {} : { score: ownScore }),
            ...(criteria === null ? {} : { criteria: [...criteria] }),
          });
        }}
      >
        <label className="field">
          Remark
          <textarea rows={3} maxLength={4000} value={remark} placeholder="Take smaller steps, and keep the back straight" onChange={(event) => setRemark(event.target.value)} />
        </label>
        <div className="field">
          <span className="row spread">
            <label htmlFor="own-score">Your score for the last judged iteration</label>
            <span className="numeric">{ownScore === null ? "as judged" : ownScore.toFixed(2)}</span>
          </span>
          <div className="row">
            <input id="own-score" type="range" className="grow" min={0} max={1} step={0.05} value={ownScore ?? 0.5} onChange={(event) => setOwnScore(event.target.valueAsNumber)} />
            <button type="button" className="button small" disabled={ownScore === null} onClick={() => setOwnScore(null)}>
              As judged
            </button>
          </div>
        </div>
        {criteria === null ? (
          <p>
            <button type="button" className="button" disabled={!session.intent} onClick={() => setCriteria(session.intent?.criteria ?? null)}>
              Edit criteria
            </button>
          </p>
        ) : (
          <CriteriaEditor criteria={criteria} onChange={setCriteria} onDrop={() => setCriteria(null)} />
        )}
        <div className="row">
          <button type="submit" className="button primary" disabled={nothing || steer.isPending}>
            Send feedback
          </button>
          <span className="small-text muted" role="status">
            {steer.isSuccess && nothing ? "Sent. It applies when this iteration ends, or when you resume." : ""}
          </span>
        </div>
        <Problem what="Could not send the feedback" error={steer.error} />
      </form>
    </Card>
  );
}
