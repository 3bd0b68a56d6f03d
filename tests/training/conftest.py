import os

# As a run's sandbox sets them, for the tests that train in this process.
os.environ.setdefault("NPROC", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
