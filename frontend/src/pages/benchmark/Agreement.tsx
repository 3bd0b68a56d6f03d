import { Link } from "react-router";
import type { Benchmark, BenchmarkCase } from "../../api/types";
import { differ } from "../../lib/benchmark";
import { number } from "../../lib/format";
import { Card } from "../../ui/Card";
import { Empty } from "../../ui/Empty";

const SIZE = 260;
const MARGIN = 34;
const FAR = SIZE - MARGIN;
const SPAN = FAR - 10;

/** Whether the judge says what the ground truth says. */
export function Agreement({ benchmark, cases }: { benchmark: Benchmark; cases: readonly BenchmarkCase[] }) {
  const { agreement } = benchmark;
  return (
    <Card title="Judge against ground truth">
      {agreement.compared === 0 ? (
        <Empty title="Nothing to compare yet">Policies of prompts with a ground truth are played and measured when the sessions have ended.</Empty>
      ) : (
        <div className="agreement">
          <Scatter cases={cases} />
          <div className="stack small-text">
            <p>
              They agree on <b>{agreement.agreed}</b> of <b>{agreement.compared}</b> prompts.
            </p>
            {agreement.rank_correlation !== null && (
              <p>
                Rank correlation of score and truth: <b>{number(agreement.rank_correlation, 2)}</b>, over {agreement.correlated}.
              </p>
            )}
            <Wrong title="Passed, and should not have" benchmark={benchmark} numbers={agreement.false_passes} />
            <Wrong title="Did not pass, and should have" benchmark={benchmark} numbers={agreement.false_fails} />
            <p className="muted">Each mark is a prompt; a square is one on which they differ.</p>
          </div>
        </div>
      )}
    </Card>
  );
}

function Wrong({ title, benchmark, numbers }: { title: string; benchmark: Benchmark; numbers: readonly number[] }) {
  if (numbers.length === 0) return null;
  return (
    <p className="row">
      {title}:
      {numbers.map((each) => (
        <Link key={each} to={`/benchmark/job/${benchmark.benchmark_id}/case/${each}`}>
          case {each}
        </Link>
      ))}
    </p>
  );
}

function Scatter({ cases }: { cases: readonly BenchmarkCase[] }) {
  return (
    <svg className="scatter" viewBox={`0 0 ${SIZE} ${SIZE}`} role="img" aria-label="The judge's score by what of the ground truth is attained">
      <path d={`M${MARGIN} 10V${FAR}H${SIZE - 10}`} />
      <text x={MARGIN + SPAN / 2} y={SIZE - 8} textAnchor="middle">
        truth attained, 0 to 1
      </text>
      <text x={14} y={SIZE / 2} textAnchor="middle" transform={`rotate(-90 14 ${SIZE / 2})`}>
        judge’s score, 0 to 1
      </text>
      {cases.map((each) => {
        if (each.truth === null || each.score === null) return null;
        const [x, y] = [MARGIN + each.truth.attained * SPAN, FAR - each.score * SPAN];
        return differ(each) ? <rect key={each.case.number} x={x - 5} y={y - 5} width={10} height={10} /> : <circle key={each.case.number} cx={x} cy={y} r={5} />;
      })}
    </svg>
  );
}
