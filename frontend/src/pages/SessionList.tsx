import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";
import { send } from "../api/client";
import type { SessionRow } from "../api/types";
import { ago, dollars, score } from "../lib/format";
import { Meter } from "../ui/Meter";
import { Problem } from "../ui/Problem";
import { Status } from "../ui/Status";

export function SessionList({ sessions }: { sessions: readonly SessionRow[] }) {
  const client = useQueryClient();
  const star = useMutation({
    mutationFn: (row: SessionRow) => send("PATCH", `/api/sessions/${row.session_id}`, { starred: !row.starred }),
    onSettled: () => client.invalidateQueries({ queryKey: ["sessions"] }),
  });
  const now = Date.now();
  return (
    <>
      <Problem what="The star was not kept" error={star.error} />
      <ul className="session-list">
        {sessions.map((row) => (
          <li key={row.session_id}>
            <button
              type="button"
              className="star"
              aria-pressed={row.starred}
              aria-label={`Star ${title(row)}`}
              onClick={() => star.mutate(row)}
            >
              {row.starred ? "★" : "☆"}
            </button>
            <div className="session-what">
              <Link to={`/e2e/${row.session_id}`}>{title(row)}</Link>
              <span className="muted small-text">
                {[row.env_id || "environment not chosen yet", row.model, ago(row.created_at, now)].filter(Boolean).join(" · ")}
              </span>
            </div>
            <div className="session-score">
              <Meter value={row.best_score} label="Best score" tone={row.status === "passed" ? "good" : "plain"} />
              <span className="small-text">{score(row.best_score)}</span>
            </div>
            <span className="small-text muted session-count">
              {row.iterations}
              {row.max_iterations ? ` of ${row.max_iterations}` : ""} iter.
            </span>
            <span className="small-text muted session-cost">{dollars(row.cost_usd)}</span>
            <Status status={row.status} />
          </li>
        ))}
      </ul>
    </>
  );
}

function title(row: SessionRow): string {
  return row.alias || row.prompt || row.session_id;
}
