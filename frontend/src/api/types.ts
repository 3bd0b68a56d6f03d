/** The API's records, by their names there; schema.ts is generated from its OpenAPI document. */
import type { components } from "./schema";

type Schemas = components["schemas"];
/** An answer has every field; the document lists those with a computed default as optional. */
type Answer<T> = T extends object ? { [Name in keyof T]-?: Answer<T[Name]> } : T;

export type SessionRow = Answer<Schemas["SessionRow"]>;
export type SessionDetail = Answer<Schemas["SessionDetail"]>;
export type Iteration = Answer<Schemas["LoopIterationSummary"]>;
export type IterationRun = Answer<Schemas["IterationRunEntry"]>;
export type Criterion = Answer<Schemas["Criterion"]>;
export type CriterionScore = Answer<Schemas["CriterionScore"]>;
export type Lesson = Answer<Schemas["Lesson"]>;
export type LineageData = Answer<Schemas["LineageData"]>;
export type SessionEvent = Answer<Schemas["Event"]>;
export type Video = Answer<Schemas["Video"]>;
export type AggregatedMetrics = Answer<Schemas["AggregatedMetrics"]>;
export type EnvInfo = Answer<Schemas["EnvInfo"]>;
export type ProviderInfo = Answer<Schemas["ProviderInfo"]>;
export type Resources = Answer<Schemas["ResourceStatusResponse"]>;
export type TrashItem = Answer<Schemas["TrashItem"]>;
export type JobSummary = Answer<Schemas["JobSummary"]>;
export type JobDetail = Answer<Schemas["JobDetail"]>;
export type JobLog = Answer<Schemas["JobLog"]>;
export type NodeStatus = Answer<Schemas["NodeStatus"]>;
export type StartRequest = Partial<Schemas["StartSessionRequest"]> & { prompt: string };
export type StartResponse = Answer<Schemas["StartSessionResponse"]>;
export type SteerRequest = Partial<Schemas["SteerRequest"]>;
export type ResumeRequest = Partial<Schemas["ResumeRequest"]>;
export type Intent = Answer<Schemas["Intent"]>;
export type SelfPlayRow = Answer<Schemas["SelfPlayRow"]>;
export type SelfPlayRun = Answer<Schemas["View"]>;
export type BenchmarkRow = Answer<Schemas["BenchmarkRunSummary"]>;
export type Benchmark = Answer<Schemas["BenchmarkRunDetail"]>;
export type BenchmarkCase = Answer<Schemas["BenchmarkCase"]>;
export type BenchmarkOptions = Answer<Schemas["BenchmarkOptionsResponse"]>;
export type SuiteCase = Answer<Schemas["Case"]>;
export type Group = Answer<Schemas["Group"]>;
export type Rate = Answer<Schemas["Rate"]>;
export type StartBenchmarkRequest = Schemas["StartBenchmarkRequest"];
export type StartBenchmarkResponse = Answer<Schemas["StartBenchmarkResponse"]>;
export type BenchmarkPlan = Answer<Schemas["BenchmarkPlanResponse"]>;
export type GameRow = Answer<Schemas["GameRow"]>;
export type GamePlayer = Answer<Schemas["GamePlayer"]>;
export type GameMove = Answer<Schemas["GameMove"]>;
export type Game = Answer<Schemas["GameDetail"]>;
export type GameKind = GameRow["kind"];
