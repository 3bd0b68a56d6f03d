import type { Iteration, SessionDetail } from "../../api/types";
import { score } from "../../lib/format";
import { Code } from "../../ui/Code";
import { Empty } from "../../ui/Empty";
import { Facts } from "../../ui/Facts";
import { Scroll } from "../../ui/Scroll";

/** What the judges made of the iteration, and how sure they are. */
export function Judgment({ session, current }: { session: SessionDetail; current: Iteration }) {
  if (current.intent_score == null && !current.diagnosis && Object.keys(current.unavailable).length === 0) {
    return <Empty title="Not judged yet">The judges look at it when its training has ended.</Empty>;
  }
  return (
    <div className="stack">
      <Facts
        of={[
          ["Score", `${score(current.intent_score)}${current.score_std != null ? ` ± ${score(current.score_std)}` : ""}`],
          ...given("On fresh starts", current.confirmed_score),
          ...given("Your score", current.steering?.score),
          ...given("Judges agree", current.agreement),
          ...given("Confidence", current.confidence),
        ]}
      />
      {current.diagnosis && <p className="prose">{current.diagnosis}</p>}
      {current.failure_tags.length > 0 && (
        <p className="row">
          {current.failure_tags.map((tag) => (
            <span key={tag} className="badge warn">
              {tag.replaceAll("_", " ")}
            </span>
          ))}
        </p>
      )}
      {Object.entries(current.unavailable).map(([judge, why]) => (
        <p key={judge} className="problem">
          The {judge} judge could not judge: {why}
        </p>
      ))}
      <Runs current={current} />
      {session.judge && (
        <details>
          <summary>The judge’s code</summary>
          <Code text={session.judge.code} label="The judge's code" />
        </details>
      )}
    </div>
  );
}

function given(name: string, value: number | null | undefined): [string, string][] {
  return value == null ? [] : [[name, score(value)]];
}

function Runs({ current }: { current: Iteration }) {
  return (
    <Scroll label="Table of runs">
      <table>
        <thead>
          <tr>
            <th>Run</th>
            <th>Status</th>
            <th className="numeric">Score</th>
            <th className="numeric">Return</th>
            <th>Scores on the way</th>
          </tr>
        </thead>
        <tbody>
          {current.runs.map((run) => (
            <tr key={run.run_id}>
              <td className="mono">
                {run.run_id}
                {run.run_id === current.best_run_id && " ★"}
              </td>
              <td>{run.error || run.status}</td>
              <td className="numeric">{score(run.score)}</td>
              <td className="numeric">{run.final_return?.toFixed(1) ?? "–"}</td>
              <td>{Object.values(run.checkpoint_scores).map(score).join(" → ") || "–"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
