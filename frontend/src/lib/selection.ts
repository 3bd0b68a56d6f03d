/** What was ticked to be compared, for this visit: by key, a session's id or `id:iteration`. */
import { useSyncExternalStore } from "react";
import { MOST } from "./compare";

const PLACE = "compare";
const listeners = new Set<() => void>();
let selected: readonly string[] = stored();

function stored(): readonly string[] {
  try {
    const keys: unknown = JSON.parse(globalThis.sessionStorage?.getItem(PLACE) ?? "[]");
    return Array.isArray(keys) ? keys.filter((key) => typeof key === "string").slice(0, MOST) : [];
  } catch {
    return [];
  }
}

/** With a key more, or without it; a fifth takes the place of the first. */
export function toggled(keys: readonly string[], key: string): readonly string[] {
  return keys.includes(key) ? keys.filter((each) => each !== key) : [...keys, key].slice(-MOST);
}

export function select(keys: readonly string[]): void {
  selected = keys;
  globalThis.sessionStorage?.setItem(PLACE, JSON.stringify(keys));
  for (const listener of listeners) listener();
}

export function useSelection(): readonly string[] {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => selected,
  );
}
