/** Numbers, times and states as people read them. */

export const NOTHING = "–";

/** Rounded down, as everywhere: 1.00 is a score of one, and 0.90 is not short of 0.9. */
export function score(value: number | null | undefined): string {
  return value == null ? NOTHING : (Math.floor(value * 100 + 1e-6) / 100).toFixed(2);
}

export function capitalized(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** A clause as a sentence. */
export function sentence(text: string): string {
  return text && `${capitalized(text)}${/[.!?]$/.test(text) ? "" : "."}`;
}

export function percent(value: number): string {
  // 100 % is said of what is whole.
  return `${value > 0.99 && value < 1 ? 99 : Math.round(value * 100)} %`;
}

export function number(value: number | null | undefined, digits = 3): string {
  if (value == null || !Number.isFinite(value)) return NOTHING;
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) return value.toExponential(1);
  return value.toLocaleString("en-US", { maximumSignificantDigits: Math.max(digits, integerDigits(value)) });
}

/** "3 m/s", "2 turns", "1 turn", as `Criterion.with_unit` has it. */
export function withUnit(value: number, unit: string): string {
  const singular = value === 1 && unit.length > 3 && /^[a-z]+$/i.test(unit);
  return `${number(value)} ${singular ? unit.replace(/s$/, "") : unit}`.trimEnd();
}

function integerDigits(value: number): number {
  return Math.max(1, Math.trunc(Math.abs(value)).toString().length);
}

/** 75776 as 75.8k: for axes and chips, where room is short. */
export function short(value: number, digits = 1): string {
  return new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: digits }).format(value).toLowerCase();
}

/** The numbers of an axis, with as many digits as tell them apart. */
export function ticks(values: readonly number[]): string[] {
  const largest = Math.max(0, ...values.map(Math.abs));
  if (largest >= 10_000) return values.map((value) => short(value, 6));
  let digits = 0;
  while (digits < 6 && values.some((value) => Math.abs(Number(value.toFixed(digits)) - value) > 1e-9)) digits += 1;
  return values.map((value) => value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
}

/** 1 as "1 run", 2 as "2 runs". */
export function counted(count: number, noun: string): string {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

export function dollars(value: number): string {
  return value === 0 ? "$0" : value < 0.01 ? "< $0.01" : `$${value.toFixed(2)}`;
}

export function duration(seconds: number): string {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  const whole = Math.round(seconds);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${rest} s` : `${rest} s`;
}

/** How long something may take: no more exact than an estimate is. */
export function roughly(seconds: number): string {
  if (seconds < 55) return `${Math.max(5, Math.ceil(seconds / 5) * 5)} s`;
  const minutes = Math.max(1, Math.round(seconds / 60));
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function ago(time: string, now: number): string {
  const seconds = Math.max(0, (now - Date.parse(time)) / 1000);
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}

export function megabytes(value: number): string {
  return value >= 1024 ? `${(value / 1024).toFixed(1)} GB` : `${value} MB`;
}

/** A field of any type in one line. */
export function plain(value: unknown): string {
  if (typeof value === "number") return number(value, 4);
  if (Array.isArray(value)) return value.map(plain).join(" × ");
  return typeof value === "string" ? value : JSON.stringify(value);
}

export type Tone = "good" | "open" | "warn" | "bad" | "busy" | "quiet";

const TONES: Record<string, Tone> = {
  passed: "good", completed: "good", gate_passed: "good", succeeded: "good", done: "good",
  unverified: "open",
  running: "busy", pending: "busy", queued: "busy", starting: "busy",
  paused: "warn", max_iterations: "warn", budget_exhausted: "warn", time_exhausted: "warn",
  rate_limited: "warn", stale: "warn", not_passed: "warn", incomplete: "warn",
  cancelled: "quiet", unknown: "quiet", skipped: "quiet", waiting: "quiet", unfinished: "quiet", not_run: "quiet",
};

/** The colour of a state; an unknown one is bad news. */
export function tone(status: string): Tone {
  return TONES[status] ?? "bad";
}

const WORDS: Record<string, string> = {
  max_iterations: "did not pass", budget_exhausted: "budget used up", time_exhausted: "time used up",
  rate_limited: "rate limited", auth_error: "key refused", invalid_code: "reward failed", stale: "interrupted",
  gate_passed: "gate passed", gate_failed: "gate failed",
};

/** The statuses that sessions can be filtered by. */
export const SESSION_STATUSES = [
  "running", "queued", "paused", "passed", "unverified", "max_iterations", "budget_exhausted", "time_exhausted",
  "rate_limited", "auth_error", "invalid_code", "cancelled", "stale", "error",
] as const;

export function statusWord(status: string): string {
  return WORDS[status] ?? status.replaceAll("_", " ");
}
