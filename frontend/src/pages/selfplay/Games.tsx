import { useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useSearchParams } from "react-router";
import { GAMES_AT_ONCE, gamesQuery } from "../../api/queries";
import type { GameKind, GameRow } from "../../api/types";
import { learner, outcome } from "../../lib/games";
import { Card } from "../../ui/Card";
import { Choice } from "../../ui/Choice";
import { Empty } from "../../ui/Empty";
import { Problem } from "../../ui/Problem";
import { Scroll } from "../../ui/Scroll";
import { GamePlay } from "./GamePlay";

const KINDS = [
  ["eval", "Evaluation"],
  ["train", "Training"],
] as const;
const TONES = { won: "good", drew: "", lost: "bad" } as const;

/** The games of a run; the one that is chosen can be stepped through. */
export function Games({ id }: { id: string }) {
  const [kind, setKind] = useState<GameKind>("eval");
  const [params, setParams] = useSearchParams();
  const { data, error, hasNextPage, fetchNextPage, isFetchingNextPage } = useInfiniteQuery(gamesQuery(id, kind));
  const games = data?.pages.flat() ?? [];
  const chosen = params.get("game") ?? games[0]?.id;
  return (
    <div className="columns wide-first">
      {chosen !== undefined && <GamePlay key={chosen} run={id} game={chosen} />}
      <Card title="Games" aside={<Choice label="Games of" options={KINDS} value={kind} onChange={setKind} />}>
        <Problem what="The games cannot be listed" error={error} />
        {data && games.length === 0 && (
          <Empty title={kind === "eval" ? "No evaluation games yet" : "No training games yet"}>The newest ones are kept, move by move.</Empty>
        )}
        {games.length > 0 && (
          <Scroll label="List of games" tall>
            <table>
              <thead>
                <tr>
                  <th>Game</th>
                  <th>Against</th>
                  <th>End</th>
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
            {GAMES_AT_ONCE} older games
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
