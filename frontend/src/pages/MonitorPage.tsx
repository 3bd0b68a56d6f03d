import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { resourceHistoryQuery, resourcesQuery } from "../api/queries";
import type { Resources } from "../api/types";
import { megabytes, percent } from "../lib/format";
import { historyOf } from "../lib/machine";
import { Chart } from "../ui/Chart";
import { Card, Meter, PageHeading, Problem } from "../ui/basics";
import { Jobs, Nodes } from "./Scheduler";

/** The scheduler's jobs and nodes, and how busy this machine is. */
export default function MonitorPage() {
  const { data, error } = useQuery(resourcesQuery);
  return (
    <>
      <PageHeading title="Jobs & nodes" />
      <Jobs />
      <Nodes />
      <Problem what="Could not load the machine status" error={error} />
      {data && (
        <div className="columns even">
          <Cores machine={data} />
          <Memory machine={data} />
        </div>
      )}
      <History />
    </>
  );
}

const PERCENT = [0, 100] as const;

/** The last minutes, as lines. */
function History() {
  const { data, error } = useQuery(resourceHistoryQuery);
  const { x, unit, lines } = useMemo(() => historyOf(data ?? []), [data]);
  return (
    <Card title="This machine, last minutes">
      <Problem what="Could not load the history" error={error} />
      {x.length > 1 ? <Chart title="In use, %" x={x} xLabel={`${unit} (now: 0)`} lines={lines} range={PERCENT} height={180} /> : <p className="muted">The server has just started: the lines begin in a few seconds.</p>}
    </Card>
  );
}

function Cores({ machine }: { machine: Resources }) {
  return (
    <Card title="Cores" aside={<span className="small-text muted">load {machine.load.map((value) => value.toFixed(1)).join(" · ")}</span>}>
      <div className="cores">
        {machine.cores.map((core) => (
          <div key={core.core} className="run-progress small-text">
            <span>
              core {core.core} {core.held && <span className="badge busy still">training</span>}
            </span>
            <Meter value={core.busy} label={`Core ${core.core}`} tone={core.busy > 0.9 ? "warn" : "plain"} />
            <span className="numeric">{percent(core.busy)}</span>
          </div>
        ))}
      </div>
    </Card>
  );
}

function Memory({ machine }: { machine: Resources }) {
  const used = machine.memory_used_mb / machine.memory_total_mb;
  return (
    <Card title="Memory">
      <div className="run-progress small-text">
        <span>memory</span>
        <Meter value={used} label="Memory" tone={used > 0.9 ? "bad" : "plain"} />
        <span className="numeric">{percent(used)}</span>
      </div>
      <p className="small-text muted">
        {megabytes(machine.memory_used_mb)} of {megabytes(machine.memory_total_mb)} in use · {megabytes(machine.disk_free_mb)} of disk free
      </p>
      {machine.gpus.map((gpu, index) => (
        <div key={index} className="stack">
          <div className="run-progress small-text">
            <span>{gpu.name}</span>
            <Meter value={gpu.busy} label={gpu.name} />
            <span className="numeric">{percent(gpu.busy)}</span>
          </div>
          <p className="small-text muted">
            {megabytes(gpu.memory_used_mb)} of {megabytes(gpu.memory_total_mb)}
          </p>
        </div>
      ))}
      {machine.gpus.length === 0 && <p className="small-text muted">No GPU found; control policies train on the CPU.</p>}
    </Card>
  );
}
