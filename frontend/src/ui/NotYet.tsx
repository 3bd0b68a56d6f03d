/** In place of a page whose subject is not here: it is on its way, or cannot be had. */
export function NotYet({ what, error }: { what: string; error: Error | null }) {
  if (error === null) return <p className="muted">Loading …</p>;
  return (
    <>
      <h1>{what}</h1>
      <div className="problem" role="alert">
        {error.message}
      </div>
    </>
  );
}
