"""Mirror self-play on a text game: `python examples/quickstart.py [MODEL]`.

With the embedded model it runs on a laptop. For a machine with GPUs put in larger sizes and names
such as Qwen/Qwen3-1.7B-Base and google/gemini-2.0-flash-lite-001; nothing else changes.
"""

import sys

import ray

import unstable
import unstable.reward_transformations as retra
from unstable.tiny import tiny_model

# The folder of a model, or its name on Hugging Face.
MODEL = sys.argv[1] if len(sys.argv) > 1 else tiny_model()
OPPONENT = "random-legal"  # or a model behind an OpenAI-compatible endpoint
UPDATES, BATCH, WORKERS, EVAL_WORKERS, MAX_TOKENS, MAX_LEN = 3, 64, 16, 4, 16, 2048

ray.init(namespace="unstable", include_dashboard=False)
gpus = int(ray.cluster_resources().get("GPU", 0))

tracker = unstable.Tracker.options(name="Tracker").remote(run_name="demo")

step_buffer = unstable.StepBuffer.options(name="StepBuffer").remote(
    max_buffer_size=2 * BATCH,
    tracker=tracker,
    final_reward_transformation=retra.ComposeFinalRewardTransforms(
        [retra.RoleAdvantageByEnvFormatter()]
    ),
    step_reward_transformation=retra.ComposeStepRewardTransforms(
        [retra.RewardForFormat(1.5), retra.PenaltyForInvalidMove(1.0, -1.0)]
    ),
    sampling_reward_transformation=retra.ComposeSamplingRewardTransforms(
        [retra.NormalizeRewardsByEnv(True)]
    ),
)

model_pool = unstable.ModelPool.options(name="ModelPool").remote(
    sample_mode="mirror", max_active_lora=3, tracker=tracker
)
ray.get(model_pool.add_checkpoint.remote(path=None, iteration=-1))  # the model as it is

lora_cfg = {
    "lora_rank": 32, "lora_alpha": 32, "lora_dropout": 0.0,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}  # fmt: skip
collector = unstable.Collector.options(name="Collector").remote(
    num_actors=max(1, gpus - 1),
    step_buffer=step_buffer,
    model_pool=model_pool,
    tracker=tracker,
    vllm_config={
        "model_name": MODEL,
        "max_parallel_seq": 128,
        "max_tokens": MAX_TOKENS,
        "max_loras": 5,
        "lora_config": lora_cfg,
        "max_model_len": MAX_LEN,
    },
    training_envs=[("SimpleTak-v0-train", 2, "qwen3-zs")],  # (env id, players, prompt template)
    evaluation_envs=[("SimpleTak-v0-train", 2, "qwen3-zs"), ("KuhnPoker-v0-train", 2, "qwen3-zs")],
    evaluation_opponent=OPPONENT,
)

learner = unstable.StandardLearner.options(num_gpus=min(1, gpus), name="Learner").remote(
    model_name=MODEL,
    step_buffer=step_buffer,
    model_pool=model_pool,
    tracker=tracker,
    algorithm=unstable.algorithms.Reinforce(),
    batch_size=BATCH,
    mini_batch_size=1,
    learning_rate=1e-5,
    grad_clip=0.2,
    lora_cfg=lora_cfg,
    activation_checkpointing=False,
    gradient_checkpointing=False,
    max_train_len=None,  # always train on the full sequence
    max_generation_len=MAX_TOKENS,  # important for Dr. GRPO
)

# Collection and training go on at the same time.
collector.collect.remote(num_workers=WORKERS, num_eval_workers=EVAL_WORKERS)
ray.get(learner.train.remote(UPDATES))  # total update steps
