import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useMemo } from "react";
import { Link, useParams } from "react-router";
import { send } from "../../api/client";
import { selfPlayQuery, selfPlaysQuery } from "../../api/queries";
import type { SelfPlayRun } from "../../api/types";
import { unitOf, winRateCharts } from "../../lib/curves";
import { capitalized, number, percent, roughly } from "../../lib/format";
import { playedGames } from "../../lib/games";
import { Chart, type Line } from "../../ui/Chart";
import { Card, Empty, Facts, Meter, NotYet, PageHeading, Problem, Scroll, Status } from "../../ui/basics";
import { Games } from "./Games";

/** One self-play run: who wins, who is strong, how fast it goes. */
export default function SelfPlayPage() {
  const { id = "" } = useParams();
  const { data: run, error } = useQuery(selfPlayQuery(id));
  if (!run) {
    return (
      <NotYet what="Could not load the run" error={error}>
        <Link to="/self-play">All self-play runs</Link>
      </NotYet>
    );
  }
  const running = ACTIVE.includes(run.status);
  return (
    <>
      <div className="stack">
        <div className="row spread">
          <PageHeading title={run.run_name || id} />
          <Stop id={id} running={running} />
        </div>
        <div className="row small-text muted">
          {run.status && <Status status={run.status} />}
          {!running && (
            <span>
              update {number(run.step)}
              {run.updates !== null && ` of ${number(run.updates)}`}
            </span>
          )}
          {run.games.map((count) => (
            <span key={count.name}>{playedGames(count.name, number(count.value))}</span>
          ))}
          {running && run.engines.map((engine) => <span key={engine.name}>{number(engine.tok_s)} tokens/s</span>)}
          {running && run.buffer_size !== null && <span>{number(run.buffer_size)} steps in the buffer</span>}
        </div>
        {run.message && <p className="small-text muted">{run.message}</p>}
      </div>
      {running && <Progress run={run} />}
      <WinRates run={run} />
      <div className="columns">
        <Ratings run={run} />
        <Matches run={run} />
      </div>
      <Games id={id} running={running} />
      <Curves run={run} />
      <Numbers run={run} />
    </>
  );
}

const ACTIVE = ["queued", "starting", "running"];
const BEFORE_UPDATES: Record<string, string> = {
  queued: "The job waits for a free core.",
  starting: "The model is being prepared, and warmed up the first time: that may take a minute or two.",
  running: "The model is measured as it is before it learns.",
};

/** How far the run is, and how long the rest will take. */
function Progress({ run }: { run: SelfPlayRun }) {
  return (
    <section className="card now" aria-label="Progress">
      {run.updates !== null && (
        <div className="run-progress small-text">
          <span>
            update {number(run.step)} of {number(run.updates)}
          </span>
          <Meter value={run.step / run.updates} label="Updates done" />
          <span className="numeric">{percent(run.step / run.updates)}</span>
        </div>
      )}
      <p className="small-text muted">
        {run.seconds_left != null ? `About ${roughly(run.seconds_left)} left.` : (run.step === 0 && BEFORE_UPDATES[run.status]) || "The time left is known after a few updates."}
      </p>
    </section>
  );
}

/** Ends a run that is a job; one of a terminal is ended there. */
function Stop({ id, running }: { id: string; running: boolean }) {
  const client = useQueryClient();
  const { data: rows } = useQuery(selfPlaysQuery);
  const stop = useMutation({
    mutationFn: () => send("POST", `/api/selfplay/${encodeURIComponent(id)}/stop`),
    onSettled: () => Promise.all([client.invalidateQueries({ queryKey: ["self-plays"] }), client.invalidateQueries({ queryKey: ["self-play", id] })]),
  });
  const job = rows?.find((row) => row.run_id === id)?.job_id;
  return (
    <div className="row">
      <Problem what="Could not stop it" error={stop.error} />
      {job && (
        <>
          <Link to={`/benchmark/job/${job}`}>Job and log</Link>
          {running && (
            <button type="button" className="button danger" disabled={stop.isPending || stop.isSuccess} onClick={() => stop.mutate()}>
              {stop.isSuccess ? "Stopping …" : "Stop"}
            </button>
          )}
        </>
      )}
    </div>
  );
}

