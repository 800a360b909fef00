"""Worlds small enough to enumerate: every response is known with its probability, reward and refinement.

So an expected update is a sum, and the gradient of the objective that it stands for comes from autograd. The update
goes through the functions of a real step: alignment, charge, credit, refined rows, and the loss of the actor.
"""

import itertools
import random
from dataclasses import dataclass
from functools import partial

import torch
from soft import TOP_K
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

from recipe.online_refiner.method import eq6
from recipe.online_refiner.method.constraint import Constraint, row_columns
from recipe.online_refiner.method.in_place import InPlacePenalty
from recipe.online_refiner.method.modes import read_constraint
from recipe.online_refiner.method.pairs import Divergence, Refinement, Turn, Verdict
from recipe.online_refiner.verl_glue.loss import append_refined_rows, jagged, refined_loss
from refiner_worker.engines import ABSENT, Top

EOS, NUM_TOKENS, MAX_LENGTH, NUM_FEATURES = 0, 4, 4, 12
PROMPT = [1]
Response = tuple[int, ...]
WORDS = [word for n in range(MAX_LENGTH + 1) for word in itertools.product(range(1, NUM_TOKENS), repeat=n)]
RESPONSES: list[Response] = [word if len(word) == MAX_LENGTH else (*word, EOS) for word in WORDS]
"""All of them: ended by EOS, or cut at the longest length."""
LENGTHS = torch.tensor([len(response) for response in RESPONSES])
MASK = (torch.arange(MAX_LENGTH) < LENGTHS[:, None]).long()
IDS = torch.tensor([(*response, *[EOS] * (MAX_LENGTH - len(response))) for response in RESPONSES])
STATES = sorted({response[:t] for response in RESPONSES for t in range(len(response))})
STATE_OF = torch.tensor([[STATES.index(r[: min(t, len(r) - 1)]) for t in range(MAX_LENGTH)] for r in RESPONSES])


def constraint(mode: str, **settings: object) -> Constraint:
    """Return the block ``constraint`` with its defaults except for the mode and some keys."""
    return read_constraint({"mode": mode, **settings})


@dataclass(slots=True, kw_only=True)
class World:
    """A task, a refiner and a policy: pi(a_t | a_<t) = softmax(features of a_<t times parameters)."""

    rewards: list[float]  # -1 for the empty answer; else -0.3 + 1.3 times the share of places with the solution's token
    refined: list[int]  # for each response the index of its refinement: one mistake less, another response, or the same
    features: Tensor  # (states, NUM_FEATURES)
    parameters: Tensor  # (NUM_FEATURES, NUM_TOKENS) of the first policy

    @property
    def accepted(self) -> list[bool]:
        """The reward gate."""
        return [eq6.accepts(self.rewards[one], own) for one, own in zip(self.refined, self.rewards, strict=True)]

    def log_probs(self, parameters: Tensor) -> Tensor:
        """Return log pi(a_t | a_<t) of every response, (B, MAX_LENGTH), 0 after its end."""
        table = (self.features @ parameters).log_softmax(-1)
        return table[STATE_OF].gather(-1, IDS[..., None])[..., 0] * MASK

    def divergence(self, parameters: Tensor, alignment: str = "position") -> Tensor:
        """Return E[D] of Eq. 6, with its whole gradient, by a plain sum."""
        log_probs, total = self.log_probs(parameters), torch.zeros(())
        rows = zip(RESPONSES, log_probs.sum(-1).exp(), self.refined, self.accepted, strict=True)
        for response, chance, answer, keep in rows:
            for counterpart in eq6.ALIGNMENTS[alignment](response, RESPONSES[answer]) if keep else []:
                if counterpart >= 0:
                    total = total - chance * log_probs[answer, counterpart]
        return total

    def reference_log_probs(self) -> Tensor:
        """Return log pi_0(a_t | c, a_<t) of every response, (B, MAX_LENGTH): of the first policy that has read a'.

        Half of it is the first policy, half is sure of the token that a' has at this place.
        """
        known = (IDS[self.refined] == IDS).float()
        return (0.5 * known + 0.5 * self.log_probs(self.parameters).exp()).log() * MASK

    def in_place_loss(self, parameters: Tensor) -> Tensor:
        """Return half the mean square of log pi_theta - log pi_0 over the tokens of accepted responses.

        Who draws the responses, and what pi_0 has read, is held fixed.
        """
        log_probs = self.log_probs(parameters)
        chances = log_probs.detach().sum(-1).exp() * torch.tensor(self.accepted)
        return 0.5 * chances @ ((log_probs - self.reference_log_probs()) ** 2).sum(-1)

    def top(self) -> list[Top]:
        """Return pi_0's two likeliest tokens at each token of every response but its last, when pi_0 writes it.

        Half of it is the first policy, half is sure of the token that is there.
        """
        table = (self.features @ self.parameters).softmax(-1)[STATE_OF]
        values, ids = (0.5 * torch.nn.functional.one_hot(IDS, NUM_TOKENS) + 0.5 * table).log().topk(2)
        rows = zip(ids.int().numpy(), values.numpy(), LENGTHS - 1, strict=True)
        return [(row[:length], log_probs[:length]) for row, log_probs, length in rows]

    def soft_loss(self, parameters: Tensor) -> Tensor:
        """Return the mean cross-entropy of a' against pi_0's two likeliest tokens at each of its tokens.

        The written token has what is left of 1; at the end of a' it has all. Who draws the responses is held fixed.
        """
        table, top, total = (self.features @ parameters).log_softmax(-1), self.top(), torch.zeros(())
        chances = self.log_probs(parameters).detach().sum(-1).exp()
        for chance, answer, keep in zip(chances, self.refined, self.accepted, strict=True):
            for place, token in enumerate(RESPONSES[answer] if keep else ()):
                target, (ids, log_probs) = torch.zeros(NUM_TOKENS), top[answer]
                if place < len(ids):
                    target[torch.tensor(ids[place]).long()] = torch.tensor(log_probs[place]).exp()
                target[token] += 1 - target.sum()
                total = total - chance * target @ table[STATE_OF[answer, place]]
        return total

    def reward(self, parameters: Tensor) -> Tensor:
        """Return E[r]."""
        return self.log_probs(parameters).sum(-1).exp() @ torch.tensor(self.rewards)


