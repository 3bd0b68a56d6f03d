import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Fragment } from "react";
import { send } from "../../api/client";
import { envsQuery } from "../../api/queries";
import type { EnvInfo } from "../../api/types";
import { Problem } from "../../ui/basics";

const PICTURES = import.meta.glob<string>("./pictures/*.webp", { eager: true, query: "?url", import: "default" });

/** Where the picture of an environment is; undefined for one of the user's own. */
export function pictureOf(envId: string): string | undefined {
  return PICTURES[`./pictures/${envId}.webp`];
}

/** HalfCheetah-v5, or robots/rover-0123456789ab, as people call it. */
export function shortName(envId: string): string {
  return envId.replace(/-v\d+$/, "").replace(/^robots\/(.*)-[0-9a-f]{12}$/, "$1");
}

export function Picture({ envId }: { envId: string }) {
  const url = pictureOf(envId);
  return url ? (
    <img src={url} alt="" width={320} height={240} loading="lazy" />
  ) : (
    <span className="env-any" aria-hidden="true">
      {envId ? "◇" : "✦"}
    </span>
  );
}

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
          <Picture envId="" />
          <span>Automatic</span>
        </label>
        {data?.map((env) => (
          <label key={env.env_id} className="env">
            <input type="radio" name="env" checked={value === env.env_id} onChange={() => onChange(env.env_id)} />
            <Picture envId={env.env_id} />
            <span>
              {shortName(env.env_id)
                .split(/(?<=[a-z])(?=[A-Z])/)
                .map((word) => (
                  <Fragment key={word}>
                    {word}
                    <wbr />
                  </Fragment>
                ))}
            </span>
          </label>
        ))}
      </div>
      {isPending && (
        <p className="small-text muted" role="status">
          Loading environments …
        </p>
      )}
      <ModelUpload onChange={onChange} />
      {value === "" && <p className="small-text muted">The environment that can do what the prompt asks is chosen when the session starts.</p>}
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

/** Reads a robot's model file, which becomes an environment to choose. */
function ModelUpload({ onChange }: { onChange: (envId: string) => void }) {
  const queries = useQueryClient();
  const upload = useMutation({
    mutationFn: (file: File) => send<EnvInfo>("POST", `/api/models?name=${encodeURIComponent(file.name)}`, file),
    onSuccess: (env) => {
      queries.setQueryData<EnvInfo[]>(envsQuery.queryKey, (known) => [...(known ?? []).filter((each) => each.env_id !== env.env_id), env]);
      onChange(env.env_id);
    },
  });
  return (
    <>
      <label className="field">
        Your own robot
        <input
          type="file"
          accept=".xml,.urdf,.mjb,.zip"
          disabled={upload.isPending}
          onChange={(event) => {
            const file = event.target.files?.[0];
            if (file) upload.mutate(file);
            event.target.value = "";
          }}
        />
        <small>{upload.isPending ? `Reading ${upload.variables.name} …` : "A model file (.xml, .urdf, .mjb), or a .zip of one with its meshes."}</small>
      </label>
      <Problem what="Could not read the model" error={upload.error} />
    </>
  );
}
