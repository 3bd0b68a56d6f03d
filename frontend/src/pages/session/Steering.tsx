import { useMutation, useQuery } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { send } from "../../api/client";
import { iterationsQuery, settingsQuery } from "../../api/queries";
import type { Criterion, Iteration, PendingFeedback, RewardCheck, SessionDetail, SteerRequest, TunableSetting } from "../../api/types";
import { lineDiff } from "../../lib/diff";
import { bounds, parseSetting, parts, scorable, settingText } from "../../lib/feedback";
import { ago, number } from "../../lib/format";
import { CodeLines } from "../../ui/Code";
import { Card, Problem, Scroll } from "../../ui/basics";
import { CriteriaEditor } from "../Criteria";
import "../feedback.css";

/** Settings as they are typed, by name. */
type Typed = Readonly<Record<string, string>>;

interface Draft {
  remark: string;
  score: number | null;
  criteria: readonly Criterion[] | null;
  reward: string | null;
  settings: Typed | null;
}

const NOTHING: Draft = { remark: "", score: null, criteria: null, reward: null, settings: null };
const NONE: readonly Iteration[] = [];

/** Feedback for the session: what is pending, and more; it applies when the current iteration ends. */
export function Steering({ session }: { session: SessionDetail }) {
  const { data: iterations = NONE } = useQuery(iterationsQuery(session.session_id));
  const reward = iterations.findLast((each) => each.reward_code)?.reward_code ?? "";
  return (
    <Card title="Feedback">
      <Pending session={session} reward={reward} />
      <FeedbackForm session={session} iterations={iterations} reward={reward} />
    </Card>
  );
}

/** What the session has not applied yet, to be withdrawn. */
function Pending({ session, reward }: { session: SessionDetail; reward: string }) {
  const withdraw = useMutation({ mutationFn: (order: PendingFeedback) => send("DELETE", `/api/sessions/${session.session_id}/steer/${order.number}`) });
  if (session.orders.length === 0 && !withdraw.error) return null;
  return (
    <div className="stack">
      <ul className="pending-list" aria-label="Pending feedback">
        {session.orders.map((order) => (
          <li key={order.number}>
            <div className="row spread">
              <span className="small-text muted">
                <span className="badge warn">pending</span> given {ago(order.given_at, Date.now())}
              </span>
              <button type="button" className="button small" aria-label={`Withdraw feedback ${order.number}`} disabled={withdraw.isPending} onClick={() => withdraw.mutate(order)}>
                Withdraw
              </button>
            </div>
            <dl className="pending-parts small-text">
              {parts(order).map(([name, text]) => (
                <div key={name}>
                  <dt>{name}</dt>
                  <dd>{text}</dd>
                </div>
              ))}
            </dl>
            {order.reward_code !== null && (
              <details>
                <summary>Its code, against the current reward</summary>
                <CodeLines label={`Reward of feedback ${order.number}`} lines={lineDiff(reward, order.reward_code)} />
              </details>
            )}
          </li>
        ))}
      </ul>
      <Problem what="Could not withdraw it" error={withdraw.error} />
    </div>
  );
}

interface FormProps {
  session: SessionDetail;
  iterations: readonly Iteration[];
  reward: string;
}

