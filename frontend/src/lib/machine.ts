/** The last minutes of a machine, as the lines of a chart. */
import type { ResourceSample } from "../api/types";
import type { Line } from "../ui/Chart";
import { timeUnit } from "./curves";

const percents = (values: readonly (number | undefined)[]) => values.map((value) => (value === undefined ? null : Math.round(1000 * value) / 10));

export interface History {
  /** The time before the last sample, as negative numbers. */
  x: number[];
  unit: string;
  lines: Line[];
}

export function historyOf(samples: readonly ResourceSample[]): History {
  const last = samples.at(-1)?.time ?? 0;
  const [unit, seconds] = timeUnit([last - (samples[0]?.time ?? last)]);
  const gpus = Math.max(0, ...samples.map((sample) => sample.gpus.length));
  return {
    x: samples.map((sample) => (sample.time - last) / seconds),
    unit,
    lines: [
      { label: "CPU", values: percents(samples.map((sample) => sample.cpu)), colour: 1 },
      { label: "memory", values: percents(samples.map((sample) => sample.memory)), colour: 2 },
      ...Array.from({ length: gpus }, (_, gpu) => ({
        label: gpus > 1 ? `GPU ${gpu}` : "GPU", values: percents(samples.map((sample) => sample.gpus[gpu])), colour: (gpu % 4) + 3,
      })),
    ],
  };
}