def make_world(seed: int, *, improves: float = 0.5, worsens: float = 0.2) -> World:
    """Draw a world; its refiner fixes one mistake or writes anything with these probabilities, else it repeats.

    The refiner cannot improve the empty answer.
    """
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    solution = (*rng.choices(range(1, NUM_TOKENS), k=MAX_LENGTH - 1), EOS)
    ended, refined = [response for response in RESPONSES if response[-1] == EOS], []
    for response in RESPONSES:
        draw, answer = rng.random(), response
        if draw < improves and len(response) > 1 and response != solution:
            padded = (*response, *[EOS] * (MAX_LENGTH - len(response)))
            place = next(t for t in range(MAX_LENGTH) if padded[t] != solution[t])
            mended = (*padded[:place], solution[place], *padded[place + 1 :])
            answer = (*itertools.takewhile(lambda token: token != EOS, mended[:-1]), EOS)
        elif draw > 1 - worsens:
            answer = rng.choice(ended)
        refined.append(RESPONSES.index(answer))
    right = (torch.tensor(solution) == IDS).float() * MASK
    shares = (right.sum(-1) / MAX_LENGTH).tolist()
    rewards = [-1.0 if len(one) == 1 else -0.3 + 1.3 * share for one, share in zip(RESPONSES, shares, strict=True)]
    features = torch.randn(len(STATES), NUM_FEATURES, generator=generator)
    parameters = torch.randn(NUM_FEATURES, NUM_TOKENS, generator=generator) / NUM_FEATURES**0.5
    return World(rewards=rewards, refined=refined, features=features, parameters=parameters)


def advantages(world: World, constraint: Constraint, log_probs: Tensor, *, eta: float, is_rewarded: bool) -> Tensor:
    """Return the advantages of all responses, (B, MAX_LENGTH): of the constraint alone, or with the reward's.

    The reward is normalised by its mean and deviation under the policy, as in one large group.
    """
    columns, penalty = [row_columns(constraint, turn) for turn in turns(world)], constraint.penalty
    charged = torch.zeros_like(log_probs)
    if isinstance(penalty, InPlacePenalty):
        found = penalty.charge({"refine_in_place": world.reference_log_probs(), "old_log_probs": log_probs}, MASK)
        charged = found * torch.tensor(world.accepted)[:, None]
    elif constraint.needs_log_probs:
        pairs = torch.full_like(IDS, eq6.NONE)
        for row, of_row in enumerate(columns):
            pairs[row, : LENGTHS[row]] = torch.tensor(of_row["refine_counterparts"])
        charged = eq6.charge(refine_log_probs=log_probs[world.refined], counterparts=pairs, response_mask=MASK)
    compared = torch.minimum(LENGTHS, LENGTHS[world.refined]).tolist()
    divergences = map(Divergence, (-charged.sum(-1)).tolist(), compared)
    costs = [0.0 if penalty is None else penalty.cost(one) for one in divergences]
    inputs = eq6.PenaltyInputs(charged=charged, cost=torch.tensor(costs), turn_mask=MASK, rewritten_mask=MASK)
    is_last = MASK * (torch.arange(MAX_LENGTH) == LENGTHS[:, None] - 1)
    rewards = torch.tensor(world.rewards)[:, None] * is_last * is_rewarded
    place = None if penalty is None else penalty.place("grpo")
    if penalty is not None and place == "rewards":
        rewards = penalty.pay(rewards, inputs, eta, place)
    totals, chances = rewards.sum(-1), log_probs.sum(-1).exp()
    own = totals[:, None] * MASK
    if is_rewarded:
        mean = chances @ totals
        own = ((totals - mean) / (chances @ (totals - mean) ** 2).sqrt())[:, None] * MASK
    return penalty.pay(own, inputs, eta, place) if penalty is not None and place == "advantages" else own


