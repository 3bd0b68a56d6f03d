/** What failed, in the words of whoever knows. */
export function Problem({ what, error }: { what: string; error: Error | null }) {
  if (error === null) return null;
  return (
    <div className="problem" role="alert">
      <strong>{what}:</strong> {error.message}
    </div>
  );
}
