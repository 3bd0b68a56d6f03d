import type { Iteration, SessionDetail } from "../../api/types";
import { score, sentence } from "../../lib/format";
import { Code } from "../../ui/Code";
import { Empty, Facts, Scroll } from "../../ui/basics";
import { Criteria } from "../Criteria";

/** The verdict of the judges, and how sure they are. */
export function Judgment({ session, current }: { session: SessionDetail; current: Iteration }) {
  if (current.intent_score == null && !current.diagnosis && Object.keys(current.unavailable).length === 0) {
    return <Empty title="Not judged yet">It is judged when its training has ended.</Empty>;
  }
  return (
    <div className="stack">
      <Facts
        of={[
          ["Score", `${score(current.intent_score)}${current.score_std != null ? ` ± ${score(current.score_std)}` : ""}`],
          ...optional("Unseen episodes", current.confirmed_score),
          ...optional("Your score", current.steering?.score),
          ...optional("Judge agreement", current.agreement),
          ...optional("Confidence", current.confidence),
        ]}
      />
      {current.verdict && <p className="prose">{sentence(current.verdict)}</p>}
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
      <section className="stack">
        <h3>Criteria, iteration {current.iteration}</h3>
        <Criteria session={session} iteration={current} />
        {session.env_reason && <p className="small-text muted">{session.env_reason}</p>}
      </section>
      <Runs current={current} />
      {session.judge && (
        <details>
          <summary>Judge code</summary>
          <Code text={session.judge.code} label="Judge code" />
        </details>
      )}
    </div>
  );
}

function optional(name: string, value: number | null | undefined): [string, string][] {
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
            <th>Checkpoint scores</th>
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

const TIERS = [
  ["HARD", "bad", "checked by code"],
  ["STRONG", "warn", "given to every revision"],
  ["SOFT", "", "a hint"],
  ["RETIRED", "", "no longer applied"],
] as const;

/** What the session has learnt, the firmest first. */
export function Lessons({ session }: { session: SessionDetail }) {
  const lessons = session.lineage?.lessons ?? [];
  if (lessons.length === 0) return <Empty title="No lessons yet">Each revision can add some.</Empty>;
  return (
    <div className="stack">
      {TIERS.map(([tier, tone, meaning]) => {
        const own = lessons.filter((lesson) => lesson.tier === tier);
        if (own.length === 0) return null;
        return (
          <section key={tier} aria-label={tier} className="stack">
            <h3>
              <span className={`badge ${tone}`}>{tier}</span> <span className="muted">{meaning}</span>
            </h3>
            <ul className="lessons">
              {own.map((lesson) => (
                <li key={`${lesson.learned_at} ${lesson.text}`}>
                  {lesson.text}
                  <span className="small-text muted">
                    {" "}
                    from iteration {lesson.learned_at}
                    {lesson.reason && ` · ${lesson.reason}`}
                  </span>
                </li>
              ))}
            </ul>
          </section>
        );
      })}
    </div>
  );
}
