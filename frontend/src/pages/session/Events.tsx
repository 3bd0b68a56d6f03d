import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { eventsQuery } from "../../api/queries";
import type { SessionDetail, SessionEvent } from "../../api/types";
import { dollars, duration, number, plain } from "../../lib/format";
import { Empty } from "../../ui/basics";
import { Choice } from "../../ui/fields";

const SHOWN = 300;

/** What happened, the latest first, with what it cost. */
export function Events({ session, iteration }: { session: SessionDetail; iteration: number }) {
  const [which, setWhich] = useState<"iteration" | "all" | "models">("all");
  const { data: events = [] } = useQuery(eventsQuery(session.session_id));
  const shown = events
    .filter((event) => which === "all" || (which === "iteration" ? event.iteration === iteration : event.event.startsWith("llm.")))
    .toReversed();
  return (
    <div className="stack">
      <div className="row spread">
        <Choice
          label="Events"
          options={[["all", "All"], ["iteration", `Iteration ${iteration}`], ["models", "Models"]]}
          value={which}
          onChange={setWhich}
        />
        <span className="small-text muted">{shown.length} events</span>
      </div>
      {shown.length === 0 && <Empty title="No matching events" />}
      <ul className="events">
        {shown.slice(0, SHOWN).map((event) => (
          <li key={event.seq}>
            <details>
              <summary>
                <time className="mono muted" dateTime={event.timestamp}>
                  {new Date(event.timestamp).toLocaleTimeString("en-GB")}
                </time>
                <b>{event.event}</b>
                <span className="muted clamp-1">{gist(event)}</span>
                <span className="muted numeric">{event.duration_ms != null && duration(event.duration_ms / 1000)}</span>
              </summary>
              <pre className="code event-data">{JSON.stringify(event.data, null, 2)}</pre>
            </details>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** The event in a line: of a model's answer its cost, of others their first short values. */
function gist(event: SessionEvent): string {
  const data: Record<string, unknown> = event.data;
  if (event.event === "llm.call") {
    const tokens = Number(data.input_tokens ?? 0) + Number(data.output_tokens ?? 0);
    const cost = typeof data.cost_usd === "number" ? dollars(data.cost_usd) : "unknown price";
    return `${plain(data.role)} · ${plain(data.model)} · ${number(tokens)} tokens · ${cost}`;
  }
  const parts = Object.entries(data).filter(([, value]) => ["string", "number", "boolean"].includes(typeof value));
  return parts.slice(0, 4).map(([name, value]) => `${name} ${plain(value)}`).join(" · ").slice(0, 160);
}
