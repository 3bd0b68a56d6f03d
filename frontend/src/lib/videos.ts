/** Which videos to show side by side. */
import type { Iteration, Video } from "../api/types";
import { short } from "./format";

export type Comparison = "episodes" | "checkpoints" | "iterations";
export const LABELS = ["p10", "median", "p90"] as const;
export type Label = (typeof LABELS)[number];

export interface Pane {
  title: string;
  url: string;
  /** Else it is drawn when it is asked for. */
  drawn?: boolean | undefined;
}

export interface Selection {
  by: Comparison;
  run: string;
  label: Label;
  step: number;
}

/** The steps of which a run has videos, in order. */
export function steps(videos: readonly Video[], run: string): number[] {
  const found = videos.filter((video) => video.run_id === run && video.step != null);
  return [...new Set(found.map((video) => video.step as number))].sort((a, b) => a - b);
}

export function panes(iterations: readonly Iteration[], current: Iteration, wanted: Selection): Pane[] {
  const videos = current.videos.filter((video) => video.run_id === wanted.run);
  if (wanted.by === "episodes") {
    return LABELS.flatMap((label) => pane(videos, wanted.step, label, label));
  }
  if (wanted.by === "checkpoints") {
    return steps(videos, wanted.run).flatMap((step) => pane(videos, step, wanted.label, `${short(step)} steps`));
  }
  return iterations.flatMap((iteration) => {
    const run = iteration.best_run_id ?? iteration.videos[0]?.run_id ?? "";
    const own = iteration.videos.filter((video) => video.run_id === run);
    const step = iteration.best_step ?? steps(own, run).at(-1);
    return step === undefined ? [] : pane(own, step, wanted.label, `iteration ${iteration.iteration}`);
  });
}

function pane(videos: readonly Video[], step: number, label: string, title: string): Pane[] {
  const found = videos.find((video) => video.step === step && video.label === label);
  return found ? [{ title, url: found.url, drawn: found.drawn }] : [];
}

/** The iteration that stands for a session: its best, or else the newest that was judged, or the newest. */
export function bestIteration(session: { best_iteration: number | null }, iterations: readonly Iteration[]): Iteration | undefined {
  return (
    iterations.find((each) => each.iteration === session.best_iteration) ?? iterations.findLast((each) => each.intent_score != null) ?? iterations.at(-1)
  );
}

export interface Clip {
  video: Video;
  iteration: number;
  /** Of a policy that is still being trained. */
  live: boolean;
}

/** The clip to look at first: of the newest checkpoint while it trains, else the median episode of the best policy. */
export function clipOf(session: { best_iteration: number | null; phase: string; status: string }, iterations: readonly Iteration[]): Clip | null {
  const current = iterations.at(-1);
  const live = session.status === "running" && session.phase === "training";
  if (live && current) {
    const video = newest(current.videos.filter((each) => each.drawn !== false));
    if (video) return { video, iteration: current.iteration, live };
  }
  const best = bestIteration(session, iterations);
  const drawn = best?.videos.filter((video) => video.drawn !== false) ?? [];
  const chosen = drawn.filter((video) => video.run_id === best?.best_run_id && video.step === best.best_step);
  const video = newest(chosen) ?? newest(drawn);
  return best && video ? { video, iteration: best.iteration, live: false } : null;
}

/** Of the last step there are videos of, the median episode where there is one. */
function newest(videos: readonly Video[]): Video | undefined {
  const last = Math.max(...videos.map((video) => video.step ?? 0));
  const latest = videos.filter((video) => (video.step ?? 0) === last);
  return latest.find((video) => video.label === "median") ?? latest[0];
}

/** Two iterations side by side, each by the median episode of its best policy. */
export function beforeAfter(iterations: readonly Iteration[], numbers: readonly [number, number]): Pane[] {
  return numbers.flatMap((number) => {
    const iteration = iterations.find((each) => each.iteration === number);
    return iteration ? panes([iteration], iteration, { by: "iterations", run: "", label: "median", step: 0 }) : [];
  });
}
