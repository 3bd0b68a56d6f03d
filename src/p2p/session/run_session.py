"""The program `python -m p2p.session.run_session`, and the public place of what it does."""

from p2p.session.start import create_session, open_config, run, start_session

__all__ = ["create_session", "open_config", "run", "start_session"]

if __name__ == "__main__":
    from p2p.commands.run import run_program

    run_program()
