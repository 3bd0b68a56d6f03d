import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { send } from "../api/client";
import { trashQuery } from "../api/queries";
import type { TrashItem } from "../api/types";
import { ago } from "../lib/format";
import { Empty } from "../ui/Empty";
import { Problem } from "../ui/Problem";

/** What was put away: taken back, or deleted for good. */
export default function TrashPage() {
  const { data, error } = useQuery(trashQuery);
  return (
    <>
      <h1>Trash</h1>
      <Problem what="The trash cannot be listed" error={error} />
      {data?.length === 0 && <Empty title="The trash is empty">What you put away from a session’s page waits here until you delete it for good.</Empty>}
      {data && data.length > 0 && (
        <ul className="trash-list">
          {data.map((item) => (
            <Item key={item.id} item={item} />
          ))}
        </ul>
      )}
    </>
  );
}

function Item({ item }: { item: TrashItem }) {
  const client = useQueryClient();
  const [sure, setSure] = useState(false);
  const act = useMutation({
    mutationFn: (forGood: boolean) => (forGood ? send("DELETE", `/api/trash/${item.id}`) : send("POST", `/api/${item.kind}s/${item.id}/restore`)),
    onSuccess: () => client.invalidateQueries(),
  });
  return (
    <li>
      <div className="session-what">
        <b>{item.title || item.id}</b>
        <span className="small-text muted">
          {item.kind} · put away {ago(item.deleted_at, Date.now())} · <span className="mono">{item.id}</span>
        </span>
      </div>
      <div className="row">
        <button type="button" className="button" disabled={act.isPending} onClick={() => act.mutate(false)}>
          Restore
        </button>
        {sure ? (
          <>
            <button type="button" className="button danger" disabled={act.isPending} onClick={() => act.mutate(true)}>
              Yes, delete its files
            </button>
            <button type="button" className="button" onClick={() => setSure(false)}>
              Keep it
            </button>
          </>
        ) : (
          <button type="button" className="button danger" onClick={() => setSure(true)}>
            Delete for good
          </button>
        )}
      </div>
      <Problem what="That was not done" error={act.error} />
    </li>
  );
}
