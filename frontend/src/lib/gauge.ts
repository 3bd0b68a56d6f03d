/** A measured value against its threshold, on a scale that shows both. */
import type { Criterion, CriterionScore } from "../api/types";

export interface Gauge {
  /** Where the bar begins and how wide it is, as shares of the scale. */
  from: number;
  width: number;
  /** Where the threshold stands; null where nothing was measured and the bar is the score. */
  threshold: number | null;
}

/** The rule of `Criterion.is_met`: the mean of what was measured meets it, and the score is enough. */
export function isMet(criterion: Pick<Criterion, "comparison" | "threshold">, result: Pick<CriterionScore, "score" | "value"> | undefined, share: number): boolean {
  if (result?.score == null || result.score < share) return false;
  const sign = criterion.comparison === "at_least" ? 1 : -1;
  return result.value == null || sign * (result.value - criterion.threshold) >= -1e-9 * Math.abs(criterion.threshold);
}

const ROOM = 1.15;

export function gauge(criterion: Pick<Criterion, "threshold">, result: Pick<CriterionScore, "score" | "value"> | undefined): Gauge {
  if (result?.value == null) return { from: 0, width: result?.score ?? 0, threshold: null };
  const low = ROOM * Math.min(0, result.value, criterion.threshold);
  const high = ROOM * Math.max(0, result.value, criterion.threshold);
  const place = (value: number) => (high > low ? (value - low) / (high - low) : 0);
  const [zero, at] = [place(0), place(result.value)];
  return { from: Math.min(zero, at), width: Math.abs(at - zero), threshold: place(criterion.threshold) };
}
