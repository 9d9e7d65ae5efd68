"""Small models of Hugging Face transformers with random weights, computed by onepass and by torch."""

import pytest
import torch
import transformers

import onepass

DECODERS = {
    "llama": (transformers.LlamaConfig, {}),
    "gemma2, softcap and windows": (transformers.Gemma2Config, dict(sliding_window=6, head_dim=16)),
    "gpt-oss, sinks and windows": (transformers.GptOssConfig, dict(sliding_window=6, head_dim=16, num_local_experts=2,
                                                                   num_experts_per_tok=1)),
}
SIZES = dict(vocab_size=99, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)


@pytest.fixture(scope="module", autouse=True)
def registered():
    onepass.register_with_transformers()


def build(config_type, implementation, **options):
    torch.manual_seed(3)
    config = config_type(**SIZES, **options, attn_implementation=implementation)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_decoder_generates_the_same_tokens(decoder):
    config_type, options = DECODERS[decoder]
    tokens = torch.randint(3, 99, (2, 11), generator=torch.Generator().manual_seed(4))
    kept = torch.ones_like(tokens)
    tokens[0, :4], kept[0, :4] = 0, 0  # a batch padded on the left
    texts, scores = {}, {}
    for implementation in ("eager", "onepass"):
        model = build(config_type, implementation, **options)
        assert model.config._attn_implementation == implementation
        made = model.generate(tokens, attention_mask=kept, max_new_tokens=12, do_sample=False, output_logits=True,
                              return_dict_in_generate=True)
        texts[implementation], scores[implementation] = made.sequences, torch.stack(made.logits)
    assert torch.equal(texts["onepass"], texts["eager"])
    torch.testing.assert_close(scores["onepass"], scores["eager"], atol=1e-4, rtol=1e-4)


def test_training_with_dropout_is_refused():
    model = build(transformers.LlamaConfig, "onepass", attention_dropout=0.1).train()
    with pytest.raises(NotImplementedError, match="dropout_p is 0.1"):
        model(torch.ones(1, 4, dtype=torch.long))
