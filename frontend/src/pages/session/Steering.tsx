import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { send } from "../../api/client";
import type { Criterion, SessionDetail, SteerRequest } from "../../api/types";
import { Card } from "../../ui/Card";
import { Problem } from "../../ui/Problem";
import { CriteriaEditor } from "../CriteriaEditor";

/** A person's word to the session: taken up when the current iteration ends. */
export function Steering({ session }: { session: SessionDetail }) {
  const [remark, setRemark] = useState("");
  const [ownScore, setOwnScore] = useState<number | null>(null);
  const [criteria, setCriteria] = useState<readonly Criterion[] | null>(null);
  const steer = useMutation({
    mutationFn: (order: SteerRequest) => send("POST", `/api/sessions/${session.session_id}/steer`, order),
    onSuccess: () => {
      setRemark("");
      setOwnScore(null);
      setCriteria(null);
    },
  });
  const nothing = !remark.trim() && ownScore === null && criteria === null;
  return (
    <Card title="Steer">
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
            <label htmlFor="own-score">Your score of the last judged iteration</label>
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
              Edit the criteria
            </button>
          </p>
        ) : (
          <CriteriaEditor criteria={criteria} onChange={setCriteria} onDrop={() => setCriteria(null)} />
        )}
        <div className="row">
          <button type="submit" className="button primary" disabled={nothing || steer.isPending}>
            Give the order
          </button>
          <span className="small-text muted" role="status">
            {steer.isSuccess && nothing ? "Given. It is taken up when this iteration ends, or when you continue." : ""}
          </span>
        </div>
        <Problem what="The order was not given" error={steer.error} />
      </form>
    </Card>
  );
}
