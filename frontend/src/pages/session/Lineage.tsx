import type { Iteration } from "../../api/types";
import { score } from "../../lib/format";
import { type LineageRow, laneCount, lanes, story } from "../../lib/lineage";
import { Card } from "../../ui/Card";

const LANE = 18;
const ROW = 68;

interface Props {
  iterations: readonly Iteration[];
  current: number | undefined;
  onChoose: (iteration: number) => void;
}

/** The tree of iterations, one row each, with what changed on the way to it. */
export function Lineage({ iterations, current, onChoose }: Props) {
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
            <circle key={row.iteration} cx={x(row.lane)} cy={y(index)} r={6} className={byNumber.get(row.iteration)?.passed ? "passed" : ""} />
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

const x = (lane: number) => lane * LANE + 12;
const y = (row: number) => row * ROW + ROW / 2;

function edge(row: LineageRow, index: number): string {
  if (row.from === null) return "";
  const [fromX, fromY, toX, toY] = [x(row.from.lane), y(row.from.row), x(row.lane), y(index)];
  return `M ${fromX} ${fromY} C ${fromX} ${fromY + ROW / 2}, ${toX} ${toY - ROW / 2}, ${toX} ${toY}`;
}
