"""Which keys of a cache each sequence has, in the words of the library."""

import torch

from onepass.refuse import refuse


def cache_rows(function: str, k_cache, batch: int, cache_seqlens, cache_batch_idx, block_table):
    """(seqused_k, block_table) of a cache [b_cache, s_cache, heads, head_dim], or of pages with block_table.

    A cache whose rows are chosen by cache_batch_idx is one of pages, one a sequence: nothing is gathered.
    """
    if cache_batch_idx is not None:
        if block_table is not None:
            refuse(function, "both cache_batch_idx and a page table are given", "one of them", "drop cache_batch_idx")
        block_table = cache_batch_idx[:, None].to(torch.int32)
        if cache_seqlens is None:
            cache_seqlens = k_cache.shape[1]
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=k_cache.device)
    return cache_seqlens, block_table
