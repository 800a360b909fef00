"""What keys of this extension ask of each other."""

import fsspec

from recipe.online_refiner.rules.run import Run


def adaptive_eta_has_a_bound(run: Run) -> str | None:
    """An adaptive eta has a bound on D to keep, and a start and a rate above 0."""
    constraint = run.blocks.constraint
    eta, delta, rate = constraint.eta, constraint.delta, constraint.eta_rate
    if constraint.eta_schedule != "adaptive" or (delta and delta > 0 and eta > 0 < rate):
        return None
    return (
        "constraint.eta_schedule=adaptive needs constraint.delta (nats), constraint.eta and constraint.eta_rate above "
        f"0; they are {delta}, {eta} and {rate}"
    )


def credit_leaves_something_to_learn(run: Run) -> str | None:
    """Credits that take advantages away come with the cross-entropy in their place."""
    constraint = run.blocks.constraint
    if constraint.mode != "penalty" or constraint.credit not in ("routed", "silent", "members"):
        return None
    return (
        f"constraint.credit={constraint.credit} with constraint.mode=penalty takes advantages away and gives no loss "
        "in their place; set constraint.mode=lagrangian"
    )


def keys_are_of_the_mode(run: Run) -> str | None:
    """No key is set that the mode does not have."""
    constraint = run.blocks.constraint
    keys = [key for key in ("credit", "token_weights", "sft_normaliser") if getattr(constraint, key) is not None]
    idle = [key for key in keys if constraint.mode != "none" and constraint.chosen(key) is None]
    if not idle:
        return None
    return (
        f"constraint.{idle[0]}={getattr(constraint, idle[0])} does nothing in constraint.mode={constraint.mode}; set "
        "it to null, or another mode"
    )


def rescued_groups_have_a_loss(run: Run) -> str | None:
    """Dead groups are rescued in modes with a cross-entropy."""
    constraint = run.blocks.constraint
    if not constraint.rescue_dead_groups or constraint.imitates:
        return None
    return (
        f"constraint.rescue_dead_groups=true with constraint.mode={constraint.mode}: such a group has the "
        "cross-entropy of its refinements alone; set constraint.mode=sft or lagrangian"
    )


def solved_responses_are_imitated_only(run: Run) -> str | None:
    """A solved response that is its own refinement is not charged for itself."""
    if not run.blocks.refiner.imitate_solved or run.blocks.constraint.mode == "sft":
        return None
    return (
        f"refiner.imitate_solved=true with constraint.mode={run.blocks.constraint.mode}: a solved response would be "
        "charged for itself; set constraint.mode=sft"
    )


def failures_are_known(run: Run) -> str | None:
    """Weights by failure rate know which reward is no failure."""
    if run.blocks.constraint.pair_weights != "failure_rate" or run.blocks.refiner.skip_reward_at_least is not None:
        return None
    return "constraint.pair_weights=failure_rate: say which reward is no failure, set refiner.skip_reward_at_least"


def weights_that_may_be_negative_charge_nothing(run: Run) -> str | None:
    """Weights by advantage, which may be negative, are for the loss alone."""
    constraint = run.blocks.constraint
    if constraint.pair_weights != "advantage" or constraint.chosen("credit") in (None, "members"):
        return None
    return (
        f"constraint.pair_weights=advantage with constraint.credit={constraint.chosen('credit')}: the response would "
        "be charged by its refinement's advantage, which may be negative; set constraint.credit=members, or "
        "constraint.mode=sft"
    )


def maximal_reward_is_known(run: Run) -> str | None:
    """What asks for solved responses knows which reward is maximal."""
    refiner = run.blocks.refiner
    asks = {
        "groups=unsolved": refiner.groups == "unsolved",
        "use_solved_sibling=true": refiner.use_solved_sibling,
        "imitate_solved=true": refiner.imitate_solved,
    }
    for key, is_set in asks.items():
        if is_set and refiner.skip_reward_at_least is None:
            return f"refiner.{key}: say which reward is maximal, set refiner.skip_reward_at_least"
    return None


def several_refinements_differ(run: Run) -> str | None:
    """Several refinements of one response are sampled."""
    refiner = run.blocks.refiner
    if refiner.n == 1 or refiner.temperature > 0:
        return None
    return f"refiner.n={refiner.n}: more than 1 needs refiner.temperature above 0 (greedy ones are all the same)"


def dedicated_refiner_has_gpus(run: Run) -> str | None:
    """A dedicated refiner has GPUs of its own, another one none."""
    refiner = run.blocks.refiner
    if refiner.is_dedicated and (refiner.nnodes < 1 or not refiner.n_gpus_per_node or refiner.n_gpus_per_node < 1):
        return (
            f"refiner.placement=dedicated with refiner.nnodes={refiner.nnodes}, refiner.n_gpus_per_node="
            f"{refiner.n_gpus_per_node}: set how many GPUs of its own the refiner has, at least 1"
        )
    if not refiner.is_dedicated and refiner.n_gpus_per_node is not None:
        return (
            f"refiner.n_gpus_per_node={refiner.n_gpus_per_node} is for refiner.placement=dedicated; set that, or null"
        )
    return None


def colocated_refiner_does_not_stream(run: Run) -> str | None:
    """A refiner that sleeps during the rollout does not stream."""
    if run.blocks.refiner.placement != "colocated" or not run.blocks.refiner.streaming:
        return None
    return (
        "refiner.streaming=true with refiner.placement=colocated: the refiner sleeps during rollout; set "
        "refiner.placement=dedicated, or leave refiner.streaming null"
    )


def shared_refiner_has_no_servers_of_its_own(run: Run) -> str | None:
    """Settings of replicas are for a refiner that has some."""
    refiner = run.blocks.refiner
    own = refiner.streaming is False or refiner.num_replicas or refiner.rollout or refiner.draft
    if refiner.placement != "shared" or not own:
        return None
    return (
        "refiner.placement=shared: the rollout's servers refine while they are awake; leave refiner.streaming, "
        "refiner.num_replicas and refiner.draft null and refiner.rollout empty"
    )


def template_exists(run: Run) -> str | None:
    """The prompt template is one of this package, or a file."""
    try:
        run.blocks.refiner.template_path()
    except ValueError as error:
        return str(error)
    return None


def records_have_a_file_system(run: Run) -> str | None:
    """Records go to a folder, or to a file system that fsspec knows."""
    path = run.blocks.records.path
    if "://" not in path:
        return None
    try:
        fsspec.get_filesystem_class(path.partition("://")[0])
    except (ValueError, ImportError) as error:
        return f"records.path={path}: {error}"
    return None
