import { useQuery } from "@tanstack/react-query";
import { useId } from "react";
import { providersQuery } from "../../api/queries";

interface Props {
  value: string;
  onChange: (model: string) => void;
  label?: string;
  placeholder?: string;
  note?: string;
}

/** A model by name, with those that can be asked as suggestions. */
export function ModelField({ value, onChange, label = "Model", placeholder = "the first with a key, else builtin", note }: Props) {
  const id = useId();
  const { data: providers = [] } = useQuery(providersQuery);
  const missing = providers.filter((provider) => !provider.configured).map((provider) => provider.name);
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <input id={id} list={`${id}-known`} aria-describedby={`${id}-note`} value={value} placeholder={placeholder} onChange={(event) => onChange(event.target.value)} />
      <small id={`${id}-note`}>{note ?? (missing.length > 0 && `no key for ${missing.join(", ")}`)}</small>
      <datalist id={`${id}-known`}>
        {providers
          .filter((provider) => provider.configured)
          .map(({ name, default_model }) => (
            <option key={name} value={default_model ? `${name}:${default_model}` : name} />
          ))}
      </datalist>
    </div>
  );
}
