/** Self-play games, as people read them. */
import type { GamePlayer, GameRow } from "../api/types";

/** The seat that is learnt from, or evaluated. */
export function learner(game: Pick<GameRow, "players">): GamePlayer | undefined {
  return game.players.find((player) => player.learner);
}

export type Outcome = "won" | "drew" | "lost";

/** How it ended for the learner: the highest reward wins, alone or shared; where all have the same, nobody does. */
export function outcome(game: Pick<GameRow, "players" | "rewards">): Outcome | null {
  const me = learner(game);
  const own = me === undefined ? null : game.rewards[me.seat];
  const others = game.players.filter((player) => player !== me).map((player) => game.rewards[player.seat] ?? 0);
  if (own == null || others.length === 0) return null;
  const best = Math.max(own, ...others);
  if (Math.min(own, ...others) === best) return "drew";
  return own === best ? "won" : "lost";
}

/** A response split around the action parsed from it, with or without brackets; null where it does not occur. */
export function around(answer: string, action: string): [string, string, string] | null {
  const found = [action, action.replace(/^\[(.*)\]$/, "$1")].find((each) => each !== "" && answer.includes(each));
  if (found === undefined) return null;
  const at = answer.lastIndexOf(found);
  return [answer.slice(0, at), found, answer.slice(at + found.length)];
}

/** The position that a key leads to; null: the key means something else. */
export function stepTo(key: string, now: number, last: number): number | null {
  const wanted = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[key];
  return wanted === undefined ? null : Math.min(last, Math.max(0, wanted));
}

const ENV_ID = /^(.+)-v\d+(?:-(.+))?-train$/;

/** A game's id as people say it: `KuhnPoker-v0-short-train` is "KuhnPoker short". */
export function gameTitle(envId: string): string {
  const [, game, variant] = ENV_ID.exec(envId) ?? [];
  return game === undefined ? envId : [game, variant].filter(Boolean).join(" ");
}

/** The games themselves, and their variants. */
export function groupedGames(envIds: readonly string[]): { games: string[]; variants: string[] } {
  const isVariant = (envId: string) => ENV_ID.exec(envId)?.[2] !== undefined;
  return { games: envIds.filter((each) => !isVariant(each)), variants: envIds.filter(isVariant) };
}

/** "train Nim-v0-train" and a number: "1,024 training games of Nim". */
export function playedGames(name: string, count: string): string {
  const [kind = "", envId = ""] = name.split(" ");
  return `${count} ${kind === "eval" ? "evaluation" : "training"} games of ${gameTitle(envId)}`;
}
