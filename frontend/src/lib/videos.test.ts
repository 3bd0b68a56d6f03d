import { expect, test } from "vitest";
import type { Iteration, Video } from "../api/types";
import { type Selection, panes, steps } from "./videos";

function video(run: string, step: number, label: string): Video {
  return { run_id: run, name: `eval_${step}_${label}.mp4`, step, label, url: `/${run}/${step}/${label}` };
}

function iteration(number: number, videos: Video[], best: [string, number] | null): Iteration {
  return { iteration: number, videos, best_run_id: best?.[0] ?? null, best_step: best?.[1] ?? null } as Iteration;
}

const FIRST = iteration(1, [video("a", 200, "median"), video("a", 100, "median"), video("a", 200, "p10"), video("b", 100, "median")], ["a", 200]);
const SECOND = iteration(2, [video("c", 50, "median")], null);
const wanted: Selection = { by: "episodes", run: "a", label: "median", step: 200 };

test("steps of a run come in order, each once", () => {
  expect(steps(FIRST.videos, "a")).toEqual([100, 200]);
});

test("episodes of one checkpoint, weakest first; what was not rendered is left out", () => {
  expect(panes([FIRST], FIRST, wanted).map((pane) => pane.title)).toEqual(["p10", "median"]);
});

test("checkpoints of one run, oldest first", () => {
  expect(panes([FIRST], FIRST, { ...wanted, by: "checkpoints" }).map((pane) => pane.url)).toEqual(["/a/100/median", "/a/200/median"]);
});

test("iterations are shown by their best run, or the newest checkpoint where none is chosen", () => {
  expect(panes([FIRST, SECOND], FIRST, { ...wanted, by: "iterations" }).map((pane) => pane.url)).toEqual(["/a/200/median", "/c/50/median"]);
});
