# SPDX-License-Identifier: Apache-2.0
"""Numbers of a paged cache, and attention over it in float64."""

import numpy as np

import pagoda

TOLERANCE = {"fp64": 1e-13, "fp32": 2e-6, "fp16": 2e-3, "bf16": 2e-2}


class Scene:
    """Sequences in shuffled pages. `k` and `v` are (page, token, KV head, dim), float32."""

    def __init__(self, lengths=(20, 31, 1), heads=8, kv_heads=2, dim=64, dim_v=None, page_size=8, query_len=1, seed=0):
        rng = np.random.default_rng(seed)
        self.heads, self.kv_heads, self.dim, self.dim_v = heads, kv_heads, dim, dim_v or dim
        self.page_size, self.query_len = page_size, query_len
        each = -(-max(lengths) // page_size)
        pages = each * len(lengths)
        self.block_table = rng.permutation(pages).astype(np.int32).reshape(len(lengths), each)
        self.seq_lens = np.array(lengths, np.int32)
        self.k = rng.standard_normal((pages, page_size, kv_heads, dim)).astype(np.float32)
        self.v = rng.standard_normal((pages, page_size, kv_heads, self.dim_v)).astype(np.float32)
        self.q = rng.standard_normal((len(lengths) * query_len, heads, dim)).astype(np.float32)

    def cache(self, convert=lambda array: array, **options):
        arrays = [convert(array) for array in (self.k, self.v, self.block_table, self.seq_lens)]
        return pagoda.PagedCache(*arrays, **options)

    def tokens(self, array, b):
        """Keys or values of a sequence: (token, KV head, dim) in float64."""
        return array[self.block_table[b]].reshape(-1, *array.shape[2:])[: self.seq_lens[b]].astype(np.float64)

    def right(self, window_left=-1, sinks=None, k=None, v=None, q=None):
        """(out, lse) in float64."""
        q = (self.q if q is None else q).astype(np.float64)
        k, v = self.k if k is None else k, self.v if v is None else v
        out, lse = np.zeros((*q.shape[:2], self.dim_v)), np.zeros(q.shape[:2])
        group = self.heads // self.kv_heads
        for row, head in np.ndindex(*q.shape[:2]):
            b, i = divmod(row, self.query_len)
            last = int(self.seq_lens[b]) - self.query_len + i + 1
            first = 0 if window_left < 0 else max(0, last - 1 - window_left)
            keys = self.tokens(k, b)[first:last, head // group]
            values = self.tokens(v, b)[first:last, head // group]
            scores = keys @ q[row, head] / np.sqrt(self.dim)
            top = max(scores.max(initial=-np.inf), -np.inf if sinks is None else sinks[head])
            weights = np.exp(scores - top)
            total = weights.sum() + (0 if sinks is None else np.exp(sinks[head] - top))
            out[row, head], lse[row, head] = weights @ values / total, np.log(total) + top
        return out, lse


def close(a, b, tolerance):
    np.testing.assert_allclose(np.asarray(a, np.float64), b, rtol=tolerance, atol=4 * tolerance)
