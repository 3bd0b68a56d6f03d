"""The speed table of docs/speed.md, from results/ppo_throughput.json."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
ROWS = {
    "sb3_subproc": "Stable-Baselines3, SubprocVecEnv 8",
    "sb3_dummy": "Stable-Baselines3, DummyVecEnv 8",
    "sbx_dummy": "sbx (JAX), DummyVecEnv 8",
    "ours": "Prompt2Policy, one simulation thread",
    "ours_all_cores": "Prompt2Policy, one thread per core",
    "ceiling": "physics alone, C++, one thread",
}


def throughput_table() -> str:
    """Environment steps per CPU-second and per second, 64 x 64."""
    tables = json.loads((RESULTS / "ppo_throughput.json").read_text())["tables"]["64"]
    lines = ["| steps per CPU-second / per second | " + " | ".join(tables) + " |"]
    lines.append("|---|" + "---:|" * len(tables))
    for key, name in ROWS.items():
        cells = (
            f"{row[key]['per_cpu_s']:,.0f} / {row[key]['per_s']:,.0f}" for row in tables.values()
        )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(throughput_table())
