import { useMemo, useState } from "react";
import type { Iteration } from "../../api/types";
import { short } from "../../lib/format";
import { type Comparison, type Label, LABELS, panes, steps } from "../../lib/videos";
import { SyncedPlayer } from "../../ui/Video";
import { Empty } from "../../ui/basics";
import { Choice } from "../../ui/fields";

const COMPARISONS = [
  ["episodes", "Episodes"],
  ["checkpoints", "Checkpoints"],
  ["iterations", "Iterations"],
] as const;

/** Videos side by side: weak, typical and good episodes, or how the policy changed. */
export function Videos({ iterations, current }: { iterations: readonly Iteration[]; current: Iteration }) {
  const runs = useMemo(() => [...new Set(current.videos.map((video) => video.run_id))], [current.videos]);
  const [by, setBy] = useState<Comparison>("episodes");
  const [label, setLabel] = useState<Label>("median");
  const [chosenRun, setRun] = useState<string | null>(null);
  const [chosenStep, setStep] = useState<number | null>(null);
  const run = chosenRun ?? current.best_run_id ?? runs[0] ?? "";
  const there = steps(current.videos, run);
  const step = [chosenStep, current.best_step].find((each) => each != null && there.includes(each)) ?? there.at(-1) ?? 0;
  if (current.videos.length === 0) {
    return <Empty title="No videos yet">Episodes are recorded at each evaluation during training, and drawn when you open them.</Empty>;
  }
  const shown = panes(iterations, current, { by, run, label, step });
  return (
    <div className="stack">
      <div className="row">
        <Choice label="Side by side" options={iterations.length > 1 ? COMPARISONS : COMPARISONS.slice(0, 2)} value={by} onChange={setBy} />
        {by !== "episodes" && <Choice label="Episode" options={LABELS.map((name) => [name, name])} value={label} onChange={setLabel} />}
        {by === "episodes" && there.length > 1 && (
          <Choice label="Checkpoint" options={there.map((each) => [String(each), short(each)])} value={String(step)} onChange={(value) => setStep(Number(value))} />
        )}
        {by !== "iterations" && runs.length > 1 && (
          <select aria-label="Run" value={run} onChange={(event) => setRun(event.target.value)}>
            {runs.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        )}
      </div>
      {shown.length === 0 ? <p className="muted">No matching video.</p> : <SyncedPlayer key={shown.map((pane) => pane.url).join()} panes={shown} />}
      {by === "episodes" && <p className="small-text muted">Evaluation episodes by return: p10 is a weak one, p90 a good one.</p>}
    </div>
  );
}
