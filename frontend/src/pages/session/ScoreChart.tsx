import { useMemo } from "react";
import type { Iteration, SessionDetail } from "../../api/types";
import { spreadBand } from "../../lib/curves";
import { Card } from "../../ui/Card";
import { Chart, type Line } from "../../ui/Chart";

const RANGE = [0, 1.05] as const;

export function ScoreChart({ session, iterations }: { session: SessionDetail; iterations: readonly Iteration[] }) {
  const threshold = session.config?.pass_threshold;
  const x = useMemo(() => iterations.map((each) => each.iteration), [iterations]);
  const lines = useMemo(() => {
    const scores = iterations.map((each) => each.intent_score ?? null);
    const spread = iterations.map((each) => each.score_std ?? null);
    const drawn: Line[] = [{ label: "score", values: scores, ...spreadBand(scores, spread), colour: 1, points: true }];
    if (iterations.some((each) => each.confirmed_score != null)) {
      drawn.push({ label: "on fresh starts", values: iterations.map((each) => each.confirmed_score ?? null), colour: 2, points: true });
    }
    return drawn;
  }, [iterations]);
  return (
    <Card title="Score" aside={threshold !== undefined && <span className="small-text muted">passes from {threshold}, the dashed line</span>}>
      <Chart title="Score over iterations, with its spread over the episodes" x={x} xLabel="iteration" lines={lines} range={RANGE} mark={threshold} whole />
    </Card>
  );
}
