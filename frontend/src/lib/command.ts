/** What the start form asks for, as a request and as a command line. */
import type { StartRequest } from "../api/types";

const FLAGS: readonly (readonly [keyof StartRequest, string])[] = [
  ["env_id", "--env"],
  ["model", "--model"],
  ["vlm_model", "--vlm"],
  ["max_iterations", "--iterations"],
  ["total_timesteps", "--steps"],
  ["configs", "--configs"],
  ["seeds", "--seeds"],
  ["candidates", "--candidates"],
  ["pass_threshold", "--threshold"],
  ["budget_usd", "--budget-usd"],
  ["max_minutes", "--max-minutes"],
  ["thinking_effort", "--thinking"],
  ["judge_episodes", "--judge-episodes"],
  ["confirm_episodes", "--confirm-episodes"],
  ["cores_per_run", "--cores-per-run"],
];

/** Options that are on or off: field, flag without its dashes, and what the form calls it. */
export const TOGGLES = [
  ["videos", "videos", "Render the best policy at the end"],
  ["train_full", "full", "Train to the end after a confirmed pass, too"],
  ["use_zoo_preset", "zoo-preset", "Train with the tuned preset of RL Baselines3 Zoo (longer runs)"],
  ["hp_tuning", "hp-tuning", "Revisions may change hyperparameters"],
  ["use_code_judge", "code-judge", "Judge by code"],
  ["review_reward", "review-reward", "Have each reward reviewed"],
  ["review_judge", "review-judge", "Have each judge reviewed"],
  ["refined_initial_frame", "initial-frame", "Show the VLM the first frame with the bodies named"],
  ["motion_trail", "motion-trail", "Show the VLM the poses of the whole episode in one picture"],
] as const satisfies readonly (readonly [keyof StartRequest, string, string])[];
export const OFF_UNLESS_ASKED: readonly string[] = ["use_zoo_preset", "motion_trail", "train_full"];
export const EFFORTS = ["off", "minimal", "low", "medium", "high", "xhigh", "max"] as const;

/** The request without what was left open. */
export function tidy(request: StartRequest): StartRequest {
  const seen = request.visual_criteria?.map((text) => text.trim()).filter(Boolean) ?? [];
  const given = Object.entries({ ...request, visual_criteria: seen.length ? seen : null }).filter(([, value]) => value != null && value !== "" && !Number.isNaN(value));
  return { ...Object.fromEntries(given), prompt: request.prompt.trim() } as StartRequest;
}

const NO_OPTIONS = ["prompt", "env_id", "criteria", "settings"];

/** How many options are set to something else than their default; each training setting counts. */
export function optionsSet(request: StartRequest): number {
  const { settings = {}, ...asked } = tidy(request);
  return Object.keys(asked).filter((name) => !NO_OPTIONS.includes(name)).length + Object.keys(settings ?? {}).length;
}

export function commandLine(request: StartRequest): string {
  const asked = tidy(request);
  const words = ["p2p", "run", quoted(asked.prompt)];
  for (const [name, flag] of FLAGS) {
    if (asked[name] !== undefined) words.push(flag, quoted(String(asked[name])));
  }
  for (const [name, flag] of TOGGLES) {
    if (asked[name] !== undefined) words.push(asked[name] ? `--${flag}` : `--no-${flag}`);
  }
  for (const name of asked.trackers ?? []) words.push("--log", name);
  for (const text of asked.visual_criteria ?? []) words.push("--visual-criteria", quoted(text));
  for (const [name, value] of Object.entries(asked.settings ?? {})) words.push("--set", quoted(`${name}=${String(value)}`));
  if (asked.criteria) words.push("--criteria", "-", `<<'END'\n${JSON.stringify(asked.criteria)}\nEND`);
  return words.join(" ");
}

/** As a shell takes it for one word. */
export function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

/** `name=value` lines; a value that is JSON is taken as such. Throws with the line that is wrong. */
export function parseSettings(text: string): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const line of text.split("\n").map((each) => each.trim()).filter(Boolean)) {
    const match = /^(\w+)\s*=\s*(.+)$/.exec(line);
    if (!match?.[1] || match[2] === undefined) throw new Error(`${line}: expected name=value`);
    found[match[1]] = value(match[2]);
  }
  return found;
}

function value(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}
