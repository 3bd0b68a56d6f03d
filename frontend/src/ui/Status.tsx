import { statusWord, tone } from "../lib/format";

export function Status({ status }: { status: string }) {
  return <span className={`badge ${tone(status)}`}>{statusWord(status)}</span>;
}
