import { expect, test } from "vitest";
import { around, gameTitle, groupedGames, outcome, playedGames, stepTo } from "./games";

const player = (seat: number, learner: boolean) => ({ seat, uid: `p${seat}`, kind: "checkpoint", version: 1, learner });
const players = [player(0, false), player(1, true)];

test("the outcome is the learner's", () => {
  expect(outcome({ players, rewards: { 0: -1, 1: 1 } })).toBe("won");
  expect(outcome({ players, rewards: { 0: 1, 1: -1 } })).toBe("lost");
  expect(outcome({ players, rewards: { 0: 0, 1: 0 } })).toBe("drew");
  expect(outcome({ players: [player(0, false)], rewards: { 0: 1 } })).toBeNull();
});

test("of three, the highest reward wins, alone or shared", () => {
  const three = [...players, player(2, false)];
  expect(outcome({ players: three, rewards: { 0: -1, 1: 0, 2: 1 } })).toBe("lost");
  expect(outcome({ players: three, rewards: { 0: -1, 1: 1, 2: 1 } })).toBe("won");
  expect(outcome({ players: three, rewards: { 0: 1, 1: -1, 2: 1 } })).toBe("lost");
  expect(outcome({ players: three, rewards: { 0: 0, 1: 0, 2: 0 } })).toBe("drew");
});

test("an answer is shown around its last mention of the action", () => {
  expect(around("not [3] but [4].", "[4]")).toEqual(["not [3] but ", "[4]", "."]);
  expect(around("[4] or [4]", "[4]")).toEqual(["[4] or ", "[4]", ""]);
  expect(around("four", "[4]")).toBeNull();
  expect(around("so 4", "[4]")).toEqual(["so ", "4", ""]);
  expect(around("four", "[]")).toBeNull();
  expect(around("four", "")).toBeNull();
});

test("arrow keys step and stay within the game", () => {
  expect(stepTo("ArrowRight", 0, 4)).toBe(1);
  expect(stepTo("ArrowRight", 4, 4)).toBe(4);
  expect(stepTo("ArrowLeft", 0, 4)).toBe(0);
  expect(stepTo("End", 1, 4)).toBe(4);
  expect(stepTo("Home", 3, 4)).toBe(0);
  expect(stepTo("Enter", 3, 4)).toBeNull();
});

test("games come before their variants, in words", () => {
  const ids = ["KuhnPoker-v0-train", "KuhnPoker-v0-short-train", "mine"];
  expect(groupedGames(ids)).toEqual({ games: ["KuhnPoker-v0-train", "mine"], variants: ["KuhnPoker-v0-short-train"] });
  expect(playedGames("eval Nim-v0-train", "1,024")).toBe("1,024 evaluation games of Nim");
  expect(ids.map(gameTitle)).toEqual(["KuhnPoker", "KuhnPoker short", "mine"]);
});
