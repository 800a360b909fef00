"""What a model is asked, and the program that its answer stands for.

chat        the model's chat template around a request for the whole function in one ```python block. The program is the
            last such block that defines it (`reward.extract`), behind what stands before the function in HumanEval's
            prompt: imports and helper functions, which an answer need not repeat. Rows of training data have a chat
            prompt of their own.
completion  the bare prompt, which the model continues until a stop sequence. The program is the prompt with that
            continuation. MBPP's prompt is a doc string of the task's text and assertions.
"""

from collections.abc import Callable
from dataclasses import dataclass

from recipe.evaluation.benchmarks import Task
from reward.apps import find_code
from reward.grading import Graded
from reward.limits import Limits

_REQUESTS = {
    "humaneval": (
        "Complete this Python function:\n```python\n{question}\n```\n"
        "Answer with the complete function, and all that it needs, in one ```python code block."
    ),
    "mbpp": (
        "{question}\n"
        "Answer with a complete Python function of the name that the assertions use, and all that it needs, in one "
        "```python code block."
    ),
}
_STOPS = {
    # The prompt has begun the function: what follows at the left margin is no longer part of it.
    "humaneval": ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint", "\nassert ", "\nimport ", "\nfrom ", "\n```"),
    # The completion is the whole program.
    "mbpp": ('\n"""', "\nassert", "\nprint", "\nif __name__", "\n```"),
}


@dataclass(slots=True, kw_only=True, frozen=True)
class PromptFormat:
    """One entry of :data:`PROMPTS`."""

    summary: str  # one line for people
    is_chat: bool  # whether the text is a user's message, to be put in the model's chat template
    text: Callable[[Task], str]  # what the model is given, of tasks without messages of their own
    families: tuple[str, ...]  # of the tasks that it is for
    stops: Callable[[Task], tuple[str, ...]]  # sequences that end its answer and do not belong to it
    program: Callable[[Task, str], str | None]  # from its answer to a program; None: there is no code in it


def _chat_text(task: Task) -> str:
    return _REQUESTS[task.family].format(question=task.question.strip())


def _chat_program(task: Task, answer: str) -> str | None:
    if isinstance(task.problem, Graded):
        return answer
    code = find_code(answer, Limits(), task.problem or task.entry_point or "")
    return None if code is None else f"{task.preamble}{code}"


PROMPTS: dict[str, PromptFormat] = {
    "chat": PromptFormat(
        summary="the model's chat template; the program is the answer's last ```python block",
        is_chat=True,
        text=_chat_text,
        families=("humaneval", "mbpp", "rows"),
        stops=lambda task: (),
        program=_chat_program,
    ),
    "completion": PromptFormat(
        summary="the bare prompt; the program is the prompt with the answer up to a stop sequence",
        is_chat=False,
        text=lambda task: task.prompt,
        families=("humaneval", "mbpp"),
        stops=lambda task: _STOPS[task.family],
        program=lambda task, answer: task.prompt + answer,
    ),
}
