import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useDeferredValue } from "react";
import { Link, useSearchParams } from "react-router";
import { send } from "../api/client";
import { useLive } from "../api/live";
import { sessionsQuery } from "../api/queries";
import type { SessionRow } from "../api/types";
import { ago, dollars, score, SESSION_STATUSES, statusWord } from "../lib/format";
import { Empty, Meter, PageHeading, Problem, Status, Unchecked } from "../ui/basics";

const PAGE = 50;
const SORTS = [
  ["created_at", "Newest"],
  ["updated_at", "Last changed"],
  ["best_score", "Best score"],
] as const;

/** All sessions: searched, sorted, opened, and a new one started. */
export function SessionsPage() {
  const [params, setParams] = useSearchParams();
  const offset = Number(params.get("offset") ?? 0);
  const asked = new URLSearchParams([...params, ["limit", String(PAGE)]]);
  // A benchmark has a page of its own, and dozens of sessions.
  if (params.has("cases")) asked.delete("cases");
  else asked.set("cases", "false");
  const query = useDeferredValue(asked.toString());
  const sessions = useQuery(sessionsQuery(query));
  useLive("/api/live", { sessions: [["sessions"]] });

  function set(name: string, value: string): void {
    setParams(
      (before) => {
        const next = new URLSearchParams(before);
        if (value) next.set(name, value);
        else next.delete(name);
        if (name !== "offset") next.delete("offset");
        return next;
      },
      { replace: true },
    );
  }

  const filtered = params.get("q") || params.get("status") || params.get("starred");
  return (
    <>
      <div className="row spread">
        <PageHeading title="Sessions" />
        <Link to="/e2e/new" className="button primary">
          New session
        </Link>
      </div>
      <div className="row">
        <input
          type="search"
          aria-label="Search sessions"
          placeholder="Search by prompt, name or id"
          className="grow"
          value={params.get("q") ?? ""}
          onChange={(event) => set("q", event.target.value)}
        />
        <select aria-label="Status" value={params.get("status") ?? ""} onChange={(event) => set("status", event.target.value)}>
          <option value="">Any status</option>
          {SESSION_STATUSES.map((status) => (
            <option key={status} value={status}>
              {statusWord(status)}
            </option>
          ))}
        </select>
        <select aria-label="Order" value={params.get("sort") ?? "created_at"} onChange={(event) => set("sort", event.target.value)}>
          {SORTS.map(([value, title]) => (
            <option key={value} value={value}>
              {title}
            </option>
          ))}
        </select>
        <label className="row small-text">
          <input type="checkbox" checked={params.has("starred")} onChange={(event) => set("starred", event.target.checked ? "true" : "")} />
          Starred
        </label>
        <label className="row small-text">
          <input type="checkbox" checked={params.has("cases")} onChange={(event) => set("cases", event.target.checked ? "all" : "")} />
          Include benchmark cases
        </label>
      </div>
      <Problem what="Could not load the sessions" error={sessions.error} />
      {sessions.isPending && <p className="muted">Loading …</p>}
      {sessions.data?.items.length === 0 &&
        (filtered ? (
          <Empty title="No matching sessions">Remove a filter.</Empty>
        ) : (
          <Empty title="No sessions yet">
            <p>Describe in a prompt what an agent should do, and watch it learn.</p>
            <p>
              <Link to="/e2e/new" className="button primary">
                Start the first one
              </Link>
            </p>
          </Empty>
        ))}
      {sessions.data && sessions.data.items.length > 0 && <SessionList sessions={sessions.data.items} />}
      {sessions.data && sessions.data.total > PAGE && (
        <div className="row spread small-text">
          <button type="button" className="button" disabled={offset === 0} onClick={() => set("offset", String(Math.max(0, offset - PAGE) || ""))}>
            ← Newer
          </button>
          <span className="muted">
            {offset + 1} to {Math.min(offset + PAGE, sessions.data.total)} of {sessions.data.total.toLocaleString("en-US")}
          </span>
          <button type="button" className="button" disabled={offset + PAGE >= sessions.data.total} onClick={() => set("offset", String(offset + PAGE))}>
            Older →
          </button>
        </div>
      )}
    </>
  );
}

export function SessionList({ sessions }: { sessions: readonly SessionRow[] }) {
  const client = useQueryClient();
  const star = useMutation({
    mutationFn: (row: SessionRow) => send("PATCH", `/api/sessions/${row.session_id}`, { starred: !row.starred }),
    onSettled: () => client.invalidateQueries({ queryKey: ["sessions"] }),
  });
  const now = Date.now();
  return (
    <>
      <Problem what="Could not save the star" error={star.error} />
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
              <Unchecked words={row.unchecked_words} />
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
