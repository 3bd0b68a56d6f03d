/** What the pages ask for, each with the name it is remembered by. */
import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { get, list } from "./client";
import type {
  AggregatedMetrics, Benchmark, BenchmarkCase, BenchmarkOptions, BenchmarkRow, EnvInfo, Game, GameKind, GameRow, Iteration, JobDetail, JobLog, JobSummary, Labels, NodeStatus, ProviderInfo, Resources, ResourceSample, RunHyperparameters,
  SelfPlayOptions, SelfPlayRow, SelfPlayRun, SessionDetail, SessionEvent, SessionRow, TrashItem, TunableSetting,
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

/** The hyperparameters that feedback may set. */
export const settingsQuery = (id: string) =>
  queryOptions({ queryKey: ["session", id, "settings"], queryFn: () => get<TunableSetting[]>(`${session(id)}/settings`) });

export const labelsQuery = (id: string, annotator: string) =>
  queryOptions({
    queryKey: ["labels", id, annotator],
    queryFn: () => get<Labels>(`${session(id)}/labels?annotator=${encodeURIComponent(annotator.trim())}`),
    placeholderData: (before) => before,
  });

const EVENTS_AT_ONCE = 1000;

/** Fetches only the events that are not there yet. */
export const eventsQuery = (id: string) =>
  queryOptions({
    queryKey: ["events", id],
    queryFn: async ({ client, queryKey }) => {
      const events = [...(client.getQueryData<SessionEvent[]>(queryKey) ?? [])];
      for (;;) {
        const page = await get<SessionEvent[]>(`${session(id)}/events?after=${events.at(-1)?.seq ?? 0}&limit=${EVENTS_AT_ONCE}`);
        events.push(...page);
        if (page.length < EVENTS_AT_ONCE) return events;
      }
    },
  });

export const bandsQuery = (id: string, iteration: string, axis: "steps" | "time" = "steps") =>
  queryOptions({
    queryKey: ["bands", id, iteration, axis],
    queryFn: () => get<AggregatedMetrics[]>(`${session(id)}/iterations/${iteration}/metrics?axis=${axis}`),
  });

export const hyperparametersQuery = (id: string) =>
  queryOptions({
    queryKey: ["hyperparameters", id],
    queryFn: () => get<RunHyperparameters[]>(`${session(id)}/hyperparameters`),
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

export const resourceHistoryQuery = queryOptions({
  queryKey: ["resources", "history"],
  queryFn: () => get<ResourceSample[]>("/api/resources/history"),
  refetchInterval: 5000,
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

/** What a run has printed last; once more when it has ended, for its last words. */
export const jobLogQuery = (id: string, run: JobDetail["runs"][number], open: boolean) =>
  queryOptions({
    queryKey: ["job-log", id, run.run_id, run.attempt, open],
    queryFn: () => get<JobLog>(`/api/scheduler/jobs/${encodeURIComponent(id)}/runs/${encodeURIComponent(run.run_id)}/log`),
    placeholderData: (before: JobLog | undefined) => (before?.run_id === run.run_id && before.attempt === run.attempt ? before : undefined),
    refetchInterval: open ? LOOK_EVERY_MS : false,
  });

export const nodesQuery = queryOptions({
  queryKey: ["nodes"],
  queryFn: () => get<NodeStatus[]>("/api/scheduler/nodes"),
  refetchInterval: LOOK_EVERY_MS,
});

const benchmark = (id: string) => `/api/benchmarks/${encodeURIComponent(id)}`;

export const benchmarksQuery = queryOptions({
  queryKey: ["benchmarks"],
  queryFn: () => get<BenchmarkRow[]>("/api/benchmarks"),
});

export const benchmarkOptionsQuery = queryOptions({
  queryKey: ["benchmark-options"],
  queryFn: () => get<BenchmarkOptions>("/api/benchmarks/options"),
  ...FOR_THE_VISIT,
});

export const benchmarkQuery = (id: string) =>
  queryOptions({ queryKey: ["benchmark", id], queryFn: () => get<Benchmark>(benchmark(id)) });

export const benchmarkCasesQuery = (id: string) =>
  queryOptions({
    queryKey: ["benchmark", id, "cases"],
    queryFn: () => get<BenchmarkCase[]>(`${benchmark(id)}/cases`),
  });

export const selfPlaysQuery = queryOptions({
  queryKey: ["self-plays"],
  queryFn: () => get<SelfPlayRow[]>("/api/selfplay"),
  refetchInterval: LOOK_EVERY_MS,
});

export const selfPlayOptionsQuery = queryOptions({
  queryKey: ["self-play-options"],
  queryFn: () => get<SelfPlayOptions>("/api/selfplay/options"),
  ...FOR_THE_VISIT,
});

export const selfPlayQuery = (id: string) =>
  queryOptions({
    queryKey: ["self-play", id],
    queryFn: () => get<SelfPlayRun>(`/api/selfplay/${encodeURIComponent(id)}`),
    refetchInterval: LOOK_EVERY_MS,
  });

export const GAMES_AT_ONCE = 50;
const LOOK_AT_GAMES_EVERY_MS = 5000;

export const gamesQuery = (id: string, kind: GameKind, running: boolean) =>
  infiniteQueryOptions({
    refetchInterval: running && LOOK_AT_GAMES_EVERY_MS,
    queryKey: ["games", id, kind],
    queryFn: ({ pageParam }) => {
      const query = new URLSearchParams({ kind, limit: String(GAMES_AT_ONCE), ...(pageParam ? { older_than: pageParam } : {}) });
      return get<GameRow[]>(`/api/selfplay/${encodeURIComponent(id)}/games?${query.toString()}`);
    },
    initialPageParam: "",
    getNextPageParam: (page) => (page.length === GAMES_AT_ONCE ? page.at(-1)?.id : undefined),
  });

export const gameQuery = (id: string, game: string) =>
  queryOptions({
    queryKey: ["game", id, game],
    queryFn: () => get<Game>(`/api/selfplay/${encodeURIComponent(id)}/games/${encodeURIComponent(game)}`),
    ...FOR_THE_VISIT,
  });
