"""Makes a tiny model with random weights, a tokenizer, a chat template and a LoRA adapter, for engines without a GPU.

    make_model.py FOLDER
"""

import json
import random
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<|start|>", "<|stop|>", "<|role|>", "<|text|>", "<|pad|>"]
# Every message is its role, its text and a stop.
TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}<|role|>{{ message.role }}<|text|>{{ message.content | trim }}<|stop|>{% endfor %}"
    "{% if add_generation_prompt %}<|role|>assistant<|text|>{% endif %}"
)
VOCABULARY = 2048
CONTEXT_TOKENS = 4096
HIDDEN, LAYERS = 64, 2
ADAPTER_RANK, ADAPTED = 8, ["q_proj", "v_proj"]


def sentences() -> list[str]:
    """Our own text: sentences of made-up words and of numbers."""
    choose = random.Random(20)
    parts = ["al", "ber", "co", "dun", "el", "fi", "gra", "hom", "is", "ju", "ke", "lor", "mun", "nes", "ot", "pra"]
    words = ["".join(choose.choices(parts, k=choose.randint(1, 3))) for _ in range(1000)]
    made = [" ".join(choose.choices(words, k=choose.randint(4, 30))) + "." for _ in range(3000)]
    numbers = [" ".join(str(number) for number in range(start, start + 30)) for start in range(0, 1000, 30)]
    return made + numbers


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(sentences(), trainer)
    start = (SPECIAL[0], made.token_to_id(SPECIAL[0]))
    made.post_processor = TemplateProcessing(single=f"{SPECIAL[0]} $A", special_tokens=[start])
    names = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[1], "pad_token": SPECIAL[4]}
    fast = PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=CONTEXT_TOKENS, **names)
    fast.chat_template = TEMPLATE
    return fast


def make_adapter(folder: Path) -> None:
    weights = {}
    for layer in range(LAYERS):
        for module in ADAPTED:
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{name}.lora_A.weight"] = torch.randn(ADAPTER_RANK, HIDDEN, dtype=torch.bfloat16)
            weights[f"{name}.lora_B.weight"] = torch.randn(HIDDEN, ADAPTER_RANK, dtype=torch.bfloat16)
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": ADAPTER_RANK, "lora_alpha": 16, "bias": "none"}
    config |= {"target_modules": ADAPTED, "base_model_name_or_path": "tiny"}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def main() -> None:
    folder = Path(sys.argv[1])
    fast = tokenizer()
    fast.save_pretrained(folder)
    torch.manual_seed(20)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=fast.bos_token_id,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    make_adapter(folder / "adapter")


main()
