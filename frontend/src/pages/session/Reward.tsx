import { useState } from "react";
import type { Iteration } from "../../api/types";
import { lineDiff } from "../../lib/diff";
import { score, short } from "../../lib/format";
import { Code, CodeLines } from "../../ui/Code";
import { Formula } from "../../ui/Formula";
import { Empty, Scroll } from "../../ui/basics";
import { Choice } from "../../ui/fields";

/** The reward: as a formula, in words, and as code, with what changed against its parent. */
export function Reward({ iterations, current }: { iterations: readonly Iteration[]; current: Iteration }) {
  const parent = iterations.find((each) => each.iteration === current.parent);
  const [view, setView] = useState<"diff" | "code">("diff");
  const reward = current.reward;
  if (!reward) return <Empty title="No reward yet">It is being written.</Empty>;
  const spec = current.reward_spec;
  return (
    <div className="stack">
      {current.changes && (
        <p className="prose">
          <b>Changed:</b> {current.changes}
        </p>
      )}
      {current.candidates.length > 1 && <Candidates current={current} />}
      {spec.latex && <Formula tex={spec.latex} />}
      {Object.keys(spec.terms).length > 0 && (
        <dl className="terms">
          {Object.entries(spec.terms).map(([name, meaning]) => (
            <div key={name}>
              <dt className="mono">{name}</dt>
              <dd className="small-text muted">{meaning}</dd>
            </div>
          ))}
        </dl>
      )}
      {reward.explanation && <p className="prose muted">{reward.explanation}</p>}
      <div className="row spread">
        <span className="small-text muted">by {reward.author}</span>
        {parent?.reward && (
          <Choice label="Code" options={[["diff", `Diff to iteration ${parent.iteration}`], ["code", "Code"]]} value={view} onChange={setView} />
        )}
      </div>
      {parent?.reward && view === "diff" ? (
        <CodeLines label="Reward code, diff to its parent" lines={lineDiff(parent.reward.code, reward.code)} />
      ) : (
        <Code label="Reward code" text={reward.code} />
      )}
      <details>
        <summary>How it was written: {reward.steps.length} steps</summary>
        <ol className="steps">
          {reward.steps.map((step, index) => (
            <li key={index} className="small-text">
              <span className={`badge ${step.ok ? "good" : "bad"}`}>{step.kind}</span> {step.text}
            </li>
          ))}
        </ol>
      </details>
    </div>
  );
}

/** The rewards that were tried, how each scored on the way, and which was chosen. */
function Candidates({ current }: { current: Iteration }) {
  const rows = current.candidates;
  const steps = [...new Set(rows.flatMap((row) => Object.keys(row.scores).map(Number)))].sort((a, b) => a - b);
  return (
    <section aria-label="Candidates">
      {current.choice && <p className="prose">{current.choice}</p>}
      <Scroll label="Candidates">
        <table className="fit">
          <thead>
            <tr>
              <th>Candidate</th>
              {steps.map((step) => (
                <th key={step} className="numeric">
                  at {short(step)}
                </th>
              ))}
              <th>What it is</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.name} className={row.won ? "" : "muted"}>
                <th scope="row">
                  {row.name} {row.won && <span className="badge good">chosen</span>}
                </th>
                {steps.map((step) => (
                  <td key={step} className="numeric">
                    {score(row.scores[step])}
                  </td>
                ))}
                <td>
                  {row.explanation}
                  {row.problems.length > 0 && <span className="muted"> Not good: {row.problems.join("; ")}</span>}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}
