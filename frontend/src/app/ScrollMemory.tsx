import { useEffect, useLayoutEffect, useRef } from "react";
import { useLocation, useNavigationType } from "react-router";

const PLACE = "scroll";
const PATIENCE_MS = 3000;
const positions = new Map<string, number>(Object.entries(JSON.parse(sessionStorage.getItem(PLACE) ?? "{}") as Record<string, number>));

/** A page that one comes back to is where it was left; a new one begins at its top. */
export function ScrollMemory() {
  const { key, pathname } = useLocation();
  const how = useNavigationType();
  const before = useRef(pathname);
  useEffect(() => {
    history.scrollRestoration = "manual";
    const keep = () => sessionStorage.setItem(PLACE, JSON.stringify(Object.fromEntries([...positions].slice(-100))));
    window.addEventListener("pagehide", keep);
    return () => window.removeEventListener("pagehide", keep);
  }, []);
  // Before the browser says that a shorter page was scrolled: that is not where this one was left.
  useLayoutEffect(() => {
    const remember = () => positions.set(key, window.scrollY);
    window.addEventListener("scroll", remember, { passive: true });
    return () => window.removeEventListener("scroll", remember);
  }, [key]);
  useLayoutEffect(() => {
    const elsewhere = pathname !== before.current;
    before.current = pathname;
    if (how === "POP") return restore(positions.get(key) ?? 0);
    if (elsewhere) window.scrollTo(0, 0);
  }, [key, how, pathname]);
  return null;
}

/** Scrolls as soon as the page is long enough, unless somebody scrolls it before. */
function restore(top: number): () => void {
  const observer = new ResizeObserver(attempt);
  const timer = setTimeout(stop, PATIENCE_MS);
  function stop(): void {
    observer.disconnect();
    clearTimeout(timer);
    for (const name of ["wheel", "touchstart", "keydown"]) window.removeEventListener(name, stop);
  }
  function attempt(): void {
    if (document.documentElement.scrollHeight - window.innerHeight < top) return;
    window.scrollTo(0, top);
    stop();
  }
  for (const name of ["wheel", "touchstart", "keydown"]) window.addEventListener(name, stop, { passive: true });
  observer.observe(document.body);
  attempt();
  return stop;
}
