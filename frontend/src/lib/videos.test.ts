import { expect, test } from "vitest";
import type { Iteration, Video } from "../api/types";
import { beforeAfter, clipOf, type Selection, panes, steps } from "./videos";

function video(run: string, step: number, label: string): Video {
  return { run_id: run, name: `eval_${step}_${label}.mp4`, step, label, url: `/${run}/${step}/${label}`, drawn: true, iteration_id: "" };
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

const RUNNING = { best_iteration: null, phase: "training", status: "running" };

test("while it trains, the newest checkpoint is shown", () => {
  const trained = iteration(2, [video("a", 100, "median"), video("a", 200, "p10"), video("a", 200, "median")], null);
  const clip = clipOf({ ...RUNNING, best_iteration: 1 }, [FIRST, trained]);
  expect([clip?.video.url, clip?.iteration, clip?.live]).toEqual(["/a/200/median", 2, true]);
});

test("the first checkpoint is waited for with the best policy so far", () => {
  const clip = clipOf({ ...RUNNING, best_iteration: 1 }, [FIRST, iteration(2, [], null)]);
  expect([clip?.video.url, clip?.live]).toEqual(["/a/200/median", false]);
  expect(clipOf(RUNNING, [iteration(1, [], null)])).toBeNull();
});

test("what has ended is shown by the median episode of its best run, not of its newest iteration", () => {
  const clip = clipOf({ best_iteration: 1, phase: "ended", status: "passed" }, [FIRST, SECOND]);
  expect([clip?.video.url, clip?.iteration]).toEqual(["/a/200/median", 1]);
  expect(clipOf({ best_iteration: null, phase: "ended", status: "error" }, [])).toBeNull();
});

test("before and after are the median episodes of two iterations, in the order asked for", () => {
  expect(beforeAfter([FIRST, SECOND], [2, 1]).map((pane) => pane.url)).toEqual(["/c/50/median", "/a/200/median"]);
  expect(beforeAfter([FIRST], [1, 7])).toHaveLength(1);
});
