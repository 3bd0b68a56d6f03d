import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";
import { send } from "../../api/client";
import { envsQuery } from "../../api/queries";
import type { Criterion, Intent, StartRequest, StartResponse } from "../../api/types";
import { commandLine, EFFORTS, OFF_UNLESS_ASKED, parseSettings, tidy, TOGGLES } from "../../lib/command";
import { Card, Command, PageHeading, Problem, Unchecked } from "../../ui/basics";
import { ModelField, NumberField } from "../../ui/fields";
import { CriteriaEditor } from "../Criteria";

/** From a prompt to a session. */
export default function StartPage() {
  const navigate = useNavigate();
  const [request, setRequest] = useState<StartRequest>({ prompt: "" });
  const [settings, setSettings] = useState("");
  const [criteria, setCriteria] = useState<readonly Criterion[] | null>(null);
  const change = (part: Partial<StartRequest>) => setRequest((before) => ({ ...before, ...part }));
  const [wanted, settingsError] = complete(request, criteria, settings);
  const propose = useMutation({
    mutationFn: () => send<Intent>("POST", "/api/criteria", tidy({ prompt: request.prompt, env_id: request.env_id ?? null, model: request.model ?? null })),
    onSuccess: (intent) => {
      setCriteria(intent.criteria);
      change({ env_id: intent.env_id });
    },
  });
  const start = useMutation({
    mutationFn: () => send<StartResponse>("POST", "/api/sessions", tidy(wanted)),
    onSuccess: ({ session_id }) => navigate(`/e2e/${session_id}`),
  });
  const empty = !request.prompt.trim();
  return (
    <form
      className="stack"
      onSubmit={(event) => {
        event.preventDefault();
        start.mutate();
      }}
    >
      <PageHeading title="New session" />
      <Card title="Prompt">
        <textarea
          rows={2}
          aria-label="Prompt"
          className="prompt"
          placeholder="Run forward fast, with the back straight"
          maxLength={4000}
          required
          value={request.prompt}
          onChange={(event) => change({ prompt: event.target.value })}
        />
        <EnvPicker value={request.env_id ?? ""} onChange={(envId) => change({ env_id: envId })} onPrompt={(prompt) => change({ prompt })} />
      </Card>
      <Card title="Success criteria">
        {criteria === null ? (
          <div className="row">
            <button type="button" className="button" disabled={empty || propose.isPending} onClick={() => propose.mutate()}>
              {propose.isPending ? "Proposing …" : "Propose criteria"}
            </button>
            <span className="small-text muted">Review and edit what will be measured; otherwise the criteria are written when the session starts.</span>
          </div>
        ) : (
          <CriteriaEditor criteria={criteria} onChange={setCriteria} onDrop={() => setCriteria(null)} />
        )}
        {criteria !== null && propose.data && <Unchecked words={propose.data.unused_words} />}
        <Problem what="Could not propose criteria" error={propose.error} />
      </Card>
      <Card title="Model and limits">
        <MainSettings request={request} onChange={change} />
        <AdvancedSettings request={request} onChange={change} settings={settings} onSettings={setSettings} />
        <Problem what="Training settings" error={settingsError} />
      </Card>
      <Card title="Command line">
        <Command text={commandLine(empty ? { ...wanted, prompt: "run forward fast" } : wanted)} />
      </Card>
      <Problem what="Could not start the session" error={start.error} />
      <div className="row">
        <button type="submit" className="button primary large" disabled={empty || start.isPending || settingsError !== null}>
          {start.isPending ? "Starting …" : "Start"}
        </button>
        <span className="small-text muted">Runs as a job on this machine; you can close this page.</span>
      </div>
    </form>
  );
}

/** The whole request, or what is wrong with its settings. */
function complete(request: StartRequest, criteria: readonly Criterion[] | null, settings: string): [StartRequest, Error | null] {
  const withCriteria = criteria === null ? request : { ...request, criteria: [...criteria] };
  try {
    return [settings.trim() ? { ...withCriteria, settings: parseSettings(settings) } : withCriteria, null];
  } catch (error) {
    return [withCriteria, error as Error];
  }
}

const PICTURES = import.meta.glob<string>("./pictures/*.webp", { eager: true, query: "?url", import: "default" });

interface EnvPickerProps {
  value: string;
  onChange: (envId: string) => void;
  onPrompt: (prompt: string) => void;
}

/** The environments to choose from, with pictures and example prompts. */
export function EnvPicker({ value, onChange, onPrompt }: EnvPickerProps) {
  const { data, error, isPending } = useQuery(envsQuery);
  const chosen = data?.find((env) => env.env_id === value);
  return (
    <fieldset className="env-picker">
      <legend>Environment</legend>
      <Problem what="Could not load the environments" error={error} />
      <div className="env-grid">
        <label className="env">
          <input type="radio" name="env" checked={value === ""} onChange={() => onChange("")} />
          <span className="env-any" aria-hidden="true">
            ?
          </span>
          <span>Automatic</span>
        </label>
        {data?.map((env) => (
          <label key={env.env_id} className="env">
            <input type="radio" name="env" checked={value === env.env_id} onChange={() => onChange(env.env_id)} />
            <Picture envId={env.env_id} />
            <span>{env.env_id.replace(/-v\d+$/, "")}</span>
          </label>
        ))}
      </div>
      {isPending && (
        <p className="small-text muted" role="status">
          Loading environments …
        </p>
      )}
      {chosen && (
        <div className="stack small-text">
          <p className="muted">
            {chosen.description.replace(/\.?$/, ".")} {chosen.observations} observations, {chosen.actions} actions
            {chosen.horizon != null && `, ${chosen.horizon} steps per episode`}.
          </p>
          {chosen.can.length > 0 && (
            <p className="row">
              <span className="muted">Example prompts:</span>
              {chosen.can.map((prompt) => (
                <button key={prompt} type="button" className="button small" onClick={() => onPrompt(prompt)}>
                  {prompt}
                </button>
              ))}
            </p>
          )}
        </div>
      )}
    </fieldset>
  );
}

