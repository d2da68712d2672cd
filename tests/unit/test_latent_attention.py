"""Multi-head latent attention: two forms of one function, over one cache of latents.

Letters: B rows, T tokens, H heads, N unrotated and R rotated dims of a head, V value dim, K latent rank,
C capacity.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fuel_core.cache import CachePool
from fuel_core.errors import CapacityError, GeometryError
from fuel_core.ops import attend_absorbed, attend_expanded
from fuel_core.ops.latent import expanded_cpu, expanded_reference, latent_cpu, latent_reference
from fuel_core.plans import (
    UNBOUNDED,
    CacheSpec,
    LatentAttentionPlan,
    LatentSlots,
    NormPlan,
    RopeVariant,
    visible,
)
from fuel_core.rotary import RopeTable

H, N, R, V, K, C = 3, 5, 4, 7, 6, 24
SCALE = (N + R) ** -0.5

LITE = LatentAttentionPlan(
    heads=16,
    nope_dim=128,
    rope_dim=64,
    value_dim=128,
    kv_rank=512,
    q_rank=None,
    scale=192**-0.5,
    norm=NormPlan("rms", 1e-6),
    bias=False,
    form="auto",
)
"""V2-Lite's geometry."""

Form = Callable[..., Tensor]
FORMS = {"absorbed": attend_absorbed, "expanded": attend_expanded}


def noise(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)


