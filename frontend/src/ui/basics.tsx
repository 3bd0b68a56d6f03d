import { type ReactNode, useEffect, useId, useRef, useState } from "react";
import { isGone } from "../api/client";
import type { Rate } from "../api/types";
import { capitalized, percent, statusWord, tone } from "../lib/format";

interface CardProps {
  title: string;
  aside?: ReactNode;
  children: ReactNode;
  className?: string;
}

export function Card({ title, aside, children, className = "" }: CardProps) {
  const id = useId();
  return (
    <section className={`card ${className}`} aria-labelledby={id}>
      <div className="card-head">
        <h2 id={id}>{title}</h2>
        {aside}
      </div>
      {children}
    </section>
  );
}

const LONG_TITLE = 120;

/** The heading of a page, and the title of the browser's tab. */
export function PageHeading({ title, tab = title }: { title: string; tab?: string }) {
  useEffect(() => {
    document.title = `${tab} · Prompt2Policy`;
  }, [tab]);
  return <h1 className={title.length > LONG_TITLE ? "long" : undefined}>{title}</h1>;
}

/** In place of a page that does not exist: says so, and where to go. */
export function Missing({ title, children }: { title: string; children: ReactNode }) {
  return (
    <div className="empty">
      <PageHeading title={title} />
      <div className="muted">{children}</div>
    </div>
  );
}

/** Nothing to show: says why, and what to do. */
export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <p className="empty-title">{title}</p>
      {children && <div className="muted">{children}</div>}
    </div>
  );
}

/** In place of a page whose data is loading, could not be loaded, or does not exist: then `children` say where to go. */
export function NotYet({ what, error, children }: { what: string; error: Error | null; children?: ReactNode }) {
  if (error === null) return <p className="muted">Loading …</p>;
  if (isGone(error)) return <Missing title={capitalized(error.message)}>{children}</Missing>;
  return (
    <>
      <PageHeading title={what} />
      <div className="problem" role="alert">
        {error.message}
      </div>
    </>
  );
}

/** What failed, and why. */
export function Problem({ what, error }: { what: string; error: Error | null }) {
  if (error === null) return null;
  return (
    <div className="problem" role="alert">
      <strong>{what}:</strong> {error.message}
    </div>
  );
}

/** A few numbers with their names. */
export function Facts({ of }: { of: readonly (readonly [name: string, value: string])[] }) {
  return (
    <dl className="facts">
      {of.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Content that may be wider or longer than its place; it scrolls with the keys, too, and says so where it is wider. */
export function Scroll({ label, tall = false, children }: { label: string; tall?: boolean; children: ReactNode }) {
  const box = useRef<HTMLDivElement>(null);
  const [wide, setWide] = useState(false);
  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const observer = new ResizeObserver(() => setWide(element.scrollWidth > element.clientWidth + 1));
    for (const each of [element, ...element.children]) observer.observe(each);
    return () => observer.disconnect();
  }, []);
  return (
    <>
      {wide && <p className="small-text muted">Scroll sideways for more columns →</p>}
      <div ref={box} className={tall ? "scroll tall" : "scroll"} tabIndex={0} role="group" aria-label={label}>
        {children}
      </div>
    </>
  );
}

export function Status({ status }: { status: string }) {
  return <span className={`badge ${tone(status)}`}>{statusWord(status)}</span>;
}

const UNCHECKED_WORDS = 12;

/** What the prompt asks and no criterion measures: a pass says nothing about it. */
export function Unchecked({ words }: { words: readonly string[] }) {
  if (words.length === 0) return null;
  const more = words.length > UNCHECKED_WORDS ? [`and ${words.length - UNCHECKED_WORDS} more`] : [];
  return (
    <span className="small-text unchecked">
      <span className="badge open">not checked</span> {[...words.slice(0, UNCHECKED_WORDS), ...more].join(", ")}
    </span>
  );
}

/** A command line to copy. */
export function Command({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  return (
    <div className="command">
      <code>{text}</code>
      <button
        type="button"
        className="button small"
        onClick={() => void navigator.clipboard.writeText(text).then(() => setCopied(true))}
      >
        {copied ? "Copied" : "Copy"}
      </button>
    </div>
  );
}

interface MeterProps {
  value: number | null | undefined;
  label: string;
  tone?: "good" | "open" | "warn" | "bad" | "plain";
}

/** A share between 0 and 1 as a bar. */
export function Meter({ value, label, tone = "plain" }: MeterProps) {
  const percent = (part: number) => `${100 * Math.min(1, Math.max(0, part))}%`;
  return (
    <div
      className={`meter ${tone}`}
      role="meter"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={1}
      aria-valuenow={value ?? 0}
      aria-valuetext={value == null ? "unknown" : value.toFixed(2)}
    >
      <div className="meter-fill" style={{ width: percent(value ?? 0) }} />
    </div>
  );
}

/** A share with its 95 % interval, on a line from 0 to 100 %. */
export function Interval({ rate, label, colour }: { rate: Rate; label: string; colour: 1 | 2 }) {
  const at = (part: number | null) => `${100 * (part ?? 0)}%`;
  return (
    <div className={`interval colour-${colour}`} role="img" aria-label={`${label}: ${spoken(rate)}`}>
      {rate.rate !== null && rate.low !== null && rate.high !== null && (
        <>
          <div className="interval-range" style={{ left: at(rate.low), width: at(rate.high - rate.low) }} />
          <div className="interval-dot" style={{ left: at(rate.rate) }} />
        </>
      )}
    </div>
  );
}

export function spoken(rate: Rate): string {
  if (rate.rate === null) return "no data yet";
  const interval = rate.low !== null && rate.high !== null ? ` (${percent(rate.low)} to ${percent(rate.high)})` : "";
  return `${rate.passed} of ${rate.total}${interval}`;
}
