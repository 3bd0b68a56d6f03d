import { useState } from "react";
import type { Benchmark, Group } from "../../api/types";
import { Card } from "../../ui/Card";
import { Choice } from "../../ui/Choice";
import { Interval } from "../../ui/Interval";

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
        <span>The line is the 95 % interval by Wilson.</span>
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
          {group.finished} of {group.cases} ended{group.errors > 0 && `, ${group.errors} by errors`}
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
