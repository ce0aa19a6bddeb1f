# SPDX-License-Identifier: Apache-2.0
"""Pagoda as the attention of Hugging Face transformers: greedy tokens are those of eager attention.

The weights are random, in the architecture of SmolLM2-135M (LlamaForCausalLM) with fewer layers. PAGODA_SMOLLM2_GGUF names
the real ones (SmolLM2-135M-Instruct Q4_1 as GGUF), and PAGODA_SMOLLM2_GREEDY the JSON file with prompt_ids and greedy_ids."""

import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.skipif(
    tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 0), reason="transformers is older than 5.0"
)

NEW_TOKENS = 75


@pytest.fixture(scope="module", autouse=True)
def registered():
    import pagoda.transformers

    pagoda.transformers.register()


def model_of(seed=0, **changes):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        **{
            "vocab_size": 4096,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 4,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "initializer_range": 0.1,  # scores that differ, so that attention matters
            "tie_word_embeddings": True,
            "eos_token_id": None,
            "pad_token_id": 0,
            **changes,
        }
    )
    return transformers.LlamaForCausalLM(config).eval()


def greedy(model, implementation, ids, mask=None, new_tokens=NEW_TOKENS, page_size=16):
    import pagoda.transformers

    model.set_attn_implementation(implementation)
    cache = None
    if implementation == "pagoda":
        cache = pagoda.transformers.PagedCache(model.config, max_seq_len=ids.shape[1] + new_tokens, page_size=page_size)
    mask = torch.ones_like(ids) if mask is None else mask
    made = model.generate(
        ids, attention_mask=mask, past_key_values=cache, max_new_tokens=new_tokens, do_sample=False, use_cache=True
    )
    return made[:, ids.shape[1] :].tolist(), cache


@pytest.mark.parametrize("page_size", [1, 16])
def test_greedy_tokens(page_size):
    model = model_of()
    ids = torch.randint(1, 4096, (1, 43), generator=torch.Generator().manual_seed(1))
    right, _ = greedy(model, "eager", ids)
    made, cache = greedy(model, "pagoda", ids, page_size=page_size)
    assert made == right
    assert len(set(right[0])) > 20  # a text that repeats one token would hide errors
    # The last token that was generated has not been read.
    assert cache.layers[0].lengths == [43 + NEW_TOKENS - 1]
    assert cache.layers[0].seq_lens.tolist() == [43 + NEW_TOKENS - 1]


def test_prompts_of_different_lengths():
    model = model_of(seed=1)
    generator = torch.Generator().manual_seed(2)
    lengths = [5, 40, 17]
    ids = torch.zeros(3, max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, -length:] = torch.randint(1, 4096, (length,), generator=generator)
    mask = (torch.arange(max(lengths))[None] >= max(lengths) - torch.tensor(lengths)[:, None]).long()
    right, _ = greedy(model, "eager", ids, mask, new_tokens=30)
    made, cache = greedy(model, "pagoda", ids, mask, new_tokens=30)
    assert made == right
    assert cache.layers[0].lengths == [length + 29 for length in lengths]


def test_window_of_a_model():
    config = transformers.MistralConfig(
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        sliding_window=12,
        initializer_range=0.1,
        eos_token_id=None,
    )
    torch.manual_seed(3)
    model = transformers.MistralForCausalLM(config).eval()
    ids = torch.randint(1, 1024, (2, 20), generator=torch.Generator().manual_seed(4))
    assert greedy(model, "pagoda", ids, new_tokens=30)[0] == greedy(model, "eager", ids, new_tokens=30)[0]


def test_errors():
    model = model_of(num_hidden_layers=1)
    ids = torch.ones(1, 4, dtype=torch.long)
    model.set_attn_implementation("pagoda")
    with pytest.raises(ValueError, match="allowed: past_key_values=pagoda.transformers.PagedCache"):
        model(ids, use_cache=False)
    import pagoda.transformers

    cache = pagoda.transformers.PagedCache(model.config, max_seq_len=16)
    with pytest.raises(ValueError, match="sequence 0 has 17 tokens; allowed: 16, by max_seq_len"):
        model(torch.ones(1, 17, dtype=torch.long), past_key_values=cache)


@pytest.mark.skipif(
    not os.environ.get("PAGODA_SMOLLM2_GGUF"),
    reason="PAGODA_SMOLLM2_GGUF does not name SmolLM2's weights (src/python/README.md)",
)
def test_smollm2():
    weights = Path(os.environ["PAGODA_SMOLLM2_GGUF"])
    told = json.loads((Path(__file__).parent.parent / "data" / "smollm2_greedy.json").read_text())
    model = transformers.AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
    ids = torch.tensor([told["prompt_ids"]])
    made, _ = greedy(model.eval(), "pagoda", ids, new_tokens=len(told["greedy_ids"]))
    assert made[0] == told["greedy_ids"]
