/** Where each iteration stands when the tree of iterations is drawn as lanes, one row each; and what led to it. */
import { plain } from "./format";

export interface LineageRow {
  iteration: number;
  lane: number;
  /** Row and lane of the parent; null for a root. */
  from: { row: number; lane: number } | null;
}

interface Node {
  iteration: number;
  parent: number | null;
}

/** The first child goes on in its parent's lane; another child opens a new one. */
export function lanes(nodes: readonly Node[]): LineageRow[] {
  const rows: LineageRow[] = [];
  const placed = new Map<number, { row: number; lane: number }>();
  const continued = new Set<number>();
  let next = 0;
  for (const node of [...nodes].sort((a, b) => a.iteration - b.iteration)) {
    const from = node.parent === null ? undefined : placed.get(node.parent);
    let lane = next;
    if (from !== undefined && node.parent !== null && !continued.has(node.parent)) {
      lane = from.lane;
      continued.add(node.parent);
    } else {
      next += 1;
    }
    placed.set(node.iteration, { row: rows.length, lane });
    rows.push({ iteration: node.iteration, lane, from: from ?? null });
  }
  return rows;
}

export function laneCount(rows: readonly LineageRow[]): number {
  return Math.max(0, ...rows.map((row) => row.lane)) + 1;
}

interface Edge {
  parent?: number | null;
  changes: string;
  hp_changes: Record<string, unknown>;
}

/** What changed on the way to an iteration: in its author's words, then the settings that those do not name. */
export function story({ parent, changes, hp_changes }: Edge): string {
  const words = new Set(changes.match(/\w+/g));
  const numbers = new Set(changes.match(/-?\d+(\.\d+)?(e[+-]?\d+)?/g)?.map(Number));
  const told = (name: string, value: unknown) => words.has(name) && (typeof value !== "number" || numbers.has(value));
  const settings = Object.entries(hp_changes).filter(([name, value]) => !told(name, value));
  const changed = [changes, ...settings.map(([name, value]) => `${name} ${plain(value)}`)].filter(Boolean).join("; ");
  return parent == null ? changed || "the first reward" : `from ${parent}: ${changed || "no change"}`;
}
