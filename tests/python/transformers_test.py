"""Small models of Hugging Face transformers, computed by onepass and by torch."""

import functools

import pytest
import torch
import transformers
from gpu import GPU_ONLY

import onepass

BOTH, ALL = ("eager", "onepass"), ("eager", "sdpa", "onepass")  # sdpa knows neither softcap nor sinks
DECODERS = {
    "llama": (ALL, transformers.LlamaConfig, {}),
    "gemma2, softcap and windows": (BOTH, transformers.Gemma2Config, dict(sliding_window=6, head_dim=16)),
    "gpt-oss, sinks and windows": (BOTH, transformers.GptOssConfig, dict(sliding_window=6, head_dim=16,
                                                                         num_local_experts=2, num_experts_per_tok=2)),
}
SIZES = dict(vocab_size=99, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.1,
             pad_token_id=0, bos_token_id=1, eos_token_id=2)
# Of few words, so that the next depends on many; a batch padded on the left.
TEXT = torch.randint(3, 11, (2, 23), generator=torch.Generator().manual_seed(4))
TEXT[0, :4] = 0
KEPT = (TEXT != 0).long()
PROMPT = 11


@pytest.fixture(scope="module", autouse=True)
def registered():
    onepass.register_with_transformers()


def build(config_type, implementation, dtype=torch.float32, **options):
    torch.manual_seed(3)
    config = config_type(**SIZES, **options, attn_implementation=implementation)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


@functools.cache
def weights_that_know_the_text(decoder):
    """By heart, so that no token is a near tie that bf16's rounding could turn."""
    _, config_type, options = DECODERS[decoder]
    model = build(config_type, "eager", **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(120):
        optimizer.zero_grad()
        model(TEXT, attention_mask=KEPT, labels=TEXT.masked_fill(KEPT == 0, -100)).loss.backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("device, dtype, rounding", [("cpu", torch.float32, 1e-4), ("cpu", torch.bfloat16, 0.1),
                                                     pytest.param("cuda", torch.bfloat16, 0.1, marks=GPU_ONLY)])
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_decoder_generates_the_same_tokens(decoder, device, dtype, rounding):
    implementations, config_type, options = DECODERS[decoder]
    scores = {}
    for implementation in implementations:
        model = build(config_type, implementation, dtype, **options).to(device)
        model.load_state_dict(weights_that_know_the_text(decoder))
        assert model.config._attn_implementation == implementation
        made = model.generate(TEXT[:, :PROMPT].to(device), attention_mask=KEPT[:, :PROMPT].to(device),
                              max_new_tokens=TEXT.shape[1] - PROMPT, do_sample=False, output_logits=True,
                              return_dict_in_generate=True)
        assert torch.equal(made.sequences.cpu(), TEXT)
        scores[implementation] = torch.stack(made.logits).float()
    for implementation in implementations:
        torch.testing.assert_close(scores[implementation], scores["eager"], atol=rounding, rtol=rounding)


def test_training_with_dropout_is_refused():
    model = build(transformers.LlamaConfig, "onepass", attention_dropout=0.1).train()
    with pytest.raises(NotImplementedError, match="dropout_p is 0.1"):
        model(torch.ones(1, 4, dtype=torch.long))
