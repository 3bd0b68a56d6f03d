import { useMemo } from "react";
import type { Iteration } from "../../api/types";
import { spreadBand } from "../../lib/curves";
import { score } from "../../lib/format";
import { laneCount, lanes, type LineageRow, story } from "../../lib/lineage";
import { Chart, type Line } from "../../ui/Chart";
import { Card } from "../../ui/basics";

const RANGE = [0, 1.05] as const;

export function ScoreChart({ iterations }: { iterations: readonly Iteration[] }) {
  const x = useMemo(() => iterations.map((each) => each.iteration), [iterations]);
  const lines = useMemo(() => {
    const scores = iterations.map((each) => each.intent_score ?? null);
    const spread = iterations.map((each) => each.score_std ?? null);
    const drawn: Line[] = [{ label: "score", values: scores, ...spreadBand(scores, spread), colour: 1, points: true }];
    if (iterations.some((each) => each.confirmed_score != null)) {
      drawn.push({ label: "on unseen episodes", values: iterations.map((each) => each.confirmed_score ?? null), colour: 2, points: true });
    }
    return drawn;
  }, [iterations]);
  return (
    <Card title="Score" aside={<span className="small-text muted">how well, not whether it passes</span>}>
      <Chart title="Score per iteration, with its spread over episodes" x={x} xLabel="iteration" yLabel="score, 0 to 1" lines={lines} range={RANGE} whole />
    </Card>
  );
}

const LANE = 18;
const ROW = 68;

interface LineageProps {
  iterations: readonly Iteration[];
  current: number | undefined;
  onChoose: (iteration: number) => void;
}

/** The tree of iterations, one row each, with what changed on the way to it. */
export function Lineage({ iterations, current, onChoose }: LineageProps) {
  const rows = lanes(iterations.map((each) => ({ iteration: each.iteration, parent: each.parent ?? null })));
  const width = laneCount(rows) * LANE + 6;
  const byNumber = new Map(iterations.map((each) => [each.iteration, each]));
  return (
    <Card title="Lineage">
      <div className="lineage">
        <svg width={width} height={rows.length * ROW} aria-hidden="true">
          {rows.map((row, index) => (
            <path key={row.iteration} d={edge(row, index)} />
          ))}
          {rows.map((row, index) => (
            <circle key={row.iteration} cx={x(row.lane)} cy={y(index)} r={6} className={mark(byNumber.get(row.iteration))} />
          ))}
        </svg>
        <ul>
          {rows.map(({ iteration }) => {
            const each = byNumber.get(iteration);
            return (
              <li key={iteration}>
                <button type="button" aria-current={iteration === current} onClick={() => onChoose(iteration)}>
                  <span className="row spread">
                    <b>Iteration {iteration}</b>
                    <span className="numeric">{score(each?.intent_score)}</span>
                  </span>
                  <span className="small-text muted clamp">{each && story(each)}</span>
                </button>
              </li>
            );
          })}
        </ul>
      </div>
    </Card>
  );
}

function mark(iteration: Iteration | undefined): string {
  return iteration?.unverified ? "unverified" : iteration?.passed ? "passed" : "";
}

const x = (lane: number) => lane * LANE + 12;
const y = (row: number) => row * ROW + ROW / 2;

function edge(row: LineageRow, index: number): string {
  if (row.from === null) return "";
  const [fromX, fromY, toX, toY] = [x(row.from.lane), y(row.from.row), x(row.lane), y(index)];
  return `M ${fromX} ${fromY} C ${fromX} ${fromY + ROW / 2}, ${toX} ${toY - ROW / 2}, ${toX} ${toY}`;
}