def turns(world: World) -> list[Turn]:
    """Return every response with its refinement."""
    top = world.top()
    return [
        Turn(
            response_length=len(response),
            start=0,
            ids=list(response),
            refinement=Refinement(verdict=Verdict.ACCEPTED, token_ids=list(RESPONSES[index]), own={"top": top[index]}),
            is_used=keep,
            reward=0.0,
        )
        for response, index, keep in zip(RESPONSES, world.refined, world.accepted, strict=True)
    ]


def expected_update(
    world: World,
    parameters: Tensor,
    constraint: Constraint,
    *,
    eta: float,
    is_rewarded: bool,
    loss_agg_mode: str = "token-mean",
) -> Tensor:
    """Return minus the gradient of the actor's loss, averaged over all responses by their probabilities.

    Responses are rows of one mini-batch; a row's probability is a factor of its advantages and of its refinement's
    weights. The policy has not moved since the rollout: no ratio is clipped.
    """
    parameters = parameters.detach().requires_grad_()
    log_probs = world.log_probs(parameters)
    old, chances = log_probs.detach(), log_probs.detach().sum(-1).exp()
    values = advantages(world, constraint, old, eta=eta, is_rewarded=is_rewarded) * chances[:, None]
    settings = {"dp_size": 1, "batch_num_tokens": int(MASK.sum()), "global_batch_size": len(RESPONSES)}
    data = tu.get_tensordict(_rows(world, constraint, values, old, chances), settings)
    indices = list(range(len(RESPONSES)))
    imitation = constraint.imitation
    if imitation is not None:
        used = [index for index, keep in zip(world.refined, world.accepted, strict=True) if keep]
        tu.assign_non_tensor(data, **imitation.settings(eta))
        data, indices = append_refined_rows(data, len(used)), indices + used
        tu.assign_non_tensor(data, refine_num_tokens=int(LENGTHS[used].sum()))
    # An engine's output at a position is of the token after it.
    output = jagged([torch.cat([log_probs[n, : LENGTHS[n]], log_probs.new_zeros(1)]) for n in indices])
    actor = ActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, loss_agg_mode=loss_agg_mode, loss_scale_factor=4
    )
    loss_function, found = partial(refined_loss, partial(ppo_loss, config=actor)), {"log_probs": output}
    if imitation is not None and imitation.loss is not None:
        table = torch.nn.functional.pad(world.features @ parameters, (0, TOP_K - NUM_TOKENS), value=ABSENT)
        states = [torch.cat([STATE_OF[n, : LENGTHS[n]], STATE_OF[n, :1]]) for n in indices]
        students = loss_function(student_logits=table[torch.cat(states)][None], data=data)
        offsets = output.offsets()
        found |= {name: torch.nested.nested_tensor_from_jagged(value[0], offsets) for name, value in students.items()}
    loss, _ = loss_function(model_output=found, data=data)
    (gradient,) = torch.autograd.grad(loss, parameters)
    return -gradient


def _rows(world: World, constraint: Constraint, values: Tensor, old: Tensor, chances: Tensor) -> dict[str, Tensor]:
    def of_rows(column: Tensor) -> Tensor:
        return jagged([row[:length] for row, length in zip(column, LENGTHS, strict=True)])

    answers = [torch.tensor(RESPONSES[index]) for index in world.refined]
    columns = [row_columns(constraint, turn) for turn in turns(world)]
    own = {name: [torch.as_tensor(row[name]) for row in columns] for name in columns[0]}
    if "refine_weights" in own:
        own["refine_weights"] = [row * chance for row, chance in zip(own["refine_weights"], chances, strict=True)]
    sequences = [torch.tensor([*PROMPT, *response]) for response in RESPONSES]
    return {
        "prompts": jagged([torch.tensor(PROMPT)] * len(RESPONSES)),
        "responses": of_rows(IDS),
        "input_ids": jagged(sequences),
        "position_ids": jagged([torch.arange(len(row)) for row in sequences]),
        "loss_mask": of_rows(MASK),
        "response_mask": of_rows(MASK),
        "advantages": of_rows(values),
        "old_log_probs": of_rows(old),
        "refine_ids": jagged(answers),
        "refine_used": torch.tensor(world.accepted).long(),
        "refine_shown": torch.zeros_like(LENGTHS),
        "refine_start": torch.zeros_like(LENGTHS),
        **{name: jagged(rows) for name, rows in own.items()},
    }


def ascend(world: World, constraint: Constraint, *, eta: float, rate: float, num_steps: int) -> Tensor:
    """Train the world's policy by expected updates, and return its parameters."""
    parameters = world.parameters
    for _ in range(num_steps):
        parameters = parameters + rate * expected_update(world, parameters, constraint, eta=eta, is_rewarded=True)
    return parameters
