import type { Criterion, Iteration, SessionDetail } from "../api/types";
import { target } from "../lib/feedback";
import { number, score } from "../lib/format";
import { Card, Meter } from "../ui/basics";

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

export function toneOf(value: number | null | undefined): "good" | "warn" | "bad" {
  return value == null || value < 0.4 ? "bad" : value < 0.8 ? "warn" : "good";
}

const CATEGORIES = ["task", "gait", "posture", "dynamics", "stability", "efficiency"] as const;

interface CriteriaEditorProps {
  criteria: readonly Criterion[];
  onChange: (criteria: readonly Criterion[]) => void;
  onDrop: () => void;
}

/** Criteria to edit; the server says what is wrong with them. */
export function CriteriaEditor({ criteria, onChange, onDrop }: CriteriaEditorProps) {
  function change(index: number, part: Partial<Criterion>): void {
    onChange(criteria.map((each, at) => (at === index ? { ...each, ...part } : each)));
  }
  return (
    <fieldset className="stack criteria-editor">
      <legend>Criteria</legend>
      {criteria.map((criterion, index) => (
        <div key={criterion.id} className="criterion-edit">
          <div className="row">
            <input className="grow" aria-label="Title" value={criterion.title} required maxLength={80} onChange={(event) => change(index, { title: event.target.value })} />
            <select aria-label="Category" value={criterion.category} onChange={(event) => change(index, { category: event.target.value as Criterion["category"] })}>
              {CATEGORIES.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </div>
          <input aria-label="Measure" className="small-text" value={criterion.measure} required onChange={(event) => change(index, { measure: event.target.value })} />
          <div className="row small-text">
            <select aria-label="Comparison" value={criterion.comparison} onChange={(event) => change(index, { comparison: event.target.value as Criterion["comparison"] })}>
              <option value="at_least">at least</option>
              <option value="at_most">at most</option>
            </select>
            <input aria-label="Threshold" type="number" step="any" className="narrow" required value={criterion.threshold} onChange={(event) => change(index, { threshold: event.target.valueAsNumber })} />
            <span className="muted">{criterion.unit}</span>
            <label className="row">
              weight
              <input type="number" className="narrow" min={0.01} max={1} step="any" required value={criterion.weight} onChange={(event) => change(index, { weight: event.target.valueAsNumber })} />
            </label>
            <button type="button" className="button small danger" onClick={() => onChange(criteria.filter((_, at) => at !== index))}>
              Remove
            </button>
          </div>
        </div>
      ))}
      <div className="row">
        <button type="button" className="button small" onClick={() => onChange([...criteria, blank(criteria)])}>
          Add a criterion
        </button>
        <button type="button" className="button small" onClick={onDrop}>
          Discard changes
        </button>
      </div>
    </fieldset>
  );
}

function blank(criteria: readonly Criterion[]): Criterion {
  const taken = new Set(criteria.map((each) => each.id));
  let number = criteria.length + 1;
  while (taken.has(`own_${number}`)) number += 1;
  return {
    id: `own_${number}`, title: "New criterion", description: "", measure: "mean forward speed", comparison: "at_least",
    threshold: 1, unit: "", weight: 0.5, category: "task",
  };
}
