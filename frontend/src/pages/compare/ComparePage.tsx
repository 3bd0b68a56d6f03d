import { useQueries, useQuery } from "@tanstack/react-query";
import { useDeferredValue, useEffect, useMemo, useState } from "react";
import { Link, useSearchParams } from "react-router";
import { bandsQuery, iterationsQuery, sessionQuery, sessionsQuery } from "../../api/queries";
import type { AggregatedMetrics, SessionDetail } from "../../api/types";
import {
  bestConfig, type Choice as Chosen, choicesOf, comparedCriteria, comparedCurves, comparedPanes, differences, type Entry, entryOf, keyOf, metricNames, MOST,
} from "../../lib/compare";
import { MAIN, unitOf } from "../../lib/curves";
import { lineDiff } from "../../lib/diff";
import { bound } from "../../lib/feedback";
import { number, plain, score } from "../../lib/format";
import { select } from "../../lib/selection";
import { type Label, LABELS } from "../../lib/videos";
import { Chart } from "../../ui/Chart";
import { CodeLines } from "../../ui/Code";
import { SyncedPlayer } from "../../ui/Video";
import { Card, Empty, PageHeading, Problem, Scroll, Status } from "../../ui/basics";
import { Choice } from "../../ui/fields";
import "./compare.css";

/** Up to four sessions or iterations side by side: videos, criteria, curves, rewards, settings. */
export default function ComparePage() {
  const [params, setParams] = useSearchParams();
  const keys = params.getAll("of").join("\n");
  const choices = useMemo(() => choicesOf(new URLSearchParams(keys.split("\n").map((key) => ["of", key]))), [keys]);
  useEffect(() => select(choices.map(keyOf)), [choices]);
  const sessions = useQueries({ queries: choices.map((choice) => sessionQuery(choice.session)) });
  const iterations = useQueries({ queries: choices.map((choice) => iterationsQuery(choice.session)) });
  const entries = choices.flatMap((choice, index) => {
    const [session, own] = [sessions[index]?.data, iterations[index]?.data];
    return session && own ? [entryOf(choice, index, session, own)] : [];
  });
  const bands = useQueries({
    queries: entries.map(({ session, iteration }) => ({ ...bandsQuery(session.session_id, iteration?.iteration_id ?? ""), enabled: iteration !== undefined })),
  });
  const configs = entries.map(({ iteration }, index) => bestConfig(bands[index]?.data ?? [], iteration));

  function set(next: readonly Chosen[]): void {
    setParams({ of: next.map(keyOf) }, { replace: true });
  }

  return (
    <>
      <PageHeading title="Compare" tab={["Compare", entries.map((entry) => entry.title).join(", ")].filter(Boolean).join(": ")} />
      <ul className="compare-entries">
        {choices.map((choice, index) => (
          <li key={keyOf(choice)} className={`card colour-${index + 1}`}>
            <Column
              choice={choice}
              letter={"ABCD"[index] ?? "?"}
              session={sessions[index]?.data}
              error={sessions[index]?.error ?? iterations[index]?.error ?? null}
              numbers={(iterations[index]?.data ?? []).map((each) => each.iteration)}
              entry={entries.find((entry) => entry.key === keyOf(choice))}
              onChange={(changed) => set(choices.map((each, at) => (at === index ? changed : each)))}
              onRemove={() => set(choices.filter((_, at) => at !== index))}
            />
          </li>
        ))}
        {choices.length < MOST && (
          <li className="compare-add" tabIndex={-1}>
            <Picker onPick={(session) => set([...choices, { session, iteration: nextIteration(choices, session, sessions.find((each) => each.data?.session_id === session)?.data) }])} />
          </li>
        )}
      </ul>
      {choices.length === 0 && <Empty title="Nothing to compare yet">Choose the first session above: videos, criteria, curves, rewards and settings then stand side by side.</Empty>}
      {entries.length > 0 && <Videos entries={entries} />}
      {entries.length > 0 && <CriteriaTable entries={entries} />}
      {entries.length > 0 && <Curves entries={entries} configs={configs} />}
      {entries.length > 1 && <Rewards entries={entries} />}
      {entries.length > 1 && <Settings entries={entries} />}
    </>
  );
}

/** A session that is there already comes with another iteration; the best one is there as itself. */
function nextIteration(choices: readonly Chosen[], session: string, detail: SessionDetail | undefined): number | null {
  const taken = choices.filter((choice) => choice.session === session).map((choice) => choice.iteration ?? detail?.best_iteration ?? null);
  if (taken.length === 0) return null;
  let iteration = 1;
  while (taken.includes(iteration)) iteration += 1;
  return iteration;
}

