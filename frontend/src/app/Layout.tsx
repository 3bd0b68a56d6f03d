import { Suspense } from "react";
import { Link, NavLink, Outlet } from "react-router";
import { ConnectionNotice } from "./ConnectionNotice";
import icon from "./icon.svg";
import { chooseTheme, useTheme } from "./theme";

const TABS = [
  ["/e2e", "E2E"],
  ["/benchmark", "Benchmark"],
  ["/self-play", "Self-play"],
  ["/monitor", "Monitor"],
  ["/trash", "Trash"],
] as const;

export function Layout() {
  const theme = useTheme();
  const other = theme === "dark" ? "light" : "dark";
  return (
    <>
      <a className="skip" href="#content">
        To the content
      </a>
      <header className="top">
        <Link to="/e2e" className="brand" aria-label="Prompt2Policy">
          <img src={icon} alt="" width={26} height={26} />
          <span>Prompt2Policy</span>
        </Link>
        <nav aria-label="Pages">
          {TABS.map(([to, name]) => (
            <NavLink key={to} to={to}>
              {name}
            </NavLink>
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
