import { useQuery } from "@tanstack/react-query";
import { gamesQuery } from "../../api/queries";
import { Card } from "../../ui/Card";
import { Problem } from "../../ui/Problem";

/** The latest game as it was played, and how the latest evaluation games ended. */
export function Games({ id, latest }: { id: string; latest: string }) {
  const { data, error } = useQuery(gamesQuery(id));
  if (!latest && !data?.length) return null;
  return (
    <Card title="Games">
      {latest && (
        <pre className="code game" tabIndex={0} role="group" aria-label="The latest game">
          {latest}
        </pre>
      )}
      <Problem what="The games cannot be listed" error={error} />
      {data && data.length > 0 && (
        <div className="scroll tall">
          <table>
            <thead>
              <tr>
                <th>Game</th>
                <th>Against</th>
                <th>Seat</th>
                <th className="numeric">Reward</th>
                <th className="numeric">Turns</th>
                <th>End</th>
              </tr>
            </thead>
            <tbody>
              {data.map((game, index) => (
                <tr key={index}>
                  <td>{game.env_id}</td>
                  <td>{game.opponent}</td>
                  <td>{game.player_id}</td>
                  <td className="numeric">{game.rewards[String(game.player_id)] ?? "–"}</td>
                  <td className="numeric">{game.num_turns}</td>
                  <td className="muted">{game.reason}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Card>
  );
}
