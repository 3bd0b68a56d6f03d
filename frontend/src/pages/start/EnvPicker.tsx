import { useQuery } from "@tanstack/react-query";
import { envsQuery } from "../../api/queries";
import { Problem } from "../../ui/Problem";

const PICTURES = import.meta.glob<string>("./pictures/*.webp", { eager: true, query: "?url", import: "default" });

interface Props {
  value: string;
  onChange: (envId: string) => void;
  onSentence: (sentence: string) => void;
}

/** The bodies to choose from, with their pictures and what they can do. */
export function EnvPicker({ value, onChange, onSentence }: Props) {
  const { data, error, isPending } = useQuery(envsQuery);
  const chosen = data?.find((env) => env.env_id === value);
  return (
    <fieldset className="env-picker">
      <legend>Body</legend>
      <Problem what="The environments cannot be listed" error={error} />
      <div className="env-grid">
        <label className="env">
          <input type="radio" name="env" checked={value === ""} onChange={() => onChange("")} />
          <span className="env-any" aria-hidden="true">
            ?
          </span>
          <span>Choose for me</span>
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
          Looking at the bodies there are …
        </p>
      )}
      {chosen && (
        <div className="stack small-text">
          <p className="muted">
            {chosen.description.replace(/\.?$/, ".")} {chosen.observations} observations, {chosen.actions} actions
            {chosen.horizon != null && `, ${chosen.horizon} steps an episode`}.
          </p>
          {chosen.can.length > 0 && (
            <p className="row">
              <span className="muted">It can, for example:</span>
              {chosen.can.map((sentence) => (
                <button key={sentence} type="button" className="button small" onClick={() => onSentence(sentence)}>
                  {sentence}
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
