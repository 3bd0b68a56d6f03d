/** The phase of a session and what comes next, in words. */

export const PHASES = [
  ["intent", "Criteria"],
  ["authoring", "Reward and judge"],
  ["training", "Training"],
  ["judging", "Judging"],
  ["confirming", "Confirming"],
  ["revising", "Revising"],
] as const;

const NOW: Record<string, string> = {
  intent: "Writing measurable criteria for the prompt. Next: a reward and a judge.",
  authoring: "Writing the reward and the judge, and trying them in the sandbox. Next: training.",
  training: "Training. Next: the judges score the result.",
  judging: "The judges score the episodes. A pass is then confirmed on unseen episodes; anything else leads to a revision.",
  confirming: "Every hard criterion is met; that is being confirmed on unseen episodes.",
  revising: "Diagnosing the result and rewriting the reward for the next iteration.",
};

const ENDED: Record<string, string> = {
  passed: "Passed and confirmed on unseen episodes: the policy is ready to download.",
  max_iterations: "Did not pass within its iterations. `Resume` with more.",
  paused: "Paused. `Resume` applies the pending changes.",
  cancelled: "Cancelled. `Resume` continues from there.",
  stale: "Its process is gone. `Resume` continues from there.",
  budget_exhausted: "The budget is used up. `Resume` with a higher one.",
  time_exhausted: "The time is used up; the best policy so far is kept. `Resume` adds as much time again, or the time you enter.",
  rate_limited: "The provider limits requests. `Resume` later.",
  auth_error: "The provider refused the key. Set it, then `Resume`.",
  invalid_code: "No valid reward could be written; the events say why.",
  error: "An error ended it; the events say which. `Resume` tries again from there.",
};

interface Progress {
  status: string;
  phase: string;
  waiting: string;
  unchecked_words?: readonly string[];
}

export function nowAndNext({ status, phase, waiting, unchecked_words = [] }: Progress): string {
  if (waiting) return `Waiting: ${waiting}`;
  if (status === "queued" || status === "pending") return "Waiting for free resources.";
  if (phase === "ended" && status === "unverified")
    return `Every hard criterion is met, but none measures: ${unchecked_words.join(", ")}. Say it as something measurable in a new session, add a criterion and \`Resume\`, or watch the video and accept it with a score of your own.`;
  if (phase === "ended") return ENDED[status] ?? "";
  return NOW[phase] ?? "";
}
