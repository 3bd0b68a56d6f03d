import katex from "katex";
import "katex/dist/katex.min.css";
import { useEffect, useRef } from "react";

/** A formula that breaks between its terms; KaTeX builds elements, as the policy forbids style attributes. */
export function Formula({ tex }: { tex: string }) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (box.current) katex.render(`\\displaystyle ${tex}`, box.current, { throwOnError: false });
  }, [tex]);
  return <div className="formula" ref={box} tabIndex={0} role="group" aria-label="Formula" />;
}
