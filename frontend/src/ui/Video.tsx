import { type ComponentProps, type RefObject, useEffect, useRef, useState } from "react";
import type { Pane } from "../lib/videos";

/** Whether things may move by themselves. */
export function motionIsWelcome(): boolean {
  return !window.matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** Whether an element is within `margin` pixels of the window. */
function useNear(element: RefObject<Element | null>, margin: number): boolean {
  const [near, setNear] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver(([entry]) => setNear(entry?.isIntersecting ?? false), { rootMargin: `${margin}px` });
    if (element.current) observer.observe(element.current);
    return () => observer.disconnect();
  }, [element, margin]);
  return near;
}

interface LazyVideoProps {
  url: string;
  label: string;
  playing: boolean;
  /** A picture until the first moment is there. */
  poster?: string | undefined;
}

/** A muted loop that is fetched when it comes near the window and plays while it is in view: a page may have hundreds. */
export function LazyVideo({ url, label, playing, poster }: LazyVideoProps) {
  const video = useRef<HTMLVideoElement>(null);
  const [near, inView] = [useNear(video, 300), useNear(video, 0)];
  const [wanted, setWanted] = useState(false);
  if (near && !wanted) setWanted(true);
  // The first moments of all episodes look alike; what is shown of a still one should not.
  const [from] = useState(playing ? "" : "#t=2");
  useEffect(() => {
    if (playing && inView) void video.current?.play().catch(() => undefined);
    else video.current?.pause();
  }, [playing, inView, url]);
  return (
    <video
      ref={video}
      src={wanted ? url + from : undefined}
      poster={from ? undefined : poster}
      muted
      loop
      playsInline
      preload={from ? "metadata" : "auto"}
      aria-label={label}
    />
  );
}

/** A video that the server may have to draw first, which takes seconds. */
export function DrawnVideo({ drawn = false, onLoadedMetadata, ...video }: { drawn?: boolean } & ComponentProps<"video">) {
  const [state, setState] = useState<"drawing" | "there" | "failed">(drawn ? "there" : "drawing");
  return (
    <>
      <video
        {...video}
        muted
        playsInline
        onError={() => setState("failed")}
        onLoadedMetadata={(event) => {
          setState("there");
          onLoadedMetadata?.(event);
        }}
      />
      {state === "drawing" && <p className="small-text muted">Drawing the recorded episode: some seconds.</p>}
      {state === "failed" && <p className="small-text muted">The server cannot draw it.</p>}
    </>
  );
}

/** A video, or what draws it: an episode that nobody has opened is only recorded. */
function PaneVideo({ pane, onClick, onThere }: { pane: Pane; onClick: () => void; onThere: (video: HTMLVideoElement) => void }) {
  const [asked, setAsked] = useState(false);
  const drawn = pane.drawn !== false;
  if (!asked && !drawn) {
    return (
      <button type="button" className="button" onClick={() => setAsked(true)}>
        Draw this episode
      </button>
    );
  }
  return <DrawnVideo src={pane.url} drawn={drawn} preload="metadata" aria-label={pane.title} onClick={onClick} onLoadedMetadata={(event) => onThere(event.currentTarget)} />;
}

const SPEEDS = [0.25, 0.5, 1, 2];
const APART_S = 0.08;

/** Several videos in step: one set of controls, and whoever falls behind is put back in time. With `loop` they begin by themselves, and again. */
export function SyncedPlayer({ panes, loop = false }: { panes: readonly Pane[]; loop?: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  const near = useNear(box, 0);
  const [playing, setPlaying] = useState(() => loop && motionIsWelcome());
  const [time, setTime] = useState(0);
  const [length, setLength] = useState(0);
  const [speed, setSpeed] = useState(1);
  const videos = () => [...(box.current?.querySelectorAll("video") ?? [])];
  /** The longest leads: episodes that ended early wait at their last picture. */
  const leader = () => videos().reduce<HTMLVideoElement | null>((best, each) => (best && best.duration >= each.duration ? best : each), null);

  useEffect(() => {
    if (!playing || !near) return;
    let frame = 0;
    function follow(): void {
      const lead = leader();
      if (lead) {
        setTime(lead.currentTime);
        for (const video of videos()) {
          const wanted = Math.min(lead.currentTime, video.duration || 0);
          if (Math.abs(video.currentTime - wanted) > APART_S) video.currentTime = wanted;
        }
        if (lead.ended && loop) {
          for (const video of videos()) {
            video.currentTime = 0;
            void video.play().catch(() => undefined);
          }
        } else if (lead.ended) setPlaying(false);
      }
      frame = requestAnimationFrame(follow);
    }
    for (const video of videos()) void video.play().catch(() => undefined);
    frame = requestAnimationFrame(follow);
    return () => {
      cancelAnimationFrame(frame);
      for (const video of videos()) video.pause();
    };
  }, [playing, near, loop]);

  useEffect(() => {
    for (const video of videos()) video.playbackRate = speed;
  }, [speed]);

  function seek(to: number): void {
    setTime(to);
    for (const video of videos()) video.currentTime = Math.min(to, video.duration || 0);
  }

  /** Take in a video that has come late. */
  function join(video: HTMLVideoElement): void {
    setLength(leader()?.duration ?? 0);
    video.playbackRate = speed;
    if (playing) void video.play().catch(() => undefined);
  }

  function toggle(): void {
    if (!playing && leader()?.ended) seek(0);
    setPlaying(!playing);
  }

  return (
    <div className="stack">
      <div className="video-grid" ref={box}>
        {panes.map((pane) => (
          <figure key={pane.url}>
            <PaneVideo pane={pane} onClick={toggle} onThere={join} />
            <figcaption className="row spread small-text">
              <span>{pane.title}</span>
              <a href={pane.url} download>
                download
              </a>
            </figcaption>
          </figure>
        ))}
      </div>
      <div className="player">
        <button type="button" className="button primary" onClick={toggle}>
          {playing ? "Pause" : "Play"}
        </button>
        <input type="range" aria-label="Time" min={0} max={length || 1} step={0.01} value={Math.min(time, length || 1)} onChange={(event) => seek(event.target.valueAsNumber)} />
        <span className="small-text numeric">
          {time.toFixed(1)} / {length.toFixed(1)} s
        </span>
        <select aria-label="Speed" value={speed} onChange={(event) => setSpeed(Number(event.target.value))}>
          {SPEEDS.map((each) => (
            <option key={each} value={each}>
              {each}×
            </option>
          ))}
        </select>
      </div>
    </div>
  );
}
