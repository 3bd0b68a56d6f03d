import { expect, test } from "vitest";
import { commandLine, optionsSet, parseSettings, tidy } from "./command";

test("only what was chosen stands on the command line", () => {
  expect(commandLine({ prompt: "run forward fast" })).toBe("p2p run 'run forward fast'");
  expect(commandLine({ prompt: "spin", env_id: "Ant-v5", seeds: 3, videos: false, budget_usd: null, model: "" })).toBe(
    "p2p run spin --env Ant-v5 --seeds 3 --no-videos",
  );
});

test("the bounds on money and time stand side by side", () => {
  const asked = { prompt: "spin", budget_usd: 2, max_minutes: 7.5 };
  expect(commandLine(asked)).toBe("p2p run spin --budget-usd 2 --max-minutes 7.5");
  expect(tidy({ ...asked, max_minutes: null })).toEqual({ prompt: "spin", budget_usd: 2 });
});

test("no word of the prompt reaches the shell as more than text", () => {
  expect(commandLine({ prompt: "don't $(rm) `x`" })).toBe(`p2p run 'don'"'"'t $(rm) \`x\`'`);
});

test("fields left open are not sent", () => {
  expect(tidy({ prompt: " run ", env_id: "", max_iterations: Number.NaN, seeds: null, pass_threshold: 0.9 })).toEqual({ prompt: "run", pass_threshold: 0.9 });
});

test("settings are read line by line, and a bad line is named", () => {
  expect(parseSettings("learning_rate=0.0003\n\nnet_arch = [64, 64]\nactivation=relu")).toEqual({ learning_rate: 0.0003, net_arch: [64, 64], activation: "relu" });
  expect(() => parseSettings("gamma 0.9")).toThrow("gamma 0.9");
});

test("criteria travel with the command, which names no file", () => {
  const criteria = [{ id: "a", title: "Runs", description: "", measure: "speed", comparison: "at_least" as const, threshold: 1, unit: "m/s", weight: 1, category: "task" as const, visual: false, event: "", soft_reason: "" }];
  expect(commandLine({ prompt: "run", criteria })).toBe(`p2p run run --criteria - <<'END'\n${JSON.stringify(criteria)}\nEND`);
});

test("what the VLM must see stands once for each criterion", () => {
  expect(commandLine({ prompt: "run", visual_criteria: ["the head stays up", " ", "no foot drags", ""], motion_trail: true })).toBe(
    "p2p run run --motion-trail --visual-criteria 'the head stays up' --visual-criteria 'no foot drags'",
  );
});

test("an option that is on or off stands as its flag, and only if it was changed", () => {
  expect(commandLine({ prompt: "run", use_zoo_preset: true, review_judge: false, hp_tuning: null, thinking_effort: "high", judge_episodes: 4 })).toBe(
    "p2p run run --thinking high --judge-episodes 4 --zoo-preset --no-review-judge",
  );
});

test("options are counted apart from prompt, environment and criteria", () => {
  expect(optionsSet({ prompt: "spin", env_id: "Ant-v5", criteria: [], model: "" })).toBe(0);
  expect(optionsSet({ prompt: "spin", seeds: 3, videos: false, settings: { gamma: 0.9, num_envs: 4 } })).toBe(4);
});
