"""What a token costs in the cache, layer by layer."""

import pytest

from fuel_core.errors import PlanError
from fuel_core.plans import CacheSpec, KVSlots, LatentSlots, Slots


def test_keys_and_values_cost_two_vectors_a_head() -> None:
    assert KVSlots(8, 128).elements == 2 * 8 * 128
    assert KVSlots(1, 16).elements == 32


def test_a_latent_costs_its_rank_and_one_rotary_key() -> None:
    """MLA caches one latent and one rotary key a token; per-head keys would cost 57 times as much."""
    assert LatentSlots(512, 64).elements == 576


def test_bytes_are_exact_over_layers_of_different_slots() -> None:
    spec = CacheSpec((KVSlots(2, 16), LatentSlots(32, 8), KVSlots(1, 16)))
    assert spec.elements_per_token == 64 + 40 + 32
    assert spec.bytes_per_token(2) == 272
    assert spec.bytes_per_token(4) == 544


def test_published_sizes() -> None:
    """Qwen2.5-7B: 28 layers x 2 x 4 heads x 128; DeepSeek-V2-Lite: 27 layers x (512 + 64); bfloat16."""
    assert CacheSpec.uniform(KVSlots(4, 128), 28).bytes_per_token(2) == 57_344
    assert CacheSpec.uniform(LatentSlots(512, 64), 27).bytes_per_token(2) == 31_104


def test_specs_are_values() -> None:
    assert CacheSpec.uniform(KVSlots(2, 4), 2) == CacheSpec((KVSlots(2, 4), KVSlots(2, 4)))
    assert CacheSpec.uniform(KVSlots(2, 4), 2) != CacheSpec.uniform(KVSlots(4, 2), 2)
    assert hash(CacheSpec.uniform(KVSlots(2, 4), 2)) == hash(CacheSpec((KVSlots(2, 4),) * 2))


def test_slots_read_as_text() -> None:
    assert str(KVSlots(8, 128)) == "k, v: 8 x 128"
    assert str(LatentSlots(512, 64)) == "latent: 512, k_pe: 64"


def test_no_layer_is_refused() -> None:
    with pytest.raises(PlanError, match="no layer"):
        CacheSpec(())


@pytest.mark.parametrize(
    "slots", [KVSlots(0, 16), KVSlots(2, 0), KVSlots(-1, -16), LatentSlots(0, 8), LatentSlots(8, -4)]
)
def test_slots_of_no_width_name_the_layer(slots: Slots) -> None:
    """Two negative sizes multiply to a positive one, so the product alone lets them pass."""
    with pytest.raises(PlanError, match="layer 1 slots of no width"):
        CacheSpec((KVSlots(2, 16), slots))
