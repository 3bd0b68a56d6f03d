import { Card } from "../ui/Card";
import { Command } from "../ui/Command";
import { Jobs } from "./Jobs";
import { Nodes } from "./Nodes";

/** Suites of prompts run by the scheduler, and where they can run. */
export default function BenchmarkPage() {
  return (
    <>
      <h1>Benchmark</h1>
      <Card title="Run a suite">
        <p className="muted">A suite is many prompts, each a session. Start one in a terminal; its job and its cases are then here.</p>
        <Command text="p2p benchmark --help" />
      </Card>
      <Jobs kind="benchmark" />
      <Nodes />
    </>
  );
}
