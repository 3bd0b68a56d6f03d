import type { DiffLine } from "../lib/diff";

const SIGNS = { same: " ", added: "+", removed: "−" } as const;

export function Code({ text, label }: { text: string; label: string }) {
  return <CodeLines label={label} lines={text.trimEnd().split("\n").map((line) => ({ kind: "same", text: line }))} />;
}

/** Code with what was added and removed; the signs are for those who do not see colours. */
export function CodeLines({ lines, label }: { lines: readonly DiffLine[]; label: string }) {
  return (
    <pre className="code" tabIndex={0} role="group" aria-label={label}>
      {lines.map((line, index) => (
        <span key={index} className={`code-line ${line.kind}`}>
          <span className="sign">{SIGNS[line.kind]}</span>
          {line.text}
          {"\n"}
        </span>
      ))}
    </pre>
  );
}
