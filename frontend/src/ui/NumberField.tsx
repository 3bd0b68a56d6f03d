interface Props {
  label: string;
  value: number | null | undefined;
  onChange: (value: number | null) => void;
  placeholder: string;
  min?: number;
  max?: number;
  step?: number | "any";
}

/** A number that may be left open; the placeholder says what is taken then. */
export function NumberField({ label, value, onChange, ...rest }: Props) {
  const shown = value == null || Number.isNaN(value) ? "" : value;
  return (
    <label className="field">
      {label}
      <input type="number" value={shown} onChange={(event) => onChange(event.target.value === "" ? null : event.target.valueAsNumber)} {...rest} />
    </label>
  );
}
