import { useState } from "react";
import type { ResumeRequest, SessionDetail } from "../../api/types";

interface BoundProps {
  before: string;
  after: string;
  name: string;
  placeholder: string;
  value: number | null;
  onChange: (value: number | null) => void;
}

/** A number that bounds the session; empty: what the placeholder says. */
function Bound({ before, after, name, placeholder, value, onChange }: BoundProps) {
  return (
    <label className="small-text row">
      {before}
      <input
        type="number"
        className="narrow"
        aria-label={name}
        min={0}
        step="any"
        placeholder={placeholder}
        value={value ?? ""}
        onChange={(event) => onChange(event.target.value === "" ? null : event.target.valueAsNumber)}
      />
      {after}
    </label>
  );
}

/** Go on with a session that has ended, with more of what it was given. */
export function Continue({ session, disabled, onContinue }: { session: SessionDetail; disabled: boolean; onContinue: (wanted: ResumeRequest) => void }) {
  const [more, setMore] = useState<number | null>(null);
  const [minutes, setMinutes] = useState<number | null>(null);
  const [dollars, setDollars] = useState<number | null>(null);
  const limit = more ?? Math.max(session.max_iterations ?? 0, session.iterations + (session.status === "max_iterations" ? 3 : 0));
  const budget = session.config?.budget_usd;
  return (
    <form
      className="row"
      onSubmit={(event) => {
        event.preventDefault();
        onContinue({ max_iterations: limit, max_minutes: minutes, budget_usd: dollars });
        setMinutes(null);
        setDollars(null);
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
        <Bound before="and" after="minutes" name="Minutes in all" placeholder={String(session.minutes_to_go_on)} value={minutes} onChange={setMinutes} />
      )}
      {budget != null && <Bound before="and $" after="" name="Dollars in all" placeholder={String(budget)} value={dollars} onChange={setDollars} />}
      <button type="submit" className="button primary" disabled={disabled}>
        Continue
      </button>
    </form>
  );
}
