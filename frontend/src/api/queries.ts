/** What the pages ask for, each with the name it is remembered by. */
import { queryOptions } from "@tanstack/react-query";
import { get, list } from "./client";
import type {
  AggregatedMetrics, EnvInfo, Iteration, JobDetail, JobSummary, NodeStatus, ProviderInfo, Resources,
  RunMetrics, SelfPlayRow, SelfPlayRun, SessionDetail, SessionEvent, SessionRow, TrashItem,
} from "./types";

const session = (id: string) => `/api/sessions/${encodeURIComponent(id)}`;
const FOR_THE_VISIT = { staleTime: Number.POSITIVE_INFINITY };
const LOOK_EVERY_MS = 2000;

export const sessionsQuery = (query: string) =>
  queryOptions({
    queryKey: ["sessions", query],
    queryFn: () => list<SessionRow>(`/api/sessions?${query}`),
    placeholderData: (before) => before,
  });

export const sessionQuery = (id: string) =>
  queryOptions({ queryKey: ["session", id], queryFn: () => get<SessionDetail>(session(id)) });

export const iterationsQuery = (id: string) =>
  queryOptions({
    queryKey: ["iterations", id],
    queryFn: () => get<Iteration[]>(`${session(id)}/loop-iterations`),
  });

/** Filled by the session's stream. */
export const eventsQuery = (id: string) =>
  queryOptions({ queryKey: ["events", id], queryFn: (): SessionEvent[] => [], ...FOR_THE_VISIT });

export const bandsQuery = (id: string, iteration: string, running: boolean) =>
  queryOptions({
    queryKey: ["bands", id, iteration],
    queryFn: () => get<AggregatedMetrics[]>(`${session(id)}/iterations/${iteration}/metrics`),
    refetchInterval: running ? LOOK_EVERY_MS : false,
  });

export const runMetricsQuery = (id: string, iteration: string, run: string, running: boolean) =>
  queryOptions({
    queryKey: ["run-metrics", id, iteration, run],
    queryFn: () => get<RunMetrics>(`${session(id)}/iterations/${iteration}/runs/${run}/metrics`),
    refetchInterval: running ? LOOK_EVERY_MS : false,
  });

export const envsQuery = queryOptions({
  queryKey: ["envs"],
  queryFn: () => get<EnvInfo[]>("/api/envs"),
  ...FOR_THE_VISIT,
});

export const providersQuery = queryOptions({
  queryKey: ["providers"],
  queryFn: () => get<ProviderInfo[]>("/api/providers"),
});

export const trashQuery = queryOptions({
  queryKey: ["trash"],
  queryFn: () => get<TrashItem[]>("/api/trash"),
});

export const resourcesQuery = queryOptions({
  queryKey: ["resources"],
  queryFn: () => get<Resources>("/api/resources/status"),
  refetchInterval: LOOK_EVERY_MS,
});

export const jobsQuery = queryOptions({
  queryKey: ["jobs"],
  queryFn: () => get<JobSummary[]>("/api/scheduler/jobs?limit=100"),
  refetchInterval: LOOK_EVERY_MS,
});

export const jobQuery = (id: string) =>
  queryOptions({
    queryKey: ["job", id],
    queryFn: () => get<JobDetail>(`/api/scheduler/jobs/${encodeURIComponent(id)}`),
    refetchInterval: LOOK_EVERY_MS,
  });

export const nodesQuery = queryOptions({
  queryKey: ["nodes"],
  queryFn: () => get<NodeStatus[]>("/api/scheduler/nodes"),
  refetchInterval: LOOK_EVERY_MS,
});

export const selfPlaysQuery = queryOptions({
  queryKey: ["self-plays"],
  queryFn: () => get<SelfPlayRow[]>("/api/selfplay"),
  refetchInterval: LOOK_EVERY_MS,
});

export const selfPlayQuery = (id: string) =>
  queryOptions({
    queryKey: ["self-play", id],
    queryFn: () => get<SelfPlayRun>(`/api/selfplay/${encodeURIComponent(id)}`),
    refetchInterval: LOOK_EVERY_MS,
  });

/** A game as the run has written it down; the API hands it on as it is. */
export interface Game {
  time: number;
  ckpt_uid: string;
  env_id: string;
  opponent: string;
  player_id: number;
  rewards: Record<string, number>;
  num_turns: number;
  reason: string;
  invalid: boolean;
}

export const gamesQuery = (id: string) =>
  queryOptions({
    queryKey: ["games", id],
    queryFn: () => get<Game[]>(`/api/selfplay/${encodeURIComponent(id)}/games?limit=50`),
  });
