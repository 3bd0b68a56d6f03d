import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { bandsQuery } from "../../api/queries";
import type { AggregatedMetrics, Iteration, SessionDetail } from "../../api/types";
import { bandLines, MAIN, otherNames, spreadBand, termLines } from "../../lib/curves";
import { plain, short } from "../../lib/format";
import { Chart } from "../../ui/Chart";
import { Empty, Problem } from "../../ui/basics";

/** Training curves with the seeds as bands, the reward's terms, the changed settings. */
export function Training({ session, current }: { session: SessionDetail; current: Iteration }) {
  const { data, error } = useQuery(bandsQuery(session.session_id, current.iteration_id));
  const configs = useMemo(() => (data ?? []).filter((config) => config.steps.length > 0), [data]);
  const [other, setOther] = useState("");
  return (
    <div className="stack">
      <Problem what="Could not load the curves" error={error} />
      <Settings session={session} current={current} />
      {data && configs.length === 0 && <Empty title="No curves yet">They start with the first update.</Empty>}
      {configs.length > 0 && (
        <>
          <div className="charts">
            {MAIN.map(({ name, title }) => (
              <Curves key={name} title={title} name={name} configs={configs} />
            ))}
            <Evaluations configs={configs} />
            {configs.map((config) => (
              <Terms key={config.config_id} config={config} named={configs.length > 1} />
            ))}
          </div>
          <label className="field">
            Other metrics
            <select value={other} onChange={(event) => setOther(event.target.value)}>
              <option value="">Select</option>
              {otherNames(configs).map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
          {other && <Curves title={other} name={other} configs={configs} />}
        </>
      )}
      <Downloads session={session} current={current} />
    </div>
  );
}

function Curves({ title, name, configs }: { title: string; name: string; configs: readonly AggregatedMetrics[] }) {
  const lines = useMemo(() => bandLines(configs, name), [configs, name]);
  return lines.length > 0 ? <Chart title={title} x={configs[0]?.steps ?? []} xLabel="steps" lines={lines} height={190} /> : null;
}

function Evaluations({ configs }: { configs: readonly AggregatedMetrics[] }) {
  const lines = useMemo(
    () =>
      configs.map((config, index) => ({
        label: config.config_id,
        values: config.evaluation.mean,
        ...spreadBand(config.evaluation.mean, config.evaluation.std, config.run_ids.length),
        colour: (index % 6) + 1,
        points: true,
      })),
    [configs],
  );
  return <Chart title="Evaluation return" x={configs[0]?.evaluation_steps ?? []} xLabel="steps" lines={lines} height={190} />;
}

function Terms({ config, named }: { config: AggregatedMetrics; named: boolean }) {
  const lines = useMemo(() => termLines(config), [config]);
  const title = `Reward terms per episode${named ? ` (${config.config_id})` : ""}`;
  return <Chart title={title} x={config.steps} xLabel="steps" lines={lines} height={190} />;
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
