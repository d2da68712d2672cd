"""cos and sin of a step, and the rotation: layouts, partial width, precision, regimes."""

import cmath
import math

import numpy as np
import pytest
import torch

from fuel_core.family import Family
from fuel_core.plans import LongRopeScaling, RopeVariant, YarnScaling
from fuel_core.plans.rope import Layout
from fuel_core.rotary import RopeTable
from fuel_core.testing import Case

CPU = torch.device("cpu")
DEFAULT_REGIME = torch.zeros(1, dtype=torch.int64)


def rotate(variant: RopeVariant, heads: torch.Tensor, positions: list[int], regime: int = 0) -> torch.Tensor:
    """Rotate one row of ``[T, D]`` at these positions."""
    table = RopeTable.of(variant, CPU)
    rows = table.rows(torch.tensor([positions]), torch.tensor([regime]))
    return rows.rotate(heads[None, :, None])[0, :, 0]


def by_complex_numbers(
    vector: list[float], position: int, base: float, width: int, layout: Layout
) -> list[float]:
    """RoFormer's rotation, by hand: pair i is a complex number, turned by position * base^(-2i/R)."""
    turned = list(vector)
    for pair in range(width // 2):
        at = (pair, pair + width // 2) if layout == "half" else (2 * pair, 2 * pair + 1)
        turn = cmath.exp(1j * position * base ** (-2 * pair / width))
        number = complex(vector[at[0]], vector[at[1]]) * turn
        turned[at[0]], turned[at[1]] = number.real, number.imag
    return turned


class TestLayouts:
    Q, K = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    HALVES = [0, 2, 1, 3]
    """Dimensions for which neighbours become halves."""

    def score(self, layout: Layout, permute_q: bool = False, permute_k: bool = False) -> float:
        variant = RopeVariant(base=10_000.0, width=4, layout=layout)
        q = rotate(variant, self.Q[:, self.HALVES] if permute_q else self.Q, [3])
        k = rotate(variant, self.K[:, self.HALVES] if permute_k else self.K, [1])
        return float((q * k).sum())

    def test_neighbours_or_both_permuted_to_halves(self) -> None:
        """DeepSeek's weights pair neighbours, Llama's pair halves; read the wrong way, or with only q
        permuted, scores are plausible numbers of another model."""
        assert self.score("interleaved") == pytest.approx(1.19005123, rel=1e-6)
        assert self.score("half", permute_q=True, permute_k=True) == pytest.approx(1.19005123, rel=1e-6)

    def test_the_wrong_ways_give_other_scores(self) -> None:
        """Non-vacuity of the test above, with the values that the faults gave."""
        assert self.score("half") == pytest.approx(-3.45642923, rel=1e-6)
        assert self.score("half", permute_q=True) == pytest.approx(4.03245283, rel=1e-6)

    @pytest.mark.parametrize("layout", ["half", "interleaved"])
    @pytest.mark.parametrize("width", [2, 6, 8])
    def test_rotation_equals_complex_multiplication(self, width: int, layout: Layout) -> None:
        variant = RopeVariant(base=50.0, width=width, layout=layout)
        heads = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
        positions = [0, 5, 17]
        wanted = [
            by_complex_numbers(head.tolist(), position, 50.0, width, layout)
            for head, position in zip(heads, positions, strict=True)
        ]
        torch.testing.assert_close(
            rotate(variant, heads, positions), torch.tensor(wanted), atol=1e-5, rtol=1e-5
        )

    @pytest.mark.parametrize("layout", ["half", "interleaved"])
    def test_scores_depend_on_distance_alone(self, layout: Layout) -> None:
        variant = RopeVariant(base=50.0, width=4, layout=layout)
        scores = [
            float((rotate(variant, self.Q, [3 + shift]) * rotate(variant, self.K, [1 + shift])).sum())
            for shift in (0, 1, 40)
        ]
        assert scores == pytest.approx([scores[0]] * 3, abs=1e-4)
        assert abs(scores[0] - float((self.Q * self.K).sum())) > 1, "the rotation changes the score"

    @pytest.mark.parametrize("layout", ["half", "interleaved"])
    def test_dimensions_beyond_the_width_pass_bitwise(self, layout: Layout) -> None:
        """With a partial width, a rotation over the whole head turns dimensions that were trained still."""
        heads = torch.randn(2, 10, generator=torch.Generator().manual_seed(0))
        rotated = rotate(RopeVariant(base=50.0, width=4, layout=layout), heads, [1, 9])
        assert torch.equal(rotated[:, 4:], heads[:, 4:])
        assert (rotated[:, :4] != heads[:, :4]).all()

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
    def test_low_precision_heads_are_rotated_in_float32_and_cast_back(self, dtype: torch.dtype) -> None:
        rotated = rotate(RopeVariant(base=50.0, width=4), self.Q.to(dtype), [3])
        assert rotated.dtype == dtype
        assert torch.equal(rotated, rotate(RopeVariant(base=50.0, width=4), self.Q, [3]).to(dtype))

    def test_float64_heads_are_rotated_in_float64(self) -> None:
        """By promotion: a cast down to float32 would end every float64 equivalence at 1e-7."""
        table = RopeTable.of(RopeVariant(base=50.0, width=4), CPU).rows(torch.tensor([[3]]), DEFAULT_REGIME)
        rotated = rotate(RopeVariant(base=50.0, width=4), self.Q.double(), [3])
        assert rotated.dtype == torch.float64
        cos, sin = table.cos.double().flatten(), table.sin.double().flatten()
        first, second = self.Q.double()[0, :2], self.Q.double()[0, 2:]
        wanted = torch.cat((first * cos - second * sin, second * cos + first * sin))
        torch.testing.assert_close(rotated[0], wanted, atol=1e-15, rtol=0)


class TestPrecision:
    POSITIONS = (257, 4095, 15_962, 131_071)
    VARIANT = RopeVariant(base=10_000.0, width=128)

    def reference(self) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin of float32 angles: frequencies, positions and their product rounded to float32."""
        exponents = np.arange(0, 128, 2, dtype=np.float32) / np.float32(128)
        frequencies = np.float32(1) / np.power(np.float32(10_000), exponents, dtype=np.float32)
        angles = np.array(self.POSITIONS, dtype=np.float32)[:, None] * frequencies
        assert angles.dtype == np.float32
        return np.cos(angles.astype(np.float64)), np.sin(angles.astype(np.float64))

    def test_cos_and_sin_equal_the_float32_computation(self) -> None:
        """Positions or frequencies cast to bfloat16 before the product: 4095 becomes 4096, and the
        cosine of the first pair 0.80 instead of -0.07."""
        rows = RopeTable.of(self.VARIANT, CPU).rows(torch.tensor([self.POSITIONS]), DEFAULT_REGIME)
        cos, sin = self.reference()
        assert rows.cos.dtype == rows.sin.dtype == torch.float32
        # NumPy and torch round float32 powers differently in the last bit: 1e-7 of an angle of 131,071
        # for the first pairs would be 1e-2, so those are held to a bound that grows with the angle.
        angle = np.array(self.POSITIONS)[:, None] * 10_000.0 ** (-np.arange(0, 128, 2) / 128)
        bound = np.maximum(1e-5, angle * 2.0**-23)
        assert (np.abs(rows.cos[0, :, 0].numpy() - cos) <= bound).all()
        assert (np.abs(rows.sin[0, :, 0].numpy() - sin) <= bound).all()

    def test_the_first_pair_turns_by_whole_positions(self) -> None:
        rows = RopeTable.of(self.VARIANT, CPU).rows(torch.tensor([self.POSITIONS]), DEFAULT_REGIME)
        wanted = [math.cos(position) for position in self.POSITIONS]
        assert rows.cos[0, :, 0, 0].tolist() == pytest.approx(wanted, abs=1e-5)
        assert wanted[1] == pytest.approx(-0.0659760, abs=1e-6)
        rounded = [float(torch.tensor(float(p)).bfloat16()) for p in self.POSITIONS[:3]]
        assert rounded == [256.0, 4096.0, 15_936.0], "what an early cast would make of the positions"

    def test_table_is_transformers_bit_for_bit(self) -> None:
        wanted = 1.0 / (10_000.0 ** (torch.arange(0, 128, 2, dtype=torch.int64).float() / 128))
        assert torch.equal(RopeTable.of(self.VARIANT, CPU).inverse_frequencies, wanted)

    def test_a_cast_of_the_model_leaves_the_tables(self, qwen2: Family) -> None:
        """``model.to(bfloat16)`` also cast the frequency buffer, and every position past 256 moved."""
        decoder = Case.build(qwen2, "yarn", dtype=torch.float32).decoder
        before = decoder.tables
        moved = decoder.to(torch.bfloat16)
        assert moved.embed.weight.dtype == torch.bfloat16
        for kept, table in zip(before.ropes, moved.tables.ropes, strict=True):
            assert table.inverse_frequencies.dtype == torch.float32
            assert torch.equal(table.inverse_frequencies, kept.inverse_frequencies)
            assert table.magnitudes is not None
            assert table.magnitudes.dtype == torch.float32
            assert torch.equal(table.magnitudes, kept.magnitudes)
        for kept, window in zip(before.windows, moved.tables.windows, strict=True):
            assert window.dtype == torch.int64
            assert torch.equal(window, kept)

    def test_magnitudes_are_float32_whatever_torch_defaults_to(self) -> None:
        scaling = YarnScaling(factor=40.0, original_length=4096)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            magnitudes = RopeTable.of(RopeVariant(base=1e4, width=64, scaling=scaling), CPU).magnitudes
        finally:
            torch.set_default_dtype(before)
        assert magnitudes is not None
        assert magnitudes.tolist() == pytest.approx([1.36888795], rel=1e-7)


class TestMagnitudesAndRegimes:
    LONGROPE = RopeVariant(
        base=50.0,
        width=4,
        scaling=LongRopeScaling(
            short_factor=(1.0, 1.0),
            long_factor=(2.0, 8.0),
            original_length=16,
            magnitude=1.0,
            long_mscale=1.5,
        ),
    )

    def test_yarns_magnitude_scales_cos_and_sin_alike(self) -> None:
        stretched = RopeVariant(
            base=50.0, width=4, scaling=YarnScaling(factor=40.0, original_length=4096, attention_factor=1.25)
        )
        heads = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
        lengths = rotate(stretched, heads, [7]).norm() / heads.norm()
        assert float(lengths) == pytest.approx(1.25, rel=1e-6)

    def test_a_neutral_magnitude_costs_nothing(self) -> None:
        """A factor of one on every step of every model is a multiplication for nothing."""
        assert RopeTable.of(RopeVariant(base=50.0, width=4), CPU).magnitudes is None
        deepseek = YarnScaling(factor=40.0, original_length=4096, mscale=1.0, mscale_all_dim=1.0)
        assert RopeTable.of(RopeVariant(base=50.0, width=4, scaling=deepseek), CPU).magnitudes is None
        assert RopeTable.of(self.LONGROPE, CPU).magnitudes is not None

    def test_each_row_of_a_batch_uses_its_own_regime(self) -> None:
        """The longest row of a batch chose the table for all, so a short chat changed with its neighbour."""
        table = RopeTable.of(self.LONGROPE, CPU)
        positions = torch.tensor([[3, 4], [3, 4]])
        together = table.rows(positions, torch.tensor([1, 0]))
        for row, regime in enumerate((1, 0)):
            alone = table.rows(positions[row : row + 1], torch.tensor([regime]))
            assert torch.equal(together.cos[row], alone.cos[0])
            assert torch.equal(together.sin[row], alone.sin[0])
        angles = {0: 3 / 50.0**0.5 / 1.0, 1: 3 / 50.0**0.5 / 8.0}
        assert float(together.cos[0, 0, 0, 1]) == pytest.approx(1.5 * math.cos(angles[1]), rel=1e-6)
        assert float(together.cos[1, 0, 0, 1]) == pytest.approx(math.cos(angles[0]), rel=1e-6)
