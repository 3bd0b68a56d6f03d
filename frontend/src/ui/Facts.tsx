/** A few numbers with their names. */
export function Facts({ of }: { of: readonly (readonly [name: string, value: string])[] }) {
  return (
    <dl className="facts">
      {of.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
