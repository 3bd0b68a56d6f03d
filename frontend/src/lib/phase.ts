/** Where a session is, and what comes next, in words. */

export const PHASES = [
  ["intent", "Criteria"],
  ["authoring", "Reward and judge"],
  ["training", "Training"],
  ["judging", "Judging"],
  ["confirming", "Confirming"],
  ["revising", "Revising"],
] as const;

const NOW: Record<string, string> = {
  intent: "Reading measurable criteria off the sentence. Then a reward and a judge are written.",
  authoring: "Writing the reward and the judge, and trying them in the sandbox. Then training begins.",
  training: "Training. Then the judges look at what was learnt.",
  judging: "The judges look at the episodes. A score that passes is confirmed on fresh starts; any other leads to a revision.",
  confirming: "The score passes; it has to hold on fresh starts, too.",
  revising: "Looking for what is wrong, and rewriting the reward for the next iteration.",
};

const ENDED: Record<string, string> = {
  passed: "It passed, also on fresh starts: the policy is ready to be taken away.",
  max_iterations: "It did not pass within its iterations. `Continue` gives it more.",
  paused: "Paused. `Continue` goes on from here, with what you have ordered.",
  cancelled: "Stopped. `Continue` goes on from where it was.",
  stale: "Its process is gone. `Continue` goes on from where it was.",
  budget_exhausted: "The budget is used up. `Continue` with a higher one.",
  time_exhausted: "The time is used up; the best policy so far is kept. `Continue` gives it as much again, or what you say.",
  rate_limited: "The provider asks to come back later. `Continue` when it lets you.",
  auth_error: "The provider refused the key. Set it, then `Continue`.",
  invalid_code: "No reward could be made to run; the events say why.",
  error: "A fault ended it; the events say which. `Continue` tries again from where it was.",
};

interface Standing {
  status: string;
  phase: string;
  waiting: string;
}

export function nowAndNext({ status, phase, waiting }: Standing): string {
  if (waiting) return `Waiting: ${waiting}`;
  if (status === "queued" || status === "pending") return "Waits until there is room for it.";
  if (phase === "ended") return ENDED[status] ?? "";
  return NOW[phase] ?? "";
}
