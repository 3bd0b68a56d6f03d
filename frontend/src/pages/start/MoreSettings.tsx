import type { StartRequest } from "../../api/types";
import { NumberField } from "../../ui/NumberField";
import { ModelField } from "./ModelField";

interface Props {
  request: StartRequest;
  onChange: (part: Partial<StartRequest>) => void;
  settings: string;
  onSettings: (text: string) => void;
}

/** Who thinks and judges, what it may cost, and how long it may take. */
export function MainSettings({ request, onChange }: Pick<Props, "request" | "onChange">) {
  return (
    <div className="fields">
      <ModelField value={request.model ?? ""} onChange={(model) => onChange({ model })} />
      <ModelField
        label="Also judge by its looks"
        placeholder="nobody looks at the videos"
        note="a model that sees pictures"
        value={request.vlm_model ?? ""}
        onChange={(model) => onChange({ vlm_model: model })}
      />
      <NumberField label="Budget, USD" placeholder="no limit" min={0} step="any" value={request.budget_usd} onChange={(value) => onChange({ budget_usd: value })} />
      <NumberField label="Time, minutes" placeholder="no limit" min={0} step="any" value={request.max_minutes} onChange={(value) => onChange({ max_minutes: value })} />
      <NumberField label="Iterations at most" placeholder="5" min={1} max={1000} value={request.max_iterations} onChange={(value) => onChange({ max_iterations: value })} />
      <NumberField label="Steps of each training run" placeholder="by the body" min={1000} step={1000} value={request.total_timesteps} onChange={(value) => onChange({ total_timesteps: value })} />
    </div>
  );
}

export function AdvancedSettings({ request, onChange, settings, onSettings }: Props) {
  return (
    <details>
      <summary>Advanced</summary>
      <div className="stack advanced">
        <div className="fields">
          <NumberField label="Seeds" placeholder="1" min={1} max={100} value={typeof request.seeds === "number" ? request.seeds : null} onChange={(value) => onChange({ seeds: value })} />
          <NumberField label="Hyperparameter settings side by side" placeholder="1" min={1} max={100} value={request.configs} onChange={(value) => onChange({ configs: value })} />
          <NumberField label="Score that passes" placeholder="0.8" min={0.01} max={1} step="any" value={request.pass_threshold} onChange={(value) => onChange({ pass_threshold: value })} />
          <NumberField label="Priority of the job" placeholder="0" value={request.priority} onChange={(value) => onChange(value === null ? { priority: 0 } : { priority: value })} />
        </div>
        <label className="row small-text">
          <input type="checkbox" checked={request.videos !== false} onChange={(event) => onChange({ videos: event.target.checked ? null : false })} />
          Render videos of the evaluations
        </label>
        <label className="field">
          Fixed training settings, one name=value a line
          <textarea rows={3} className="mono" value={settings} placeholder={"learning_rate=0.0003\nnum_envs=16"} onChange={(event) => onSettings(event.target.value)} />
        </label>
      </div>
    </details>
  );
}
