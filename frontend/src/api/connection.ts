/** Whether the server answers: known from every request, shown once for the whole page. */
import { useSyncExternalStore } from "react";

/** `locked`: it answers, but does not know this browser (a server that was started again). */
export type Connection = "open" | "lost" | "locked";

let now: Connection = "open";
const listeners = new Set<() => void>();

export function report(connection: Connection): void {
  if (connection === now) return;
  now = connection;
  for (const listener of listeners) listener();
}

export function onConnection(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function connection(): Connection {
  return now;
}

export function useConnection(): Connection {
  return useSyncExternalStore(onConnection, connection);
}
