import type { StartRequest } from "../../api/types";
import { EFFORTS, OFF_UNLESS_ASKED, TOGGLES } from "../../lib/command";
import { ModelField, NumberField } from "../../ui/fields";

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
          <NumberField label="Reward candidates" placeholder="chosen" min={0} max={16} value={request.candidates} onChange={(value) => onChange({ candidates: value })} />
          <NumberField label="Hyperparameter configs" placeholder="1" min={1} max={100} value={request.configs} onChange={(value) => onChange({ configs: value })} />
          <NumberField label="Score per hard criterion" placeholder="0.8" min={0.01} max={1} step="any" value={request.pass_threshold} onChange={(value) => onChange({ pass_threshold: value })} />
          <NumberField label="Judged episodes per run" placeholder="8" min={1} max={100} value={request.judge_episodes} onChange={(value) => onChange({ judge_episodes: value })} />
          <NumberField label="Unseen episodes for a pass" placeholder="16" min={1} max={1000} value={request.confirm_episodes} onChange={(value) => onChange({ confirm_episodes: value })} />
          <NumberField label="Cores per training run" placeholder="chosen" min={0} max={4096} value={request.cores_per_run} onChange={(value) => onChange({ cores_per_run: value })} />
          <label className="field">
            Thinking effort
            <select value={request.thinking_effort ?? ""} onChange={(event) => onChange({ thinking_effort: event.target.value || null })}>
              <option value="">medium (default)</option>
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
          <textarea
            rows={2}
            value={request.visual_criteria?.join("\n") ?? ""}
            placeholder={"the head stays up\nno foot drags over the ground"}
            onChange={(event) => onChange({ visual_criteria: event.target.value ? event.target.value.split("\n") : null })}
          />
        </label>
        <label className="field">
          Training settings, one name=value per line
          <textarea rows={3} className="mono" value={settings} placeholder={"learning_rate=0.0003\nnum_envs=16"} onChange={(event) => onSettings(event.target.value)} />
        </label>
      </div>
    </details>
  );
}
