#!/usr/bin/env bash
# verl's Qwen2.5-VL and GLM-4V fail on a micro-batch of text alone.
#
# Version:   verl 0.9.1 with torch 2.13.0 and the transformers of requirements/cpu.txt
# Guessed:   prompts with and without pictures may be mixed: for rows of text alone verl shows the vision tower a black
#            picture and multiplies the result by 0, so that all ranks take part in its pass.
# Behaviour: since transformers 5, a tower returns an object. _get_input_embeds of qwen2_vl.py unpacks it for rows with
#            pictures only and asks the object itself for its mean otherwise; that of glm4v.py never unpacks it and
#            fails on rows with pictures, too. That of qwen3_vl.py unpacks both. verl's own padding rows are text alone.
# Source:    verl/models/transformers/qwen2_vl.py and glm4v.py, _get_input_embeds
# Seen:      "AttributeError: 'BaseModelOutputWithPooling' object has no attribute 'mean'" for the first two models, no
#            error for Qwen3-VL
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" verl==0.9.1 torch==2.13.0 <<'EOF'
import torch
from transformers import (
    Glm4vConfig,
    Glm4vModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLModel,
    Qwen3VLConfig,
    Qwen3VLModel,
)
from verl.models.transformers import glm4v, qwen2_vl, qwen3_vl

SIZES = {"hidden_size": 32, "intermediate_size": 32}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
TEXT = {**SIZES, **HEADS, "num_hidden_layers": 1, "vocab_size": 32, "bos_token_id": 0, "eos_token_id": 1}
VISION = {**SIZES, "depth": 1, "num_heads": 2, "out_hidden_size": 32, "patch_size": 14}
MODELS = {
    "Qwen2.5-VL": (qwen2_vl, Qwen2_5_VLModel, Qwen2_5_VLConfig, {}),
    "GLM-4V": (glm4v, Glm4vModel, Glm4vConfig, {"image_size": 56}),
    "Qwen3-VL": (qwen3_vl, Qwen3VLModel, Qwen3VLConfig, {"deepstack_visual_indexes": [0]}),
}


def tried(name: str) -> str:
    module, model, config, vision = MODELS[name]
    built = model(config(text_config=TEXT, vision_config={**VISION, **vision}, image_token_id=5))
    try:
        module._get_input_embeds(built, torch.tensor([[1, 2, 3]]))
    except AttributeError as error:
        return str(error)
    return "passed"


found = {name: tried(name) for name in MODELS}
print(found)
failed = "'BaseModelOutputWithPooling' object has no attribute 'mean'"
assert found == {"Qwen2.5-VL": failed, "GLM-4V": failed, "Qwen3-VL": "passed"}
EOF
