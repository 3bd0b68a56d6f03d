import { useSearchParams } from "react-router";
import type { Iteration, SessionDetail } from "../../api/types";
import { Card, Status } from "../../ui/basics";
import { Choice, Tabs } from "../../ui/fields";
import { Events } from "./Events";
import { Judgment, Lessons } from "./Judgment";
import { Reward } from "./Reward";
import { Training } from "./Training";
import { Videos } from "./Videos";

const TABS = [
  ["videos", "Videos"],
  ["judgment", "Judgment"],
  ["reward", "Reward"],
  ["training", "Training"],
  ["lessons", "Lessons"],
  ["events", "Events"],
] as const;
type Tab = (typeof TABS)[number][0];

interface Props {
  session: SessionDetail;
  iterations: readonly Iteration[];
  current: Iteration;
  onChoose: (iteration: number) => void;
}

/** One iteration: videos, judgment, reward, training, lessons. */
export function IterationView({ session, iterations, current, onChoose }: Props) {
  const [params, setParams] = useSearchParams();
  const tab: Tab = TABS.find(([name]) => name === params.get("tab"))?.[0] ?? "videos";
  const open = (name: Tab) =>
    setParams((before) => new URLSearchParams([...[...before].filter(([key]) => key !== "tab"), ["tab", name]]), { replace: true });
  return (
    <Card
      title={`Iteration ${current.iteration}`}
      aside={
        <div className="row">
          <Status status={current.status} />
          {iterations.length > 1 && (
            <Choice
              label="Iteration"
              options={iterations.map((each) => [String(each.iteration), String(each.iteration)])}
              value={String(current.iteration)}
              onChange={(value) => onChoose(Number(value))}
            />
          )}
        </div>
      }
    >
      <Tabs label="Iteration details" tabs={TABS} current={tab} onChange={open}>
        {tab === "videos" && <Videos key={current.iteration} iterations={iterations} current={current} />}
        {tab === "judgment" && <Judgment session={session} current={current} />}
        {tab === "reward" && <Reward iterations={iterations} current={current} />}
        {tab === "training" && <Training key={current.iteration} session={session} current={current} />}
        {tab === "lessons" && <Lessons session={session} />}
        {tab === "events" && <Events session={session} iteration={current.iteration} />}
      </Tabs>
    </Card>
  );
}
