import { expect, test } from "vitest";
import type { NodeStatus } from "../api/types";
import { filled, jobCommand, nodeOf, selfPlayCommand } from "./jobs";

test("a node has what its backend uses, and no more", () => {
  const typed = { node_id: " gpu1 ", cores: "8", gpus: "", host: "h", base_dir: "/b", port: "2222", user: " ", address: "ray://x" };
  expect(nodeOf("ssh", typed)).toEqual({ node_id: "gpu1", backend: "ssh", cores: 8, gpus: 0, host: "h", base_dir: "/b", port: 2222 });
  expect(nodeOf("local", typed)).toEqual({ node_id: "gpu1", backend: "local", cores: 8, gpus: 0 });
});

test("a job is the command that submits it", () => {
  const nodes = [{ node_id: "a", backend: "ssh" }, { node_id: "b", backend: "local" }] as NodeStatus[];
  expect(jobCommand({ prompt: "run fast", env_id: "Ant-v5", cores: 2, nodes: ["a", "b"] }, nodes)).toBe("p2p jobs submit 'run fast' --env Ant-v5 --cores 2 --node a --node b");
  expect(jobCommand({ prompt: "run", backend: "ssh", priority: Number.NaN }, nodes)).toBe("p2p jobs submit run --node a");
  expect(filled({ a: "", b: [], c: null, d: 0 })).toEqual({ d: 0 });
});

test("a self-play run is the command that starts it", () => {
  expect(selfPlayCommand({ model: "tiny" })).toBe("unstable train");
  expect(selfPlayCommand({ model: "smollm2", games: ["Nim-v0-train", "TicTacToe-v0-train"], opponents: ["first-checkpoint"], updates: 30, seed: 0 })).toBe(
    "unstable train --model smollm2 --game Nim-v0-train --game TicTacToe-v0-train --opponent first-checkpoint --updates 30 --seed 0",
  );
});
