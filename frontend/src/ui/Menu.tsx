import { type ReactNode, useEffect, useRef } from "react";

/** A button that opens a list; a press outside, Escape, or a choice closes it. */
export function Menu({ title, children }: { title: string; children: ReactNode }) {
  const menu = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    function onPress(event: Event): void {
      if (menu.current && !menu.current.contains(event.target as Node)) menu.current.open = false;
    }
    document.addEventListener("pointerdown", onPress);
    return () => document.removeEventListener("pointerdown", onPress);
  }, []);
  return (
    <details
      ref={menu}
      className="menu"
      onKeyDown={(event) => {
        if (event.key !== "Escape" || !menu.current?.open) return;
        menu.current.open = false;
        menu.current.querySelector("summary")?.focus();
      }}
      onClick={(event) => {
        if (menu.current && (event.target as Element).closest("a")) menu.current.open = false;
      }}
    >
      <summary className="button primary">{title}</summary>
      <ul>{children}</ul>
    </details>
  );
}
