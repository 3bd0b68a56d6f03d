import { useState } from "react";
import type { Iteration, SessionDetail } from "../../api/types";
import { score } from "../../lib/format";
import { beforeAfter, bestIteration } from "../../lib/videos";
import { SyncedPlayer } from "../../ui/Video";
import { Card } from "../../ui/basics";

/** Two iterations side by side and in step: the first and the best, or any two. */
export function BeforeAfter({ session, iterations }: { session: SessionDetail; iterations: readonly Iteration[] }) {
  const filmed = iterations.filter((each) => each.videos.length > 0);
  const best = bestIteration(session, filmed);
  const first = filmed.find((each) => each !== best);
  const [chosen, setChosen] = useState<readonly [number | null, number | null]>([null, null]);
  if (!best || !first) return null;
  const [earlier, later] = first.iteration < best.iteration ? [first, best] : [best, first];
  const numbers = [chosen[0] ?? earlier.iteration, chosen[1] ?? later.iteration] as const;
  const panes = beforeAfter(filmed, numbers);
  const select = (label: string, at: 0 | 1) => (
    <label className="row small-text">
      {label}
      <select value={numbers[at]} onChange={(event) => setChosen(at === 0 ? [Number(event.target.value), chosen[1]] : [chosen[0], Number(event.target.value)])}>
        {filmed.map((each) => (
          <option key={each.iteration} value={each.iteration}>
            iteration {each.iteration} ({score(each.intent_score)})
          </option>
        ))}
      </select>
    </label>
  );
  return (
    <Card
      title="Before and after"
      aside={
        <div className="row">
          {select("Before", 0)}
          {select("After", 1)}
        </div>
      }
    >
      <SyncedPlayer key={panes.map((pane) => pane.url).join()} panes={panes} loop />
    </Card>
  );
}
