import type { Criterion, CriterionScore, Iteration, SessionDetail } from "../api/types";
import { demand } from "../lib/feedback";
import { number, score, withUnit } from "../lib/format";
import { gauge, isMet } from "../lib/gauge";

/** What is asked for, and how far an iteration meets it: measured values against their thresholds. */
export function Criteria({ session, iteration }: { session: SessionDetail; iteration: Iteration | undefined }) {
  const intent = session.intent;
  if (!intent) return null;
  const results = new Map(iteration?.criteria.map((each) => [each.id, each]));
  return (
    <>
      <ul className="criteria">
        {intent.criteria.map((criterion) => (
          <CriterionGauge key={criterion.id} criterion={criterion} result={results.get(criterion.id)} share={session.config?.pass_threshold ?? 1} />
        ))}
      </ul>
      <Assumptions texts={intent.assumptions} />
    </>
  );
}

/** What the prompt leaves open, and how the criteria settle it. */
export function Assumptions({ texts }: { texts: readonly string[] }) {
  if (texts.length === 0) return null;
  return (
    <div className="small-text muted assumptions">
      Assumed, where the prompt leaves it open:
      <ul>
        {texts.map((text) => (
          <li key={text}>{text}</li>
        ))}
      </ul>
    </div>
  );
}

function CriterionGauge({ criterion, result, share }: { criterion: Criterion; result: CriterionScore | undefined; share: number }) {
  const { from, width, threshold } = gauge(criterion, result);
  const met = isMet(criterion, result, share);
  const outcome = result?.score == null ? "open" : met ? "met" : "missed";
  const percent = (share: number) => `${100 * share}%`;
  const soft = criterion.soft_reason && `soft, it only moves the score: ${criterion.soft_reason}`;
  const title = [criterion.description || criterion.measure, `weight ${number(criterion.weight)}`, soft].filter(Boolean).join("; ");
  return (
    <li className={`criterion ${outcome} ${soft ? "soft" : "hard"}`} title={title}>
      <div className="row spread">
        <span>
          <span className="criterion-mark" role="img" aria-label={result?.score == null ? "not judged" : met ? "met" : soft ? "not met, only the score" : "not met"}>
            {result?.score == null ? "○" : met ? "✓" : "✕"}
          </span>
          <b>{demand(criterion)}</b>
          {criterion.category === "task" && <span className="badge busy still">task</span>}
          {soft && <span className="badge">soft</span>}
        </span>
        <span className="numeric">{result?.value != null ? withUnit(result.value, criterion.unit) : score(result?.score)}</span>
      </div>
      <div className="gauge" aria-hidden="true">
        <div className="gauge-fill" style={{ left: percent(from), width: percent(width) }} />
        {threshold !== null && <div className="gauge-mark" style={{ left: percent(threshold) }} />}
      </div>
      <p className="small-text muted criterion-target">
        <span>{criterion.measure}</span>
        {result?.value != null && !met && <span className="nowrap">· score {score(result.score)}</span>}
        {result?.evidence && (result.value == null || criterion.event) && <span className="clamp">· {result.evidence}</span>}
      </p>
    </li>
  );
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
            <input aria-label="Why it need not be met" className="grow" placeholder="hard; to make it soft, say why" maxLength={200} value={criterion.soft_reason} onChange={(event) => change(index, { soft_reason: event.target.value })} />
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
    threshold: 1, unit: "", weight: 0.5, category: "task", visual: false, event: "", soft_reason: "",
  };
}
