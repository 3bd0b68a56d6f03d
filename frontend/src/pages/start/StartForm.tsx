import { useMutation } from "@tanstack/react-query";
import { type ReactNode, useId, useState } from "react";
import { useNavigate } from "react-router";
import { send } from "../../api/client";
import type { Criterion, Intent, StartRequest, StartResponse } from "../../api/types";
import { commandLine, optionsSet, parseSettings, tidy } from "../../lib/command";
import { Command, Problem, Unchecked } from "../../ui/basics";
import { Assumptions, CriteriaEditor } from "../Criteria";
import { EnvPicker, shortName } from "./environments";
import { AdvancedSettings, MainSettings } from "./settings";

/** All of them can be done without a language model, each in another environment but for the second. */
const EXAMPLES = ["run forward fast", "do a backflip", "hop forward", "spin counterclockwise in place", "swim forward", "balance the pole"];

const PANELS = ["environment", "criteria", "options", "command"] as const;
type Panel = (typeof PANELS)[number];

/** From a prompt to a session: the prompt and Start; everything else is folded away, or open from the start. */
export function StartForm({ unfolded = false }: { unfolded?: boolean }) {
  const navigate = useNavigate();
  const [request, setRequest] = useState<StartRequest>({ prompt: "" });
  const [settings, setSettings] = useState("");
  const [criteria, setCriteria] = useState<readonly Criterion[] | null>(null);
  const [open, setOpen] = useState<readonly Panel[]>(unfolded ? PANELS : []);
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
  const ready = !empty && !start.isPending && settingsError === null;
  const toggle = (panel: Panel) => setOpen((before) => (before.includes(panel) ? before.filter((each) => each !== panel) : [...before, panel]));
  const changed = optionsSet(wanted);
  const env = request.env_id ?? "";
  return (
    <form
      className="card start"
      aria-label="New session"
      onSubmit={(event) => {
        event.preventDefault();
        if (ready) start.mutate();
      }}
    >
      <div className="ask">
        <textarea
          rows={2}
          aria-label="Prompt"
          className="prompt"
          placeholder="Run forward fast, with the back straight"
          maxLength={4000}
          required
          value={request.prompt}
          onChange={(event) => change({ prompt: event.target.value })}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
            event.preventDefault();
            event.currentTarget.form?.requestSubmit();
          }}
        />
        <button type="submit" className="button primary large" disabled={!ready}>
          {start.isPending ? "Starting …" : "Start"}
        </button>
      </div>
      <div className="examples" role="group" aria-label="Example prompts">
        <span className="small-text muted" aria-hidden="true">
          Try
        </span>
        {EXAMPLES.map((prompt) => (
          <button key={prompt} type="button" className="example" onClick={() => change({ prompt })}>
            {prompt}
          </button>
        ))}
      </div>
      <Problem what="Could not start the session" error={start.error} />
      <div className="panels">
        <Panel
          title={`Environment: ${env ? shortName(env) : "automatic"}`}
          open={open.includes("environment")}
          onToggle={() => toggle("environment")}
        >
          <EnvPicker value={env} onChange={(envId) => change({ env_id: envId })} onPrompt={(prompt) => change({ prompt })} />
        </Panel>
        <Panel title={`Criteria: ${criteria === null ? "from the prompt" : criteria.length}`} open={open.includes("criteria")} onToggle={() => toggle("criteria")}>
          {criteria === null ? (
            <div className="row">
              <button type="button" className="button" disabled={empty || propose.isPending} onClick={() => propose.mutate()}>
                {propose.isPending ? "Proposing …" : "Propose criteria"}
              </button>
              <span className="small-text muted">Review and edit what will be measured; otherwise the criteria are written when the session starts.</span>
            </div>
          ) : (
            <CriteriaEditor criteria={criteria} onChange={setCriteria} onDrop={() => setCriteria(null)} />
          )}
          {criteria !== null && propose.data && (
            <>
              <Unchecked words={propose.data.unused_words} />
              <Assumptions texts={propose.data.assumptions} />
            </>
          )}
          <Problem what="Could not propose criteria" error={propose.error} />
        </Panel>
        <Panel title={`Options: ${changed === 0 ? "defaults" : `${changed} set`}`} open={open.includes("options")} onToggle={() => toggle("options")}>
          <MainSettings request={request} onChange={change} />
          <AdvancedSettings request={request} onChange={change} settings={settings} onSettings={setSettings} />
        </Panel>
        <Panel title="Command line" open={open.includes("command")} onToggle={() => toggle("command")}>
          <Command text={commandLine(empty ? { ...wanted, prompt: "run forward fast" } : wanted)} />
        </Panel>
      </div>
      <Problem what="Training settings" error={settingsError} />
    </form>
  );
}

interface PanelProps {
  title: string;
  open: boolean;
  onToggle: () => void;
  children: ReactNode;
}

/** A button in the row, and below the row what it unfolds. */
function Panel({ title, open, onToggle, children }: PanelProps) {
  const id = useId();
  return (
    <>
      <button type="button" className="panel-button" aria-expanded={open} aria-controls={id} onClick={onToggle}>
        {title}
      </button>
      <div id={id} className="panel" hidden={!open}>
        {open && children}
      </div>
    </>
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
