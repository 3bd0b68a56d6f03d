import { Link } from "react-router";
import { Empty } from "../ui/Empty";

export function Missing() {
  return (
    <Empty title="There is nothing at this address">
      <Link to="/e2e">All sessions</Link>
    </Empty>
  );
}
