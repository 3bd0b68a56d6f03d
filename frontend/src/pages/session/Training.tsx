import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { bandsQuery, hyperparametersQuery } from "../../api/queries";
import type { AggregatedMetrics, Iteration, SessionDetail } from "../../api/types";
import { bandLines, type Drawing, evaluationChart, MAIN, otherNames, termStack, timeUnit, unitOf } from "../../lib/curves";
import { percent, plain, short } from "../../lib/format";
import { columns, rows } from "../../lib/hyperparameters";
import { Chart } from "../../ui/Chart";
import { Empty, Problem, Scroll } from "../../ui/basics";
import { Choice } from "../../ui/fields";

type Axis = "steps" | "time";
const AXES = [["steps", "Steps"], ["time", "Time"]] as const;
const READABLE = 8;

/** Training curves of every seed and configuration, the reward's terms, and the settings compared. */
export function Training({ session, current }: { session: SessionDetail; current: Iteration }) {
  const [axis, setAxis] = useState<Axis>("steps");
  const [smoothing, setSmoothing] = useState(0);
  const [seeds, setSeeds] = useState(current.runs.length <= READABLE);
  const { data, error } = useQuery({
    ...bandsQuery(session.session_id, current.iteration_id, axis),
    placeholderData: (before) => before,
  });
  const [other, setOther] = useState("");
  const configs = useMemo(() => (data ?? []).filter((config) => Object.keys(config.series).length > 0), [data]);
  const drawing = useMemo(() => ({ smoothing, seeds }), [smoothing, seeds]);
  const several = configs.some((config) => config.run_ids.length > 1);
  return (
    <div className="stack">
      <Problem what="Could not load the curves" error={error} />
      <Settings session={session} current={current} />
      {data && configs.length === 0 && <Empty title="No curves yet">They start with the first update.</Empty>}
      {configs.length > 0 && (
        <>
          <div className="row">
            <Choice label="Axis" options={AXES} value={axis} onChange={setAxis} />
            <label className="row small-text">
              Smoothing
              <input type="range" min={0} max={0.98} step={0.02} value={smoothing} onChange={(event) => setSmoothing(event.target.valueAsNumber)} />
              <span className="numeric narrow">{smoothing === 0 ? "off" : percent(smoothing)}</span>
            </label>
            {several && (
              <label className="row small-text">
                <input type="checkbox" checked={seeds} onChange={(event) => setSeeds(event.target.checked)} />
                Each seed
              </label>
            )}
            {several && <span className="small-text muted">Line: mean over the seeds. Band: one standard deviation.</span>}
          </div>
          <Charts configs={configs} drawing={drawing} other={other} />
          <label className="field">
            Other metrics
            <select value={other} onChange={(event) => setOther(event.target.value)}>
              <option value="">Select</option>
              {otherNames(configs).map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
        </>
      )}
      <Hyperparameters session={session} />
      <Downloads session={session} current={current} />
    </div>
  );
}

function Charts({ configs, drawing, other }: { configs: readonly AggregatedMetrics[]; drawing: Drawing; other: string }) {
  const timed = configs.some((config) => config.seconds.length > 0);
  const untimed = !timed && configs.every((config) => config.steps.length === 0);
  const [unit, divisor] = useMemo(() => timeUnit(configs[0]?.seconds ?? []), [configs]);
  const x = useMemo(() => (timed ? (configs[0]?.seconds.map((second) => second / divisor) ?? []) : (configs[0]?.steps ?? [])), [configs, timed, divisor]);
  const evaluations = useMemo(() => evaluationChart(configs, drawing), [configs, drawing]);
  const evaluated = useMemo(() => (timed ? evaluations.x.map((second) => second / divisor) : evaluations.x), [evaluations, timed, divisor]);
  const xLabel = timed ? `training time (${unit})` : "environment steps";
  const shared = { xLabel, height: 240, group: "training" };
  if (untimed) return <Empty title="No times">These runs recorded no times.</Empty>;
  return (
    <div className="charts">
      {MAIN.map(({ name, title }) => (
        <Curves key={name} title={title} name={name} configs={configs} drawing={drawing} x={x} {...shared} />
      ))}
      <Chart title="Evaluation return" x={evaluated} yLabel={unitOf("episodic_return")} lines={evaluations.lines} {...shared} />
      {configs.map((config) => (
        <Terms key={config.config_id} config={config} named={configs.length > 1} smoothing={drawing.smoothing} x={x} {...shared} />
      ))}
      {other && <Curves title={other} name={other} configs={configs} drawing={drawing} x={x} {...shared} />}
    </div>
  );
}

interface Shared {
  x: readonly number[];
  xLabel: string;
  height: number;
  group: string;
}

function Curves({ title, name, configs, drawing, ...shared }: Shared & { title: string; name: string; configs: readonly AggregatedMetrics[]; drawing: Drawing }) {
  const lines = useMemo(() => bandLines(configs, name, drawing), [configs, name, drawing]);
  return lines.length > 0 ? <Chart title={title} yLabel={unitOf(name)} lines={lines} {...shared} /> : null;
}

function Terms({ config, named, smoothing, ...shared }: Shared & { config: AggregatedMetrics; named: boolean; smoothing: number }) {
  const lines = useMemo(() => termStack(config, smoothing), [config, smoothing]);
  if (lines.length === 0) return null;
  return <Chart title={`Reward terms, stacked${named ? ` (${config.config_id})` : ""}`} yLabel="reward per episode" lines={lines} {...shared} />;
}

/** What all runs of the session were trained with; at first only what differs. */
function Hyperparameters({ session }: { session: SessionDetail }) {
  const { data, error } = useQuery(hyperparametersQuery(session.session_id));
  const [all, setAll] = useState(false);
  const compared = useMemo(() => columns(data ?? []), [data]);
  const table = useMemo(() => rows(compared), [compared]);
  if (compared.length === 0) return <Problem what="Could not load the hyperparameters" error={error} />;
  const shown = table.filter((row) => all || row.differs);
  return (
    <section className="stack" aria-labelledby="hyperparameters">
      <div className="row spread">
        <h3 id="hyperparameters">Hyperparameters</h3>
        <label className="row small-text">
          <input type="checkbox" checked={all} onChange={(event) => setAll(event.target.checked)} />
          All, not only those that differ
        </label>
      </div>
      {shown.length === 0 ? (
        <p className="small-text muted">All runs of this session were trained with the same settings.</p>
      ) : (
        <Scroll label="Table of hyperparameters">
          <table className="fit">
            <thead>
              <tr>
                <th>Setting</th>
                {compared.map((column) => (
                  <th key={`${column.iteration} ${column.runs[0]}`} className="numeric" title={column.runs.join(", ")}>
                    iteration {column.iteration}
                    <br />
                    {named(column.runs)}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {shown.map((row) => (
                <tr key={row.name} className={row.differs ? "" : "muted"}>
                  <th scope="row" className="mono">
                    {row.name}
                  </th>
                  {row.values.map((value, index) => (
                    <td key={index} className="numeric">
                      {value}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </section>
  );
}

function named(runs: readonly string[]): string {
  const [first = ""] = runs;
  return runs.length > 1 ? `${first.replace(/_seed_\d+$/, "")}, ${runs.length} seeds` : first;
}

function Settings({ session, current }: { session: SessionDetail; current: Iteration }) {
  const changes = Object.entries(current.hp_changes);
  const before: Record<string, unknown> = { ...session.config?.train };
  return (
    <div className="stack">
      {changes.length > 0 && (
        <p className="row small-text">
          <b>Settings changed:</b>
          {changes.map(([name, value]) => (
            <span key={name} className="badge" title={`session default: ${plain(before[name])}`}>
              {name} = {plain(value)}
            </span>
          ))}
        </p>
      )}
      {current.notes.map((note) => (
        <p key={note} className="small-text muted">
          {note}
        </p>
      ))}
    </div>
  );
}

function Downloads({ session, current }: { session: SessionDetail; current: Iteration }) {
  const base = `/api/sessions/${session.session_id}/iterations/${current.iteration_id}/runs`;
  const policies = current.runs.flatMap((run) =>
    Object.keys(run.checkpoint_scores).map((step) => ({ name: `${run.run_id} · ${short(Number(step))}`, url: `${base}/${run.run_id}/policies/${step}` })),
  );
  if (policies.length === 0) return null;
  return (
    <details>
      <summary>Checkpoint policies</summary>
      <p className="row small-text">
        {policies.map((policy) => (
          <a key={policy.url} href={policy.url} download>
            {policy.name}
          </a>
        ))}
      </p>
    </details>
  );
}
