import type { Rate } from "../api/types";
import { percent } from "../lib/format";

/** A share with its 95 % interval, on a line from 0 to 100 %. */
export function Interval({ rate, label, colour }: { rate: Rate; label: string; colour: 1 | 2 }) {
  const at = (part: number | null) => `${100 * (part ?? 0)}%`;
  return (
    <div className={`interval colour-${colour}`} role="img" aria-label={`${label}: ${spoken(rate)}`}>
      {rate.rate !== null && rate.low !== null && rate.high !== null && (
        <>
          <div className="interval-range" style={{ left: at(rate.low), width: at(rate.high - rate.low) }} />
          <div className="interval-dot" style={{ left: at(rate.rate) }} />
        </>
      )}
    </div>
  );
}

export function spoken(rate: Rate): string {
  if (rate.rate === null) return "nothing to count yet";
  const interval = rate.low !== null && rate.high !== null ? ` (${percent(rate.low)} to ${percent(rate.high)})` : "";
  return `${rate.passed} of ${rate.total}${interval}`;
}
