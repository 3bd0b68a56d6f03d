/** A measured value against its threshold, on a scale that shows both. */
import type { Criterion, CriterionScore } from "../api/types";

export interface Gauge {
  /** Where the bar begins and how wide it is, as shares of the scale. */
  from: number;
  width: number;
  /** Where the threshold stands; null where nothing was measured and the bar is the score. */
  threshold: number | null;
}

/** In every episode, by what the judges say: partial credit is not enough. */
export function isMet(result: CriterionScore | undefined): boolean {
  return result?.score != null && result.score > 1 - 1e-9;
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
