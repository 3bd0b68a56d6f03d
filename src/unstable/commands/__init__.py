"""The subcommands of `unstable`, one module each."""
