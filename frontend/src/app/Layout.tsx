import { useQueryClient } from "@tanstack/react-query";
import { Suspense, useEffect } from "react";
import { Link, Outlet, useLocation } from "react-router";
import { request } from "../api/client";
import { useConnection } from "../api/connection";
import { PROBE } from "../api/live";
import icon from "./icon.svg";
import { chooseTheme, useTheme } from "./theme";

/** The four places: where each begins, and the other addresses that belong to it. */
const TABS = [
  ["/e2e", "Sessions", /^\/(e2e|compare|trash)/],
  ["/monitor", "Jobs & nodes", /^\/(monitor|benchmark\/job\/[^/]+$)/],
  ["/benchmark", "Benchmarks", /^\/benchmark(?!\/job\/[^/]+$)/],
  ["/self-play", "Self-play", /^\/self-play/],
] as const;

export function Layout() {
  const theme = useTheme();
  const { pathname } = useLocation();
  const other = theme === "dark" ? "light" : "dark";
  return (
    <>
      <a className="skip" href="#content">
        Skip to content
      </a>
      <header className="top">
        <Link to="/e2e" className="brand" aria-label="Prompt2Policy">
          <img src={icon} alt="" width={26} height={26} />
          <span>Prompt2Policy</span>
        </Link>
        <nav aria-label="Pages">
          {TABS.map(([to, name, own]) => (
            <Link key={to} to={to} aria-current={own.test(pathname) ? "page" : undefined}>
              {name}
            </Link>
          ))}
        </nav>
        <button
          type="button"
          className="icon-button"
          aria-label={`Use the ${other} theme`}
          title={`Use the ${other} theme`}
          onClick={() => chooseTheme(other)}
        >
          {theme === "dark" ? "☀" : "☾"}
        </button>
      </header>
      <ConnectionNotice />
      <main id="content" tabIndex={-1}>
        <Suspense fallback={<p className="muted">Loading …</p>}>
          <Outlet />
        </Suspense>
      </main>
    </>
  );
}

const TRY_EVERY_MS = 3000;

/** Says that the server is gone or does not know this browser, tries again, and reloads the page's data. */
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
        The server is not responding. Sessions keep running without it, and this page reconnects by itself. Start it with{" "}
        <code>p2p serve</code>.
      </div>
    );
  }
  if (connection === "locked") {
    return (
      <div className="notice warn" role="alert">
        <form method="get" className="row">
          <label htmlFor="token">
            Not signed in to this server: open the address that <code>p2p serve</code> printed, or enter its token.
          </label>
          <input id="token" name="token" type="password" autoComplete="off" required />
          <button type="submit" className="button primary">
            Sign in
          </button>
        </form>
      </div>
    );
  }
  return null;
}
