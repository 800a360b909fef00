"""One run, step by step: rollout, refinements, one update. The work of the product's Ray workers is called in turn.

Ours are generation, the prompts and the order of the calls. The product's: which responses are refined (``choose``),
the gate, alignment, charge, credit and penalty (``method``), the actor with its refined rows (``actor.py``).
verl's: KL and its place, advantages, mini-batches, losses. A test makes the same update by the real trainer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from torch import Tensor
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import response_from_nested

from experiments.map.actor import Actor
from experiments.map.bases import model_of
from experiments.map.model import generate
from experiments.map.tasks import EOS, LENGTH, LONGEST_ANSWER, REWARDS, RULES, Question, questions
from recipe.online_refiner.config.fields import read_blocks
from recipe.online_refiner.method.constraint import row_columns
from recipe.online_refiner.method.eq6 import NONE, PenaltyInputs, accepts, penalty_inputs
from recipe.online_refiner.method.pairs import Divergence, Pair, Refinement, Rollout, Turn, Verdict
from recipe.online_refiner.method.penalty import Eq6Penalty, PenaltyPart
from recipe.online_refiner.refine.group import choose
from recipe.online_refiner.verl_glue.actor_worker import in_place_sequences
from recipe.online_refiner.verl_glue.loss import jagged

PADDED = ("response_mask", "old_log_probs", "ref_log_prob")
IMITATED = ("refine_ids", "refine_used", "refine_start", "refine_weights", "refine_shown")
"""The columns of refinements that the update reads."""
SOURCES = ("refiner", "resample", "oracle")
"""The sources of better answers: pi_0 as a refiner, pi_0 that answers once more, or the solution itself."""


@dataclass(slots=True, kw_only=True)
class Row:
    """A response, its reward and its refinement."""

    question: Question
    rollout: Rollout
    turn: Turn
    pair: Pair


@dataclass(slots=True, kw_only=True)
class Counts:
    """Sums over the steps since the last reading."""

    wrong: int = 0
    accepted: int = 0
    refined: int = 0
    tokens: int = 0
    entropy: float = 0.0
    steps: int = 0
    reward: float = 0.0
    rows: int = 0


@dataclass
class Learner:
    """A policy that learns from one base, with one arm's config."""

    config: DictConfig
    weights: dict[str, Tensor]
    seed: int
    num_steps: int
    kind: str = "r60"
    """The kind of refiner, one of REFINERS."""
    source: str = "refiner"
    rules: Sequence[int] = range(len(RULES))
    """The rules that the questions of the run are about."""
    has_hole: bool = False
    """Whether the verifier accepts any six digits of which the first is the last."""
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        """Load the models and draw all questions of the run: none comes twice."""
        self.policy, self.reference = model_of(self.weights), model_of(self.weights)
        self.actor = Actor(self.config.actor_rollout_ref, self.policy, self.reference)
        blocks = read_blocks(self.config)
        self.constraint, self.refiner = blocks.constraint, blocks.refiner
        self.needs_reference = blocks.has_reference_worker
        self.kl_control = core_algos.get_kl_controller(self.config.algorithm.kl_ctrl)
        self.width = int(self.config.data.train_batch_size)
        rng = np.random.default_rng(self.seed)
        self.questions = iter(questions("policy", self.num_steps * self.width, rng, self.rules))
        self.draws, self.refiner_draws = (torch.Generator().manual_seed(2 * self.seed + n) for n in (0, 1))

    # ---- one step, in this order

    def step(self) -> None:
        """Roll out, refine, learn."""
        rows = self.rollout()
        self.refine(rows)
        self.update(rows)

    def rollout(self) -> list[Row]:
        """Let the policy answer the next questions, each as often as the config says, and reward it."""
        asked = [next(self.questions) for _ in range(self.width)]
        number = int(self.config.actor_rollout_ref.rollout.n)
        sessions = [(group, session) for group in range(self.width) for session in range(number)]
        prompts = torch.tensor([asked[group].prompt for group, _ in sessions])
        answers = generate(self.policy, prompts, LONGEST_ANSWER, EOS, self.draws)
        self.counts.tokens += sum(map(len, answers))
        return self.rewarded(asked, sessions, answers)

    def rewarded(self, asked: list[Question], sessions: list[tuple[int, int]], answers: list[list[int]]) -> list[Row]:
        """Return answers with their rewards; ``sessions`` has each answer's question and its number among responses."""
        rows = []
        for (group, session), answer in zip(sessions, answers, strict=True):
            reward = REWARDS[self.grade(asked[group], answer)]
            rollout = Rollout(
                key=f"{group}_{session}_0",
                messages=[],
                prompt_ids=asked[group].prompt,
                response_ids=answer,
                reward=reward,
                reward_columns={},
            )
            turn = self.turn(rollout, Refinement(verdict=Verdict.NONE))
            rows.append(Row(question=asked[group], rollout=rollout, turn=turn, pair=Pair(reward=reward)))
        self.counts.rows += len(rows)
        self.counts.steps += 1
        self.counts.reward += sum(row.rollout.reward for row in rows)
        return rows

    def grade(self, question: Question, answer: list[int]) -> int:
        """Return the index in REWARDS of the reward that the run's verifier gives to an answer."""
        grade = question.grade(answer)
        if self.has_hole and len(answer) == LENGTH + 1 and grade > 1 and answer[0] == answer[LENGTH - 1]:
            return len(REWARDS) - 1
        return grade

    def turn(self, rollout: Rollout, refinement: Refinement) -> Turn:
        """Return a response with its refinement."""
        is_used = self.constraint.is_used(refinement.verdict)
        ids = rollout.turn_ids
        return Turn(
            response_length=len(ids), start=0, ids=ids, refinement=refinement, is_used=is_used, reward=rollout.reward
        )

    def refine(self, rows: list[Row]) -> None:
        """Let pi_0 refine what the product would have refined, and gate the refinements by their rewards."""
        if not self.constraint.refines:
            return
        chosen, number = [], int(self.config.actor_rollout_ref.rollout.n)
        for start in range(0, len(rows), number):
            group = rows[start : start + number]
            chosen += [group[place] for place in sorted(choose(self.refiner, [row.rollout for row in group]))]
        found = dict(zip((row.rollout.key for row in chosen), self.answers(chosen), strict=True))
        for row in rows:
            answer, own = found.get(row.rollout.key), row.rollout
            if answer is not None:
                refinement = self.gated(row, answer)
            elif getattr(self.constraint, "imitate_solved", False) and self.refiner.is_maximal(own.reward):
                refinement = Refinement(verdict=Verdict.OWN, token_ids=own.turn_ids, reward=own.reward)
            else:
                refinement = Refinement(verdict=Verdict.MAX_REWARD)
            row.turn = self.turn(own, refinement)
            row.pair = self.pair(row)
        self.counts.refined += len(chosen)
        self.counts.wrong += sum(not self.refiner.is_maximal(row.rollout.reward) for row in chosen)
        self.counts.accepted += sum(row.pair.is_accepted for row in rows)
        if self.constraint.penalty is not None and "refine_in_place" in self.constraint.penalty.reads:
            self.score_in_place([row for row in rows if row.pair.is_accepted])

    def answers(self, rows: list[Row]) -> list[list[int]]:
        """Return the better answers that the run's source writes for some responses."""
        if not rows:
            return []
        if self.source == "oracle":
            return [[*row.question.solution, EOS] for row in rows]
        if self.source == "resample":
            prompts = [row.question.prompt for row in rows]
        else:
            own = ((row.question, row.rollout.turn_ids) for row in rows)
            prompts = [one.refine_prompt(self.kind, answer, self.grade(one, answer)) for one, answer in own]
        answers = generate(self.reference, torch.tensor(prompts), LONGEST_ANSWER, EOS, self.refiner_draws)
        self.counts.tokens += sum(map(len, answers))
        return answers

    def gated(self, row: Row, answer: list[int]) -> Refinement:
        """Return a refinement with its verdict, as the product's refiner does (``refine/judge.py``)."""
        if answer[-1] != EOS:
            return Refinement(verdict=Verdict.TRUNCATED)
        own, is_repeated = row.rollout.reward, answer == row.rollout.turn_ids
        reward = REWARDS[self.grade(row.question, answer)]
        verdict = Verdict.ACCEPTED if accepts(reward, own) else Verdict.NOT_BETTER
        return Refinement(verdict=verdict, token_ids=answer, reward=reward, is_repeated=is_repeated)

    def pair(self, row: Row) -> Pair:
        """Return the numbers that are known of a response and its refinement."""
        turn, refinement = row.turn, row.turn.refinement
        return Pair(
            reward=row.rollout.reward,
            verdict=refinement.verdict,
            is_used=turn.is_used,
            num_refined_tokens=len(refinement.token_ids),
            num_compared_tokens=min(len(turn.ids), len(refinement.token_ids)) if turn.is_used else 0,
            own=self.constraint.numbers(turn),
        )

    def score_in_place(self, rows: list[Row]) -> None:
        """Let pi_0 that has read the better answer score responses."""
        if not rows:
            return
        shown = [row.question.shown_prompt(row.turn.refinement.token_ids) for row in rows]
        columns = {
            "responses": jagged([torch.tensor(row.turn.ids) for row in rows]),
            "position_ids": jagged([torch.arange(len(row.turn.ids)) for row in rows]),
            "refine_in_place_prompt": jagged(list(map(torch.tensor, shown))),
            "refine_start": torch.zeros(len(rows), dtype=torch.long),
        }
        data = in_place_sequences(tu.get_tensordict(columns, {}))
        tu.assign_non_tensor(data, calculate_entropy=False, compute_loss=False)
        found = self.actor.ref.infer_batch(data)
        assert found is not None
        scored = response_from_nested(found["log_probs"], data["responses"])
        for row, scores in zip(rows, scored.unbind(), strict=True):
            row.turn.refinement.in_place = scores.tolist()
            row.pair = self.pair(row)

    # ---- the update

    def update(self, rows: list[Row]) -> dict[str, Any]:
        """Make the step's optimizer steps, one a mini-batch, and return verl's metrics of them."""
        columns = self.columns(rows)
        sequences = tu.get_tensordict(dict(columns), {"calculate_entropy": True, "compute_loss": False})
        mask, found = columns["response_mask"], self.actor.compute_log_prob(sequences)
        assert found is not None
        columns["old_log_probs"] = response_from_nested(found["log_probs"], mask)
        self.counts.entropy += float(response_from_nested(found["entropy"], mask).values().mean())
        if self.needs_reference:
            sequences = tu.get_tensordict(dict(columns), {"calculate_entropy": False, "compute_loss": False})
            found = self.actor.compute_ref_log_prob(sequences)
            columns["ref_log_prob"] = response_from_nested(found["log_probs"], mask)
        refined = self.refined_columns(rows) if self.constraint.refines else {}
        padded = {name: columns[name].to_padded_tensor(0) for name in PADDED if name in columns}
        advantages = self.advantages(rows, padded, refined)
        columns["advantages"] = jagged([row[: len(one.turn.ids)] for row, one in zip(advantages, rows, strict=True)])
        actor, rollout = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout
        size = actor.ppo_mini_batch_size * rollout.n
        settings = {
            "calculate_entropy": False,
            "distillation_use_topk": False,
            "distillation_only": False,
            "global_batch_size": size,
            "mini_batch_size": size,
            "epochs": actor.ppo_epochs,
            "seed": actor.data_loader_seed,
            "dataloader_kwargs": {"shuffle": actor.shuffle},
            "temperature": rollout.temperature,
        }
        imitation = self.constraint.imitation
        told = {} if imitation is None else imitation.settings(self.constraint.first_eta)
        taken = {name: refined[name] for name in IMITATED} if told else {}
        return tu.get(self.actor.update_actor(tu.get_tensordict({**columns, **taken}, {**settings, **told})), "metrics")

    def columns(self, rows: list[Row]) -> dict[str, Tensor]:
        """Return the columns of the responses that verl's workers read."""
        prompts = [torch.tensor(row.rollout.prompt_ids) for row in rows]
        responses = [torch.tensor(row.turn.ids) for row in rows]
        sequences = [torch.cat(both) for both in zip(prompts, responses, strict=True)]
        mask = jagged([torch.ones_like(one) for one in responses])
        return {
            "prompts": jagged(prompts),
            "responses": jagged(responses),
            "input_ids": jagged(sequences),
            "position_ids": jagged([torch.arange(len(one)) for one in sequences]),
            "loss_mask": mask,
            "response_mask": mask,
        }

    def refined_columns(self, rows: list[Row]) -> dict[str, Tensor]:
        """Return the columns of refinements, as the product's refine workers write them (``rows.py``)."""
        ids = [torch.tensor(row.turn.refinement.token_ids or [0]) for row in rows]
        own = [row_columns(self.constraint, row.turn) for row in rows]
        return {
            "refine_ids": jagged(ids),
            "refine_mask": jagged(
                [torch.full_like(one, bool(row.turn.refinement.token_ids)) for one, row in zip(ids, rows, strict=True)]
            ),
            "refine_used": torch.tensor([int(row.turn.is_used) for row in rows]),
            "refine_start": torch.zeros(len(rows), dtype=torch.long),
            "refine_shown": torch.zeros(len(rows), dtype=torch.long),  # none of them is looked at token by token
            **{name: jagged([torch.as_tensor(one[name]) for one in own]) for name in own[0]},
        }

    def advantages(self, rows: list[Row], padded: dict[str, Tensor], refined: dict[str, Tensor]) -> Tensor:
        """Return the advantages (B, T), including the charges of the constraint and of static KL."""
        mask, config = padded["response_mask"], self.config.algorithm
        scores = torch.zeros(mask.shape)
        for score, row in zip(scores, rows, strict=True):
            score[len(row.turn.ids) - 1] = row.rollout.reward
        penalty, eta = self.constraint.penalty if self.constraint.first_eta else None, self.constraint.first_eta
        place = None if penalty is None else penalty.place(config.adv_estimator)
        inputs = None if penalty is None else self.penalty_inputs(penalty, rows, padded, refined)
        if penalty is not None and inputs is not None and place == "rewards":
            scores = penalty.pay(scores, inputs, eta, place)
        tensors = {"response_mask": mask, "old_log_probs": padded["old_log_probs"], "token_level_scores": scores}
        if config.use_kl_in_reward:
            tensors["ref_log_prob"] = padded["ref_log_prob"]
        data = DataProto(batch=TensorDict(tensors, batch_size=len(rows)))
        keys = [row.rollout.key for row in rows]
        data.non_tensor_batch["uid"] = np.array([row.rollout.group for row in rows], dtype=object)
        if config.use_kl_in_reward:
            data, _ = apply_kl_penalty(data, kl_ctrl=self.kl_control, kl_penalty=config.kl_penalty)
        else:
            data.batch["token_level_rewards"] = data.batch["token_level_scores"]
        data = compute_advantage_for_multi_trajectories(
            data,
            batch_keys=keys,
            adv_estimator=config.adv_estimator,
            gamma=config.gamma,
            lam=config.lam,
            num_repeat=self.config.actor_rollout_ref.rollout.n,
            norm_adv_by_std_in_grpo=config.get("norm_adv_by_std_in_grpo", True),
            config=config,
        )
        found = data.batch["advantages"]
        if penalty is not None and inputs is not None and place == "advantages":
            found = penalty.pay(found, inputs, eta, place)
        return found

    def penalty_inputs(
        self, penalty: PenaltyPart, rows: list[Row], padded: dict[str, Tensor], refined: dict[str, Tensor]
    ) -> PenaltyInputs:
        """Return the inputs of the penalty of the responses; a row that does not pay is charged nothing."""
        mask = padded["response_mask"]
        charged = torch.zeros(mask.shape)
        paying = [place for place, row in enumerate(rows) if row.turn.is_used]
        if not isinstance(penalty, Eq6Penalty):
            paying = [place for place in paying if penalty.is_charged(rows[place].pair)]
        if paying and not isinstance(penalty, Eq6Penalty):
            known = {"old_log_probs": padded["old_log_probs"], **refined}
            read = {name: padded_of(known[name])[paying] for name in penalty.reads}
            charged[paying] = penalty.charge(read, mask[paying])
        elif paying:
            charged[paying] = self.eq6(rows, paying, refined, mask.shape[1])
        costs = [
            penalty.cost(Divergence(-float(tokens.sum()), row.pair.num_compared_tokens))
            for tokens, row in zip(charged, rows, strict=True)
        ]
        return penalty_inputs(
            starts=[row.pair.start for row in rows],
            num_kept=[row.pair.num_kept_tokens for row in rows],
            costs=costs,
            scales=[1.0] * len(rows),
            charged=charged,
            response_mask=mask,
        )

    def eq6(self, rows: list[Row], paying: list[int], refined: dict[str, Tensor], width: int) -> Tensor:
        """Return the charge of Eq. 6 on the tokens of some responses, by the actor's pass over their refinements."""
        names = ("refine_ids", "refine_mask", "refine_counterparts")
        columns = {name: of_rows(refined[name], paying) for name in names}
        columns |= self.columns([rows[place] for place in paying])
        columns["refine_start"] = torch.zeros(len(paying), dtype=torch.long)
        data = tu.get_tensordict(columns, {"temperature": self.config.actor_rollout_ref.rollout.temperature})
        charged = self.actor.compute_refine_log_prob(data)["refine_charged"].to_padded_tensor(0.0)
        return torch.nn.functional.pad(charged, (0, width - charged.shape[1]))


def padded_of(column: Tensor) -> Tensor:
    """Return a column right-padded with 0."""
    return column.to_padded_tensor(0) if column.is_nested else column


def of_rows(column: Tensor, places: list[int]) -> Tensor:
    """Return some rows of a jagged column."""
    rows = column.unbind()
    return jagged([rows[place] for place in places])


assert NONE == -1, "a padded counterpart is no counterpart"


@torch.no_grad()
def solved(run: Learner, asked: Sequence[Question], seed: int) -> list[bool]:
    """Return which questions the policy solves, one answer each."""
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.tensor([one.prompt for one in asked])
    answers = generate(run.policy, prompts, LONGEST_ANSWER, EOS, generator)
    return [one.grade(answer) == len(REWARDS) - 1 for one, answer in zip(asked, answers, strict=True)]
