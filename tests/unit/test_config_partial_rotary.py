"""The share of a head that is rotated: where it stands, what it gives, what is refused."""

from typing import Any

import pytest

from fuel_core.config import PartialRotaryKeys, RopeKeys, RopeSpelling
from fuel_core.errors import ConfigError
from fuel_core.plans import NoScaling, RopeVariant

BASE: dict[str, Any] = {
    "vocab_size": 8,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
}


def spell(head_dim: int = 20, **keys: Any) -> RopeSpelling:
    config, _ = PartialRotaryKeys.read({**BASE, **keys}, source="here/config.json")
    return config.partial_rope_spelling(default_theta=100.0, head_dim=head_dim, default_share=0.5)


def inside(share: object, **recipe: Any) -> dict[str, Any]:
    return {"rope_type": "default", "partial_rotary_factor": share, **recipe}


@pytest.mark.parametrize(
    ("keys", "width"),
    [
        ({}, 10),
        ({"partial_rotary_factor": None}, 10),
        ({"partial_rotary_factor": 1.0}, 20),
        ({"partial_rotary_factor": 0.43}, 8),
        ({"rope_parameters": inside(0.7)}, 14),
        ({"rope_parameters": {"partial_rotary_factor": 0.7}}, 14),
        ({"rope_parameters": inside(1)}, 20),
        ({"rope_parameters": inside(None)}, 10),
        ({"rope_parameters": inside(0.7), "partial_rotary_factor": 0.7}, 14),
        ({"rope_scaling": inside(0.7), "rope_parameters": {"rope_type": "default"}}, 14),
    ],
)
def test_where_it_stands(keys: dict[str, Any], width: int) -> None:
    """The width is rounded down: 0.43 of 20 dimensions are 8."""
    assert spell(**keys).single == RopeVariant(base=100.0, width=width, scaling=NoScaling())


def test_the_recipe_keeps_its_other_keys() -> None:
    spelling = spell(rope_parameters=inside(0.5, rope_theta=50.0))
    assert spelling.single == RopeVariant(base=50.0, width=10)
    assert spelling.theta_stated


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"partial_rotary_factor": 0.0}, "partial_rotary_factor is 0.0"),
        ({"partial_rotary_factor": 1.01}, "partial_rotary_factor is 1.01"),
        ({"rope_parameters": inside(1.01)}, "rope_parameters.partial_rotary_factor is 1.01"),
        ({"rope_parameters": inside(True)}, "rope_parameters.partial_rotary_factor is True"),
        ({"rope_parameters": inside("half")}, "rope_parameters.partial_rotary_factor is 'half'"),
        (
            {"partial_rotary_factor": 0.5, "rope_parameters": inside(0.7)},
            r"partial_rotary_factor is 0\.5 and rope_parameters\.partial_rotary_factor is 0\.7",
        ),
        ({"partial_rotary_factor": 0.25}, r"head_dim \(20\) times partial_rotary_factor \(0\.25\).* of 5"),
        ({"partial_rotary_factor": 0.04}, r"partial_rotary_factor \(0\.04\) gives a rotary width of 0"),
    ],
)
def test_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spell(**keys)


def test_a_family_that_rotates_whole_heads_refuses_a_share() -> None:
    """Passed over in silence, a partial model would rotate everything."""
    config, _ = RopeKeys.read({**BASE, "rope_parameters": inside(0.5)}, source="here/config.json")
    with pytest.raises(ConfigError, match="rope_parameters holds partial_rotary_factor"):
        config.rope_spelling(default_theta=100.0, width=20)
