import { PageHeading } from "../../ui/basics";
import { StartForm } from "./StartForm";

/** A new session, with all there is to set in view. */
export default function StartPage() {
  return (
    <>
      <PageHeading title="New session" />
      <StartForm unfolded />
      <p className="small-text muted">A session runs as a job on this machine; you can close this page.</p>
    </>
  );
}
