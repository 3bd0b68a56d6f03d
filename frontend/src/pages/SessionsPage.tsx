import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useDeferredValue } from "react";
import { Link, useSearchParams } from "react-router";
import { useLive } from "../api/live";
import { sessionsQuery } from "../api/queries";
import { SESSION_STATUSES, statusWord } from "../lib/format";
import { Empty } from "../ui/Empty";
import { Problem } from "../ui/Problem";
import { SessionList } from "./SessionList";

const PAGE = 50;
const SORTS = [
  ["created_at", "newest"],
  ["updated_at", "last changed"],
  ["best_score", "best score"],
] as const;

/** All sessions: found, sorted, opened, and a new one begun. */
export function SessionsPage() {
  const [params, setParams] = useSearchParams();
  const client = useQueryClient();
  const offset = Number(params.get("offset") ?? 0);
  const asked = new URLSearchParams([...params, ["limit", String(PAGE)]]);
  // A benchmark has a page of its own, and dozens of sessions.
  if (params.has("cases")) asked.delete("cases");
  else asked.set("cases", "false");
  const query = useDeferredValue(asked.toString());
  const sessions = useQuery(sessionsQuery(query));
  useLive("/api/live", { sessions: () => void client.invalidateQueries({ queryKey: ["sessions"] }) });

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
        <h1>Sessions</h1>
        <Link to="/e2e/new" className="button primary">
          New session
        </Link>
      </div>
      <div className="row">
        <input
          type="search"
          aria-label="Find sessions"
          placeholder="Words of the prompt, name or id"
          className="grow"
          value={params.get("q") ?? ""}
          onChange={(event) => set("q", event.target.value)}
        />
        <select aria-label="Status" value={params.get("status") ?? ""} onChange={(event) => set("status", event.target.value)}>
          <option value="">every status</option>
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
          with a star
        </label>
        <label className="row small-text">
          <input type="checkbox" checked={params.has("cases")} onChange={(event) => set("cases", event.target.checked ? "all" : "")} />
          and cases of benchmarks
        </label>
      </div>
      <Problem what="The sessions cannot be listed" error={sessions.error} />
      {sessions.isPending && <p className="muted">Loading …</p>}
      {sessions.data?.items.length === 0 &&
        (filtered ? (
          <Empty title="No session is like this">Take a filter away.</Empty>
        ) : (
          <Empty title="No sessions yet">
            <p>Say in a sentence what a body should do, and watch it learn.</p>
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
