"""A small Llama that solves some of the lab's problems and, as a refiner, makes some answers better, some worse.

It is trained on two kinds of text. As a policy it sees a question and an answer that is right in `SOLVED` of all cases
only: it knows right answers, each in many ways of writing it, and mistakes, and draws among them. As a refiner it sees
a question, an answer with its reward, and what real refiners write (`REFINED`): all mended in the answer's own words,
one mistake mended, the answer again, or one mistake more. Prompts are those of RL: the chat template and the refiner's
template.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments

from recipe.lab.mistakes import answer, draw_mistakes, spoil
from recipe.lab.variants import vary
from recipe.mini_apps.generator import MiniProblem
from refiner_worker.config import MAX_FEEDBACK_TOKENS
from refiner_worker.prompts import RefinerPrompt
from reward.apps import score_response
from reward.problem import Problem

SOLVED = {"easy": 0.3, "medium": 0.04}
"""Share of right answers among those that the policy is shown, by the problem's level."""
RIGHT_BEFORE_REFINING = 0.2
"""Share of right answers among those that the refiner is shown."""
REFINED = {"mended": 30, "better": 20, "same": 18, "worse": 32}
"""How often the refiner is shown to write what, in percent; a right answer stays the same or becomes worse."""
VOCABULARY = 512
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
IGNORED = -100  # label of a token that is not learned
Example = dict[str, list[int]]


def make_tokenizer(texts: Iterator[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer, digits apart from each other, with a chat template."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", additional_special_tokens=special
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast, *, hidden_size: int, num_layers: int) -> LlamaForCausalLM:
    """Return a Llama with random weights; heads have 64 dimensions."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden_size,
            intermediate_size=hidden_size * 8 // 3 // 64 * 64,
            num_hidden_layers=num_layers,
            num_attention_heads=hidden_size // 64,
            num_key_value_heads=hidden_size // 64,
            max_position_embeddings=1024,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
        )
    )


class Corpus:
    """Draws examples, half of them a policy's, half a refiner's.

    Args:
        problems: What the examples are about.
        template: The refiner's template.
        rng: All choices.
        feedback: Share of the refiner's examples that show what the reward says of the answer.
    """

    def __init__(
        self, problems: Sequence[MiniProblem], template: Path, rng: random.Random, feedback: float = 0.0
    ) -> None:
        """Train the tokenizer on the problems."""
        self.problems, self.rng, self.feedback = problems, rng, feedback
        self.tokenizer = make_tokenizer(f"{p.question}\n{answer(vary(rng, p.solution))}" for p in problems)
        self.refiner_prompt = RefinerPrompt(template, self.tokenizer, {}, {"feedback": MAX_FEEDBACK_TOKENS})

    def draw(self) -> Example:
        """Return token ids and labels: the prompt is not learned, the answer and its end are."""
        problem, as_refiner = self.rng.choice(self.problems), self.rng.random() < 0.5
        right = self.rng.random() < (RIGHT_BEFORE_REFINING if as_refiner else SOLVED[problem.difficulty])
        program = vary(self.rng, problem.solution)
        steps = [(program, 1.0)] if right else draw_mistakes(self.rng, program)
        program, reward = steps[-1]
        if as_refiner:
            told = {}
            if self.feedback and self.rng.random() < self.feedback:
                found = score_response(tests_of(problem), answer(program))
                reward, told["feedback"] = found.score if found.score is not None else reward, found.feedback
            prompt = self.refiner_prompt.encode(messages(problem), answer(program), reward, told=told)
            program = self._refined([text for text, _ in steps])
        else:
            prompt = prompt_ids(self.tokenizer, problem)
        target = [*self.tokenizer.encode(answer(program)), self.tokenizer.eos_token_id]
        return {"input_ids": prompt + target, "labels": [IGNORED] * len(prompt) + target}

    def _refined(self, steps: list[str]) -> str:
        """Return what a refiner writes to the last of some programs, each with one mistake more than the one before."""
        way = self.rng.choices(list(REFINED), list(REFINED.values()))[0]
        if way == "worse":
            return spoil(self.rng, steps[-1])[0]
        return {"mended": steps[0], "better": steps[-2:][0], "same": steps[-1]}[way]


def tests_of(problem: MiniProblem) -> Problem:
    """Return a problem as the reward reads it."""
    return Problem.from_input_output(problem.input_output, problem_id=problem.problem_id)


def messages(problem: MiniProblem) -> list[dict[str, str]]:
    """Return a problem as a chat."""
    return [{"role": "user", "content": problem.question}]


def prompt_ids(tokenizer: PreTrainedTokenizerFast, problem: MiniProblem) -> list[int]:
    """Return the policy's prompt."""
    text = tokenizer.apply_chat_template(messages(problem), add_generation_prompt=True, tokenize=False)
    return tokenizer.encode(text)


def train(
    corpus: Corpus, model: LlamaForCausalLM, folder: Path, *, num_examples: int, batch_size: int, learning_rate: float
) -> None:
    """Train a model on examples of a corpus, each drawn once; round it to bfloat16; save it with its tokenizer."""

    def collate(examples: list[Example]) -> dict[str, torch.Tensor]:
        length = max(len(example["input_ids"]) for example in examples)

        def pad(key: str, value: int) -> torch.Tensor:
            return torch.tensor([example[key] + [value] * (length - len(example[key])) for example in examples])

        ids = pad("input_ids", corpus.tokenizer.pad_token_id)
        return {
            "input_ids": ids,
            "attention_mask": (ids != corpus.tokenizer.pad_token_id).long(),
            "labels": pad("labels", IGNORED),
        }

    examples: Any = [corpus.draw() for _ in range(num_examples)]
    options = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch_size,
        num_train_epochs=1,
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=50,
        adam_beta2=0.98,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        remove_unused_columns=False,
        train_sampling_strategy="group_by_length",
        use_cpu=True,
    )
    Trainer(model=model, args=options, train_dataset=examples, data_collator=collate).train()
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_(weights.bfloat16())
    model.save_pretrained(folder, state_dict={name: value.bfloat16() for name, value in model.state_dict().items()})
    corpus.tokenizer.save_pretrained(folder)
