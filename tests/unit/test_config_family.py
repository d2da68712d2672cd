"""What every family's config has in common: strictness, null and absence, sizes, dtypes, messages."""

from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError

from fuel_core.config import NULL_IS_ABSENT, FamilyConfig
from fuel_core.config.family_config import LARGEST_SIZE, MOST_LAYERS
from fuel_core.errors import ConfigError

REQUIRED: dict[str, Any] = {
    "vocab_size": 8,
    "hidden_size": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 16,
}


class Toy(FamilyConfig):
    eps: Annotated[float, Field(gt=0)] = 1e-6
    window: Annotated[int, Field(ge=0)] | None = 5
    rank: Annotated[int, NULL_IS_ABSENT] = 7
    doubled: Annotated[int, NULL_IS_ABSENT] = Field(default_factory=lambda known: 2 * known["hidden_size"])


def read(**changes: Any) -> Toy:
    return Toy.read({**REQUIRED, **changes}, source="here/config.json")[0]


def refusal(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(**changes)
    return str(caught.value)


class TestNullAndAbsent:
    def test_absent_takes_the_default(self) -> None:
        config = read()
        assert (config.eps, config.window, config.rank, config.doubled) == (1e-6, 5, 7, 8)

    def test_null_is_a_value_where_the_type_admits_it(self) -> None:
        """An absent window and a null one are two models."""
        assert read(window=None).window is None
        assert "window" in read(window=None).model_fields_set

    def test_null_means_absent_where_the_key_says_so(self) -> None:
        config = read(rank=None, doubled=None)
        assert (config.rank, config.doubled) == (7, 8)
        assert not {"rank", "doubled"} & config.model_fields_set

    @pytest.mark.parametrize("key", ["eps", "vocab_size", "tie_word_embeddings"])
    def test_null_is_refused_elsewhere(self, key: str) -> None:
        assert f"{key} is None" in refusal(**{key: None})


class TestStrictness:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("vocab_size", "8"),
            ("vocab_size", 8.0),
            ("vocab_size", True),
            ("vocab_size", [8]),
            ("vocab_size", 0),
            ("vocab_size", -8),
            ("tie_word_embeddings", 1),
            ("tie_word_embeddings", "true"),
            ("eps", "1e-6"),
            ("eps", True),
            ("eps", 0.0),
            ("eps", float("nan")),
            ("eps", float("inf")),
            ("eps", 10**400),
            ("dtype", 16),
        ],
    )
    def test_nothing_is_converted(self, key: str, value: Any) -> None:
        """pydantic's default turns "8" and true into numbers: the config then says what the file did not."""
        assert f"{key} is " in refusal(**{key: value})

    def test_a_whole_number_may_stand_for_a_float(self) -> None:
        """rope_theta: 10000 is published; JSON has one kind of number."""
        assert read(eps=1).eps == 1.0

    @pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "max_position_embeddings", "window"])
    def test_sizes_that_no_tensor_has(self, key: str) -> None:
        """Beyond 2**31 a product of two sizes overflows int64, far from the key that caused it."""
        assert getattr(read(**{key: LARGEST_SIZE}), key) == LARGEST_SIZE
        for value in (LARGEST_SIZE + 1, 2**63, 10**400):
            message = refusal(**{key: value})
            assert f"{key} is " in message
            assert str(LARGEST_SIZE) in message

    def test_layers_that_no_plan_could_list(self) -> None:
        """A plan holds an entry a layer: 10**12 of them are no error but a machine out of memory."""
        assert read(num_hidden_layers=MOST_LAYERS).num_hidden_layers == MOST_LAYERS
        assert "num_hidden_layers" in refusal(num_hidden_layers=MOST_LAYERS + 1)

    def test_configs_are_frozen(self) -> None:
        config = read()
        with pytest.raises(ValidationError):
            config.eps = 1.0


class TestMessages:
    def test_source_key_and_value_are_named(self) -> None:
        message = refusal(hidden_size="wide")
        assert message.startswith("here/config.json: ")
        assert "hidden_size is 'wide'" in message

    def test_a_missing_key_is_named(self) -> None:
        with pytest.raises(ConfigError, match="vocab_size is missing"):
            Toy.read({key: REQUIRED[key] for key in REQUIRED if key != "vocab_size"}, source="x")

    def test_every_fault_is_named_at_once_and_no_consequence_of_one(self) -> None:
        message = refusal(hidden_size="wide", eps=-1.0)
        assert "hidden_size is 'wide'" in message
        assert "eps is -1.0" in message
        assert "doubled" not in message, "its default only follows from hidden_size"

    def test_a_default_that_cannot_be_derived_is_a_config_error(self) -> None:
        class Derived(FamilyConfig):
            half: int = Field(default_factory=lambda known: _half(known["hidden_size"]))

        def _half(size: int) -> int:
            if size % 2:
                raise ValueError(f"half is absent and hidden_size ({size}) is odd")
            return size // 2

        with pytest.raises(ConfigError, match=r"x: half is absent and hidden_size \(5\) is odd"):
            Derived.read({**REQUIRED, "hidden_size": 5}, source="x")


class TestDtype:
    @pytest.mark.parametrize(
        "keys",
        [
            {"dtype": "bfloat16"},
            {"torch_dtype": "bfloat16"},
            {"torch_dtype": "torch.bfloat16"},
            {"dtype": "bfloat16", "torch_dtype": "bfloat16"},
            {"dtype": "bfloat16", "torch_dtype": "torch.bfloat16"},
            {"dtype": None, "torch_dtype": "bfloat16"},
            {"dtype": "auto", "torch_dtype": "bfloat16"},
        ],
        ids=str,
    )
    def test_both_keys_and_both_spellings(self, keys: dict[str, Any]) -> None:
        """torch_dtype was renamed to dtype; a reader of one key ran bfloat16 models in float32."""
        assert read(**keys).stored_dtype == "bfloat16"

    @pytest.mark.parametrize("keys", [{}, {"dtype": None}, {"torch_dtype": "auto"}], ids=str)
    def test_no_dtype_is_stated(self, keys: dict[str, Any]) -> None:
        """What is stored then decides, so None must not become float32 here."""
        assert read(**keys).stored_dtype is None

    @pytest.mark.parametrize("name", ["float16", "float32", "float64"])
    def test_the_name_is_torchs(self, name: str) -> None:
        assert read(dtype=name).stored_dtype == name

    @pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
    @pytest.mark.parametrize("name", ["bf17", "torch.bf17", "float", "int8", "BFLOAT16", ""])
    def test_an_unknown_name_is_refused_with_the_known_ones(self, key: str, name: str) -> None:
        message = refusal(**{key: name})
        assert f"{key} is {name!r}" in message
        assert "bfloat16, float16, float32" in message

    def test_two_keys_that_differ(self) -> None:
        message = refusal(dtype="bfloat16", torch_dtype="float16")
        assert "dtype says bfloat16, torch_dtype says float16" in message
