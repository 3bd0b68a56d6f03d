import { Link } from "react-router";

export function Missing() {
  return (
    <div className="empty">
      <h1>There is nothing at this address</h1>
      <Link to="/e2e">All sessions</Link>
    </div>
  );
}
