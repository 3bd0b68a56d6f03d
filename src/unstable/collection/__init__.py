"""How games are chosen, seated, played and handed on; `unstable.collector` puts it together."""
