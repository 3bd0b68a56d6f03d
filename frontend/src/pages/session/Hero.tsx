import { useState } from "react";
import type { Iteration, SessionDetail } from "../../api/types";
import { score, sentence, short } from "../../lib/format";
import { isMet } from "../../lib/gauge";
import { nowAndNext } from "../../lib/phase";
import { bestIteration, type Clip, clipOf } from "../../lib/videos";
import { LazyVideo, motionIsWelcome } from "../../ui/Video";
import { Meter } from "../../ui/basics";
import { Criteria } from "../Criteria";
import { Picture, pictureOf } from "../start/environments";
import { withCode } from "./SessionHeader";

/** The result at a glance: what it does, the verdict, and what was measured of each criterion. */
export function Hero({ session, iterations }: { session: SessionDetail; iterations: readonly Iteration[] }) {
  const best = bestIteration(session, iterations);
  const clip = clipOf(session, iterations);
  return (
    <section className="card hero" aria-label="Result">
      {clip ? <HeroVideo key={clip.video.url} clip={clip} session={session} /> : <NoClip session={session} />}
      <div className="stack">
        <Verdict session={session} best={best} />
        {session.intent && (
          <div className="hero-criteria" tabIndex={0} role="group" aria-label="Criteria">
            <Criteria session={session} iteration={best} />
          </div>
        )}
        {session.intent?.note && <p className="small-text muted">{session.intent.note}</p>}
      </div>
    </section>
  );
}

function HeroVideo({ clip: { video, iteration, live }, session }: { clip: Clip; session: SessionDetail }) {
  const [playing, setPlaying] = useState(motionIsWelcome);
  const which = `iteration ${iteration}, ${video.step === null ? video.name : `${short(video.step)} steps`}`;
  return (
    <figure className="hero-video">
      <LazyVideo url={video.url} label={`${live ? "Newest checkpoint" : "Median episode of the best policy"}: ${which}`} poster={pictureOf(session.env_id)} playing={playing} />
      {live && <span className="badge busy">live</span>}
      <figcaption className="row spread small-text muted">
        <span>
          {live ? "Newest checkpoint" : "Median episode"}: {which}
        </span>
        <button type="button" className="link" onClick={() => setPlaying(!playing)}>
          {playing ? "Pause" : "Play"}
        </button>
      </figcaption>
    </figure>
  );
}

function NoClip({ session }: { session: SessionDetail }) {
  const running = session.phase !== "ended";
  return (
    <figure className="hero-video none">
      <Picture envId={session.env_id} />
      <figcaption className="small-text muted">{running ? "A clip of the policy plays here from the first evaluation on." : "No video was recorded."}</figcaption>
    </figure>
  );
}

function Verdict({ session, best }: { session: SessionDetail; best: Iteration | undefined }) {
  const ended = session.phase === "ended";
  const tone = best?.unverified ? "open" : best?.passed ? "good" : "warn";
  const hard = session.intent?.criteria.filter((each) => !each.soft_reason) ?? [];
  const results = new Map(best?.criteria.map((each) => [each.id, each]));
  const met = hard.filter((each) => isMet(each, results.get(each.id), session.config?.pass_threshold ?? 1));
  return (
    <>
      {best?.intent_score != null && (
        <div className="hero-score">
          <span className="big">{score(best.intent_score)}</span>
          <span className="stack">
            <Meter value={best.intent_score} label="Score" tone={tone} />
            <span className="small-text muted">
              score of iteration {best.iteration}
              {hard.length > 0 && `; ${met.length} of ${hard.length} required criteria met`}
            </span>
          </span>
        </div>
      )}
      {best?.verdict && <p className={`verdict ${tone}`}>{sentence(best.verdict)}</p>}
      {ended && session.status !== "passed" && <p className="small-text">{withCode(nowAndNext(session))}</p>}
      {session.error && <div className="problem">{session.error}</div>}
    </>
  );
}
