import { Link } from "react-router";
import { compareAddress, MOST } from "../../lib/compare";
import { select, toggled, useSelection } from "../../lib/selection";
import "./compare.css";

/** Ticks a session, or an iteration as `session:number`, to be compared. */
export function CompareBox({ of, title }: { of: string; title: string }) {
  const chosen = useSelection();
  return (
    <label className="compare-box small-text">
      <input type="checkbox" aria-label={`Compare ${title}`} checked={chosen.includes(of)} onChange={() => select(toggled(chosen, of))} />
      Compare
    </label>
  );
}

/** What is ticked, and the way to the comparison; nothing while nothing is. */
export function CompareBar() {
  const chosen = useSelection();
  if (chosen.length === 0) return null;
  return (
    <div className="compare-bar" role="region" aria-label="Comparison">
      <span className="small-text">
        {chosen.length} of up to {MOST} chosen
      </span>
      <button type="button" className="button small" onClick={() => select([])}>
        Clear
      </button>
      <Link className="button small primary" to={compareAddress(chosen)}>
        Compare
      </Link>
    </div>
  );
}
