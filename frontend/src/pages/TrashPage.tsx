import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { send } from "../api/client";
import { trashQuery } from "../api/queries";
import type { TrashItem } from "../api/types";
import { ago } from "../lib/format";
import { Empty, PageHeading, Problem } from "../ui/basics";

/** What was moved to the trash: restored, or deleted permanently. */
export default function TrashPage() {
  const { data, error } = useQuery(trashQuery);
  return (
    <>
      <PageHeading title="Trash" />
      <Problem what="Could not load the trash" error={error} />
      {data?.length === 0 && <Empty title="The trash is empty">Sessions and benchmarks that you move to the trash stay here until you delete them.</Empty>}
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
          {item.kind} · deleted {ago(item.deleted_at, Date.now())} · <span className="mono">{item.id}</span>
        </span>
      </div>
      <div className="row">
        <button type="button" className="button" disabled={act.isPending} onClick={() => act.mutate(false)}>
          Restore
        </button>
        {sure ? (
          <>
            <button type="button" className="button danger" disabled={act.isPending} onClick={() => act.mutate(true)}>
              Yes, delete the files
            </button>
            <button type="button" className="button" onClick={() => setSure(false)}>
              Cancel
            </button>
          </>
        ) : (
          <button type="button" className="button danger" onClick={() => setSure(true)}>
            Delete permanently
          </button>
        )}
      </div>
      <Problem what="Request failed" error={act.error} />
    </li>
  );
}
