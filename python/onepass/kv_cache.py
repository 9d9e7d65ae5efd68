"""Which keys of a cache each sequence has, in the words of the library."""

import torch

from onepass.refuse import refuse


def table_rows(block_table, cache_batch_idx):
    """(block_table, cache_batch_idx) with the choice made: the table's rows where there is one, else of the cache's."""
    if block_table is None or cache_batch_idx is None:
        return block_table, cache_batch_idx
    return block_table.index_select(0, cache_batch_idx), None


def cache_keys(function: str, k_cache, v_cache, batch: int, cache_seqlens, cache_batch_idx, block_table,
               cache_leftpad=None) -> dict:
    """k, v and index tensors for the library, of a cache [b_cache, s_cache, heads, head_dim], or of pages with
    block_table. Nothing of the cache is copied.

    A cache whose rows are chosen by cache_batch_idx is one of pages, one a sequence. With cache_leftpad the cache is one
    packed buffer with unused rows between the sequences, or, where the sequences are not in its order, pages of one key.
    """
    if cache_leftpad is None:
        if cache_seqlens is None and cache_batch_idx is None and block_table is None:
            return dict(k=k_cache, v=v_cache)
        if cache_batch_idx is not None:
            block_table = cache_batch_idx[:, None].to(torch.int32)
            if cache_seqlens is None:
                cache_seqlens = k_cache.shape[1]
        if isinstance(cache_seqlens, int):
            cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=k_cache.device)
        return dict(k=k_cache, v=v_cache, seqused_k=cache_seqlens, block_table=block_table)

    capacity = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    seqused_k = (capacity if cache_seqlens is None else cache_seqlens) - cache_leftpad
    k, v, step = _one_buffer(function, k_cache, v_cache)
    common = dict(seqused_k=seqused_k, max_seqlen_k=capacity)
    if block_table is None and cache_batch_idx is None:
        begins = torch.arange(batch, dtype=torch.int32, device=k.device) * step + cache_leftpad
        return dict(k=k, v=v, cu_seqlens_k=torch.nn.functional.pad(begins, (0, 1), value=k.shape[0]), **common)
    rows = torch.arange(capacity, dtype=torch.int32, device=k.device) + cache_leftpad[:, None]
    if block_table is not None:
        page_size = k_cache.shape[1]
        pages = block_table.gather(1, (rows // page_size).clamp_(max=block_table.shape[1] - 1).long())
        rows = pages * step + rows % page_size
    else:
        rows += (cache_batch_idx * step)[:, None]
    return dict(k=k[:, None], v=v[:, None], block_table=rows, **common)


def _one_buffer(function: str, k_cache, v_cache):
    """k and v [rows, heads, head_dim] over all of a cache, and how many rows apart its sequences or pages begin."""
    num, size = k_cache.shape[:2]
    (k_stride, step), (v_stride, v_step) = _row_stride_and_step(k_cache), _row_stride_and_step(v_cache)
    if step != v_step or step < size:
        refuse(function, f"cache_leftpad is given, and the strides of k_cache {k_cache.stride()} and v_cache "
               f"{v_cache.stride()} are not those of rows in one buffer", "sequences (or pages) a whole number of rows "
               "apart, as many in k_cache as in v_cache", "pass contiguous caches")
    rows = (num - 1) * step + size
    k, v = (cache.as_strided((rows, *cache.shape[2:]), (stride, *cache.stride()[2:]))
            for cache, stride in ((k_cache, k_stride), (v_cache, v_stride)))
    return k, v, step


def _row_stride_and_step(cache):
    """The stride of rows, and how many of it sequences are apart: 0 if not a whole number."""
    num, size = cache.shape[:2]
    stride = cache.stride(1) if size > 1 else cache.stride(0)
    if num == 1:
        return stride, size
    return stride, cache.stride(0) // stride if stride > 0 and cache.stride(0) % stride == 0 else 0