interface ColumnProps {
  choice: Chosen;
  letter: string;
  session: SessionDetail | undefined;
  error: Error | null;
  numbers: readonly number[];
  entry: Entry | undefined;
  onChange: (choice: Chosen) => void;
  onRemove: () => void;
}

/** What one column is of. */
function Column({ choice, letter, session, error, numbers, entry, onChange, onRemove }: ColumnProps) {
  const unknown = choice.iteration !== null && numbers.length > 0 && !numbers.includes(choice.iteration);
  return (
    <>
      <div className="row spread">
        <b className="mono">{letter}</b>
        <button type="button" className="button small" aria-label={`Remove ${letter}`} onClick={onRemove}>
          Remove
        </button>
      </div>
      <Problem what="Could not load it" error={error} />
      {session && (
        <>
          <Link className="clamp" title={session.prompt} to={`/e2e/${session.session_id}${entry?.iteration ? `?iteration=${entry.iteration.iteration}` : ""}`}>{session.alias || session.prompt || session.session_id}</Link>
          <span className="row small-text muted">
            <Status status={session.status} />
            {session.env_id}
          </span>
          <label className="row small-text">
            Iteration
            <select value={choice.iteration ?? ""} onChange={(event) => onChange({ ...choice, iteration: event.target.value ? Number(event.target.value) : null })}>
              <option value="">{session.best_iteration === null ? "last" : `best (${session.best_iteration})`}</option>
              {unknown && <option value={choice.iteration ?? ""}>{choice.iteration}</option>}
              {numbers.map((each) => (
                <option key={each} value={each}>
                  {each}
                </option>
              ))}
            </select>
            <span>
              score <b className="numeric">{score(entry?.iteration?.intent_score)}</b>
            </span>
          </label>
          {unknown && <p className="small-text">There is no iteration {choice.iteration}: choose another one.</p>}
          {entry?.iteration?.diagnosis && <p className="small-text muted clamp">{entry.iteration.diagnosis}</p>}
        </>
      )}
    </>
  );
}

/** Sessions to add, by words. */
function Picker({ onPick }: { onPick: (session: string) => void }) {
  const [words, setWords] = useState("");
  const query = useDeferredValue(new URLSearchParams({ q: words, limit: "20" }).toString());
  const { data, error } = useQuery(sessionsQuery(query));
  return (
    <>
      <label className="field">
        Add a session
        <input type="search" placeholder="Search by prompt, name or id" value={words} onChange={(event) => setWords(event.target.value)} />
        <small>Up to four; the same session again compares its iterations.</small>
      </label>
      <Problem what="Could not load the sessions" error={error} />
      <ul className="compare-found">
        {data?.items.map((row) => (
          <li key={row.session_id}>
            <button type="button" onClick={() => onPick(row.session_id)}>
              <span className="clamp-1">{row.alias || row.prompt || row.session_id}</span>
              <span className="muted numeric">{score(row.best_score)}</span>
            </button>
          </li>
        ))}
      </ul>
      {data?.items.length === 0 && (
        <p className="small-text muted">
          {words ? (
            "No matching sessions."
          ) : (
            <>
              No sessions yet: <Link to="/e2e/new">start one</Link>.
            </>
          )}
        </p>
      )}
    </>
  );
}

function Videos({ entries }: { entries: readonly Entry[] }) {
  const [label, setLabel] = useState<Label>("median");
  const shown = comparedPanes(entries, label);
  return (
    <Card title="Videos" aside={<Choice label="Episode" options={LABELS.map((name) => [name, name])} value={label} onChange={setLabel} />}>
      {shown.length === 0 ? <p className="muted">No video of this episode: choose another one, or iterations that have been evaluated.</p> : <SyncedPlayer key={shown.map((pane) => pane.url).join()} panes={shown} />}
      {shown.length > 0 && shown.length < entries.length && <p className="small-text muted">Not all of them have a video of this episode.</p>}
    </Card>
  );
}

