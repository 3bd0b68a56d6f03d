/** One stream of server-sent events for a page: it says what has changed, and the page's queries fetch it. */
import { type QueryClient, type QueryKey, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { request } from "./client";
import { connection, onConnection, report } from "./connection";

/** Events by name, each with the queries to fetch again. */
type Subscriptions = Record<string, readonly QueryKey[]>;

/** Listens while the component is there; comes back by itself when the server does. */
export function useLive(path: string, subscriptions: Subscriptions): void {
  const client = useQueryClient();
  const latest = useRef(subscriptions);
  useEffect(() => {
    latest.current = subscriptions;
  });
  useEffect(() => {
    let source: EventSource | null = null;
    function open(): void {
      source = new EventSource(path);
      for (const name of Object.keys(latest.current)) {
        const refetch = refetcher(client, () => latest.current[name] ?? []);
        source.addEventListener(name, () => {
          report("open");
          void refetch();
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
  }, [path, client]);
}

/** Fetches one round at a time, and once more for whatever was said meanwhile. */
function refetcher(client: QueryClient, keys: () => readonly QueryKey[]): () => Promise<void> {
  let [fetching, again] = [false, false];
  return async () => {
    again = true;
    if (fetching) return;
    fetching = true;
    while (again) {
      again = false;
      await Promise.all(keys().map((queryKey) => client.invalidateQueries({ queryKey })));
    }
    fetching = false;
  };
}

/** Cheap, and needs the token. */
export const PROBE = "/api/sessions?limit=1";
