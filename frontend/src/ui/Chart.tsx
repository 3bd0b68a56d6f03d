import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useTheme } from "../app/theme";
import { number, short, ticks } from "../lib/format";

type Values = readonly (number | null)[];

export interface Line {
  label: string;
  values: Values;
  /** Drawn as a band around the line. */
  spread?: Values;
  /** One of the six line colours; counted from 1. */
  colour: number;
  points?: boolean;
}

interface Props {
  title: string;
  x: readonly number[];
  xLabel: string;
  lines: readonly Line[];
  height?: number;
  /** Fixed ends of the y axis. */
  range?: readonly [number, number];
  /** A value that matters, as a dashed line across. */
  mark?: number | undefined;
  /** The x axis counts whole things, such as iterations. */
  whole?: boolean;
}

/** Lines over a common x, with bands; the numbers under the pointer stand in the legend. */
export function Chart({ title, x, xLabel, lines, height = 220, range, mark, whole = false }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const theme = useTheme();
  useEffect(() => {
    const element = box.current;
    if (element === null || x.length === 0) return;
    const plot = new uPlot(
      options({ element, xLabel, lines, height, range, mark, whole, x }),
      table(x, lines),
      element,
    );
    const observer = new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.destroy();
    };
  }, [x, xLabel, lines, height, range, mark, whole, theme]);
  return (
    <figure className="chart">
      <figcaption>{title}</figcaption>
      {x.length === 0 ? <p className="muted">No values yet.</p> : <div ref={box} role="img" aria-label={summary(title, lines)} />}
    </figure>
  );
}

function summary(title: string, lines: readonly Line[]): string {
  const ends = lines.map((line) => `${line.label} ${number(line.values.findLast((value) => value !== null))}`);
  return `${title}; last values: ${ends.join(", ")}`;
}

/** uPlot's columns: x, and for each line its values and the two edges of its band. */
function table(x: readonly number[], lines: readonly Line[]): uPlot.AlignedData {
  const edge = (line: Line, sign: number) =>
    line.values.map((value, i) => (value === null ? null : value + sign * (line.spread?.[i] ?? 0)));
  const columns = lines.flatMap((line) =>
    line.spread ? [[...line.values], edge(line, 1), edge(line, -1)] : [[...line.values]],
  );
  return [[...x], ...columns] as uPlot.AlignedData;
}

interface Wanted extends Omit<Props, "title" | "height" | "whole"> {
  element: HTMLElement;
  height: number;
  whole: boolean;
  range: readonly [number, number] | undefined;
}

const WHOLE_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500];

function options({ element, x, xLabel, lines, height, range, mark, whole }: Wanted): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const token = (name: string) => style.getPropertyValue(name).trim();
  const axis = { stroke: token("--muted"), grid: { stroke: token("--border"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const series: uPlot.Series[] = [{ label: xLabel, value: (_, value) => (value == null ? "" : whole ? String(value) : short(value)) }];
  const bands: uPlot.Band[] = [];
  for (const line of lines) {
    const stroke = token(`--line-${line.colour}`);
    series.push({
      label: line.label,
      stroke,
      width: 2,
      points: { show: (line.points ?? false) || x.length === 1, size: 8, fill: stroke },
      spanGaps: true,
      value: (_, value) => number(value),
    });
    if (line.spread) {
      const at = series.length;
      for (const side of ["+", "−"]) {
        series.push({ label: `${line.label} ${side}`, stroke: "transparent", points: { show: false }, class: "band-edge" });
      }
      bands.push({ series: [at, at + 1], fill: `${stroke}33` });
    }
  }
  return {
    width: element.clientWidth,
    height,
    series,
    bands,
    axes: [
      { ...axis, size: 28, ...(whole ? { incrs: WHOLE_STEPS } : {}), values: (_, marks) => marks.map((mark) => (whole ? String(mark) : short(mark))) },
      { ...axis, size: 52, values: (_, marks) => ticks(marks) },
    ],
    scales: {
      x: { time: false, ...(whole ? { range: [(x[0] ?? 0) - 0.25, (x.at(-1) ?? 0) + 0.25] } : {}) },
      y: range ? { range: [range[0], range[1]] } : {},
    },
    cursor: { y: false, points: { size: 7 } },
    legend: { live: true },
    hooks: mark === undefined ? {} : { draw: [(plot) => across(plot, mark, token("--muted"))] },
  };
}

function across(plot: uPlot, value: number, colour: string): void {
  const { ctx, bbox } = plot;
  const at = Math.round(plot.valToPos(value, "y", true));
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.lineWidth = devicePixelRatio * 1.5;
  ctx.setLineDash([6 * devicePixelRatio, 5 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, at);
  ctx.lineTo(bbox.left + bbox.width, at);
  ctx.stroke();
  ctx.restore();
}
