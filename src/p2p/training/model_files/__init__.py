"""Environments from model files: `--env my_robot.xml` (MJCF, URDF, compiled models, archives).

**Ids.** A path is an environment id wherever a person gives one (a command, the Python interface,
a suite of prompts): what `is_model_file` says yes to. `store.adopt(path)` makes an id of it,
`robots/NAME-DIGEST`, which is what configurations, sessions and jobs hold. HTTP takes ids only,
and files as uploads.

**The record.** `RobotModel` (`record.py`) is all that was decided about the environment: actuators
added and the scale of every action, start pose, frame_skip, length of episodes, trunk, forward
axis, names of parts, what ends an episode, what is observed. It is inferred once, or read from
`NAME.toml` beside the model where that says so, and never again: DIGEST is that of the record and
of the files that the model consists of.

**Files.** In `P2P_MODELS_DIR`, each model has a folder DIGEST-NAME with

    source/       the model file and every file that it includes, under their paths
    record.json   the RobotModel
    model.mjb     the compiled model, for this version of MuJoCo
    facts.json    its EnvSpec, and what was seen of it (`ModelFacts`)

The first two are the model: a session's folder and a job carry them (`store.copy_into`), and
where they arrive `store.restore` makes the others anew.

**Trust.** A model file is foreign. Only `worker.py` reads it, in the sandbox, which sees the files
of the model's folder and nothing else; the parent reads JSON records, checked. `ModelEnv` loads
the compiled model in sandboxed processes.
"""
