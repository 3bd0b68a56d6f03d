import type { Criterion } from "../api/types";

const CATEGORIES = ["task", "gait", "posture", "dynamics", "stability", "efficiency"] as const;

interface Props {
  criteria: readonly Criterion[];
  onChange: (criteria: readonly Criterion[]) => void;
  onDrop: () => void;
}

/** Criteria as a person edits them; the server says what does not go. */
export function CriteriaEditor({ criteria, onChange, onDrop }: Props) {
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
          <input aria-label="What is measured" className="small-text" value={criterion.measure} required onChange={(event) => change(index, { measure: event.target.value })} />
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
          Leave them as they were
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
