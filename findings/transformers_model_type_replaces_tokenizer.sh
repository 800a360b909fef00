#!/usr/bin/env bash
# A word-level tokenizer that is saved beside a Qwen2 config comes back as another one, and encodes text to nothing.
#
# Version:   transformers 5.10.4, tokenizers 0.22.2
# Guessed:   AutoTokenizer.from_pretrained(folder) gives the tokenizer that save_pretrained(folder) wrote: tokenizer.json
#            holds its model and its pre-tokenizer. At most the class differs.
# Behaviour: with `model_type: qwen2` in config.json it gives a Qwen2Tokenizer, built anew as byte-level BPE from the
#            vocabulary alone, without merges. Words that the vocabulary has become no token at all, without an error or
#            a warning. The same files beside a Llama config come back as they were saved.
# Source:    transformers/models/auto/tokenization_auto.py, AutoTokenizer.from_pretrained;
#            transformers/models/qwen2/tokenization_qwen2.py, Qwen2Tokenizer.__init__
# Seen:      "red green blue" is [1, 2, 3] as saved and beside LlamaConfig, [] beside Qwen2Config
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" transformers==5.10.4 <<'EOF'
import tempfile

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

TEXT, WORDS = "red green blue", {"<unk>": 0, "red": 1, "green": 2, "blue": 3}
backend = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
saved = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
found = {"as saved": saved.encode(TEXT)}
for config in (LlamaConfig(vocab_size=4), Qwen2Config(vocab_size=4)):
    with tempfile.TemporaryDirectory() as folder:
        saved.save_pretrained(folder)
        config.save_pretrained(folder)
        loaded = AutoTokenizer.from_pretrained(folder)
        name = f"beside {type(config).__name__}"
        found[name] = loaded.encode(TEXT)
        print(f"{name}: {type(loaded).__name__}, {type(loaded.backend_tokenizer.model).__name__}, {found[name]}")
assert found["as saved"] == found["beside LlamaConfig"] == [1, 2, 3], found
assert found["beside Qwen2Config"] == [], found
EOF
