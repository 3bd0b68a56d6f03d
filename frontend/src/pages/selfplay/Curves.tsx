import { useMemo } from "react";
import type { SelfPlayRun } from "../../api/types";
import { Card } from "../../ui/Card";
import { Chart, type Line } from "../../ui/Chart";

const SHOWN = 8;
const SHARE = [0, 1] as const;

/** What the learner says of itself, step by step. */
export function Curves({ run }: { run: SelfPlayRun }) {
  if (run.curves.length === 0) return null;
  return (
    <Card title="Learning">
      <div className="charts">
        {run.curves.slice(0, SHOWN).map((curve) => (
          <OneCurve key={curve.name} name={curve.name} values={curve.values} last={run.step} />
        ))}
      </div>
    </Card>
  );
}

function OneCurve({ name, values, last }: { name: string; values: readonly (number | null)[]; last: number }) {
  const x = useMemo(() => values.map((_, index) => last - values.length + 1 + index), [values, last]);
  const lines = useMemo<Line[]>(() => [{ label: name, values, colour: 1 }], [name, values]);
  return <Chart title={name} x={x} xLabel="update" lines={lines} height={150} whole />;
}

/** The win rate of every checkpoint that was evaluated, by opponent. */
export function WinRateCurves({ run }: { run: SelfPlayRun }) {
  const longest = Math.max(0, ...run.win_rates.map((rate) => rate.history.length));
  const x = useMemo(() => Array.from({ length: longest }, (_, index) => index + 1), [longest]);
  const lines = useMemo<Line[]>(
    () => run.win_rates.map((rate, index) => ({ label: `${rate.env_id} · ${rate.opponent}`, values: x.map((_, at) => rate.history[at] ?? null), colour: (index % 6) + 1, points: true })),
    [run.win_rates, x],
  );
  return longest > 1 ? <Chart title="Win rate of each checkpoint evaluated" x={x} xLabel="evaluation" lines={lines} range={SHARE} whole /> : null;
}
