interface Props<Value extends string> {
  label: string;
  options: readonly (readonly [Value, string])[];
  value: Value;
  onChange: (value: Value) => void;
}

/** A few ways to see something, of which one is on. */
export function Choice<Value extends string>({ label, options, value, onChange }: Props<Value>) {
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
