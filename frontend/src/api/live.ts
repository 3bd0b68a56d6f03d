/** One stream of server-sent events for a page. */
import { useEffect, useRef } from "react";
import { request } from "./client";
import { connection, onConnection, report } from "./connection";

type Handlers = Record<string, (data: unknown) => void>;

/** Listens while the component is there; comes back by itself when the server does. */
export function useLive(path: string, handlers: Handlers): void {
  const latest = useRef(handlers);
  useEffect(() => {
    latest.current = handlers;
  });
  useEffect(() => {
    let source: EventSource | null = null;
    function open(): void {
      source = new EventSource(path);
      for (const name of Object.keys(latest.current)) {
        source.addEventListener(name, (event: MessageEvent<string>) => {
          report("open");
          latest.current[name]?.(JSON.parse(event.data));
        });
      }
      // A browser tries again only after a broken connection, not after an answer such as 401.
      source.onerror = () => {
        if (source?.readyState === EventSource.CLOSED) source = null;
        void request("GET", PROBE).catch(() => undefined);
      };
    }
    open();
    const off = onConnection(() => {
      if (connection() === "open" && source === null) open();
    });
    return () => {
      off();
      source?.close();
    };
  }, [path]);
}

/** Cheap, and needs the token. */
export const PROBE = "/api/sessions?limit=1";
