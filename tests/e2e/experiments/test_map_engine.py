"""An update of the map's small world against the product's actor on verl's FSDP engine.

That has a Llama of transformers with the same weights, and gets the batch that the world's own actor gets.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from fsdp_update import learn_each
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.map import arms, bases
from experiments.map.model import EPSILON, HEADS, HIDDEN, INTERMEDIATE, LAYERS, ROPE_BASE, Model, hugging_face_state
from experiments.map.step import Learner
from experiments.map.tasks import BLANK, EOS, LONGEST, VOCABULARY, questions
from recipe.smoke.letters import tiny_tokenizer

ARMS = ("kl_in_loss", "sft")
RATE = 0.1
PLAIN = {"optimizer": "SGD", "override_optimizer_config": {"momentum": 0}}
"""Plain gradient steps: Adam's first ones go by the sign of a gradient, even of one that is all rounding."""


def begun(name: str) -> Learner:
    """Return a run of an arm."""
    torch.manual_seed(0)
    weights = Model(VOCABULARY, LONGEST).state_dict()
    config = arms.config_of(arms.ARMS[name].overrides(0.1), RATE)
    with open_dict(config):
        config.actor_rollout_ref.actor.optim.update(PLAIN)
    return Learner(config=config, weights=weights, seed=1, num_steps=1)


def updated(run: Learner) -> tuple[TensorDict, dict[str, torch.Tensor]]:
    """Do a step with answers of all kinds, and return what the actor was given and the weights after it."""
    rng, given = np.random.default_rng(3), []
    asked = questions("policy", 8, rng)
    sessions = [(group, session) for group in range(8) for session in range(8)]
    rows = run.rewarded(asked, sessions, [bases.attempt(asked[group], rng) for group, _ in sessions])
    run.answers = lambda chosen: [[*row.question.solution, EOS] for row in chosen]  # type: ignore[method-assign]
    run.refine(rows)
    update = run.actor.update_actor

    def seen(data: TensorDict) -> Any:
        given.append(data.copy())
        return update(data)

    run.actor.update_actor = seen  # type: ignore[method-assign]
    run.update(rows)
    return given[0], hugging_face_state(run.policy)


def begun_in(folder: Path, name: str) -> tuple[DictConfig, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Write an arm's model and batch to a folder, and return the actor's config and the weights around the update."""
    run = begun(name)
    sizes = {"num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS, "vocab_size": VOCABULARY}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": ROPE_BASE}}
    config = LlamaConfig(**sizes, **heads, **rope, rms_norm_eps=EPSILON, tie_word_embeddings=False)
    llama = LlamaForCausalLM(config)
    before = hugging_face_state(run.policy)
    llama.load_state_dict(before)
    llama.save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(BLANK)  # transformers lets its embedding learn nothing
    tokenizer.save_pretrained(folder)
    batch, ours = updated(run)
    actor = run.config.actor_rollout_ref
    actor.model.path, actor.rollout.log_prob_micro_batch_size_per_gpu = str(folder), 64
    torch.save(batch, folder / "batch.pt")
    return actor, before, ours


def test_the_engine_learns_as_verls_does(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ARMS}
    runs = {name: begun_in(folder, name) for name, folder in folders.items()}
    given = [(runs[name][0], folder) for name, folder in folders.items()]
    torch.multiprocessing.start_processes(learn_each, (given,), 1, start_method="spawn")
    for name, (_, before, ours) in runs.items():
        verls = torch.load(folders[name] / "learnt.pt")
        assert min((ours[key] - before[key]).abs().max().item() for key in ours) > 1e-4, f"{name}: each weight learnt"
        assert max((ours[key] - verls[key]).abs().max().item() for key in ours) < 1e-5, name
