import { useQuery } from "@tanstack/react-query";
import { providersQuery } from "../../api/queries";
import type { StartRequest } from "../../api/types";

interface Props {
  request: StartRequest;
  onChange: (part: Partial<StartRequest>) => void;
  settings: string;
  onSettings: (text: string) => void;
}

/** Who thinks and judges, what it may cost, and how long it may take. */
export function MainSettings({ request, onChange }: Pick<Props, "request" | "onChange">) {
  const { data: providers = [] } = useQuery(providersQuery);
  const models = providers.filter((provider) => provider.configured).map(modelName);
  const missing = providers.filter((provider) => !provider.configured).map((provider) => provider.name);
  return (
    <div className="fields">
      <label className="field">
        Model
        <input list="models" value={request.model ?? ""} placeholder="the first with a key, else builtin" onChange={(event) => onChange({ model: event.target.value })} />
        <small>{missing.length > 0 && `no key for ${missing.join(", ")}`}</small>
      </label>
      <label className="field">
        Also judge by its looks
        <input list="models" value={request.vlm_model ?? ""} placeholder="nobody looks at the videos" onChange={(event) => onChange({ vlm_model: event.target.value })} />
        <small>a model that sees pictures</small>
      </label>
      <NumberField label="Budget, USD" placeholder="no limit" min={0} step="any" value={request.budget_usd} onChange={(value) => onChange({ budget_usd: value })} />
      <NumberField label="Iterations at most" placeholder="5" min={1} max={1000} value={request.max_iterations} onChange={(value) => onChange({ max_iterations: value })} />
      <NumberField label="Steps of each training run" placeholder="by the body" min={1000} step={1000} value={request.total_timesteps} onChange={(value) => onChange({ total_timesteps: value })} />
      <datalist id="models">
        {models.map((model) => (
          <option key={model} value={model} />
        ))}
      </datalist>
    </div>
  );
}

function modelName({ name, default_model }: { name: string; default_model: string }): string {
  return default_model ? `${name}:${default_model}` : name;
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

interface NumberProps {
  label: string;
  value: number | null | undefined;
  onChange: (value: number | null) => void;
  placeholder: string;
  min?: number;
  max?: number;
  step?: number | "any";
}

function NumberField({ label, value, onChange, ...rest }: NumberProps) {
  return (
    <label className="field">
      {label}
      <input type="number" value={value ?? ""} onChange={(event) => onChange(event.target.value === "" ? null : event.target.valueAsNumber)} {...rest} />
    </label>
  );
}
