import type { Criterion, Iteration, SessionDetail } from "../../api/types";
import { number, score } from "../../lib/format";
import { Card } from "../../ui/Card";
import { Meter } from "../../ui/Meter";

/** What is asked for, and how far the chosen iteration meets it. */
export function Criteria({ session, iteration }: { session: SessionDetail; iteration: Iteration | undefined }) {
  const intent = session.intent;
  if (!intent) return null;
  const found = new Map(iteration?.criteria.map((each) => [each.id, each]));
  return (
    <Card title={iteration ? `Criteria, iteration ${iteration.iteration}` : "Criteria"} aside={<span className="muted small-text">by {intent.author}</span>}>
      <ul className="criteria">
        {intent.criteria.map((criterion) => {
          const result = found.get(criterion.id);
          return (
            <li key={criterion.id}>
              <div className="row spread">
                <span>
                  <b>{criterion.title}</b> <span className={`badge ${criterion.category === "task" ? "busy" : ""} still`}>{criterion.category}</span>
                </span>
                <span className="numeric">{score(result?.score)}</span>
              </div>
              <Meter value={result?.score} label={criterion.title} tone={toneOf(result?.score)} />
              <p className="small-text muted">
                {target(criterion)}
                {result?.value != null && ` · measured ${number(result.value)}${criterion.unit && ` ${criterion.unit}`}`}
                {result?.std != null && ` · ± ${score(result.std)}`} · weight {number(criterion.weight)}
              </p>
              {result?.evidence && result.value == null && <p className="small-text muted">{result.evidence}</p>}
            </li>
          );
        })}
      </ul>
      {intent.unused_words.length > 0 && (
        <p className="small-text">
          <span className="badge warn">not covered</span> {intent.unused_words.join(", ")}
        </p>
      )}
      {intent.note && <p className="small-text muted">{intent.note}</p>}
      {session.env_reason && <p className="small-text muted">{session.env_reason}</p>}
    </Card>
  );
}

export function target(criterion: Criterion): string {
  const sign = criterion.comparison === "at_least" ? "≥" : "≤";
  return `${criterion.measure} ${sign} ${number(criterion.threshold)}${criterion.unit && ` ${criterion.unit}`}`;
}

export function toneOf(value: number | null | undefined): "good" | "warn" | "bad" {
  return value == null || value < 0.4 ? "bad" : value < 0.8 ? "warn" : "good";
}
