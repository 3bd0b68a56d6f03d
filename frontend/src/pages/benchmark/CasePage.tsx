import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "react-router";
import { useLive } from "../../api/live";
import { benchmarkCasesQuery, benchmarkQuery } from "../../api/queries";
import type { BenchmarkCase } from "../../api/types";
import { dollars, duration, number, score } from "../../lib/format";
import { LABELS } from "../../lib/videos";
import { SyncedPlayer } from "../../ui/Video";
import { Card, Empty, Facts, Meter, Missing, NotYet, PageHeading, Unchecked } from "../../ui/basics";
import { CaseState } from "./CaseGrid";

/** One prompt of a suite: what was asked, seen, judged and measured. */
export default function CasePage() {
  const { id = "", number: wanted = "" } = useParams();
  const { data: cases, error } = useQuery(benchmarkCasesQuery(id));
  useLive(`/api/benchmarks/${encodeURIComponent(id)}/live`, { benchmark: [["benchmark", id]] });
  if (!cases) {
    return (
      <NotYet what="Could not load the case" error={error}>
        <Link to="/benchmark">All benchmarks</Link>
      </NotYet>
    );
  }
  const at = cases.findIndex((each) => String(each.case.number) === wanted);
  const found = cases[at];
  if (!found) {
    return (
      <Missing title={`The benchmark has no case ${wanted}`}>
        <Link to={`/benchmark/${id}`}>All cases</Link>
      </Missing>
    );
  }
  return (
    <>
      <div className="stack">
        <div className="row spread small-text">
          <Link to={`/benchmark/${id}`}>All cases</Link>
          <nav className="row" aria-label="Cases">
            <Beside to={cases[at - 1]}>← Previous case</Beside>
            <Beside to={cases[at + 1]}>Next case →</Beside>
          </nav>
        </div>
        <PageHeading title={found.case.instruction} />
        <div className="row small-text muted">
          <span>case {found.case.number}</span>
          <span>{found.case.env_id}</span>
          <span>{found.case.category}</span>
          <span>{found.case.difficulty}</span>
          <CaseState found={found} />
          <Unchecked words={found.unchecked_words} />
          <Link to={`/e2e/${found.session_id}`}>session</Link>
        </div>
        {(found.message || found.note) && <p className="small-text muted">{found.message || found.note}</p>}
      </div>
      <Videos found={found} />
      <div className="columns">
        <Judged found={found} />
        <Truth found={found} />
      </div>
    </>
  );
}

function Beside({ to, children }: { to: BenchmarkCase | undefined; children: string }) {
  if (!to) return <span className="muted">{children}</span>;
  return <Link to={`/benchmark/job/${to.benchmark_id}/case/${to.case.number}`}>{children}</Link>;
}

function Videos({ found }: { found: BenchmarkCase }) {
  const panes = LABELS.flatMap((label) => {
    const video = found.media.find((each) => each.label === label);
    return video ? [{ title: label, url: video.url }] : [];
  });
  return (
    <Card title="Videos">
      {panes.length === 0 ? <Empty title="No videos">Videos of the best policy appear when the session has ended.</Empty> : <SyncedPlayer key={found.session_id} panes={panes} />}
    </Card>
  );
}

function Judged({ found }: { found: BenchmarkCase }) {
  const { data: benchmark } = useQuery(benchmarkQuery(found.benchmark_id));
  const asked = benchmark && benchmark.model !== "builtin";
  return (
    <Card title="Judge">
      <Facts
        of={[
          ["Score", score(found.score)],
          ["Unseen episodes", score(found.confirmed_score)],
          ["Iterations", String(found.iterations)],
          ["Time", duration(found.minutes * 60)],
          ...(asked ? ([["Model calls", String(found.model_calls)], ["Tokens", number(found.tokens)], ["Cost", dollars(found.cost_usd)]] as const) : []),
        ]}
      />
    </Card>
  );
}

function Truth({ found }: { found: BenchmarkCase }) {
  const { truth, case: asked } = found;
  return (
    <Card title="Ground truth">
      {asked.truth === null && <Empty title="This prompt has no ground truth" />}
      {asked.truth !== null && !truth && <p className="muted">{found.truth_note || "Not measured: there is no policy."}</p>}
      {truth && (
        <>
          <p>
            <code>{truth.truth}</code> is{" "}
            <b>
              {number(truth.value)} {truth.unit}
            </b>{" "}
            <span className="muted">
              ± {number(truth.std)} over {truth.seeds.length} episodes
            </span>
            , required: {truth.better === "at_least" ? "at least" : "at most"} {number(truth.threshold)}.
          </p>
          <Meter value={truth.attained} label="How much of the threshold is attained" tone={truth.passed ? "good" : "bad"} />
          <p className="small-text muted">No agent sees this measurement.</p>
        </>
      )}
    </Card>
  );
}
