import { useMutation, useQuery } from "@tanstack/react-query";
import { send } from "../api/client";
import { nodesQuery } from "../api/queries";
import type { NodeStatus } from "../api/types";
import { Card } from "../ui/Card";
import { Empty } from "../ui/Empty";
import { Problem } from "../ui/Problem";
import { Scroll } from "../ui/Scroll";

/** Where jobs can run, and what of it is in use. */
export function Nodes() {
  const { data, error } = useQuery(nodesQuery);
  return (
    <Card title="Nodes">
      <Problem what="The nodes cannot be listed" error={error} />
      {data?.length === 0 && <Empty title="No nodes yet">This machine becomes one with the first job.</Empty>}
      {data && data.length > 0 && (
        <Scroll label="Table of nodes">
          <table>
            <thead>
              <tr>
                <th>Node</th>
                <th>Backend</th>
                <th className="numeric">Runs</th>
                <th className="numeric">Cores in use</th>
                <th className="numeric">GPUs in use</th>
                <th>Usable?</th>
              </tr>
            </thead>
            <tbody>
              {data.map((node) => (
                <NodeRow key={node.node_id} node={node} />
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </Card>
  );
}

function NodeRow({ node }: { node: NodeStatus }) {
  const check = useMutation({
    mutationFn: () => send<{ usable: boolean; message: string }>("POST", `/api/scheduler/nodes/${encodeURIComponent(node.node_id)}/check`),
  });
  return (
    <tr>
      <td>{node.node_id}</td>
      <td>{node.backend}</td>
      <td className="numeric">{node.runs_now}</td>
      <td className="numeric">{node.cores_in_use}</td>
      <td className="numeric">{node.gpus_in_use}</td>
      <td>
        {check.data ? (
          <span className="row">
            <span className={`badge ${check.data.usable ? "good" : "bad"}`}>{check.data.usable ? "usable" : "not usable"}</span> {check.data.message}
          </span>
        ) : (
          <button type="button" className="button small" disabled={check.isPending} onClick={() => check.mutate()}>
            {check.isPending ? "Looking …" : "Look"}
          </button>
        )}
        <Problem what="It cannot be looked at" error={check.error} />
      </td>
    </tr>
  );
}
