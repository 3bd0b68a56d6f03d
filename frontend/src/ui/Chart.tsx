import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useTheme } from "../app/theme";
import { number, short, ticks } from "../lib/format";

type Values = readonly (number | null)[];

export interface Line {
  label: string;
  values: Values;
  /** The lower and the upper edge of a band around the line; with points, each has a bar as well. */
  band?: readonly [Values, Values];
  /** One of the six line colours; counted from 1. */
  colour: number;
  points?: boolean;
  /** Thin and pale: one of several that another line sums up. */
  faint?: boolean;
  /** The band is filled as an area: a layer of a stack. */
  area?: boolean;
  /** What the legend shows, where it is not the height of the line. */
  shown?: Values;
  /** For a seventh line and beyond, whose colour is taken. */
  dashed?: boolean;
}

interface Props {
  title: string;
  x: readonly number[];
  xLabel: string;
  /** What the y axis counts, with its unit. */
  yLabel?: string | undefined;
  /** Charts of one group share the pointer. */
  group?: string;
  lines: readonly Line[];
  height?: number;
  /** Fixed ends of the y axis. */
  range?: readonly [number, number];
  /** The x axis counts whole things, such as iterations. */
  whole?: boolean;
}

/** Lines over a common x, with bands; the legend shows the numbers under the pointer. */
export function Chart({ title, x, xLabel, yLabel, group, lines, height = 220, range, whole = false }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const theme = useTheme();
  useEffect(() => {
    const element = box.current;
    if (element === null || x.length === 0) return;
    const plot = new uPlot(
      options({ element, xLabel, yLabel, group, lines, height, range, whole, x }),
      table(x, lines),
      element,
    );
    const observer = new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.destroy();
    };
  }, [x, xLabel, yLabel, group, lines, height, range, whole, theme]);
  return (
    <figure className="chart">
      <figcaption>{title}</figcaption>
      {x.length === 0 ? <p className="muted">No values yet.</p> : <div ref={box} role="img" aria-label={summary(title, lines)} />}
    </figure>
  );
}

function summary(title: string, lines: readonly Line[]): string {
  const ends = lines.filter((line) => !line.faint).map((line) => {
    const last = line.values.findLastIndex((value) => value !== null);
    if (line.shown) return `${line.label} ${number(line.shown[last])}`;
    return `${line.label} ${said(line.values[last], line.band?.map((edge) => edge[last]))}`;
  });
  return `${title}; last values: ${ends.join(", ")}`;
}

/** A value, with its interval where it has one. */
function said(value: number | null | undefined, edges?: readonly (number | null | undefined)[]): string {
  const [low, high] = edges ?? [];
  return low == null || high == null || number(low) === number(high) ? number(value) : `${number(value)} (${number(low)} to ${number(high)})`;
}

/** uPlot's columns: x, and for each line its values and the two edges of its band. */
function table(x: readonly number[], lines: readonly Line[]): uPlot.AlignedData {
  const columns = lines.flatMap((line) => [line.values, ...(line.band ?? [])].map((values) => [...values]));
  return [[...x], ...columns] as uPlot.AlignedData;
}

interface Wanted extends Omit<Props, "title" | "height" | "whole" | "group"> {
  group: string | undefined;
  element: HTMLElement;
  height: number;
  whole: boolean;
  range: readonly [number, number] | undefined;
}

const LEGEND_LINES = 12;
const WHOLE_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500];

