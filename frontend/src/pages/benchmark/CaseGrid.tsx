import { useState } from "react";
import { Link } from "react-router";
import type { BenchmarkCase } from "../../api/types";
import { differ, seenIn, type View, VIEWS } from "../../lib/benchmark";
import { score } from "../../lib/format";
import { LazyVideo } from "../../ui/Video";
import { Card, Empty, Status } from "../../ui/basics";
import { Choice } from "../../ui/fields";

/** The cases, each with its video. */
export function CaseGrid({ cases }: { cases: readonly BenchmarkCase[] }) {
  const [view, setView] = useState<View>("all");
  const [playing, setPlaying] = useState(false);
  const shown = cases.filter((each) => seenIn(view, each));
  return (
    <Card
      title={`Cases (${shown.length})`}
      aside={
        <div className="row">
          <Choice label="Show" options={VIEWS} value={view} onChange={setView} />
          <button type="button" className="button" aria-pressed={playing} onClick={() => setPlaying(!playing)}>
            {playing ? "Pause all" : "Play all"}
          </button>
        </div>
      }
    >
      {shown.length === 0 && <Empty title="No matching cases" />}
      <ul className="case-grid">
        {shown.map((each) => (
          <li key={each.case.number}>
            <Picture found={each} playing={playing} />
            <Link to={`/benchmark/job/${each.benchmark_id}/case/${each.case.number}`}>{each.case.instruction}</Link>
            <span className="small-text muted">
              {each.case.env_id} · {each.case.difficulty}
            </span>
            <CaseState found={each} />
          </li>
        ))}
      </ul>
    </Card>
  );
}

function Picture({ found, playing }: { found: BenchmarkCase; playing: boolean }) {
  const video = found.media.find((each) => each.label === "median") ?? found.media[0];
  return video ? <LazyVideo url={video.url} label={`Video of ${found.case.instruction}`} playing={playing} /> : <div className="no-video small-text muted">no video</div>;
}

/** Its status, by judge and by ground truth. */
export function CaseState({ found }: { found: BenchmarkCase }) {
  return (
    <span className="row small-text">
      <Status status={found.state} />
      <span className="numeric">{score(found.score ?? found.live_score)}</span>
      {found.true_pass !== null && <span className={`badge ${found.true_pass ? "good" : "bad"}`}>ground truth: {found.true_pass ? "passed" : "not passed"}</span>}
      {differ(found) && <span className="badge warn">disagree</span>}
    </span>
  );
}
