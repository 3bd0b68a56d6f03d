/** Where each iteration stands when the tree of iterations is drawn as lanes, one row each. */

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
