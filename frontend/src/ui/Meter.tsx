interface Props {
  value: number | null | undefined;
  label: string;
  /** Where a mark stands, such as what passes. */
  mark?: number | undefined;
  tone?: "good" | "warn" | "bad" | "plain";
}

/** A share between 0 and 1 as a bar. */
export function Meter({ value, label, mark, tone = "plain" }: Props) {
  const percent = (part: number) => `${100 * Math.min(1, Math.max(0, part))}%`;
  return (
    <div
      className={`meter ${tone}`}
      role="meter"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={1}
      aria-valuenow={value ?? 0}
      aria-valuetext={value == null ? "not known" : value.toFixed(2)}
    >
      <div className="meter-fill" style={{ width: percent(value ?? 0) }} />
      {mark !== undefined && <div className="meter-mark" style={{ left: percent(mark) }} />}
    </div>
  );
}
