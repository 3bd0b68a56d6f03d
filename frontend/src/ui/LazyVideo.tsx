import { useEffect, useRef, useState } from "react";

/** A video that is fetched when it comes near the window: a page may have hundreds. */
export function LazyVideo({ url, label, playing }: { url: string; label: string; playing: boolean }) {
  const video = useRef<HTMLVideoElement>(null);
  const [near, setNear] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver(([entry]) => setNear(entry?.isIntersecting ?? false), { rootMargin: "300px" });
    if (video.current) observer.observe(video.current);
    return () => observer.disconnect();
  }, []);
  const [wanted, setWanted] = useState(false);
  if (near && !wanted) setWanted(true);
  useEffect(() => {
    if (playing && near) void video.current?.play().catch(() => undefined);
    else video.current?.pause();
  }, [playing, near]);
  // The first moments of all episodes look alike; what is shown of a still one should not.
  return <video ref={video} src={wanted ? `${url}#t=2` : undefined} muted loop playsInline preload="metadata" aria-label={label} />;
}
