import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { type KeyboardEvent, useEffect, useRef, useState } from "react";
import { useSearchParams } from "react-router";
import { gameQuery, GAMES_AT_ONCE, gamesQuery } from "../../api/queries";
import type { Game, GameKind, GameMove, GameRow } from "../../api/types";
import { around, learner, outcome, stepTo } from "../../lib/games";
import { Card, Empty, Problem, Scroll } from "../../ui/basics";
import { Choice } from "../../ui/fields";

const KINDS = [
  ["eval", "Evaluation"],
  ["train", "Training"],
] as const;
const TONES = { won: "good", drew: "", lost: "bad" } as const;

/** The games of a run; the one that is chosen can be stepped through. */
export function Games({ id, running }: { id: string; running: boolean }) {
  const [kind, setKind] = useState<GameKind>("eval");
  const [params, setParams] = useSearchParams();
  const { data, error, hasNextPage, fetchNextPage, isFetchingNextPage } = useInfiniteQuery(gamesQuery(id, kind, running));
  const games = data?.pages.flat() ?? [];
  // New games come to the top; the one that is being looked at stays.
  const [first, setFirst] = useState<string>();
  if (first === undefined && games[0]) setFirst(games[0].id);
  const chosen = params.get("game") ?? first;
  return (
    <div className="columns wide-first">
      {chosen !== undefined && <GamePlay key={chosen} run={id} game={chosen} />}
      <Card title="Games" aside={<Choice label="Kind of games" options={KINDS} value={kind} onChange={(chosenKind) => {
        setKind(chosenKind);
        setFirst(undefined);
      }} />}>
        <Problem what="Could not load the games" error={error} />
        {data && games.length === 0 && (
          <Empty title={kind === "eval" ? "No evaluation games yet" : "No training games yet"}>The newest games are kept, move by move.</Empty>
        )}
        {games.length > 0 && (
          <Scroll label="List of games" tall>
            <table>
              <thead>
                <tr>
                  <th>Game</th>
                  <th>Against</th>
                  <th>Result</th>
                  <th className="numeric">Moves</th>
                </tr>
              </thead>
              <tbody>
                {games.map((game) => (
                  <tr key={game.id} aria-current={game.id === chosen}>
                    <td>
                      <button type="button" className="link nowrap" onClick={() => setParams({ game: game.id }, { replace: true })}>
                        {game.id}
                      </button>
                      <div className="small-text muted nowrap">update {game.step}</div>
                    </td>
                    <td>{against(game)}</td>
                    <td>
                      <Ended game={game} />
                    </td>
                    <td className="numeric">{game.turns}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Scroll>
        )}
        {hasNextPage && (
          <button type="button" className="button" disabled={isFetchingNextPage} onClick={() => void fetchNextPage()}>
            Load {GAMES_AT_ONCE} older games
          </button>
        )}
      </Card>
    </div>
  );
}

function against(game: GameRow): string {
  const me = learner(game);
  return game.players.filter((player) => player !== me).map((player) => player.uid).join(", ");
}

export function Ended({ game }: { game: GameRow }) {
  const ended = outcome(game);
  return (
    <span className="row">
      {ended && <span className={`badge ${TONES[ended]}`}>{ended}</span>}
      {game.illegal > 0 && <span className="badge warn">illegal</span>}
    </span>
  );
}

/** One game, move by move: with the buttons, the list, or the arrow keys. */
export function GamePlay({ run, game: id }: { run: string; game: string }) {
  const { data: game, error } = useQuery(gameQuery(run, id));
  if (!game) {
    return (
      <Card title={id}>
        {error ? <Problem what="Could not load the game" error={error} /> : <p className="muted">Loading …</p>}
      </Card>
    );
  }
  return (
    <Card title={`${game.env_id}, ${game.id}`} aside={<Ended game={game} />}>
      <p className="small-text muted">
        {game.players.map((player) => `player ${player.seat}: ${player.uid}${player.learner ? " (learner)" : ""}`).join(" · ")} · update {game.step} · {game.reason}
      </p>
      {game.moves.length === 0 ? <p className="muted">The game ended before the first move.</p> : <Stepper game={game} />}
    </Card>
  );
}

function Stepper({ game }: { game: Game }) {
  const [at, setAt] = useState(0);
  const last = game.moves.length - 1;
  const move = game.moves[at];
  function onKeyDown(event: KeyboardEvent<HTMLDivElement>): void {
    const next = stepTo(event.key, at, last);
    if (next === null) return;
    event.preventDefault();
    setAt(next);
  }
  return (
    <div className="stepper" role="group" aria-label="Moves; the arrow keys step through them" tabIndex={0} onKeyDown={onKeyDown}>
      <div className="row spread">
        <div className="row">
          <Step title="First" to={0} at={at} last={last} onStep={setAt} />
          <Step title="← Back" to={at - 1} at={at} last={last} onStep={setAt} />
          <Step title="Next →" to={at + 1} at={at} last={last} onStep={setAt} primary />
          <Step title="Last" to={last} at={at} last={last} onStep={setAt} />
        </div>
        <span className="small-text muted" aria-live="polite">
          move {at + 1} of {last + 1}
        </span>
      </div>
      <div className="game-view">
        {move && <Move move={move} name={nameOf(game, move.seat)} />}
        <MoveList game={game} at={at} onChoose={setAt} />
      </div>
    </div>
  );
}

interface StepProps {
  title: string;
  to: number;
  at: number;
  last: number;
  onStep: (to: number) => void;
  primary?: boolean;
}

/** Never disabled, only without effect: a disabled button would swallow the arrow keys. */
function Step({ title, to, at, last, onStep, primary = false }: StepProps) {
  const leads = to !== at && to >= 0 && to <= last;
  return (
    <button type="button" className={primary ? "button primary" : "button"} aria-disabled={!leads} onClick={() => leads && onStep(to)}>
      {title}
    </button>
  );
}

function Move({ move, name }: { move: GameMove; name: string }) {
  const parts = around(move.answer, move.action);
  return (
    <div className="stack">
      <p className="row">
        <b>
          Player {move.seat}: {name}
        </b>
        {move.opening && <span className="badge">random opening</span>}
        {!move.legal && <span className="badge bad">illegal</span>}
      </p>
      {move.board && <Text label="Board after the move" text={move.board} />}
      <Text label="Observation" text={move.observation} />
      {!move.opening && (
        <figure className="game-text">
          <figcaption className="small-text muted">Response; the parsed action is marked</figcaption>
          <pre className="code" tabIndex={0} role="group" aria-label="Response">
            {parts ? (
              <>
                {parts[0]}
                <mark className={move.legal ? "" : "bad"}>{parts[1]}</mark>
                {parts[2]}
              </>
            ) : (
              move.answer || "(empty)"
            )}
          </pre>
        </figure>
      )}
      <p className="small-text">
        Parsed action: <code>{move.action || "none"}</code>
        {!move.legal && ", which is illegal"}
      </p>
    </div>
  );
}

function Text({ label, text }: { label: string; text: string }) {
  return (
    <figure className="game-text">
      <figcaption className="small-text muted">{label}</figcaption>
      <pre className="code" tabIndex={0} role="group" aria-label={label}>
        {text}
      </pre>
    </figure>
  );
}

function MoveList({ game, at, onChoose }: { game: Game; at: number; onChoose: (at: number) => void }) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const [list, item] = [box.current, box.current?.querySelector<HTMLElement>('[aria-current="true"]')];
    if (list && item) list.scrollTop = item.offsetTop - list.clientHeight / 2;
  }, [at]);
  return (
    <div className="moves" ref={box} tabIndex={0} role="group" aria-label="All moves">
      <ol>
        {game.moves.map((move, index) => (
          <li key={index}>
            <button type="button" tabIndex={-1} aria-current={index === at} onClick={() => onChoose(index)}>
              <span className="muted">{index + 1}</span>
              <span className="mono clamp-1">{move.action || "(none)"}</span>
              <span className={`small-text ${move.legal ? "muted" : "illegal"}`}>{move.legal ? `player ${move.seat}` : "illegal"}</span>
            </button>
          </li>
        ))}
      </ol>
    </div>
  );
}

function nameOf(game: Game, seat: number): string {
  return game.players.find((player) => player.seat === seat)?.uid ?? "";
}
