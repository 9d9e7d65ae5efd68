"""The operator under torch's own machinery, and scaled_dot_product_attention beside torch's."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import onepass
import onepass.torch_ops
from onepass.flash_attn import flash_attn_func, flash_attn_varlen_func

some = settings(max_examples=60, deadline=None, database=None)


def random(*shape, dtype=torch.float32, **options):
    return torch.randn(*shape, **options).to(dtype) + 0.25


CALLS = {
    "heads before rows": lambda: ([random(2, 4, 5, 8).transpose(1, 2) for _ in range(3)], {}),
    "values of q's width": lambda: ([random(2, 5, 4, 8), random(2, 9, 2, 8), random(2, 9, 2, 8)], {}),
    "dense": lambda: ((random(2, 5, 4, 8), random(2, 9, 2, 8), random(2, 9, 2, 16)),
                      dict(causal="bottom-right", window_left=3, softcap=2.0, bias=random(1, 4, 5, 9))),
    "packed": lambda: ((random(6, 4, 8), random(7, 2, 8), random(7, 2, 8)),
                       dict(cu_seqlens_q=torch.tensor([0, 2, 6], dtype=torch.int32),
                            cu_seqlens_k=torch.tensor([0, 4, 7], dtype=torch.int32))),
    "paged": lambda: ((random(2, 1, 4, 8), random(3, 4, 2, 8), random(3, 4, 2, 8)),
                      dict(block_table=torch.tensor([[2, 0], [1, 1]], dtype=torch.int32),
                           seqused_k=torch.tensor([7, 3], dtype=torch.int32))),
    "with gradients": lambda: ((random(1, 3, 2, 8).requires_grad_(), random(1, 3, 2, 8), random(1, 3, 2, 8)), {}),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_operator_passes_torchs_own_checks(call):
    tensors, options = CALLS[call]()
    torch.library.opcheck(torch.ops.onepass.forward.default, tensors, options)


def test_compiled_code_has_no_graph_breaks_and_takes_any_size():
    def layer(x):
        q, k, v = (x * 2).unflatten(-1, (3, 4, 8)).unbind(2)
        by_sdpa = onepass.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        by_flash = onepass.flash_attn.flash_attn_func(q, k, v, causal=True)
        return by_sdpa.transpose(1, 2) + by_flash

    onepass.flash_attn, onepass.scaled_dot_product_attention  # imported before torch traces
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=graphs)
    graphs_after = []  # each size; torch traces the first one again once it knows softcap to be a constant
    for batch, seqlen in ((2, 5), (3, 17), (4, 33)):
        x = random(batch, seqlen, 3 * 4 * 8)
        torch.testing.assert_close(compiled(x), layer(x))
        graphs_after.append(graphs.frame_count)
    assert len(set(graphs_after)) == 1


@pytest.mark.parametrize("options", [{}, dict(is_causal=True), dict(scale=0.3, enable_gqa=True)])
def test_gradients_are_torchs(options):
    heads_k = 2 if "enable_gqa" in options else 4
    q, k, v = (random(2, heads, 7, 8).requires_grad_() for heads in (4, heads_k, heads_k))
    mask = None if "is_causal" in options else random(4, 7, 7).requires_grad_()
    inputs = [q, k, v] if mask is None else [q, k, v, mask]
    weights = random(2, 4, 7, 8)

    def gradients(attention):
        return torch.autograd.grad((attention(q, k, v, attn_mask=mask, **options) * weights).sum(), inputs)

    for ours, theirs in zip(gradients(onepass.scaled_dot_product_attention),
                            gradients(functional.scaled_dot_product_attention), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_the_log_sum_exp_and_sinks_have_gradients():
    q, k, v = (random(2, 5, 2, 8).double().float().requires_grad_() for _ in range(3))
    sinks = random(2).requires_grad_()

    def formula(q, k, v, sinks):
        scores = torch.einsum("bshd,bthd->bhst", q, k) / 8**0.5
        lse = torch.cat([scores, sinks[:, None, None].expand(2, 2, 5, 1)], -1).logsumexp(-1)
        return torch.einsum("bhst,bthd->bshd", (scores - lse[..., None]).exp(), v), lse

    out, lse = onepass.torch_ops.forward(q, k, v, sinks=sinks, return_lse=True)
    own_out, own_lse = formula(q, k, v, sinks)
    torch.testing.assert_close([out, lse], [own_out, own_lse], atol=1e-5, rtol=1e-4)
    weights, lse_weights = random(2, 5, 2, 8), random(2, 2, 5)
    for ours, theirs in zip(*(torch.autograd.grad((a * weights).sum() + (b * lse_weights).sum(), [q, k, v, sinks])
                              for a, b in ((out, lse), (own_out, own_lse))), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def test_packed_gradients_are_those_of_each_sequence():
    q, k, v = (random(9, 2, 8).requires_grad_() for _ in range(3))
    offsets = torch.tensor([0, 4, 9], dtype=torch.int32)
    packed = flash_attn_varlen_func(q, k, v, offsets, offsets, 5, 5, causal=True)
    alone = torch.cat([flash_attn_func(q[None, a:b], k[None, a:b], v[None, a:b], causal=True)[0]
                       for a, b in ((0, 4), (4, 9))])
    for ours, theirs in zip(torch.autograd.grad(packed.square().sum(), (q, k, v)),
                            torch.autograd.grad(alone.square().sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("packed", [False, True])
def test_the_score_of_an_only_key_has_no_gradient(packed):
    q, k, v = (torch.randn(3, n, 4, 64, requires_grad=True) for n in (2, 1, 1))
    bias, sinks = torch.randn(1, 4, 2, 1, requires_grad=True), torch.randn(4, requires_grad=True)
    if packed:
        cu_q, cu_k = torch.tensor([0, 2, 4, 6], dtype=torch.int32), torch.tensor([0, 1, 2, 3], dtype=torch.int32)
        call = functools.partial(onepass.torch_ops.forward, q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), cu_q, cu_k,
                                 max_seqlen_q=2, max_seqlen_k=1)
    else:
        call = functools.partial(onepass.torch_ops.forward, q, k, v)
    dout = torch.randn(3, 2, 4, 64)
    dq, dk, dv, dbias = torch.autograd.grad(call(bias=bias), (q, k, v, bias), dout.view(call().shape))
    assert not dq.any() and not dk.any() and not dbias.any()
    torch.testing.assert_close(dv, dout.sum(1, keepdim=True))
    (dq,) = torch.autograd.grad(call(sinks=sinks).sum(), q)
    assert dq.all()  # a sink takes a share of it
    (dq,) = torch.autograd.grad(call(return_lse=True)[1].sum(), q)
    torch.testing.assert_close(dq, k.expand_as(q) / 8)


def test_what_has_no_gradient_says_so():
    q = random(1, 3, 2, 8).requires_grad_()
    pages, table = random(2, 4, 2, 8), torch.tensor([[0, 1]], dtype=torch.int32)
    out = onepass.torch_ops.forward(q, pages, pages, block_table=table, seqused_k=torch.tensor([5], dtype=torch.int32))
    with pytest.raises(NotImplementedError, match="block_table is given"):
        out.sum().backward()
    slopes = torch.rand(2).requires_grad_()
    with pytest.raises(NotImplementedError, match="a gradient of alibi_slopes"):
        flash_attn_func(q, q, q, alibi_slopes=slopes).sum().backward()


def test_no_graph_is_recorded_where_none_is_wanted():
    q = random(1, 3, 2, 8).requires_grad_()
    with torch.no_grad():
        assert not onepass.scaled_dot_product_attention(q, q, q).requires_grad
    with torch.inference_mode():
        assert onepass.scaled_dot_product_attention(q, q, q).is_inference()


def test_modes_and_tracers_see_the_operator():
    x = random(1, 3, 2, 8)
    with FakeTensorMode() as mode:
        fake = onepass.scaled_dot_product_attention(*[mode.from_tensor(x)] * 3)
    assert (type(fake), fake.shape) == (FakeTensor, x.shape)
    graph = make_fx(lambda q: onepass.scaled_dot_product_attention(q, q, q))(x)
    assert torch.ops.onepass.forward.default in {node.target for node in graph.graph.nodes}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_maps_the_operator():
    q = random(3, 1, 2, 8, 16)
    mapped = torch.func.vmap(lambda x: onepass.scaled_dot_product_attention(x, x, x))(q)
    torch.testing.assert_close(mapped, functional.scaled_dot_product_attention(q, q, q))


def test_meta_tensors_give_the_shapes():
    out = onepass.scaled_dot_product_attention(*(torch.empty(2, 4, 7, width, device="meta") for width in (8, 8, 16)))
    assert (out.shape, out.device.type) == ((2, 4, 7, 16), "meta")


def test_autocast_computes_in_its_type():
    q, k, v = (random(1, 2, 6, 8) for _ in range(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = onepass.scaled_dot_product_attention(q, k, v, attn_mask=random(6, 6))
    assert out.dtype == torch.bfloat16


@some
@given(data=st.data())
def test_sdpa_gives_what_torchs_gives(data):
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 2**32)))
    leading = draw(st.lists(st.integers(1, 3), min_size=0, max_size=2))
    heads_k, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    seqlen_q, seqlen_k = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    width, width_v = draw(st.integers(1, 24)), draw(st.integers(1, 24))
    q = random(*leading, heads_k * group, seqlen_q, width)
    k, v = random(*leading, heads_k, seqlen_k, width), random(*leading, heads_k, seqlen_k, width_v)
    options = dict(scale=draw(st.sampled_from([None, 0.3])), enable_gqa=group > 1)
    mask = draw(st.sampled_from(["none", "causal", "bool", "float"]))
    if mask == "causal":
        options["is_causal"] = True
    elif mask != "none":
        full = [*leading, heads_k * group, seqlen_q, seqlen_k]
        kept = draw(st.integers(2, len(full)))
        shape = [extent if draw(st.booleans()) else 1 for extent in full[-kept:]]
        options["attn_mask"] = torch.rand(shape) < 0.7 if mask == "bool" else torch.randn(shape)
        if mask == "bool":  # torch's CPU code gives NaN to rows without keys, this one 0
            options["attn_mask"][..., 0] = True
    expected = functional.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(onepass.scaled_dot_product_attention(q, k, v, **options), expected, atol=2e-5, rtol=1e-4)


def test_a_row_that_the_mask_empties_is_zero():
    q = random(1, 2, 3, 8)
    mask = torch.tensor([[True, True, True], [False, False, False], [True, False, True]])
    out = onepass.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    assert (out[:, :, 1] == 0).all() and (out[:, :, 0] != 0).all()


@pytest.mark.parametrize("options, exception, words", [
    (dict(dropout_p=0.1), NotImplementedError, "dropout_p is 0.1"),
    (dict(is_causal=True, attn_mask=torch.ones(3, 3)), ValueError, "is_causal is set and attn_mask is given"),
    (dict(attn_mask=torch.ones(3, 3, dtype=torch.float64)), ValueError, "bias: dtype"),
    (dict(key=torch.ones(1, 1, 3, 8)), ValueError, "enable_gqa=True"),
    (dict(key=torch.ones(2, 3, 8)), ValueError, "dimensions"),
    (dict(value=torch.ones(1, 2, 4, 8)), ValueError, "v [1, 4, 2, 8]"),
])
def test_sdpa_refuses(options, exception, words):
    x = torch.ones(1, 2, 3, 8)
    with pytest.raises(exception) as raised:
        onepass.scaled_dot_product_attention(**{"query": x, "key": x, "value": x, **options})
    assert words in str(raised.value) and "\n  Fix: " in str(raised.value)


def test_a_padding_mask_leaves_no_trace_of_the_padding():
    q, k, v = random(2, 2, 4, 8), random(2, 2, 6, 8), random(2, 2, 6, 8)
    kept = torch.tensor([6, 3])
    mask = torch.arange(6) < kept[:, None]
    k[1, :, 3:], v[1, :, 3:] = 100, 7
    out = onepass.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
    short = onepass.scaled_dot_product_attention(q[1:], k[1:, :, :3], v[1:, :, :3])
    torch.testing.assert_close(out[1:], short)


@pytest.mark.skipif(not hasattr(torch.nn.attention, "register_flash_attention_impl"), reason="torch before 2.11")
def test_torchs_list_of_flash_attention_implementations_has_it():
    from torch.nn import attention
    onepass.register_with_torch()
    assert "onepass" in attention.list_flash_attention_impls()
    before = torch._C._dispatch_dump("aten::_scaled_dot_product_flash_attention")
    attention.activate_flash_attention_impl("onepass")
    try:
        assert "torch_attention" in torch._C._dispatch_dump("aten::_scaled_dot_product_flash_attention")
    finally:
        attention.restore_flash_attention_impl()
    assert torch._C._dispatch_dump("aten::_scaled_dot_product_flash_attention") == before


@pytest.mark.parametrize("is_causal", [False, True])
def test_what_torch_calls_then_gives_what_its_own_does(is_causal):
    from onepass.torch_attention import _flash_attention
    q, k, v = (random(2, 4, 7, 8) for _ in range(3))
    found = _flash_attention(q, k, v, is_causal=is_causal, scale=0.3)
    own_out, own_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal, scale=0.3)
    torch.testing.assert_close(found[0], own_out)
    torch.testing.assert_close(found[1], own_lse)
    returns = torch.ops.aten._scaled_dot_product_flash_attention.default._schema.returns
    assert len(found) == len(returns) and found[4:6] == (7, 7)
    with pytest.raises(NotImplementedError, match="dropout_p is 0.5"):
        _flash_attention(q, k, v, 0.5)
