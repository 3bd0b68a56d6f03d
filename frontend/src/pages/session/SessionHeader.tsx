import { useMutation, useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { Link, useNavigate } from "react-router";
import { send } from "../../api/client";
import { bandsQuery } from "../../api/queries";
import type { Iteration, ResumeRequest, SessionDetail, SteerRequest } from "../../api/types";
import { bandLines, unitOf } from "../../lib/curves";
import { counted, dollars, duration, number, percent, roughly } from "../../lib/format";
import { nowAndNext, PHASES } from "../../lib/phase";
import { Chart } from "../../ui/Chart";
import { Menu } from "../../ui/Menu";
import { Meter, PageHeading, Problem, Status, Unchecked } from "../../ui/basics";
import { SessionTools } from "./SessionTools";

const ACTIVE = ["running", "queued", "pending"];

/** What the session is, its status, and what can be done with it as a whole. */
export function SessionHeader({ session }: { session: SessionDetail }) {
  const path = `/api/sessions/${session.session_id}`;
  const navigate = useNavigate();
  const act = useMutation({
    mutationFn: ([method, where, body]: ["POST" | "DELETE", string, (ResumeRequest | SteerRequest)?]) => send(method, path + where, body),
  });
  const active = ACTIVE.includes(session.status);
  const pausing = session.orders.some((order) => order.pause);
  return (
    <div className="stack">
      <div className="row spread">
        <PageHeading title={session.alias || session.prompt || session.session_id} />
        <div className="row">
          <Downloads session={session} />
          {active && session.config && (
            <button type="button" className="button" disabled={act.isPending} onClick={() => act.mutate(["POST", "/steer", { pause: !pausing }])}>
              {pausing ? "Cancel pause" : "Pause after this iteration"}
            </button>
          )}
          {active && (
            <button type="button" className="button danger" disabled={act.isPending} onClick={() => act.mutate(["POST", "/stop"])}>
              Stop
            </button>
          )}
          {!active && session.resumable && (
            <Continue session={session} disabled={act.isPending} onContinue={(wanted) => act.mutate(["POST", "/resume", wanted])} />
          )}
          {!active && (
            <button type="button" className="button danger" disabled={act.isPending} onClick={() => act.mutate(["DELETE", ""], { onSuccess: () => void navigate("/e2e") })}>
              Move to trash
            </button>
          )}
        </div>
      </div>
      <Problem what="Request failed" error={act.error} />
      {session.orders.length > 0 && (
        <p className="small-text muted">
          {session.orders.length === 1 ? "1 pending change" : `${session.orders.length} pending changes`}: applied when this iteration ends, or when you resume.
        </p>
      )}
      <div className="row small-text muted">
        <Status status={session.status} />
        <GroundTruth truth={session.ground_truth} />
        <Unchecked words={session.unchecked_words} />
        <span>{session.env_id || "environment not chosen yet"}</span>
        {session.model && <span>{session.model}</span>}
        {session.result && (
          <span>
            {duration(session.seconds)}
            {session.config?.max_minutes != null && ` of ${duration(session.config.max_minutes * 60)}`}
          </span>
        )}
        {session.result && session.model !== "builtin" && (
          <span>
            {counted(session.result.model_calls, "model call")} · {number(session.tokens)} tokens · {dollars(session.cost_usd)}
            {session.config?.budget_usd != null && ` of ${dollars(session.config.budget_usd)}`}
          </span>
        )}
        {session.result && <Link to={`/e2e/${session.session_id}/label`}>score the videos</Link>}
        <span className="mono">{session.session_id}</span>
      </div>
      <SessionTools session={session} />
    </div>
  );
}

/** What a session leaves to take away. */
function Downloads({ session }: { session: SessionDetail }) {
  const path = `/api/sessions/${session.session_id}`;
  if (!session.result && !session.video) return null;
  return (
    <Menu title="Download">
      {session.result?.policy && (
        <li>
          <a href={`${path}/policy`} download>
            policy.zip <small>the policy, as Stable-Baselines3 loads it</small>
          </a>
        </li>
      )}
      {session.video && (
        <li>
          <a href={session.video.url} download={`${session.session_id}.mp4`}>
            video.mp4 <small>a median episode</small>
          </a>
        </li>
      )}
      {session.result && (
        <li>
          <a href={`${path}/report`} download={`${session.session_id}.md`}>
            report.md <small>what was asked, tried and measured</small>
          </a>
        </li>
      )}
    </Menu>
  );
}

/** What was measured of a benchmark's case, beside what its judges say. */
function GroundTruth({ truth }: { truth: SessionDetail["ground_truth"] }) {
  if (!truth) return null;
  return (
    <span>
      <span className={`badge ${truth.passed ? "good" : "bad"}`}>ground truth: {truth.passed ? "passed" : "not passed"}</span>{" "}
      {truth.truth} {number(truth.value)} {truth.unit}, required: {truth.better === "at_least" ? "at least" : "at most"} {number(truth.threshold)}
    </span>
  );
}

interface BoundProps {
  before: string;
  after: string;
  name: string;
  placeholder: string;
  value: number | null;
  onChange: (value: number | null) => void;
}

/** A number that bounds the session; empty: what the placeholder says. */
function Bound({ before, after, name, placeholder, value, onChange }: BoundProps) {
  return (
    <label className="small-text row">
      {before}
      <input
        type="number"
        className="narrow"
        aria-label={name}
        min={0}
        step="any"
        placeholder={placeholder}
        value={value ?? ""}
        onChange={(event) => onChange(event.target.value === "" ? null : event.target.valueAsNumber)}
      />
      {after}
    </label>
  );
}

/** Resume a session that has ended, with higher limits. */
export function Continue({ session, disabled, onContinue }: { session: SessionDetail; disabled: boolean; onContinue: (wanted: ResumeRequest) => void }) {
  const [more, setMore] = useState<number | null>(null);
  const [minutes, setMinutes] = useState<number | null>(null);
  const [dollars, setDollars] = useState<number | null>(null);
  const limit = more ?? Math.max(session.max_iterations ?? 0, session.iterations + (session.status === "max_iterations" ? 3 : 0));
  const budget = session.config?.budget_usd;
  return (
    <form
      className="row"
      onSubmit={(event) => {
        event.preventDefault();
        onContinue({ max_iterations: limit, max_minutes: minutes, budget_usd: dollars });
        setMinutes(null);
        setDollars(null);
      }}
    >
      <label className="small-text row">
        up to
        <input
          type="number"
          className="narrow"
          aria-label="Total iterations"
          min={1}
          max={1000}
          value={limit}
          onChange={(event) => setMore(event.target.valueAsNumber || 1)}
        />
        iterations
      </label>
      {session.minutes_to_go_on != null && (
        <Bound before="and" after="minutes" name="Total minutes" placeholder={String(session.minutes_to_go_on)} value={minutes} onChange={setMinutes} />
      )}
      {budget != null && <Bound before="and $" after="" name="Total budget in USD" placeholder={String(budget)} value={dollars} onChange={setDollars} />}
      <button type="submit" className="button primary" disabled={disabled}>
        Resume
      </button>
    </form>
  );
}

/** Where the session is now, and what happens next. */
export function Now({ session, current }: { session: SessionDetail; current: Iteration | undefined }) {
  const at = PHASES.findIndex(([name]) => name === session.phase);
  return (
    <section className="card now" aria-label="Progress" aria-live="polite">
      <ol className="phases">
        {PHASES.map(([name, title], index) => (
          <li key={name} className={index === at ? "current" : index < at ? "done" : ""} aria-current={index === at ? "step" : undefined}>
            {title}
          </li>
        ))}
      </ol>
      <p>
        {current && (
          <b>
            Iteration {current.iteration}
            {session.max_iterations !== null && ` of at most ${session.max_iterations}`}.{" "}
          </b>
        )}
        {withCode(nowAndNext(session))}
        {session.phase === "training" && current?.seconds_left != null && (
          <b> {finishing(current) ? "Evaluating the last checkpoint." : `About ${roughly(current.seconds_left)} of training left.`}</b>
        )}
        {session.seconds_left != null && <> The session ends within {roughly(session.seconds_left)}, sooner if it passes.</>}
      </p>
      {session.phase === "training" &&
        current?.runs.map((run) => (
          <div key={run.run_id} className="run-progress small-text">
            <span className="mono">{run.run_id}</span>
            <Meter value={run.progress} label={`Progress of ${run.run_id}`} />
            <span>{run.status === "running" ? percent(run.progress) : run.status}</span>
          </div>
        ))}
      {session.phase === "training" && current && <LiveCurve session={session} current={current} />}
    </section>
  );
}

/** Whether all steps are trained, so that no time of training is left to tell. */
function finishing(iteration: Iteration): boolean {
  return iteration.runs.every((run) => run.progress >= 1);
}

/** The return of the runs that train now; the Training tab has the rest. */
function LiveCurve({ session, current }: { session: SessionDetail; current: Iteration }) {
  const { data } = useQuery(bandsQuery(session.session_id, current.iteration_id));
  const lines = useMemo(() => bandLines(data ?? [], "episodic_return"), [data]);
  const steps = data?.[0]?.steps;
  if (!steps || steps.length < 2 || lines.length === 0) return null;
  return <Chart title="Training return" x={steps} xLabel="environment steps" yLabel={unitOf("episodic_return")} lines={lines} height={150} />;
}

/** Text in which `words` between backticks are names of buttons. */
export function withCode(text: string) {
  return text.split("`").map((part, index) => (index % 2 ? <b key={index}>{part}</b> : part));
}
