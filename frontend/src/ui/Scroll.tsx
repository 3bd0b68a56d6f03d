import type { ReactNode } from "react";

/** What may be wider or longer than its place: it can be scrolled with the keys, too. */
export function Scroll({ label, tall = false, children }: { label: string; tall?: boolean; children: ReactNode }) {
  return (
    <div className={tall ? "scroll tall" : "scroll"} tabIndex={0} role="group" aria-label={label}>
      {children}
    </div>
  );
}
