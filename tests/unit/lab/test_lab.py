"""The lab's problems, mistakes, corpus and arms."""

import copy
import random
from collections import Counter
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from recipe.lab.arms import ALGORITHMS, ARMS
from recipe.lab.base_model import IGNORED, SOLVED, Corpus, prompt_ids
from recipe.lab.mistakes import MISTAKES, answer
from recipe.lab.problems import FAMILY_NAMES, lab_problems
from recipe.lab.rates import score
from recipe.online_refiner import schema
from refiner_worker.config import TEMPLATES

CONFIG = str(Path(schema.__file__).parent / "config")


def test_held_out_problems_are_not_trained_on() -> None:
    problems = lab_problems()
    assert (len(problems.train), len(problems.held_out)) == (300, 60)
    questions = [problem.question for problem in [*problems.train, *problems.held_out]]
    assert len(set(questions)) == len(questions)
    assert {problem.family for problem in problems.held_out} == set(FAMILY_NAMES)
    assert lab_problems() == problems


def test_mistakes_get_their_rewards() -> None:
    rng = random.Random(0)
    problems = lab_problems().held_out[::6]
    assert set(score(problems, [answer(problem.solution) for problem in problems])) == {1.0}
    for name, (make, reward) in MISTAKES.items():
        scores = score(problems, [answer(make(rng, problem.solution)) for problem in problems])
        assert max(scores) < 1.0, name
        if reward < -0.3:
            assert set(scores) == {reward}, name
        else:
            assert min(scores) == reward, name


def test_a_corpus_teaches_to_answer_and_to_refine() -> None:
    problems = lab_problems().train
    corpus = Corpus(problems, TEMPLATES / "apps.jinja", random.Random(0))
    tokenizer, solutions = corpus.tokenizer, {answer(problem.solution) for problem in problems}
    right: dict[bool, Counter[bool]] = {True: Counter(), False: Counter()}
    for _ in range(600):
        example = corpus.draw()
        target = [token for token in example["labels"] if token != IGNORED]
        assert target[-1] == tokenizer.eos_token_id
        assert example["input_ids"][-len(target) :] == target
        as_refiner = "of 1.00 points" in tokenizer.decode(example["input_ids"])
        right[as_refiner][tokenizer.decode(target[:-1]) in solutions] += 1
    assert right[True].keys() == {True}
    assert right[False][True] / right[False].total() == pytest.approx(SOLVED, abs=0.08)
    assert max(len(prompt_ids(tokenizer, problem)) for problem in problems) <= 128  # experiment=lab


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_arm_is_a_valid_config(algorithm: str) -> None:
    with initialize_config_dir(CONFIG, version_base=None):
        base = compose("online_refiner", overrides=["experiment=lab", *ALGORITHMS[algorithm]])  # takes a second
    parser, found = OverridesParser.create(), {}
    for arm, overrides in ARMS.items():
        config = copy.deepcopy(base)
        for override in parser.parse_overrides(list(overrides)):
            OmegaConf.update(config, override.key_or_group, override.value())
        found[arm] = schema.load(config)
        assert config.algorithm.adv_estimator == {"dapo": "grpo", "ppo": "gae"}[algorithm]
    assert not found["none"].refines and found["penalty"].refines
    assert len({(block.constraint.mode, block.constraint.eta) for block in found.values()}) == 7
