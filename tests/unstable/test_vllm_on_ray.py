"""vLLM within a Ray actor, as a run on a cluster has it; runs where vLLM is: `make test-vllm`."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip(
        "vLLM is not installed; `make test-vllm` has an environment for it",
        allow_module_level=True,
    )

import ray
from small_qwen import byte_tokenizer, logprobs_of, save_adapter, small_qwen, with_adapter

import unstable

PROMPT = "your move?"
# vLLM's attention on a CPU wants heads of 32 or more.
SHAPE = {"hidden_size": 128, "head_dim": 32}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # At Ray's usual niceness, loading vLLM takes a quarter of an hour on a busy machine.
        patch.setenv("RAY_worker_niceness", "0")
        ray.init(
            "local", num_cpus=2, include_dashboard=False, namespace="unstable",
            log_to_driver=False, object_store_memory=100 * 1024 * 1024,
        )  # fmt: skip
        yield
        ray.shutdown()


def test_vllm_actor_fetches_adapters_from_pool(cluster: None, tmp_path: Path) -> None:
    qwen: Any = small_qwen(0, **SHAPE)
    model = tmp_path / "model"
    qwen.save_pretrained(model)
    byte_tokenizer().save_pretrained(model)
    adapter = save_adapter(tmp_path / "adapter", qwen, seed=1)
    adapted = with_adapter(qwen, adapter)
    pool = unstable.ModelPool.remote(sample_mode="mirror", max_active_lora=2)
    files = {path.name: path.read_bytes() for path in Path(adapter).iterdir()}
    ray.get(pool.add_checkpoint.remote(adapter, 1, files))
    shutil.rmtree(adapter)

    config = {
        "model_name": str(model), "engine": "vllm", "max_loras": 3, "max_tokens": 24,
        "max_parallel_seq": 8, "max_model_len": 200, "lora_config": {"lora_rank": 4},
    }  # fmt: skip
    actor = unstable.VLLMActor.remote(config, None, "actor-0", pool)
    assert ray.get(actor.ping.remote(), timeout=1200) == "actor-0"

    def asked(seed: int, path: str | None) -> Any:
        return actor.generate.remote(PROMPT, path, seed=seed, temperature=1.0, top_p=1.0)

    plain = ray.get([asked(seed, None) for seed in range(8)], timeout=300)
    tuned = ray.get([asked(seed, adapter) for seed in range(8)], timeout=300)
    again = ray.get([asked(seed, adapter) for seed in range(8)], timeout=300)
    assert [one.token_ids for one in again] == [one.token_ids for one in tuned]
    assert [one.token_ids for one in plain] != [one.token_ids for one in tuned]
    for network, answers in ((qwen, plain), (adapted, tuned)):
        for answer in answers:
            expected = logprobs_of(network, tuple(answer.prompt_ids), tuple(answer.token_ids))
            assert answer.logprobs == pytest.approx(expected, abs=1e-3)
    assert ray.get(actor.stats.remote())["tokens"] == sum(
        len(answer.token_ids) for answers in (plain, tuned, again) for answer in answers
    )
    ray.get(actor.close.remote(), timeout=120)
