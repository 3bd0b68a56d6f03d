/** Which videos to show side by side. */
import type { Iteration, Video } from "../api/types";
import { short } from "./format";

export type Comparison = "episodes" | "checkpoints" | "iterations";
export const LABELS = ["p10", "median", "p90"] as const;
export type Label = (typeof LABELS)[number];

export interface Pane {
  title: string;
  url: string;
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
  return found ? [{ title, url: found.url }] : [];
}
