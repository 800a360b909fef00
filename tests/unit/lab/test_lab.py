"""The lab's problems, mistakes, corpus and arms."""

import copy
import itertools
import random
from collections import Counter
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from recipe.lab.arms import ALGORITHMS, LIKE_SFT, UNTUNED, WITHOUT_CRITIC
from recipe.lab.base_model import IGNORED, REFINED, RIGHT_BEFORE_REFINING, Corpus, prompt_ids
from recipe.lab.mistakes import MISTAKES, NUM_MISTAKES, answer, draw_mistakes
from recipe.lab.problems import FAMILY_NAMES, lab_problems
from recipe.lab.rates import same_pairs, score
from recipe.lab.variants import vary
from recipe.online_refiner import schema
from recipe.online_refiner.rules import check
from recipe.online_refiner.rules.run import Run
from refiner_worker.config import TEMPLATES

EXPECTED_SAME = 0.01 * REFINED["same"] + RIGHT_BEFORE_REFINING * (1 - 0.01 * REFINED["same"] - 0.01 * REFINED["worse"])
"""A right answer is also repeated where it would be mended."""
CONFIG = str(Path(schema.__file__).parent / "config")


def test_held_out_problems_are_not_trained_on() -> None:
    problems = lab_problems()
    assert (len(problems.train), len(problems.held_out)) == (390, 78)
    questions = [problem.question for problem in [*problems.train, *problems.held_out]]
    assert len(set(questions)) == len(questions)
    assert {problem.family for problem in problems.held_out} == set(FAMILY_NAMES)
    assert lab_problems() == problems


def test_variants_are_right_and_many() -> None:
    rng = random.Random(0)
    problems = [problem for problem in lab_problems().held_out[::6] for _ in range(8)]
    programs = [vary(rng, problem.solution) for problem in problems]
    assert {reward for reward, _ in score(problems, list(map(answer, programs)))} == {1.0}
    for start in range(0, len(programs), 8):
        assert len(set(programs[start : start + 8])) > 1, programs[start]


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_get_their_rewards(name: str) -> None:
    rng, (make, reward) = random.Random(0), MISTAKES[name]
    problems = [problem for problem in lab_problems().held_out[::6] for _ in range(4)]
    programs = [(problem, vary(rng, problem.solution)) for problem in problems]
    spoilt = [(problem, text) for problem, program in programs if (text := make(rng, program)) != program]
    assert len(spoilt) > 0.4 * len(programs), "not every mistake fits into every program"
    scored = score([problem for problem, _ in spoilt], [answer(text) for _, text in spoilt])
    scores = [one for one, _ in scored]
    if reward == -1:
        assert set(scores) == {-1}
    assert sum(one == reward for one in scores) > 0.6 * len(scores), "a test may be passed by chance"


def test_each_answer_has_the_mistakes_of_the_one_before_and_one_more() -> None:
    rng, program = random.Random(0), lab_problems().train[0].solution
    lengths = Counter()
    for _ in range(300):
        (first, full), *rest = draw_mistakes(rng, program)
        lengths[len(rest)] += 1
        assert (first, full) == (program, 1.0)
        texts, rewards = [first, *(text for text, _ in rest)], [full, *(reward for _, reward in rest)]
        assert rewards == sorted(rewards, reverse=True)
        assert all(old != new for old, new in itertools.pairwise(texts))
    assert set(lengths) == set(NUM_MISTAKES) and lengths[1] > lengths[3]


def test_a_corpus_teaches_to_answer_and_to_refine() -> None:
    problems = lab_problems().train
    corpus = Corpus(problems, TEMPLATES / "apps.jinja", random.Random(0))
    tokenizer, ways = corpus.tokenizer, Counter()
    for _ in range(1200):
        example = corpus.draw()
        target = [token for token in example["labels"] if token != IGNORED]
        assert target[-1] == tokenizer.eos_token_id
        assert example["input_ids"][-len(target) :] == target
        prompt, program = (tokenizer.decode(ids) for ids in (example["input_ids"][: -len(target)], target[:-1]))
        if "of 1.00 points" in prompt:
            ways["same" if program in prompt else "other"] += 1
    assert ways["same"] / ways.total() == pytest.approx(EXPECTED_SAME, abs=0.06)
    assert max(len(prompt_ids(tokenizer, problem)) for problem in problems) <= 128  # experiment=lab


def test_pairs_of_the_same_refinement() -> None:
    assert same_pairs([("a", "x"), ("a", "x"), ("a", "y"), ("b", "x")]) == pytest.approx(1 / 3)
    assert same_pairs([("a", "x"), ("b", "x")]) is None


@pytest.mark.parametrize(
    ("experiment", "algorithm"), [*(("lab", algorithm) for algorithm in ALGORITHMS), ("lab_sums", "grpo")]
)
def test_every_arm_is_a_valid_config(experiment: str, algorithm: str) -> None:
    with initialize_config_dir(CONFIG, version_base=None):
        base = compose("online_refiner", overrides=[f"experiment={experiment}", *ALGORITHMS[algorithm]])
    parser, found, texts = OverridesParser.create(), {}, set()
    left_out = {*LIKE_SFT, *WITHOUT_CRITIC} if algorithm == "ppo" else set()
    every = {name: overrides for name, overrides in UNTUNED.items() if name not in left_out}
    for arm, overrides in every.items():
        config = copy.deepcopy(base)
        for override in parser.parse_overrides(list(overrides)):
            OmegaConf.update(config, override.key_or_group, override.value())
        found[arm] = schema.load(config)
        check(Run(config=config, blocks=found[arm]), "config")
        validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
        texts.add(OmegaConf.to_yaml(config))
        assert config.algorithm.adv_estimator == ("gae" if algorithm == "ppo" else "grpo")
    assert not found["none"].refines and found["sft"].refines
    assert len(texts) == len(found)
