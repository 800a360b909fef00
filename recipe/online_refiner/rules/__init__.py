"""Every rule that a config has to keep before Ray starts, in one list.

A rule is a function of a ``Run``. It returns None, or one line for the user: what is wrong, and which key to set. The
first broken one is shown. A new rule is a function in one of these modules, its place in the list, and a case in its
test.
"""

from collections.abc import Callable
from typing import Literal

from recipe.online_refiner.rules import (
    of_blocks,
    of_files,
    of_machine,
    of_megatron,
    of_memory,
    of_sizes,
    of_trainers,
    of_verl,
)
from recipe.online_refiner.rules.run import Run

Rule = Callable[[Run], str | None]
RULES: dict[Literal["config", "machine", "files", "sizes"], tuple[Rule, ...]] = {
    "config": (
        of_megatron.platform_is_megatrons,
        of_blocks.dedicated_refiner_has_gpus,
        of_blocks.colocated_refiner_does_not_stream,
        of_blocks.shared_refiner_has_no_servers_of_its_own,
        of_blocks.several_refinements_differ,
        of_blocks.maximal_reward_is_known,
        of_blocks.template_exists,
        of_blocks.adaptive_eta_has_a_bound,
        of_blocks.credit_leaves_something_to_learn,
        of_blocks.keys_are_of_the_mode,
        of_blocks.rescued_groups_have_a_loss,
        of_blocks.solved_responses_are_imitated_only,
        of_blocks.failures_are_known,
        of_blocks.weights_that_may_be_negative_charge_nothing,
        of_blocks.records_have_a_file_system,
        of_verl.penalty_has_a_meaning,
        of_verl.credit_goes_with_a_critic,
        of_verl.centred_credit_has_siblings,
        of_verl.members_have_advantages_of_groups,
        of_verl.both_terms_are_one_gradient,
        of_verl.loss_has_a_fixed_scale,
        of_verl.refinements_fit_into_micro_batches,
        of_verl.engines_share_memory,
        of_verl.routes_are_recorded,
        of_verl.loss_is_the_policys,
        of_verl.uncertainty_is_known,
        of_trainers.separate_rollout_gets_the_policy,
        of_verl.rewards_are_there_when_streaming,
        of_trainers.agent_loops_have_one_manager,
        of_verl.dead_groups_are_those_of_the_reward,
        of_verl.rescue_comes_before_the_filter,
        of_verl.shared_servers_are_the_reference,
        of_verl.refiner_has_an_engine,
        of_verl.kl_is_measured_at_the_rollouts_temperature,
        of_trainers.trainer_is_extended,
        of_trainers.separate_refiner_has_gpus,
        of_trainers.separate_refiner_streams,
        of_trainers.separate_trainer_has_what_verl_asserts,
        of_trainers.shared_servers_are_not_interrupted,
        of_megatron.optimizer_is_distributed,
        of_megatron.distributed_optimizer_is_adam,
        of_megatron.adapters_have_a_bridge,
        of_megatron.stages_take_whole_groups,
    ),
    "machine": (
        of_machine.training_has_workers,
        of_machine.machine_has_the_workers,
        of_machine.reward_model_has_nodes,
        of_machine.machine_has_the_pools,
    ),
    "files": (
        of_files.home_is_written_out,
        of_files.models_are_there,
        of_files.tokenizer_writes_chats,
        of_files.refiner_has_the_policys_tokens,
        of_files.suffix_drafts_are_installed,
        of_files.data_have_rows,
        of_files.prompts_are_text,
        of_files.no_grader_runs_answers,
        of_files.problems_can_be_rewarded,
    ),
    "sizes": (
        of_memory.policy_reads_prompt_and_response,
        of_sizes.refiner_reads_prompt_and_response,
        of_sizes.shared_servers_read_it_too,
        of_sizes.replicas_fit,
        of_sizes.replicas_align_with_nodes,
        of_sizes.heads_are_cut_evenly,
        of_memory.engines_awake_share_a_gpu,
        of_memory.engines_hold_their_weights,
        of_memory.engines_hold_one_request,
        of_memory.training_fits,
        of_memory.rollout_fits_beside_training,
        of_memory.refiner_fits_beside_training,
        of_memory.nodes_hold_what_is_offloaded,
    ),
}
"""By what they need: the config alone, the machine, files of models and data, or the refiner's sizes."""


def check(run: Run, needs: Literal["config", "machine", "files", "sizes"]) -> None:
    """Check a run by the rules of one kind.

    Raises:
        ValueError: The first broken rule's line.
    """
    for rule in RULES[needs]:
        if sentence := rule(run):
            raise ValueError(sentence)
