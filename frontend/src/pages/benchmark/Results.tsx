import { useState } from "react";
import { Link } from "react-router";
import type { Benchmark, BenchmarkCase, Group } from "../../api/types";
import { differ } from "../../lib/benchmark";
import { number } from "../../lib/format";
import { Card, Empty, Interval } from "../../ui/basics";
import { Choice } from "../../ui/fields";

const BY = [
  ["by_env", "Environment"],
  ["by_category", "Category"],
  ["by_difficulty", "Difficulty"],
] as const;

/** How many pass, by judge and by ground truth, with 95 % intervals. */
export function Rates({ benchmark }: { benchmark: Benchmark }) {
  const [by, setBy] = useState<(typeof BY)[number][0]>("by_difficulty");
  return (
    <Card title="Pass rates" aside={<Choice label="Rates by" options={BY} value={by} onChange={setBy} />}>
      <ul className="rates">
        {[{ ...benchmark.overall, name: "all" }, ...benchmark[by]].map((group) => (
          <Row key={group.name} group={group} />
        ))}
      </ul>
      <p className="rates-axis small-text muted" aria-hidden="true">
        <span>0 %</span>
        <span>50 %</span>
        <span>100 %</span>
      </p>
      <p className="row small-text muted">
        <span className="key colour-1">judge</span>
        <span className="key colour-2">ground truth</span>
        <span>Lines are 95 % Wilson intervals.</span>
      </p>
    </Card>
  );
}

function Row({ group }: { group: Group }) {
  return (
    <li>
      <div>
        <b>{group.name.replace(/-v\d+$/, "")}</b>
        <div className="small-text muted">
          {group.finished} of {group.cases} finished
          {group.errors > 0 && `, ${group.errors} errors`}
          {group.unverified > 0 && `, ${group.unverified} unverified`}
          {group.true.total > 0 && `; ${group.false_passes} false passes, ${group.false_fails} false fails`}
        </div>
      </div>
      <div className="rates-lines">
        <Interval rate={group.judged} label={`${group.name}, by the judge`} colour={1} />
        <Interval rate={group.true} label={`${group.name}, by the ground truth`} colour={2} />
      </div>
      <div className="small-text numeric rates-numbers" aria-hidden="true">
        <div>{short(group.judged)}</div>
        <div>{short(group.true)}</div>
      </div>
    </li>
  );
}

function short(rate: Group["judged"]): string {
  return rate.total === 0 ? "–" : `${rate.passed} of ${rate.total}`;
}

const SIZE = 260;
const MARGIN = 34;
const FAR = SIZE - MARGIN;
const SPAN = FAR - 10;

/** Whether judge and ground truth agree. */
export function Agreement({ benchmark, cases }: { benchmark: Benchmark; cases: readonly BenchmarkCase[] }) {
  const { agreement } = benchmark;
  return (
    <Card title="Judge vs. ground truth">
      {agreement.compared === 0 ? (
        <Empty title="Nothing to compare yet">Policies are measured against the ground truth when their sessions have ended.</Empty>
      ) : (
        <div className="agreement">
          <Scatter cases={cases} />
          <div className="stack small-text">
            <p>
              Judge and ground truth agree on <b>{agreement.agreed}</b> of <b>{agreement.compared}</b> prompts.
            </p>
            {agreement.rank_correlation !== null && (
              <p>
                Rank correlation of score and ground truth: <b>{number(agreement.rank_correlation, 2)}</b> ({agreement.correlated} prompts).
              </p>
            )}
            <Wrong title="False passes" benchmark={benchmark} numbers={agreement.false_passes} />
            <Wrong title="False fails" benchmark={benchmark} numbers={agreement.false_fails} />
            <Wrong title="Unverified (no criterion measures some words; not compared)" benchmark={benchmark} numbers={agreement.unverified} />
            <p className="muted">Each mark is a prompt; squares are disagreements.</p>
          </div>
        </div>
      )}
    </Card>
  );
}

function Wrong({ title, benchmark, numbers }: { title: string; benchmark: Benchmark; numbers: readonly number[] }) {
  return (
    <p className="row">
      {title}: {numbers.length}
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
    <svg className="scatter" viewBox={`0 0 ${SIZE} ${SIZE}`} role="img" aria-label="Judge score against ground truth attained">
      <path d={`M${MARGIN} 10V${FAR}H${SIZE - 10}`} />
      <text x={MARGIN + SPAN / 2} y={SIZE - 8} textAnchor="middle">
        ground truth attained, 0 to 1
      </text>
      <text x={14} y={SIZE / 2} textAnchor="middle" transform={`rotate(-90 14 ${SIZE / 2})`}>
        judge score, 0 to 1
      </text>
      {cases.map((each) => {
        if (each.truth === null || each.score === null) return null;
        const [x, y] = [MARGIN + each.truth.attained * SPAN, FAR - each.score * SPAN];
        return differ(each) ? <rect key={each.case.number} x={x - 5} y={y - 5} width={10} height={10} /> : <circle key={each.case.number} cx={x} cy={y} r={5} />;
      })}
    </svg>
  );
}