function WinRates({ run }: { run: SelfPlayRun }) {
  return (
    <Card title="Win rates">
      {run.win_rates.length === 0 && <Empty title="No evaluation yet">Checkpoints play fixed opponents every few updates.</Empty>}
      {run.win_rates.length > 0 && (
        <Scroll label="Table of win rates">
          <table>
            <thead>
              <tr>
                <th>Game</th>
                <th>Against</th>
                <th className="numeric">Wins</th>
                <th className="numeric">95 % interval</th>
                <th className="numeric">Draws</th>
                <th className="numeric">Illegal</th>
                <th className="numeric">Mean reward</th>
                <th className="numeric">Exploitability</th>
                <th className="numeric">Games</th>
                <th>Checkpoint</th>
              </tr>
            </thead>
            <tbody>
              {run.win_rates.map((rate) => (
                <tr key={`${rate.env_id} ${rate.opponent}`}>
                  <td>{rate.env_id}</td>
                  <td>{rate.opponent}</td>
                  <td className="numeric">
                    <b>{percent(rate.win_rate)}</b>
                    {rate.players === 1 && " solved"}
                  </td>
                  <td className="numeric muted">
                    {percent(rate.low)} to {percent(rate.high)}
                  </td>
                  <td className="numeric">{percent(rate.draw_rate)}</td>
                  <td className="numeric">{percent(rate.invalid_rate)}</td>
                  <td className="numeric">
                    {number(rate.reward)} <span className="muted">± {number(rate.reward_se)}</span>
                  </td>
                  <td className="numeric">{number(rate.exploitability)}</td>
                  <td className="numeric">{rate.games}</td>
                  <td className="mono">{rate.ckpt_uid}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
      <WinRateCurves run={run} />
    </Card>
  );
}

function Ratings({ run }: { run: SelfPlayRun }) {
  return (
    <Card title="Ratings">
      {run.ratings.length === 0 && <Empty title="No ratings yet" />}
      {run.ratings.length > 0 && (
        <Scroll label="Table of ratings" tall>
          <table>
            <thead>
              <tr>
                <th>Player</th>
                <th className="numeric">Rating</th>
                <th className="numeric">±</th>
              </tr>
            </thead>
            <tbody>
              {run.ratings.map((row) => (
                <tr key={row.uid}>
                  <td className="mono">
                    {row.uid} {!row.active && <span className="badge">retired</span>}
                  </td>
                  <td className="numeric">{row.mu.toFixed(2)}</td>
                  <td className="numeric muted">{row.sigma.toFixed(2)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </Card>
  );
}

function Matches({ run }: { run: SelfPlayRun }) {
  return (
    <Card title="Matches">
      {run.matches.length === 0 && <Empty title="No matches yet" />}
      {run.matches.length > 0 && (
        <Scroll label="Table of matches" tall>
          <table>
            <thead>
              <tr>
                <th>Player</th>
                <th>Against</th>
                <th className="numeric">Games</th>
              </tr>
            </thead>
            <tbody>
              {run.matches.map((match) => (
                <tr key={`${match.first} ${match.second}`}>
                  <td className="mono">{match.first}</td>
                  <td className="mono">{match.second}</td>
                  <td className="numeric">{number(match.games)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </Card>
  );
}

function Numbers({ run }: { run: SelfPlayRun }) {
  const groups = [["Latest training games", run.collected], ["Failures", run.failures], ...run.exploration] as const;
  const shown = groups.filter(([, numbers]) => numbers.length > 0);
  if (shown.length === 0) return null;
  return (
    <Card title="Metrics">
      {shown.map(([title, numbers]) => (
        <div key={title}>
          <h3>{title}</h3>
          <Facts of={numbers.map((each) => [each.name, number(each.value)])} />
        </div>
      ))}
    </Card>
  );
}

const SHOWN = 8;
const SHARE = [0, 1.02] as const;

/** The learner's metrics, update by update. */
export function Curves({ run }: { run: SelfPlayRun }) {
  if (run.curves.length === 0) return null;
  return (
    <Card title="Training curves">
      <div className="charts">
        {run.curves.slice(0, SHOWN).map((curve) => (
          <OneCurve key={curve.name} name={curve.name} values={curve.values} last={run.step} />
        ))}
      </div>
    </Card>
  );
}

function OneCurve({ name, values, last }: { name: string; values: readonly (number | null)[]; last: number }) {
  const x = useMemo(() => values.map((_, index) => last - values.length + 1 + index), [values, last]);
  const metric = name.split("/").at(-1) ?? name;
  const words = metric.replaceAll("_", " ").replace(/\bkl\b/, "KL");
  const lines = useMemo<Line[]>(() => [{ label: words, values, colour: 1 }], [words, values]);
  return <Chart title={capitalized(words)} x={x} xLabel="update" yLabel={unitOf(metric)} lines={lines} height={170} whole />;
}

/** The win rate of every checkpoint that was evaluated, over the updates that made it. */
export function WinRateCurves({ run }: { run: SelfPlayRun }) {
  const charts = useMemo(() => winRateCharts(run.win_rates), [run.win_rates]);
  if (charts.length === 0) return null;
  return (
    <div className="charts">
      {charts.map(({ env, x, lines }) => (
        <Chart key={env} title={`Win rate in ${env}, with 95 % intervals`} x={x} xLabel="update" yLabel="share of games won" lines={lines} range={SHARE} whole />
      ))}
    </div>
  );
}
