import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";
import { request, send } from "../../api/client";
import type { SessionDetail } from "../../api/types";
import { compareAddress } from "../../lib/compare";
import { dollars } from "../../lib/format";
import { messages } from "../../lib/sse";
import { Card, Problem } from "../../ui/basics";
import { ModelField } from "../../ui/fields";
import "./tools.css";

type Change = Partial<Pick<SessionDetail, "alias" | "starred" | "tags">>;

/** How a person keeps order among sessions: a star, a name, tags; and the ways to compare and analyze it. */
export function SessionTools({ session }: { session: SessionDetail }) {
  const client = useQueryClient();
  const [open, setOpen] = useState<"name" | "analysis" | null>(null);
  const save = useMutation({
    mutationFn: (change: Change) => send("PATCH", `/api/sessions/${session.session_id}`, change),
    onSuccess: () => {
      setOpen(null);
      return Promise.all([client.invalidateQueries({ queryKey: ["session", session.session_id] }), client.invalidateQueries({ queryKey: ["sessions"] })]);
    },
  });
  return (
    <>
      <div className="row session-tools small-text">
        <button type="button" className="star" aria-pressed={session.starred} aria-label="Star this session" disabled={save.isPending} onClick={() => save.mutate({ starred: !session.starred })}>
          {session.starred ? "★" : "☆"}
        </button>
        {session.tags.map((tag) => (
          <span key={tag} className="badge">
            {tag}
          </span>
        ))}
        <button type="button" className="link" aria-expanded={open === "name"} onClick={() => setOpen(open === "name" ? null : "name")}>
          Rename and tag
        </button>
        <Link to={compareAddress([session.session_id])}>Compare</Link>
        {session.config && (
          <button type="button" className="link" aria-expanded={open === "analysis"} onClick={() => setOpen(open === "analysis" ? null : "analysis")}>
            Analyze
          </button>
        )}
      </div>
      <Problem what="Could not save it" error={save.error} />
      {open === "name" && <NameForm session={session} saving={save.isPending} onSave={save.mutate} />}
      {open === "analysis" && <Analysis session={session} />}
    </>
  );
}

/** The name and tags of a session; without a name it goes by its prompt. */
function NameForm({ session, saving, onSave }: { session: SessionDetail; saving: boolean; onSave: (change: Change) => void }) {
  const [alias, setAlias] = useState(session.alias);
  const [tags, setTags] = useState(session.tags.join(", "));
  return (
    <form
      className="card name-form"
      onSubmit={(event) => {
        event.preventDefault();
        onSave({ alias: alias.trim(), tags: tagsOf(tags) });
      }}
    >
      <label className="field">
        Name
        <input value={alias} maxLength={200} placeholder={session.prompt} onChange={(event) => setAlias(event.target.value)} />
      </label>
      <label className="field">
        Tags
        <input value={tags} placeholder="paper, keep" onChange={(event) => setTags(event.target.value)} />
      </label>
      <button type="submit" className="button primary" disabled={saving}>
        Save
      </button>
    </form>
  );
}

/** Tags as they are typed, between commas, each once. */
function tagsOf(text: string): string[] {
  return [...new Set(text.split(",").map((tag) => tag.trim()).filter(Boolean))];
}

const PARTS = [
  ["worked", "What worked"],
  ["failed", "What did not"],
  ["causes", "Why"],
  ["suggestions", "What to try next"],
] as const;

function Report({ analysis }: { analysis: NonNullable<SessionDetail["analysis"]> }) {
  return (
    <div className="stack prose">
      <p>{analysis.summary}</p>
      {PARTS.filter(([name]) => analysis[name].length > 0).map(([name, title]) => (
        <div key={name}>
          <h3>{title}</h3>
          <ul className="bullets">
            {analysis[name].map((text) => (
              <li key={text}>{text}</li>
            ))}
          </ul>
        </div>
      ))}
      <p className="small-text muted">by {analysis.author}</p>
    </div>
  );
}

/** What a model, or the built-in author, says when it looks back at the session. */
function Analysis({ session }: { session: SessionDetail }) {
  const path = `/api/sessions/${session.session_id}`;
  const client = useQueryClient();
  const [model, setModel] = useState("");
  const [budget, setBudget] = useState("0.5");
  const [status, setStatus] = useState("");
  const analyze = useMutation({
    mutationFn: async () => {
      const response = await request("POST", `${path}/analyze`, { ...(model.trim() ? { model: model.trim() } : {}), again: session.analysis !== null, budget_usd: Number(budget) });
      for await (const { event, data } of messages(response)) {
        const said = JSON.parse(data) as { message?: string; error?: string };
        if (event === "status") setStatus(said.message ?? "");
        if (event === "error") throw new Error(said.error ?? "it failed");
      }
    },
    onSettled: () => client.invalidateQueries({ queryKey: ["session", session.session_id] }),
  });
  return (
    <Card title="Analysis">
      {session.analysis && <Report analysis={session.analysis} />}
      {session.analysis === null && !analyze.isPending && <p className="muted">Looks back at all iterations: what worked, what held it back, what to try next.</p>}
      <form
        className="name-form"
        onSubmit={(event) => {
          event.preventDefault();
          setStatus("");
          analyze.mutate();
        }}
      >
        <ModelField value={model} onChange={setModel} placeholder={session.model || "the session's own"} />
        <label className="field">
          At most, in USD
          <input type="number" min={0} step="any" value={budget} onChange={(event) => setBudget(event.target.value)} />
          <small>{Number(budget) > 0 ? `a model may cost up to ${dollars(Number(budget))}; the built-in author costs nothing` : "only models that cost nothing"}</small>
        </label>
        <button type="submit" className="button" disabled={analyze.isPending}>
          {analyze.isPending ? "Analyzing …" : session.analysis ? "Analyze again" : "Analyze"}
        </button>
      </form>
      <p className="small-text muted" role="status">
        {analyze.isPending && status}
      </p>
      <Problem what="Could not analyze it" error={analyze.error} />
    </Card>
  );
}
