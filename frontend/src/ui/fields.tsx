import { useQuery } from "@tanstack/react-query";
import { type KeyboardEvent, type ReactNode, useId } from "react";
import { providersQuery } from "../api/queries";

interface ChoiceProps<Value extends string> {
  label: string;
  options: readonly (readonly [Value, string])[];
  value: Value;
  onChange: (value: Value) => void;
}

/** A few options, of which one is on. */
export function Choice<Value extends string>({ label, options, value, onChange }: ChoiceProps<Value>) {
  return (
    <div className="choice" role="group" aria-label={label}>
      {options.map(([name, title]) => (
        <button key={name} type="button" aria-pressed={name === value} onClick={() => onChange(name)}>
          {title}
        </button>
      ))}
    </div>
  );
}

interface NumberFieldProps {
  label: string;
  value: number | null | undefined;
  onChange: (value: number | null) => void;
  placeholder: string;
  min?: number;
  max?: number;
  step?: number | "any";
}

/** A number that may be left empty; the placeholder says which one is used then. */
export function NumberField({ label, value, onChange, ...rest }: NumberFieldProps) {
  const shown = value == null || Number.isNaN(value) ? "" : value;
  return (
    <label className="field">
      {label}
      <input type="number" value={shown} onChange={(event) => onChange(event.target.value === "" ? null : event.target.valueAsNumber)} {...rest} />
    </label>
  );
}

interface TabsProps<Name extends string> {
  label: string;
  tabs: readonly (readonly [Name, string])[];
  current: Name;
  onChange: (name: Name) => void;
  children: ReactNode;
}

/** Tabs with the arrow keys; the panel is what `children` show for the current one. */
export function Tabs<Name extends string>({ label, tabs, current, onChange, children }: TabsProps<Name>) {
  const id = useId();
  function onKeyDown(event: KeyboardEvent<HTMLDivElement>): void {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    const index = tabs.findIndex(([name]) => name === current);
    const next = tabs[(index + step + tabs.length) % tabs.length]?.[0];
    if (next === undefined) return;
    event.preventDefault();
    onChange(next);
    document.getElementById(`${id}-${next}`)?.focus();
  }
  return (
    <>
      <div className="tabs" role="tablist" aria-label={label} onKeyDown={onKeyDown}>
        {tabs.map(([name, title]) => (
          <button
            key={name}
            id={`${id}-${name}`}
            type="button"
            role="tab"
            aria-selected={name === current}
            aria-controls={`${id}-panel`}
            tabIndex={name === current ? 0 : -1}
            onClick={() => onChange(name)}
          >
            {title}
          </button>
        ))}
      </div>
      <div id={`${id}-panel`} role="tabpanel" aria-labelledby={`${id}-${current}`}>
        {children}
      </div>
    </>
  );
}

interface ModelFieldProps {
  value: string;
  onChange: (model: string) => void;
  label?: string;
  placeholder?: string;
  note?: string;
}

/** A model by name, with those that can be asked as suggestions. */
export function ModelField({ value, onChange, label = "Model", placeholder = "first provider with a key, else builtin", note }: ModelFieldProps) {
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
