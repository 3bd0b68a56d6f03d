import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useNavigate } from "react-router";
import { send } from "../api/client";
import { envsQuery, jobsQuery, nodesQuery } from "../api/queries";
import type { Backend, NodeStatus, SubmitJobRequest } from "../api/types";
import { ago } from "../lib/format";
import { BACKENDS, filled, jobCommand, NODE_FIELDS, nodeOf } from "../lib/jobs";
import { Card, Command, Empty, Problem, Scroll, Status } from "../ui/basics";
import { ModelField, NumberField } from "../ui/fields";

/** The scheduler's jobs, newest first, and a form to submit one. */
export function Jobs() {
  const { data: jobs, error } = useQuery(jobsQuery);
  const [adding, setAdding] = useState(false);
  return (
    <Card
      title="Jobs"
      aside={
        <button type="button" className="button small" aria-expanded={adding} onClick={() => setAdding(!adding)}>
          {adding ? "Close" : "Submit a job"}
        </button>
      }
    >
      {adding && <JobForm />}
      <Problem what="Could not load the jobs" error={error} />
      {jobs?.length === 0 && <Empty title="No jobs yet">Sessions, benchmarks and self-play runs started here run as jobs.</Empty>}
      {jobs && jobs.length > 0 && (
        <Scroll label="Table of jobs">
          <table>
            <thead>
              <tr>
                <th>Job</th>
                <th>Kind</th>
                <th>State</th>
                <th>Runs</th>
                <th>Submitted</th>
              </tr>
            </thead>
            <tbody>
              {jobs.map((job) => (
                <tr key={job.job_id}>
                  <td>
                    <Link to={`/benchmark/job/${job.job_id}`}>{job.title || job.job_id}</Link>
                  </td>
                  <td>{job.kind}</td>
                  <td>
                    <Status status={job.state} />
                  </td>
                  <td>{Object.entries(job.counts).filter(([, count]) => count > 0).map(([state, count]) => `${count} ${state}`).join(", ")}</td>
                  <td className="muted">{ago(job.created_at, Date.now())}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </Card>
  );
}

/** Where jobs can run, and how much of it is in use; added, checked and removed. */
export function Nodes() {
  const { data, error } = useQuery(nodesQuery);
  const [adding, setAdding] = useState(false);
  return (
    <Card
      title="Nodes"
      aside={
        <button type="button" className="button small" aria-expanded={adding} onClick={() => setAdding(!adding)}>
          {adding ? "Close" : "Add a node"}
        </button>
      }
    >
      {adding && <AddNode onAdded={() => setAdding(false)} />}
      <Problem what="Could not load the nodes" error={error} />
      {data?.length === 0 && <Empty title="No nodes yet">This machine is added with the first job. Add another one by SSH, or a Ray or Slurm cluster, to run more at once.</Empty>}
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
                <th>Status</th>
                <th>Remove</th>
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
  const client = useQueryClient();
  const path = `/api/scheduler/nodes/${encodeURIComponent(node.node_id)}`;
  const [sure, setSure] = useState(false);
  const check = useMutation({ mutationFn: () => send<{ usable: boolean; message: string }>("POST", `${path}/check`) });
  const remove = useMutation({ mutationFn: () => send("DELETE", path), onSettled: () => client.invalidateQueries({ queryKey: ["nodes"] }) });
  return (
    <tr>
      <td>
        {node.node_id} {!node.enabled && <span className="badge">disabled</span>}
        {node.host && <span className="muted small-text">{node.host}</span>}
      </td>
      <td>{node.backend}</td>
      <td className="numeric">{node.runs_now}</td>
      <td className="numeric">
        {node.cores_in_use} of {node.cores}
      </td>
      <td className="numeric">
        {node.gpus_in_use} of {node.gpus}
      </td>
      <td>
        {check.data ? (
          <span className="row">
            <span className={`badge ${check.data.usable ? "good" : "bad"}`}>{check.data.usable ? "usable" : "not usable"}</span> {check.data.message}
          </span>
        ) : (
          <button type="button" className="button small" disabled={check.isPending} onClick={() => check.mutate()}>
            {check.isPending ? "Checking …" : "Check"}
          </button>
        )}
        <Problem what="Check failed" error={check.error} />
      </td>
      <td>
        <button
          type="button"
          className="button small danger"
          aria-label={`${sure ? "Confirm to remove" : "Remove"} ${node.node_id}`}
          disabled={remove.isPending}
          onBlur={() => setSure(false)}
          onClick={() => (sure ? remove.mutate() : setSure(true))}
        >
          {sure ? "Remove it?" : "Remove"}
        </button>
        <Problem what="Could not remove it" error={remove.error} />
      </td>
    </tr>
  );
}

/** A machine or cluster that jobs may use; the button in its row checks it. */
function AddNode({ onAdded }: { onAdded: () => void }) {
  const client = useQueryClient();
  const [backend, setBackend] = useState<Backend>("ssh");
  const [typed, setTyped] = useState<Readonly<Record<string, string>>>({});
  const add = useMutation({
    mutationFn: () => send("POST", "/api/scheduler/nodes", nodeOf(backend, typed)),
    onSuccess: async () => {
      await client.invalidateQueries({ queryKey: ["nodes"] });
      onAdded();
    },
  });
  const field = (name: string, title: string, placeholder: string, required = false, type = "text") => (
    <label key={name} className="field">
      {title}
      <input type={type} min={type === "number" ? 0 : undefined} required={required} placeholder={placeholder} value={typed[name] ?? ""} onChange={(event) => setTyped({ ...typed, [name]: event.target.value })} />
    </label>
  );
  return (
    <form
      className="stack"
      aria-label="Add a node"
      onSubmit={(event) => {
        event.preventDefault();
        add.mutate();
      }}
    >
      <div className="fields">
        <label className="field">
          Backend
          <select value={backend} onChange={(event) => setBackend(event.target.value as Backend)}>
            {BACKENDS.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        {field("node_id", "Name", "gpu1", true)}
        {field("cores", "Cores", "1", true, "number")}
        {field("gpus", "GPUs", "0", false, "number")}
        {NODE_FIELDS[backend].map((each) => field(each.name, each.title, each.placeholder, each.required))}
      </div>
      <div className="row">
        <button type="submit" className="button primary" disabled={add.isPending}>
          Add
        </button>
        <span className="small-text muted">Nothing runs there before a job asks for it.</span>
      </div>
      <Problem what="Could not add the node" error={add.error} />
    </form>
  );
}

interface PlacementProps {
  nodes: readonly string[];
  backend?: Backend | null;
  onNodes: (nodes: string[]) => void;
  onBackend?: (backend: Backend | null) => void;
}

/** Where a job may run: on chosen nodes, or on those of a backend; on any if nothing is chosen. */
export function Placement({ nodes, backend, onNodes, onBackend }: PlacementProps) {
  const { data = [] } = useQuery(nodesQuery);
  const usable = data.filter((node) => node.enabled && (!backend || node.backend === backend));
  return (
    <div className="fields">
      {onBackend && (
        <label className="field">
          Backend
          <select
            value={backend ?? ""}
            onChange={(event) => {
              onNodes([]);
              onBackend(event.target.value ? (event.target.value as Backend) : null);
            }}
          >
            <option value="">any</option>
            {BACKENDS.filter((name) => data.some((node) => node.backend === name)).map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
      )}
      <fieldset className="chips">
        <legend>
          Nodes <span className="muted">{nodes.length === 0 ? "any" : `${nodes.length} of ${usable.length}`}</span>
        </legend>
        {usable.map(({ node_id }) => (
          <label key={node_id} className="chip">
            <input type="checkbox" checked={nodes.includes(node_id)} onChange={(event) => onNodes(event.target.checked ? [...nodes, node_id] : nodes.filter((each) => each !== node_id))} />
            {node_id}
          </label>
        ))}
        {usable.length === 0 && <span className="small-text muted">this machine</span>}
      </fieldset>
    </div>
  );
}

/** A session of one prompt as a job, on nodes of one's choice. */
function JobForm() {
  const navigate = useNavigate();
  const { data: envs = [] } = useQuery(envsQuery);
  const { data: nodes = [] } = useQuery(nodesQuery);
  const [form, setForm] = useState<SubmitJobRequest>({ prompt: "" });
  const change = (part: Partial<SubmitJobRequest>) => setForm((before) => ({ ...before, ...part }));
  const submit = useMutation({
    mutationFn: () => send<{ job_id: string }>("POST", "/api/scheduler/jobs", filled(form)),
    onSuccess: ({ job_id }) => navigate(`/benchmark/job/${job_id}`),
  });
  return (
      <form
        className="stack"
        aria-label="Job"
        onSubmit={(event) => {
          event.preventDefault();
          submit.mutate();
        }}
      >
        <label className="field">
          Prompt
          <input required maxLength={4000} placeholder="run forward fast" value={form.prompt} onChange={(event) => change({ prompt: event.target.value })} />
        </label>
        <div className="fields">
          <label className="field">
            Environment
            <select value={form.env_id ?? ""} onChange={(event) => change({ env_id: event.target.value })}>
              <option value="">chosen by the prompt</option>
              {envs.map((env) => (
                <option key={env.env_id}>{env.env_id}</option>
              ))}
            </select>
          </label>
          <ModelField value={form.model ?? ""} onChange={(model) => change({ model })} />
          <NumberField label="Max iterations" placeholder="5" min={1} max={1000} value={form.max_iterations} onChange={(value) => change({ max_iterations: value ?? Number.NaN })} />
          <NumberField label="Budget, USD" placeholder="no limit" min={0} step="any" value={form.budget_usd} onChange={(value) => change({ budget_usd: value })} />
          <NumberField label="Cores to reserve" placeholder="1" min={1} value={form.cores} onChange={(value) => change({ cores: value ?? Number.NaN })} />
          <NumberField label="GPUs to reserve" placeholder="0" min={0} value={form.gpus} onChange={(value) => change({ gpus: value ?? Number.NaN })} />
          <NumberField label="Priority" placeholder="0" min={-100} max={100} value={form.priority} onChange={(value) => change({ priority: value ?? Number.NaN })} />
        </div>
        <Placement nodes={form.nodes ?? []} backend={form.backend ?? null} onNodes={(chosen) => change({ nodes: chosen })} onBackend={(backend) => change({ backend })} />
        {form.prompt.trim() && <Command text={jobCommand(form, nodes)} />}
        <Problem what="Could not submit the job" error={submit.error} />
        <p>
          <button type="submit" className="button primary" disabled={submit.isPending || !form.prompt.trim()}>
            {submit.isPending ? "Submitting …" : "Submit"}
          </button>
        </p>
      </form>
  );
}