function CriteriaTable({ entries }: { entries: readonly Entry[] }) {
  const rows = useMemo(() => comparedCriteria(entries), [entries]);
  return (
    <Card title="Criteria">
      {rows.length === 0 ? (
        <p className="muted">No criteria yet.</p>
      ) : (
        <Scroll label="Table of criteria">
          <table className="compare-table">
            <thead>
              <tr>
                <th>Criterion</th>
                {entries.map((entry) => (
                  <th key={entry.key}>{heading(entry)}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={`${row.criterion.measure} ${row.criterion.comparison}`}>
                  <th scope="row">
                    {row.criterion.title} <span className="muted small-text">{row.criterion.measure}</span>
                  </th>
                  {row.cells.map((cell, index) => (
                    <td key={index}>
                      {cell === null ? (
                        <span className="muted">not asked for</span>
                      ) : (
                        <>
                          <b className="numeric">{cell.result?.value == null ? "–" : `${number(cell.result.value)} ${cell.criterion.unit}`}</b>{" "}
                          <span className={`badge ${cell.result?.score == null ? "" : cell.result.score >= 1 ? "good" : "warn"}`}>score {score(cell.result?.score)}</span>
                          <span className="muted small-text"> {bound(cell.criterion)}</span>
                        </>
                      )}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </Card>
  );
}

function heading({ letter, iteration }: Entry): string {
  return iteration ? `${letter}, iteration ${iteration.iteration}` : letter;
}

const FIRST = "evaluation";

function Curves({ entries, configs }: { entries: readonly Entry[]; configs: readonly (AggregatedMetrics | undefined)[] }) {
  const [name, setName] = useState(FIRST);
  const { x, lines } = comparedCurves(entries, configs, name);
  const rewards = new Set(entries.map(({ iteration }) => iteration?.reward_code ?? ""));
  const known = new Map(MAIN.map((curve) => [curve.name, curve.title]));
  return (
    <Card
      title="Training"
      aside={
        <select aria-label="Metric" value={name} onChange={(event) => setName(event.target.value)}>
          <option value={FIRST}>Evaluation return</option>
          {MAIN.map((curve) => (
            <option key={curve.name} value={curve.name}>
              {curve.title}
            </option>
          ))}
          {metricNames(configs)
            .filter((each) => !known.has(each))
            .map((each) => (
              <option key={each}>{each}</option>
            ))}
        </select>
      }
    >
      <Chart title={name === FIRST ? "Evaluation return" : (known.get(name) ?? name)} x={x} xLabel="environment steps" yLabel={unitOf(name === FIRST ? "episodic_return" : name)} lines={lines} height={280} />
      {rewards.size > 1 && <p className="small-text muted">The rewards differ, so their returns are on different scales: compare shapes, and the criteria above.</p>}
    </Card>
  );
}

function Rewards({ entries }: { entries: readonly Entry[] }) {
  const [pair, setPair] = useState<readonly [string, string] | null>(null);
  const find = (key: string | undefined, otherwise: number) => entries.find((entry) => entry.key === key) ?? entries[otherwise];
  const [before, after] = [find(pair?.[0], 0), find(pair?.[1], 1)];
  if (!before || !after) return null;
  const [old, now] = [before.iteration?.reward_code ?? "", after.iteration?.reward_code ?? ""];
  const pick = (label: string, value: Entry, onChange: (key: string) => void) => (
    <select aria-label={label} value={value.key} onChange={(event) => onChange(event.target.value)}>
      {entries.map((entry) => (
        <option key={entry.key} value={entry.key}>
          {heading(entry)}
        </option>
      ))}
    </select>
  );
  return (
    <Card
      title="Rewards"
      aside={
        <span className="row small-text">
          from {pick("From", before, (key) => setPair([key, after.key]))} to {pick("To", after, (key) => setPair([before.key, key]))}
        </span>
      }
    >
      {old === now ? <p className="muted">The same reward.</p> : <CodeLines label={`Reward of ${heading(after)}, diff to ${heading(before)}`} lines={lineDiff(old, now)} />}
    </Card>
  );
}

/** Not settings that were chosen: names, and what only one machine knows. */
const OWN = new Set(["iteration_id"]);

function Settings({ entries }: { entries: readonly Entry[] }) {
  const rows = differences(entries.map(({ session, iteration }) => ({ ...(iteration?.train ?? session.config?.train), model: session.model }))).filter((row) => !OWN.has(row.name));
  return (
    <Card title="Settings that differ">
      {rows.length === 0 ? (
        <p className="muted">Trained with the same hyperparameters.</p>
      ) : (
        <Scroll label="Table of settings">
          <table className="compare-table">
            <thead>
              <tr>
                <th>Setting</th>
                {entries.map((entry) => (
                  <th key={entry.key}>{heading(entry)}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.name}>
                  <th scope="row" className="mono">
                    {row.name}
                  </th>
                  {row.values.map((value, index) => (
                    <td key={index}>{value === undefined ? <span className="muted">–</span> : plain(value)}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </Card>
  );
}

