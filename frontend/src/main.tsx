import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { lazy, StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { BrowserRouter, Link, Navigate, Route, Routes } from "react-router";
import { ApiError } from "./api/client";
import { Layout } from "./app/Layout";
import { ScrollMemory } from "./app/ScrollMemory";
import { applyTheme } from "./app/theme";
import { SessionsPage } from "./pages/SessionsPage";
import { Missing } from "./ui/basics";
import "./app/tokens.css";
import "./app/base.css";
import "./ui/ui.css";
import "./pages/pages.css";

// Charts and formulas come when a page needs them: the first view stays light.
const SessionPage = lazy(() => import("./pages/session/SessionPage"));
const LabelPage = lazy(() => import("./pages/session/LabelPage"));
const StartPage = lazy(() => import("./pages/start/StartPage"));
const MonitorPage = lazy(() => import("./pages/MonitorPage"));
const TrashPage = lazy(() => import("./pages/TrashPage"));
const BenchmarksPage = lazy(() => import("./pages/benchmark/BenchmarksPage"));
const BenchmarkPage = lazy(() => import("./pages/benchmark/BenchmarkPage"));
const CasePage = lazy(() => import("./pages/benchmark/CasePage"));
const SelfPlaysPage = lazy(() => import("./pages/selfplay/SelfPlaysPage"));
const SelfPlayPage = lazy(() => import("./pages/selfplay/SelfPlayPage"));
const ComparePage = lazy(() => import("./pages/compare/ComparePage"));
const JobPage = lazy(() => import("./pages/JobPage"));

const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 5000,
      retry: (count, error) => count < 2 && !(error instanceof ApiError && error.status !== 0 && error.status < 500),
    },
  },
});

applyTheme();
const root = document.getElementById("root");
if (root === null) throw new Error("index.html has no #root");
createRoot(root).render(
  <StrictMode>
    <QueryClientProvider client={client}>
      <BrowserRouter>
        <ScrollMemory />
        <Routes>
          <Route element={<Layout />}>
            <Route index element={<Navigate to="/e2e" replace />} />
            <Route path="e2e" element={<SessionsPage />} />
            <Route path="e2e/new" element={<StartPage />} />
            <Route path="e2e/:id" element={<SessionPage />} />
            <Route path="e2e/:id/label" element={<LabelPage />} />
            <Route path="compare" element={<ComparePage />} />
            <Route path="benchmark" element={<BenchmarksPage />} />
            <Route path="benchmark/:id" element={<BenchmarkPage />} />
            <Route path="benchmark/job/:id" element={<JobPage />} />
            <Route path="benchmark/job/:id/case/:number" element={<CasePage />} />
            <Route path="self-play" element={<SelfPlaysPage />} />
            <Route path="self-play/:id" element={<SelfPlayPage />} />
            <Route path="monitor" element={<MonitorPage />} />
            <Route path="trash" element={<TrashPage />} />
            <Route path="*" element={<Missing title="Page not found"><Link to="/e2e">All sessions</Link></Missing>} />
          </Route>
        </Routes>
      </BrowserRouter>
    </QueryClientProvider>
  </StrictMode>,
);
