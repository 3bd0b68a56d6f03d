import { useMemo } from "react";
import type { SelfPlayRun } from "../../api/types";
import { winRateCharts } from "../../lib/winrates";
import { Card } from "../../ui/Card";
import { Chart, type Line } from "../../ui/Chart";

const SHOWN = 8;
const SHARE = [0, 1.02] as const;

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

/** The win rate of every checkpoint that was evaluated, over the updates that made it. */
export function WinRateCurves({ run }: { run: SelfPlayRun }) {
  const charts = useMemo(() => winRateCharts(run.win_rates), [run.win_rates]);
  if (charts.length === 0) return null;
  return (
    <div className="charts">
      {charts.map(({ env, x, lines }) => (
        <Chart key={env} title={`Win rate in ${env}, with 95 % intervals`} x={x} xLabel="update" lines={lines} range={SHARE} whole />
      ))}
    </div>
  );
}
