"""Where jobs run: a store, a scheduler, and backends for this machine and others."""
