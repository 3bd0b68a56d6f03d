import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";
import { send } from "../api/client";
import type { Criterion, Intent, StartRequest, StartResponse } from "../api/types";
import { commandLine, parseSettings, tidy } from "../lib/command";
import { Card } from "../ui/Card";
import { Command } from "../ui/Command";
import { Problem } from "../ui/Problem";
import { CriteriaEditor } from "./CriteriaEditor";
import { EnvPicker } from "./start/EnvPicker";
import { AdvancedSettings, MainSettings } from "./start/MoreSettings";

/** From a sentence to a session. */
export default function StartPage() {
  const navigate = useNavigate();
  const [request, setRequest] = useState<StartRequest>({ prompt: "" });
  const [settings, setSettings] = useState("");
  const [criteria, setCriteria] = useState<readonly Criterion[] | null>(null);
  const change = (part: Partial<StartRequest>) => setRequest((before) => ({ ...before, ...part }));
  const [wanted, settingsError] = complete(request, criteria, settings);
  const propose = useMutation({
    mutationFn: () => send<Intent>("POST", "/api/criteria", tidy({ prompt: request.prompt, env_id: request.env_id ?? null, model: request.model ?? null })),
    onSuccess: (intent) => {
      setCriteria(intent.criteria);
      change({ env_id: intent.env_id });
    },
  });
  const start = useMutation({
    mutationFn: () => send<StartResponse>("POST", "/api/sessions", tidy(wanted)),
    onSuccess: ({ session_id }) => navigate(`/e2e/${session_id}`),
  });
  const empty = !request.prompt.trim();
  return (
    <form
      className="stack"
      onSubmit={(event) => {
        event.preventDefault();
        start.mutate();
      }}
    >
      <h1>New session</h1>
      <Card title="What should it do?">
        <textarea
          rows={2}
          aria-label="What should it do?"
          className="prompt"
          placeholder="Run forward fast, with the back straight"
          maxLength={4000}
          required
          value={request.prompt}
          onChange={(event) => change({ prompt: event.target.value })}
        />
        <EnvPicker value={request.env_id ?? ""} onChange={(envId) => change({ env_id: envId })} onSentence={(prompt) => change({ prompt })} />
      </Card>
      <Card title="How it is judged">
        {criteria === null ? (
          <div className="row">
            <button type="button" className="button" disabled={empty || propose.isPending} onClick={() => propose.mutate()}>
              {propose.isPending ? "Thinking …" : "Propose criteria"}
            </button>
            <span className="small-text muted">See and edit what will be measured; else it is decided when the session starts.</span>
          </div>
        ) : (
          <CriteriaEditor criteria={criteria} onChange={setCriteria} onDrop={() => setCriteria(null)} />
        )}
        {criteria !== null && propose.data && propose.data.unused_words.length > 0 && (
          <p className="small-text">
            <span className="badge warn">not covered</span> {propose.data.unused_words.join(", ")}
          </p>
        )}
        <Problem what="No criteria could be proposed" error={propose.error} />
      </Card>
      <Card title="Who thinks, and how long">
        <MainSettings request={request} onChange={change} />
        <AdvancedSettings request={request} onChange={change} settings={settings} onSettings={setSettings} />
        <Problem what="Fixed settings" error={settingsError} />
      </Card>
      <Card title="The same on a command line">
        <Command text={commandLine(empty ? { ...wanted, prompt: "run forward fast" } : wanted)} />
      </Card>
      <Problem what="The session was not started" error={start.error} />
      <div className="row">
        <button type="submit" className="button primary large" disabled={empty || start.isPending || settingsError !== null}>
          {start.isPending ? "Starting …" : "Start"}
        </button>
        <span className="small-text muted">It runs as a job of this machine and goes on when this page is closed.</span>
      </div>
    </form>
  );
}

/** The whole request, or what is wrong with its settings. */
function complete(request: StartRequest, criteria: readonly Criterion[] | null, settings: string): [StartRequest, Error | null] {
  const withCriteria = criteria === null ? request : { ...request, criteria: [...criteria] };
  try {
    return [settings.trim() ? { ...withCriteria, settings: parseSettings(settings) } : withCriteria, null];
  } catch (error) {
    return [withCriteria, error as Error];
  }
}
