/** The tree of iterations as lanes, one row each; and what led to each. */
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

/** The first child continues in its parent's lane; another child opens a new one. */
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

/** What changed on the way to an iteration: in its author's words, or else its settings. */
export function story({ parent, changes, hp_changes }: Edge): string {
  const settings = Object.entries(hp_changes).map(([name, value]) => `${name} ${plain(value)}`);
  const changed = changes || settings.join("; ");
  return parent == null ? changed || "the first reward" : `from ${parent}: ${changed || "no change"}`;
}
