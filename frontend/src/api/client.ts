/** Requests to the API; what goes wrong is an ApiError that says what failed. */
import { report } from "./connection";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** It was there, or never was: not a passing failure. */
export function isGone(error: Error | null): boolean {
  return error instanceof ApiError && error.status === 404;
}

export async function request(method: string, path: string, body?: unknown): Promise<Response> {
  const isFile = body instanceof Blob;
  let response: Response;
  try {
    response = await fetch(path, {
      method,
      headers: body === undefined ? {} : { "Content-Type": isFile ? "application/octet-stream" : "application/json" },
      body: body === undefined ? null : isFile ? body : JSON.stringify(body),
    });
  } catch {
    report("lost");
    throw new ApiError(0, "the server does not answer");
  }
  report(response.status === 401 ? "locked" : "open");
  if (!response.ok) throw new ApiError(response.status, await problem(response));
  return response;
}

async function problem(response: Response): Promise<string> {
  const said: unknown = await response.json().catch(() => null);
  const detail = said !== null && typeof said === "object" && "detail" in said ? said.detail : null;
  return typeof detail === "string" ? detail : `${response.status} ${response.statusText}`;
}

export async function get<T>(path: string): Promise<T> {
  return (await request("GET", path)).json() as Promise<T>;
}

export async function send<T>(method: "POST" | "PATCH" | "DELETE", path: string, body?: unknown): Promise<T> {
  return (await request(method, path, body)).json() as Promise<T>;
}

export interface Listed<T> {
  items: T[];
  total: number;
}

export async function list<T>(path: string): Promise<Listed<T>> {
  const response = await request("GET", path);
  const items = (await response.json()) as T[];
  return { items, total: Number(response.headers.get("X-Total-Count") ?? items.length) };
}
