/** Jobs and self-play runs: what their forms ask for, as requests and as command lines; and nodes. */
import type { Backend, NodeConfig, NodeStatus, StartSelfPlayRequest, SubmitJobRequest } from "../api/types";
import { quoted } from "./command";

export const BACKENDS = ["local", "ssh", "ray", "slurm"] as const satisfies readonly Backend[];

interface NodeField {
  name: keyof NodeConfig;
  title: string;
  placeholder: string;
  required?: boolean;
}

/** What each backend needs to know of a node, beside its name, cores and GPUs. */
export const NODE_FIELDS: Readonly<Record<Backend, readonly NodeField[]>> = {
  local: [],
  ssh: [
    { name: "host", title: "Host", placeholder: "gpu1.example.org", required: true },
    { name: "base_dir", title: "Folder on the node", placeholder: "/home/me/p2p", required: true },
    { name: "user", title: "User", placeholder: "as in SSH's configuration" },
    { name: "port", title: "Port", placeholder: "22" },
    { name: "python", title: "Python there", placeholder: "/home/me/venv/bin/python" },
    { name: "key_file", title: "Private key", placeholder: "the agent's and the usual ones" },
  ],
  ray: [{ name: "address", title: "Cluster address", placeholder: "ray://head:10001", required: true }],
  slurm: [
    { name: "base_dir", title: "Shared folder", placeholder: "/shared/p2p", required: true },
    { name: "partition", title: "Partition", placeholder: "the cluster's default" },
    { name: "python", title: "Python there", placeholder: "/shared/venv/bin/python" },
  ],
};

/** A node as it was typed; what its backend does not use is left out. */
export function nodeOf(backend: Backend, typed: Readonly<Record<string, string>>): NodeConfig {
  const names = ["node_id", ...NODE_FIELDS[backend].map((field) => field.name)];
  const texts = names.flatMap((name) => {
    const text = typed[name]?.trim() ?? "";
    return text === "" ? [] : [[name, name === "port" ? Number(text) : text] as const];
  });
  return { ...Object.fromEntries(texts), backend, cores: Number(typed.cores || 1), gpus: Number(typed.gpus || 0) } as NodeConfig;
}

/** Without what was left open. */
export function filled<Form extends object>(form: Form): Form {
  const open = (value: unknown) => value == null || value === "" || Number.isNaN(value) || (Array.isArray(value) && value.length === 0);
  return Object.fromEntries(Object.entries(form).filter(([, value]) => !open(value))) as Form;
}

const JOB_FLAGS = [
  ["env_id", "--env"],
  ["model", "--model"],
  ["max_iterations", "--iterations"],
  ["budget_usd", "--budget-usd"],
  ["cores", "--cores"],
  ["gpus", "--gpus"],
  ["priority", "--priority"],
] as const;

export function jobCommand(form: SubmitJobRequest, nodes: readonly NodeStatus[]): string {
  const asked = filled(form);
  const words = ["p2p", "jobs", "submit", quoted(form.prompt)];
  for (const [name, flag] of JOB_FLAGS) if (asked[name] !== undefined) words.push(flag, quoted(String(asked[name])));
  // The command line knows nodes by name alone.
  const ofBackend = nodes.filter((node) => node.backend === asked.backend).map((node) => node.node_id);
  for (const name of asked.nodes ?? ofBackend) words.push("--node", quoted(name));
  return words.join(" ");
}

export function selfPlayCommand(form: Partial<StartSelfPlayRequest>): string {
  const asked = filled(form);
  const words = ["unstable", "train"];
  if (asked.model && asked.model !== "tiny") words.push("--model", quoted(asked.model));
  for (const game of asked.games ?? []) words.push("--game", quoted(game));
  for (const opponent of asked.opponents ?? []) words.push("--opponent", quoted(opponent));
  if (asked.updates != null) words.push("--updates", String(asked.updates));
  if (asked.seed != null) words.push("--seed", String(asked.seed));
  return words.join(" ");
}
