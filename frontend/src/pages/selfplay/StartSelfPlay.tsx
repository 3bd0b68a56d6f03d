import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";
import { send } from "../../api/client";
import { selfPlayOptionsQuery } from "../../api/queries";
import type { StartSelfPlayRequest, StartSelfPlayResponse } from "../../api/types";
import { gameTitle, groupedGames } from "../../lib/games";
import { filled, selfPlayCommand } from "../../lib/jobs";
import { Card, Command, Problem } from "../../ui/basics";
import { NumberField } from "../../ui/fields";
import { Placement } from "../Scheduler";

/** Games, opponents, updates: a self-play run, started as a job. */
export function StartSelfPlay() {
  const navigate = useNavigate();
  const { data: options, error } = useQuery(selfPlayOptionsQuery);
  const [form, setForm] = useState<Partial<StartSelfPlayRequest>>({ model: "tiny" });
  const change = (part: Partial<StartSelfPlayRequest>) => setForm((before) => ({ ...before, ...part }));
  const start = useMutation({
    mutationFn: () => send<StartSelfPlayResponse>("POST", "/api/selfplay", filled(form)),
    onSuccess: ({ run_id }) => navigate(`/self-play/${encodeURIComponent(run_id)}`),
  });
  if (!options) return error ? <Problem what="Could not load the games" error={error} /> : <p className="muted">Loading the games …</p>;
  const { games, variants } = groupedGames(options.games);
  const chooseGame = { chosen: form.games ?? [], onChange: (chosen: string[]) => change({ games: chosen }) };
  return (
    <Card title="Start a run">
      {options.missing && (
        <p className="small-text" role="status">
          <span className="badge warn">not installed</span> {options.missing}
        </p>
      )}
      <form
        className="stack"
        hidden={options.missing !== ""}
        onSubmit={(event) => {
          event.preventDefault();
          start.mutate();
        }}
      >
        <Chips title="Games" none="TicTacToe, the recipe's" options={games} {...chooseGame} />
        <details>
          <summary>Variants: other sizes and lengths of these games</summary>
          <Chips title="Variants" none="none" options={variants} {...chooseGame} />
        </details>
        <Chips title="Measured against" none="random-legal" options={options.opponents} chosen={form.opponents ?? []} onChange={(opponents) => change({ opponents })} />
        <div className="fields">
          <label className="field">
            Model
            <input list="selfplay-models" required value={form.model ?? ""} onChange={(event) => change({ model: event.target.value })} />
            <small>tiny: the embedded one, for a CPU core; else a Hugging Face id</small>
            <datalist id="selfplay-models">
              {options.models.map((name) => (
                <option key={name} value={name} />
              ))}
            </datalist>
          </label>
          <NumberField label="Updates" placeholder="the recipe's" min={1} value={form.updates} onChange={(updates) => change({ updates })} />
          <NumberField label="Seed" placeholder="0" min={0} value={form.seed} onChange={(seed) => change({ seed })} />
          <NumberField label="Cores to reserve" placeholder="1" min={1} value={form.cores} onChange={(cores) => change({ cores: cores ?? Number.NaN })} />
          <NumberField label="GPUs to reserve" placeholder="0" min={0} value={form.gpus} onChange={(gpus) => change({ gpus: gpus ?? Number.NaN })} />
        </div>
        <Placement nodes={form.nodes ?? []} onNodes={(nodes) => change({ nodes })} />
        <Command text={selfPlayCommand(form)} />
        <Problem what="Could not start the run" error={start.error} />
        <div className="row">
          <button type="submit" className="button primary" disabled={start.isPending}>
            {start.isPending ? "Checking …" : "Start"}
          </button>
          <span className="small-text muted">The configuration is checked first. You can close this page then.</span>
        </div>
      </form>
    </Card>
  );
}

interface ChipsProps {
  title: string;
  none: string;
  options: readonly string[];
  chosen: readonly string[];
  onChange: (chosen: string[]) => void;
}

function Chips({ title, none, options, chosen, onChange }: ChipsProps) {
  const count = options.filter((name) => chosen.includes(name)).length;
  return (
    <fieldset className="chips">
      <legend>
        {title} <span className="muted">{count === 0 ? none : `${count} chosen`}</span>
      </legend>
      {options.map((name) => (
        <label key={name} className="chip">
          <input type="checkbox" checked={chosen.includes(name)} onChange={(event) => onChange(event.target.checked ? [...chosen, name] : chosen.filter((each) => each !== name))} />
          {gameTitle(name)}
        </label>
      ))}
    </fieldset>
  );
}
