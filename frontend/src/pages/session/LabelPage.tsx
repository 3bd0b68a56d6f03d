import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useParams } from "react-router";
import { send } from "../../api/client";
import { labelsQuery, sessionQuery } from "../../api/queries";
import type { LabelRequest, Labels } from "../../api/types";
import { number } from "../../lib/format";
import { Card, Empty, NotYet, PageHeading, Problem } from "../../ui/basics";
import { DrawnVideo } from "../../ui/Video";

const NAME = "p2p-annotator";

/** Score a session's videos blind: neither iteration nor judge can be told from them. */
export default function LabelPage() {
  const { id = "" } = useParams();
  const [annotator, setAnnotator] = useState(() => localStorage.getItem(NAME) ?? "");
  const query = labelsQuery(id, annotator);
  const { data, error } = useQuery(query);
  const client = useQueryClient();
  const save = useMutation({
    mutationFn: (label: LabelRequest) => send<Labels>("POST", `/api/sessions/${id}/labels`, label),
    onSuccess: (labels) => client.setQueryData(query.queryKey, labels),
  });
  const { data: session } = useQuery(sessionQuery(id));
  if (!data) return <NotYet what="Score the videos" error={error} />;
  const left = data.videos.filter((video) => video.score === null);
  const [next] = left;
  return (
    <>
      <div className="stack">
        <Link to={`/e2e/${id}`} className="small-text">
          Session
        </Link>
        <PageHeading title="Score the videos" tab={`Score the videos: ${session?.alias || session?.prompt || id}`} />
        {session?.prompt && (
          <p>
            Prompt: <b>{session.prompt}</b>
          </p>
        )}
        <label className="field">
          Your name
          <input
            value={annotator}
            maxLength={100}
            onChange={(event) => {
              localStorage.setItem(NAME, event.target.value);
              setAnnotator(event.target.value);
            }}
          />
        </label>
      </div>
      <Problem what="Could not save the score" error={save.error} />
      {data.videos.length === 0 && <Empty title="No videos">They are recorded at each evaluation during training.</Empty>}
      {next && (
        <Card title={`Video ${data.videos.length - left.length + 1} of ${data.videos.length}`}>
          <Scoring key={next.video} url={next.url} disabled={save.isPending || !annotator.trim()} onScore={(score, note) => save.mutate({ video: next.video, score, note, annotator: annotator.trim() })} />
        </Card>
      )}
      {data.videos.length > 0 && !next && <Comparison labels={data} id={id} />}
    </>
  );
}

function Scoring({ url, disabled, onScore }: { url: string; disabled: boolean; onScore: (score: number, note: string) => void }) {
  const [score, setScore] = useState<number | null>(null);
  const [note, setNote] = useState("");
  return (
    <form
      className="stack"
      onSubmit={(event) => {
        event.preventDefault();
        if (score !== null) onScore(score, note);
      }}
    >
      <DrawnVideo src={url} className="labelled" controls autoPlay loop aria-label="Video to score" />
      <div className="field">
        <span className="row spread">
          <label htmlFor="label-score">How well does it do what the prompt asks?</label>
          <span className="numeric">{score === null ? "not scored" : score.toFixed(2)}</span>
        </span>
        <input id="label-score" type="range" min={0} max={1} step={0.05} value={score ?? 0.5} onChange={(event) => setScore(event.target.valueAsNumber)} />
      </div>
      <label className="field">
        Why (optional)
        <input value={note} maxLength={4000} onChange={(event) => setNote(event.target.value)} />
      </label>
      <div className="row">
        <button type="submit" className="button primary" disabled={disabled || score === null}>
          Save and next
        </button>
      </div>
    </form>
  );
}

function Comparison({ labels, id }: { labels: Labels; id: string }) {
  return (
    <Card title="All videos are scored">
      {labels.compared === 0 ? (
        <p>No judge has scored one of these episodes, so there is nothing to compare with.</p>
      ) : (
        <p>
          Off the judges&apos; scores by <b>{number(labels.mean_difference, 2)}</b> on average; on the same side of the threshold in <b>{labels.same_verdict}</b> of {labels.compared}.
        </p>
      )}
      <p>
        <a href={`/api/sessions/${id}/labels.csv`} download={`${id}.csv`}>
          Scores as CSV
        </a>
      </p>
    </Card>
  );
}
