"""Environments from model files: `--env my_robot.xml` (MJCF, URDF, compiled models, archives).

**Ids.** A path is an environment id where a person gives one: a command, the Python interface.
`adoption.adopt(path)` makes an id of it, `robots/NAME-DIGEST`, which is what configurations,
sessions and jobs hold. HTTP takes ids only.

**The record.** `RobotModel` (`record.py`) is all that was decided about the environment: actuators
added and the scale of every action, start pose, frame_skip, length of episodes, trunk, forward
axis, names of parts, what ends an episode, what is observed. It is inferred once, or read from
`NAME.toml` beside the model where that says so, and never again: DIGEST is that of the record and
of the files that the model consists of.

**Files.** In `P2P_MODELS_DIR`, each model has a folder NAME-DIGEST with

    source/       the model file and every file that it includes, under their paths
    record.json   the RobotModel
    model.mjb     the compiled model, for this version of MuJoCo
    facts.json    its EnvSpec, and what was seen of it (`ModelFacts`)

The first two are the model: a session's folder and a job carry them (`store.copy_into`), and
where they arrive `adoption.restore` makes the others anew.

**Trust.** A model file is foreign. Only `worker.py` reads it, in the sandbox, which sees the files
of the model's folder and nothing else; the parent reads JSON records, checked. Training, checks and
judges' episodes load the compiled model in the sandbox. What draws videos, ground truths of suites
and `make_env` load it outside.
"""
