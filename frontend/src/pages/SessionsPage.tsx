import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useDeferredValue, useState } from "react";
import { Link, useSearchParams } from "react-router";
import { send } from "../api/client";
import { useLive } from "../api/live";
import { sessionsQuery } from "../api/queries";
import type { SessionRow } from "../api/types";
import { ago, dollars, score, SESSION_STATUSES, statusWord } from "../lib/format";
import { LazyVideo, motionIsWelcome } from "../ui/Video";
import { Card, Empty, Meter, PageHeading, Problem, Status, Unchecked } from "../ui/basics";
import { CompareBar, CompareBox } from "./compare/Selection";
import { StartForm } from "./start/StartForm";
import { Picture, pictureOf, shortName } from "./start/environments";

const PAGE = 48;
const SORTS = [
  ["created_at", "Newest"],
  ["updated_at", "Last changed"],
  ["best_score", "Best score"],
] as const;

/** Home: a prompt to start from, and below it what has come of the earlier ones. */
export function SessionsPage() {
  return (
    <>
      <div className="welcome">
        <PageHeading title="What should the agent do?" tab="Sessions" />
        <p className="muted">Describe it. A reward is written, a policy trained and judged, and revised until it does what you asked.</p>
      </div>
      <StartForm />
      <Sessions />
    </>
  );
}

function Sessions() {
  const [params, setParams] = useSearchParams();
  const [playing, setPlaying] = useState(motionIsWelcome);
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
  const { items = [], total = 0 } = sessions.data ?? {};
  return (
    <section className="stack" aria-labelledby="sessions">
      <div className="row spread">
        <h2 id="sessions">Sessions{total > 0 && <span className="muted count"> {total.toLocaleString("en-US")}</span>}</h2>
        <span className="row">
          {items.some((row) => row.video !== null) && (
            <button type="button" className="button small" onClick={() => setPlaying(!playing)}>
              {playing ? "Pause clips" : "Play clips"}
            </button>
          )}
          <Link to="/trash" className="small-text">
            Trash
          </Link>
        </span>
      </div>
      {(items.length > 0 || filtered || params.has("cases")) && (
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
      )}
      <Problem what="Could not load the sessions" error={sessions.error} />
      {sessions.isPending && <p className="muted">Loading …</p>}
      {sessions.data && items.length === 0 && (filtered ? <Empty title="No matching sessions">Remove a filter.</Empty> : <NoSessions />)}
      {items.length > 0 && <SessionCards sessions={items} playing={playing} />}
      {total > PAGE && (
        <div className="row spread small-text">
          <button type="button" className="button" disabled={offset === 0} onClick={() => set("offset", String(Math.max(0, offset - PAGE) || ""))}>
            ← Newer
          </button>
          <span className="muted">
            {offset + 1} to {Math.min(offset + PAGE, total)} of {total.toLocaleString("en-US")}
          </span>
          <button type="button" className="button" disabled={offset + PAGE >= total} onClick={() => set("offset", String(offset + PAGE))}>
            Older →
          </button>
        </div>
      )}
    </section>
  );
}

function NoSessions() {
  return (
    <Card title="No sessions yet">
      <p>
        Choose an example above and press <b>Start</b>: after some minutes its policy plays here. No key and no GPU are needed; without a model, the built-in
        author writes the reward.
      </p>
      <p className="muted">
        To look at finished work first, run <code>p2p serve --demo</code>.
      </p>
    </Card>
  );
}

export function SessionCards({ sessions, playing }: { sessions: readonly SessionRow[]; playing: boolean }) {
  const client = useQueryClient();
  const star = useMutation({
    mutationFn: (row: SessionRow) => send("PATCH", `/api/sessions/${row.session_id}`, { starred: !row.starred }),
    onSettled: () => client.invalidateQueries({ queryKey: ["sessions"] }),
  });
  const now = Date.now();
  return (
    <>
      <Problem what="Could not save the star" error={star.error} />
      <ul className="session-cards">
        {sessions.map((row) => (
          <li key={row.session_id}>
            <div className="thumb">
              {row.video ? (
                <LazyVideo key={row.video.url} url={row.video.url} label={`Clip of ${title(row)}`} poster={pictureOf(row.env_id)} playing={playing} />
              ) : (
                <Picture envId={row.env_id} />
              )}
              <button type="button" className="star" aria-pressed={row.starred} aria-label={`Star ${title(row)}`} onClick={() => star.mutate(row)}>
                {row.starred ? "★" : "☆"}
              </button>
              <Status status={row.status} />
            </div>
            <div className="session-what">
              <Link to={`/e2e/${row.session_id}`} className="clamp">
                {title(row)}
              </Link>
              <div className="session-score">
                <Meter value={row.best_score} label="Best score" tone={row.status === "passed" ? "good" : row.status === "unverified" ? "open" : "plain"} />
                <span className="numeric">{score(row.best_score)}</span>
              </div>
              <span className="muted small-text">
                {[row.env_id ? shortName(row.env_id) : "environment not chosen yet", iterations(row), row.cost_usd > 0 && dollars(row.cost_usd), ago(row.created_at, now)]
                  .filter(Boolean)
                  .join(" · ")}
              </span>
              <Unchecked words={row.unchecked_words} />
              <CompareBox of={row.session_id} title={title(row)} />
            </div>
          </li>
        ))}
      </ul>
      <CompareBar />
    </>
  );
}

function iterations({ iterations: done, max_iterations }: SessionRow): string {
  const count = max_iterations ? `${done} of ${max_iterations}` : String(done);
  return `${count} iteration${(max_iterations ?? done) === 1 ? "" : "s"}`;
}

function title(row: SessionRow): string {
  return row.alias || row.prompt || row.session_id;
}
