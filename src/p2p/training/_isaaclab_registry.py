"""Isaac Lab's ids and hyperparameters, known without starting it.

`python scripts/engine_registry.py isaaclab` writes the list that this reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p2p.training.engines.table import EngineEnvironment, engine_environments

ENVIRONMENTS: Mapping[str, EngineEnvironment] = engine_environments("isaaclab")
"""By id, with what each needs: nothing, a download, Isaac Sim."""
PRESETS: Mapping[str, Mapping[str, Any]] = {
    env_id: environment.preset for env_id, environment in ENVIRONMENTS.items() if environment.preset
}
"""Isaac Lab's own settings of rsl_rl, as fields of TrainConfig."""
