import type { SessionDetail } from "../../api/types";
import { Empty } from "../../ui/Empty";

const TIERS = [
  ["HARD", "bad", "checked by code"],
  ["STRONG", "warn", "told to every revision"],
  ["SOFT", "", "a hint"],
  ["RETIRED", "", "no longer held to"],
] as const;

/** What the session has learnt, the firmest first. */
export function Lessons({ session }: { session: SessionDetail }) {
  const lessons = session.lineage?.lessons ?? [];
  if (lessons.length === 0) return <Empty title="No lessons yet">A revision draws them from what an iteration did.</Empty>;
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