def call(
    form: Form,
    lengths: list[int],
    tokens: int = 1,
    *,
    window: int = UNBOUNDED,
    dtype: torch.dtype = torch.float64,
    weights: torch.dtype | None = None,
    cached: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """What a form returns and the pool it leaves; what the rows do not hold is NaN."""
    batch = len(lengths)
    rows = torch.arange(batch).flip(0) + 1
    pool = noise(1, batch + 2, C, K + R, dtype=cached or dtype)
    for row, length in zip(rows.tolist(), lengths, strict=True):
        pool[row, length:] = torch.nan
    positions = torch.tensor([list(range(length, length + tokens)) for length in lengths])
    mask = None
    if tokens > 1:
        keys = torch.arange(lengths[0] + tokens)
        mask = visible(positions[0, :, None], keys, torch.tensor(window))
    out = form(
        noise(2, batch, tokens, H, N, dtype=dtype),
        noise(3, batch, tokens, H, R, dtype=dtype),
        noise(4, batch, tokens, K + R, dtype=dtype),
        pool,
        noise(5, H, N + V, K, dtype=weights or dtype),
        rows,
        positions,
        torch.tensor(window),
        mask,
        SCALE,
    )
    return out, pool


CALLS: dict[str, tuple[list[int], int, int]] = {
    "one token": ([5], 1, UNBOUNDED),
    "first token": ([0], 1, UNBOUNDED),
    "rows of other lengths": ([3, 11, 0], 1, UNBOUNDED),
    "window": ([17, 3], 1, 4),
    "chunk": ([6], 9, UNBOUNDED),
    "first chunk": ([0], 9, UNBOUNDED),
    "chunk across a window": ([3], 9, 4),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("form", FORMS)
def test_each_form_equals_a_loop_over_heads_and_keys(form: str, name: str) -> None:
    """Held against scalar code that knows the definition alone."""
    lengths, tokens, window = CALLS[name]
    out, pool = call(FORMS[form], lengths, tokens, window=window)
    q_nope, q_pe = noise(2, len(lengths), tokens, H, N), noise(3, len(lengths), tokens, H, R)
    w_uk, w_uv = noise(5, H, N + V, K).split((N, V), dim=1)
    for b, length in enumerate(lengths):
        entries = pool[len(lengths) - b]
        for t in range(tokens):
            position = length + t
            seen = [key for key in range(position + 1) if position - key < window]
            for head in range(H):
                scores, values = [], []
                for key in seen:
                    latent, k_pe = entries[key, :K], entries[key, K:]
                    score = q_nope[b, t, head] @ (w_uk[head] @ latent) + q_pe[b, t, head] @ k_pe
                    scores.append(score * SCALE)
                    values.append(w_uv[head] @ latent)
                weights = torch.stack(scores).softmax(0)
                wanted = (weights[:, None] * torch.stack(values)).sum(0)
                torch.testing.assert_close(out[b, t, head], wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", CALLS)
def test_cpu_paths_equal_the_definitions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, tokens, window = CALLS[name]
    kernels = {
        "attend_latent": (latent_cpu, latent_reference),
        "attend_expanded": (expanded_cpu, expanded_reference),
    }
    for form, (operation, pair) in zip(FORMS.values(), kernels.items(), strict=True):
        found = []
        for kernel in pair:
            with monkeypatch.context() as patch:
                patch.setattr(torch.ops.fuel, operation, kernel)
                found.append(call(form, lengths, tokens, window=window))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, atol=1e-12, rtol=0, equal_nan=True)


@pytest.mark.parametrize("form", FORMS)
def test_stores_latent_and_rotated_key_and_nothing_else(form: str) -> None:
    _, pool = call(FORMS[form], [4, 9])
    before = noise(1, 4, C, K + R)
    for row, length in ((2, 4), (1, 9)):
        before[row, length:] = torch.nan
    changed = (pool != before) & ~(pool.isnan() & before.isnan())
    assert {(row, place) for row, place, _ in changed.nonzero().tolist()} == {(2, 4), (1, 9)}
    torch.testing.assert_close(pool[2, 4], noise(4, 2, 1, K + R)[0, 0], atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_forms_agree_within_what_rounding_allows(dtype: torch.dtype) -> None:
    exact, _ = call(attend_expanded, [17])
    for form in FORMS.values():
        found, _ = call(form, [17], dtype=dtype)
        assert found.dtype is dtype
        bound = 32 * torch.finfo(dtype).eps * float(exact.abs().max())
        torch.testing.assert_close(found.double(), exact, atol=bound, rtol=0)


@pytest.mark.parametrize("form", FORMS)
def test_weights_and_cache_keep_their_own_dtypes(form: str) -> None:
    """Absorption in float32 alone would have kept bfloat16 models from decoding."""
    mixed, pool = call(FORMS[form], [17], dtype=torch.float32, weights=torch.bfloat16, cached=torch.bfloat16)
    assert (mixed.dtype, pool.dtype) == (torch.float32, torch.bfloat16)
    exact, _ = call(FORMS[form], [17])
    torch.testing.assert_close(mixed.double(), exact, atol=0.05 * float(exact.abs().max()), rtol=0)


@pytest.mark.parametrize("form", FORMS)
def test_a_position_beyond_the_capacity_is_refused(form: str) -> None:
    with pytest.raises(CapacityError, match="position 24 is beyond the capacity of 24"):
        call(FORMS[form], [C])


@pytest.mark.parametrize("form", FORMS)
def test_several_tokens_need_a_mask(form: str) -> None:
    arguments = (noise(2, 1, 2, H, N), noise(3, 1, 2, H, R), noise(4, 1, 2, K + R), torch.zeros(2, C, K + R))
    with pytest.raises(GeometryError, match=r"2 token\(s\) without a mask"):
        FORMS[form](*arguments, noise(5, H, N + V, K), torch.tensor([0]), None, None, None, SCALE)


@pytest.mark.parametrize("rank", [K])
def test_operations_are_registered_whole(rank: int) -> None:
    """Schema, mutation and fake kernel, as torch.compile relies on them."""
    rows, positions, window = torch.tensor([1, 0]), torch.tensor([[3], [5]]), torch.tensor(UNBOUNDED)
    new, pool = noise(4, 2, 1, K + R), noise(1, 3, C, K + R)
    q = noise(2, 2, 1, H, K + R)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        torch.ops.fuel.attend_latent,
        (q, new, pool, rows, positions, window, None, SCALE, rank),
        test_utils=tests,
    )
    q = noise(2, 2, 1, H, N + R)
    torch.library.opcheck(
        torch.ops.fuel.attend_expanded,
        (q, new, pool, noise(5, H, N + V, K), rows, positions, window, None, SCALE),
        test_utils=tests,
    )


class TestWhichForm:
    def test_one_token_absorbs_and_a_prompt_expands(self) -> None:
        """K(N + V) / 2(2K - N - V) = 512 * 256 / 1536 = 85.33 tokens is V2-Lite's break-even."""
        assert [LITE.absorbs(tokens) for tokens in (1, 85, 86, 512)] == [True, True, False, False]

    def test_a_latent_of_few_dimensions_always_absorbs(self) -> None:
        assert replace(LITE, kv_rank=128).absorbs(100_000)

    @pytest.mark.parametrize("form", FORMS)
    def test_a_choice_holds_for_every_step(self, form: str) -> None:
        plan = replace(LITE, form=form)
        assert {plan.absorbs(tokens) for tokens in (1, 512)} == {form == "absorbed"}

    def test_multiplications_are_counted_right(self) -> None:
        """The rule against a count of every product of both forms, over 1,000 cached tokens; those of
        attention count twice."""

        def products(absorbed: bool, tokens: int) -> int:
            a_query = 2 * 512 + 64 if absorbed else 128 + 64 + 128
            return 16 * 1000 * (2 * a_query * tokens + (0 if absorbed else 512 * (128 + 128)))

        for tokens in (1, 50, 85, 86, 400):
            assert LITE.absorbs(tokens) == (products(True, tokens) < products(False, tokens))


def test_neighbours_are_rotated_as_published() -> None:
    """DeepSeek's weights pair neighbouring dimensions. Pairing halves, or permuting q alone, gives
    -3.456 or 4.033 in place of 1.190, and text of no sense."""
    table = RopeTable.of(RopeVariant(base=1e4, width=4, layout="interleaved"), torch.device("cpu"))

    def rotated(x: list[float], position: int) -> Tensor:
        rows = table.rows(torch.tensor([[position]]), torch.tensor([0]))
        return rows.rotate(torch.tensor(x)[None, None, None])[0, 0, 0]

    q, k = [1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]
    assert float(rotated(q, 3) @ rotated(k, 1)) == pytest.approx(1.19005123, abs=1e-5)
    assert float(rotated(q, 103) @ rotated(k, 101)) == pytest.approx(1.19005123, abs=1e-4)


def test_a_token_of_v2_lite_takes_31104_bytes() -> None:
    """Latents are shared by all heads: 512 + 64 numbers a layer, where 16 heads of keys and values would
    be 5,120."""
    spec = CacheSpec.uniform(LatentSlots(512, 64), 27)
    pool = CachePool(spec, rows=1, capacity=8, dtype=torch.bfloat16)
    assert pool.bytes_per_token == 31_104
    assert LITE.expanded_elements * 27 * 2 == 276_480
    buffers = pool.layers[0]
    assert buffers.latent.shape == (2, 8, 512)
    assert buffers.k_pe.shape == (2, 8, 64)
    assert buffers.latent.data_ptr() == buffers.buffer.data_ptr(), "slots are views of one buffer"