function Picture({ envId }: { envId: string }) {
  const url = PICTURES[`./pictures/${envId}.webp`];
  return url ? <img src={url} alt="" width={240} height={180} loading="lazy" /> : <span className="env-any" aria-hidden="true">◇</span>;
}

interface SettingsProps {
  request: StartRequest;
  onChange: (part: Partial<StartRequest>) => void;
  settings: string;
  onSettings: (text: string) => void;
}

/** Which models think and judge, what that may cost, and how long it may take. */
export function MainSettings({ request, onChange }: Pick<SettingsProps, "request" | "onChange">) {
  return (
    <div className="fields">
      <ModelField value={request.model ?? ""} onChange={(model) => onChange({ model })} />
      <ModelField
        label="Also judge from video (VLM)"
        placeholder="none"
        note="a model that accepts images"
        value={request.vlm_model ?? ""}
        onChange={(model) => onChange({ vlm_model: model })}
      />
      <NumberField label="Budget, USD" placeholder="no limit" min={0} step="any" value={request.budget_usd} onChange={(value) => onChange({ budget_usd: value })} />
      <NumberField label="Time limit, minutes" placeholder="no limit" min={0} step="any" value={request.max_minutes} onChange={(value) => onChange({ max_minutes: value })} />
      <NumberField label="Max iterations" placeholder="5" min={1} max={1000} value={request.max_iterations} onChange={(value) => onChange({ max_iterations: value })} />
      <NumberField label="Timesteps per training run" placeholder="environment default" min={1000} step={1000} value={request.total_timesteps} onChange={(value) => onChange({ total_timesteps: value })} />
    </div>
  );
}

export function AdvancedSettings({ request, onChange, settings, onSettings }: SettingsProps) {
  return (
    <details>
      <summary>Advanced</summary>
      <div className="stack advanced">
        <div className="fields">
          <NumberField label="Seeds" placeholder="1" min={1} max={100} value={typeof request.seeds === "number" ? request.seeds : null} onChange={(value) => onChange({ seeds: value })} />
          <NumberField label="Hyperparameter configs" placeholder="1" min={1} max={100} value={request.configs} onChange={(value) => onChange({ configs: value })} />
          <NumberField label="Pass threshold" placeholder="0.8" min={0.01} max={1} step="any" value={request.pass_threshold} onChange={(value) => onChange({ pass_threshold: value })} />
          <NumberField label="Judged episodes per run" placeholder="8" min={1} max={100} value={request.judge_episodes} onChange={(value) => onChange({ judge_episodes: value })} />
          <NumberField label="Held-out seeds of a confirmation" placeholder="16" min={1} max={1000} value={request.confirm_episodes} onChange={(value) => onChange({ confirm_episodes: value })} />
          <NumberField label="Cores per training run" placeholder="chosen" min={0} max={4096} value={request.cores_per_run} onChange={(value) => onChange({ cores_per_run: value })} />
          <label className="field">
            Thinking effort
            <select value={request.thinking_effort ?? ""} onChange={(event) => onChange({ thinking_effort: event.target.value || null })}>
              <option value="">the model&apos;s default</option>
              {EFFORTS.map((effort) => (
                <option key={effort}>{effort}</option>
              ))}
            </select>
          </label>
          <NumberField label="Job priority" placeholder="0" value={request.priority} onChange={(value) => onChange(value === null ? { priority: 0 } : { priority: value })} />
        </div>
        {TOGGLES.map(([name, , title]) => {
          const usual = !OFF_UNLESS_ASKED.includes(name);
          return (
            <label key={name} className="row small-text">
              <input type="checkbox" checked={request[name] ?? usual} onChange={(event) => onChange({ [name]: event.target.checked === usual ? null : !usual })} />
              {title}
            </label>
          );
        })}
        <label className="field">
          What the VLM must see, one criterion per line
          <textarea rows={2} value={request.visual_criteria?.join("\n") ?? ""} placeholder={"the head stays up\nno foot drags over the ground"} onChange={(event) => onChange({ visual_criteria: event.target.value ? event.target.value.split("\n") : null })} />
        </label>
        <label className="field">
          Training settings, one name=value per line
          <textarea rows={3} className="mono" value={settings} placeholder={"learning_rate=0.0003\nnum_envs=16"} onChange={(event) => onSettings(event.target.value)} />
        </label>
      </div>
    </details>
  );
}