function options({ element, x, xLabel, yLabel, group, lines, height, range, whole }: Wanted): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const token = (name: string) => style.getPropertyValue(name).trim();
  const axis = {
    stroke: token("--muted"), grid: { stroke: token("--border"), width: 1 }, ticks: { show: false }, font: "11px system-ui", labelFont: "12px system-ui", labelSize: 20,
  };
  const series: uPlot.Series[] = [{ label: xLabel, value: (_, value) => (value == null ? "" : whole ? String(value) : short(value)) }];
  const bands: uPlot.Band[] = [];
  const bars: ((plot: uPlot) => void)[] = [];
  for (const line of lines) {
    const stroke = token(`--line-${line.colour}`);
    const at = series.length;
    series.push({
      label: line.label,
      stroke: line.faint ? `${stroke}80` : stroke,
      width: line.faint || line.area ? 1 : 2,
      ...(line.faint && lines.length > LEGEND_LINES ? { class: "band-edge" } : {}),
      ...(line.dashed ? { dash: [6, 4] } : {}),
      points: { show: (line.points ?? false) || x.length === 1, size: 8, fill: stroke },
      spanGaps: true,
      value: (plot, value, _, index) => {
        if (line.shown) return number(index == null ? null : line.shown[index]);
        return said(value, line.band && index != null ? [plot.data[at + 1]?.[index], plot.data[at + 2]?.[index]] : undefined);
      },
    });
    if (line.band) {
      for (const side of ["low", "high"]) {
        series.push({ label: `${line.label} ${side}`, stroke: "transparent", points: { show: false }, spanGaps: true, class: "band-edge" });
      }
      bands.push({ series: [at + 2, at + 1], fill: `${stroke}${line.area ? "8c" : "33"}` });
      if (line.points) bars.push((plot) => intervals(plot, at, stroke));
    }
  }
  return {
    width: element.clientWidth,
    height,
    series,
    bands,
    axes: [
      { ...axis, size: 28, label: xLabel, ...(whole ? { incrs: WHOLE_STEPS } : {}), values: (_, marks) => (whole ? marks.map(String) : ticks(marks)) },
      { ...axis, size: 52, space: 24, ...(yLabel ? { label: yLabel } : {}), values: (_, marks) => ticks(marks) },
    ],
    scales: {
      x: { time: false, ...(whole ? { range: [(x[0] ?? 0) - 0.25, (x.at(-1) ?? 0) + 0.25] } : {}) },
      y: { range: range ? [range[0], range[1]] : (_, low, high) => around(low, high) },
    },
    cursor: { y: false, points: { size: 7 }, dataIdx: nearest, ...(group ? { sync: { key: group } } : {}) },
    legend: { live: true },
    hooks: { ready: [atRest], setLegend: [atRest], draw: bars },
  };
}

const EDGE = { pad: 0.1, soft: 0, mode: 3 } as const;

/** The ends of the y axis; a line that does not move lies in its middle. */
function around(low: number | null, high: number | null): uPlot.Range.MinMax {
  if (low == null || high == null) return [0, 1];
  if (low !== high) return uPlot.rangeNum(low, high, { min: EDGE, max: EDGE });
  const half = Math.abs(low) / 10 || 1;
  return [low - half, low + half];
}

/** Without a pointer, the legend shows the last values. */
function atRest(plot: uPlot): void {
  if (plot.legend.idx != null) return;
  const idxs = plot.data.map((values) => Math.max(0, [...values].findLastIndex((value) => value != null)));
  plot.setLegend({ idxs }, false);
}

/** The point next to the pointer that has a value: lines over the same x need not share their points. */
function nearest(plot: uPlot, series: number, at: number): number {
  const values = plot.data[series];
  if (!values || values[at] != null) return at;
  for (let away = 1; away < values.length; away++) {
    if (values[at - away] != null) return at - away;
    if (values[at + away] != null) return at + away;
  }
  return at;
}

/** A bar from edge to edge of the band, at each point of the series `at`. */
function intervals(plot: uPlot, at: number, colour: string): void {
  const { ctx, data } = plot;
  const cap = 4 * devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.lineWidth = devicePixelRatio;
  ctx.beginPath();
  data[0].forEach((value, index) => {
    const [low, high] = [data[at + 1]?.[index], data[at + 2]?.[index]];
    if (low == null || high == null) return;
    const x = Math.round(plot.valToPos(value, "x", true));
    const [bottom, top] = [plot.valToPos(low, "y", true), plot.valToPos(high, "y", true)];
    ctx.moveTo(x, bottom);
    ctx.lineTo(x, top);
    for (const y of [bottom, top]) {
      ctx.moveTo(x - cap, y);
      ctx.lineTo(x + cap, y);
    }
  });
  ctx.stroke();
  ctx.restore();
}
