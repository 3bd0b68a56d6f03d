import { useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import { request } from "../api/client";
import { useConnection } from "../api/connection";
import { PROBE } from "../api/live";

const TRY_EVERY_MS = 3000;

/** Says that the server is gone or does not know us, looks for it, and reloads what is shown. */
export function ConnectionNotice() {
  const connection = useConnection();
  const client = useQueryClient();
  useEffect(() => {
    if (connection !== "lost") return;
    const timer = setInterval(() => {
      request("GET", PROBE).then(() => client.invalidateQueries()).catch(() => undefined);
    }, TRY_EVERY_MS);
    return () => clearInterval(timer);
  }, [connection, client]);

  if (connection === "lost") {
    return (
      <div className="notice warn" role="status">
        The server does not answer. Sessions go on without it; this page comes back when it does. Start it with{" "}
        <code>p2p serve</code>.
      </div>
    );
  }
  if (connection === "locked") {
    return (
      <div className="notice warn" role="alert">
        <form method="get" className="row">
          <label htmlFor="token">
            The server does not know this browser: open the address that <code>p2p serve</code> has printed, or give
            its token.
          </label>
          <input id="token" name="token" type="password" autoComplete="off" required />
          <button type="submit" className="button primary">
            Enter
          </button>
        </form>
      </div>
    );
  }
  return null;
}