function FeedbackForm({ session, iterations, reward }: FormProps) {
  const [draft, setDraft] = useState(NOTHING);
  const change = (part: Partial<Draft>) => setDraft((before) => ({ ...before, ...part }));
  const { data: settings = [] } = useQuery(settingsQuery(session.session_id));
  const steer = useMutation({
    mutationFn: (feedback: SteerRequest) => send("POST", `/api/sessions/${session.session_id}/steer`, feedback),
    onSuccess: () => setDraft(NOTHING),
  });
  const scored = scorable(iterations);
  const wrong = settings.filter((each) => draft.settings?.[each.name] !== undefined && parseSetting(each.kind, draft.settings[each.name] ?? "") === null);
  const request = asRequest(draft, settings, scored.iteration);
  const nothing = Object.keys(request).length === 0;
  return (
    <form
      className="stack"
      onSubmit={(event) => {
        event.preventDefault();
        steer.mutate(request);
      }}
    >
      <label className="field">
        Remark
        <textarea rows={3} maxLength={4000} value={draft.remark} placeholder="Take smaller steps, and keep the back straight" onChange={(event) => change({ remark: event.target.value })} />
      </label>
      <div className="field">
        <span className="row spread">
          <label htmlFor="own-score">{scored.iteration === null ? "Your score" : `Your score for iteration ${scored.iteration}`}</label>
          <span className="numeric">{draft.score === null ? "as judged" : draft.score.toFixed(2)}</span>
        </span>
        <div className="row">
          <input
            id="own-score"
            type="range"
            className="grow"
            min={0}
            max={1}
            step={0.05}
            value={draft.score ?? 0.5}
            disabled={scored.iteration === null}
            aria-describedby={scored.reason === null ? undefined : "no-score-yet"}
            onChange={(event) => change({ score: event.target.valueAsNumber })}
          />
          <button type="button" className="button small" disabled={draft.score === null} onClick={() => change({ score: null })}>
            As judged
          </button>
        </div>
        {scored.reason !== null && <small id="no-score-yet">{scored.reason}</small>}
      </div>
      {draft.criteria !== null && <CriteriaEditor criteria={draft.criteria} onChange={(criteria) => change({ criteria })} onDrop={() => change({ criteria: null })} />}
      {draft.reward !== null && <RewardEditor session={session} code={draft.reward} onChange={(text) => change({ reward: text })} onDrop={() => change({ reward: null })} />}
      {draft.settings !== null && <SettingsEditor settings={settings} typed={draft.settings} onChange={(typed) => change({ settings: typed })} onDrop={() => change({ settings: null })} />}
      <div className="row">
        {draft.criteria === null && (
          <button type="button" className="button" disabled={!session.intent} onClick={() => change({ criteria: session.intent?.criteria ?? null })}>
            Edit criteria
          </button>
        )}
        {draft.reward === null && (
          <button type="button" className="button" disabled={!reward} title={reward ? undefined : "The first reward is not written yet"} onClick={() => change({ reward })}>
            Edit reward
          </button>
        )}
        {draft.settings === null && (
          <button type="button" className="button" disabled={settings.length === 0} onClick={() => change({ settings: {} })}>
            Change settings
          </button>
        )}
      </div>
      <div className="row">
        <button type="submit" className="button primary" disabled={nothing || wrong.length > 0 || steer.isPending}>
          Send feedback
        </button>
        <span className="small-text muted" role="status">
          {wrong.length > 0 && `Not a value: ${wrong.map((each) => each.name).join(", ")}.`}
          {steer.isSuccess && nothing ? "Sent. It applies when this iteration ends, or when you resume." : ""}
        </span>
      </div>
      <Problem what="Could not send the feedback" error={steer.error} />
    </form>
  );
}

/** What of a draft is said; nothing for what was left as it is. */
function asRequest(draft: Draft, settings: readonly TunableSetting[], scored: number | null): SteerRequest {
  const typed = settings.flatMap((each) => {
    const value = draft.settings?.[each.name];
    return value === undefined ? [] : [[each.name, parseSetting(each.kind, value)] as const];
  });
  return {
    ...(draft.remark.trim() ? { remark: draft.remark.trim() } : {}),
    ...(draft.score === null || scored === null ? {} : { score: draft.score, scored_iteration: scored }),
    ...(draft.criteria === null ? {} : { criteria: [...draft.criteria] }),
    ...(draft.reward === null ? {} : { reward_code: draft.reward }),
    ...(typed.length === 0 ? {} : { hp_changes: Object.fromEntries(typed) }),
  };
}

/** An editor inside of the form. */
function Editor({ title, children, onDrop }: { title: string; children: ReactNode; onDrop: () => void }) {
  return (
    <fieldset className="stack criteria-editor">
      <legend>{title}</legend>
      {children}
      <p>
        <button type="button" className="button small" onClick={onDrop}>
          Discard changes
        </button>
      </p>
    </fieldset>
  );
}

interface RewardEditorProps {
  session: SessionDetail;
  code: string;
  onChange: (code: string) => void;
  onDrop: () => void;
}

/** The reward of the next iteration: tried in the sandbox before it is sent. */
function RewardEditor({ session, code, onChange, onDrop }: RewardEditorProps) {
  const check = useMutation({ mutationFn: () => send<RewardCheck>("POST", `/api/sessions/${session.session_id}/check-reward`, { reward_code: code }) });
  return (
    <Editor title="Reward of the next iteration" onDrop={onDrop}>
      <textarea
        className="code-input"
        aria-label="Reward code"
        rows={18}
        spellCheck={false}
        wrap="off"
        value={code}
        onChange={(event) => {
          check.reset();
          onChange(event.target.value);
        }}
      />
      <div className="row">
        <button type="button" className="button" disabled={check.isPending || !code.trim()} onClick={() => check.mutate()}>
          {check.isPending ? "Checking …" : "Check"}
        </button>
        <span className="small-text muted">runs it in the sandbox on {session.env_id}</span>
      </div>
      <div role="status" className="stack">
        {check.data && <CheckFindings report={check.data} />}
      </div>
      <Problem what="Check failed" error={check.error} />
    </Editor>
  );
}

const TONES = { error: "bad", warning: "warn", info: "" } as const;

/** What `p2p check` says of a reward. */
function CheckFindings({ report }: { report: RewardCheck }) {
  const rows = report.result ? [...report.result.terms, { ...report.result.total, name: "total" }] : [];
  return (
    <>
      <p>
        <span className={`badge ${report.fit ? "good" : "bad"}`}>{report.fit ? "fit to train on" : "not fit to train on"}</span>
      </p>
      {report.findings.map((finding, index) => (
        <p key={index} className="small-text finding">
          <span className={`badge ${TONES[finding.level]}`}>{finding.level}</span> {finding.message}
        </p>
      ))}
      {report.result && (
        <>
          <Scroll label="Terms of the reward">
            <table>
              <thead>
                <tr>
                  <th>Per step</th>
                  <th className="numeric">Minimum</th>
                  <th className="numeric">Mean</th>
                  <th className="numeric">Maximum</th>
                </tr>
              </thead>
              <tbody>
                {rows.map((row) => (
                  <tr key={row.name}>
                    <td className="mono">{row.name}</td>
                    <td className="numeric">{number(row.minimum, 4)}</td>
                    <td className="numeric">{number(row.mean, 4)}</td>
                    <td className="numeric">{number(row.maximum, 4)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Scroll>
          <p className="small-text muted">
            {report.result.steps} steps of {report.result.num_envs} environments with random and zero actions, called{" "}
            {report.result.batched ? "once for all environments" : "for each environment"}: {number(report.result.us_per_step)} µs per environment step.
          </p>
        </>
      )}
    </>
  );
}

interface SettingsEditorProps {
  settings: readonly TunableSetting[];
  typed: Typed;
  onChange: (typed: Typed) => void;
  onDrop: () => void;
}

/** Hyperparameters from the next iteration on. */
function SettingsEditor({ settings, typed, onChange, onDrop }: SettingsEditorProps) {
  const chosen = settings.filter((each) => typed[each.name] !== undefined);
  return (
    <Editor title="Settings from the next iteration on" onDrop={onDrop}>
      {chosen.map((setting) => (
        <div key={setting.name} className="setting-edit">
          <label className="field">
            <span className="mono">{setting.name}</span>
            {setting.kind === "boolean" ? (
              <select value={typed[setting.name]} onChange={(event) => onChange({ ...typed, [setting.name]: event.target.value })}>
                <option value="true">true</option>
                <option value="false">false</option>
              </select>
            ) : (
              <input
                inputMode={setting.kind === "layers" ? "text" : "decimal"}
                value={typed[setting.name]}
                aria-invalid={parseSetting(setting.kind, typed[setting.name] ?? "") === null}
                onChange={(event) => onChange({ ...typed, [setting.name]: event.target.value })}
              />
            )}
            <small>{[`now ${settingText(setting.value) || "not set"}`, bounds(setting)].filter(Boolean).join(" · ")}</small>
          </label>
          <button
            type="button"
            className="button small danger"
            aria-label={`Remove ${setting.name}`}
            onClick={() => onChange(Object.fromEntries(Object.entries(typed).filter(([name]) => name !== setting.name)))}
          >
            Remove
          </button>
        </div>
      ))}
      <label className="field">
        Add a setting
        <select
          value=""
          onChange={(event) => {
            const setting = settings.find((each) => each.name === event.target.value);
            if (setting) onChange({ ...typed, [setting.name]: settingText(setting.value) });
          }}
        >
          <option value="">Select</option>
          {settings
            .filter((each) => typed[each.name] === undefined)
            .map((each) => (
              <option key={each.name}>{each.name}</option>
            ))}
        </select>
      </label>
      <p className="small-text muted">No revision moves what you set here.</p>
    </Editor>
  );
}
