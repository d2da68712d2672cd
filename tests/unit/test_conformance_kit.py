"""The conformance kit's own tests and guards can fail, on a fault as on a case that could show none."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuel_core.family import Family, Mutation
from fuel_core.testing import Case, Conformance, checks
from fuel_core.testing.mutations import CORE_MUTATIONS, CoreMutation, Patch
from fuel_core.testing.oracle import OracleLogits


@pytest.fixture
def case(qwen2: Family) -> Case:
    return Case.build(qwen2, "mixed-window")


def mutation(name: str) -> Patch:
    (patch,) = (mutation.patch for mutation in CORE_MUTATIONS if mutation.name == name)
    return patch


def swap_cos_and_sin(monkeypatch: pytest.MonkeyPatch) -> None:
    mutation("cos and sin swapped")(monkeypatch)


class TestOfAFamily:
    """The tests that a family's class inherits, each turned red."""

    @pytest.fixture
    def kit(self) -> Conformance:
        class Kit(Conformance):
            family = "qwen2"

        return Kit()

    @pytest.fixture
    def oracle(self, qwen2: Family, fuel_oracles: OracleLogits) -> Callable[[str], Any]:
        return lambda tiny: fuel_oracles.run(qwen2, tiny)

    def test_parity_sees_a_fault_of_both_paths(
        self, kit: Conformance, oracle: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kit.test_logits_equal_transformers("dense", oracle)
        swap_cos_and_sin(monkeypatch)
        with pytest.raises(AssertionError, match="one shot: off by"):
            kit.test_logits_equal_transformers("dense", oracle)
        with pytest.raises(AssertionError):
            kit.test_greedy_text_equals_transformers("dense", tmp_path)

    def test_a_relative_check_is_blind_to_a_fault_of_both_sides(
        self, case: Case, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Why parity is needed: what both sides share, neither of these can see."""
        swap_cos_and_sin(monkeypatch)
        checks.held_step_equals_eager_step(case)
        checks.cached_equals_one_shot(case)

    def test_a_mutation_that_breaks_nothing_is_reported(
        self, kit: Conformance, oracle: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        harmless = CoreMutation("nothing is broken", lambda patch: None)
        with pytest.raises(AssertionError, match="dense: no check sees that nothing is broken"):
            kit.test_core_mutation_is_seen(harmless, oracle, monkeypatch)
        with pytest.raises(AssertionError, match="dense: not seen that nothing is broken"):
            kit.test_family_mutation_is_seen(Mutation(name="nothing is broken"), oracle)

    def test_a_mutation_that_no_config_shows_is_vacuous(
        self, kit: Conformance, oracle: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unused = CoreMutation("unused", lambda patch: None, lambda plan: False)
        with pytest.raises(AssertionError, match="vacuous: no tiny config uses the part"):
            kit.test_core_mutation_is_seen(unused, oracle, monkeypatch)
        with pytest.raises(AssertionError, match="vacuous: the mutation changes no tiny config"):
            kit.test_family_mutation_is_seen(Mutation(name="unused", config=lambda raw: raw), oracle)

    def test_a_fault_of_the_rebind_must_spare_the_planned_token(
        self, kit: Conformance, oracle: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = "one key too many is read"
        everywhere = CoreMutation(name, mutation(name), spares_planned_token=True)
        with pytest.raises(AssertionError, match="the planned token: off by"):
            kit.test_core_mutation_is_seen(everywhere, oracle, monkeypatch)

    def test_a_golden_is_required_and_compared(
        self, kit: Conformance, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        type(kit).goldens = tmp_path
        with pytest.raises(AssertionError, match="is missing"):
            kit.test_golden("dense", request)
        (tmp_path / "qwen2-dense.txt").write_text("another plan")
        with pytest.raises(AssertionError, match="differs"):
            kit.test_golden("dense", request)


class TestVacuousCases:
    """What could not fail is refused, whatever its result."""

    def test_fewer_than_three_decoded_tokens(self, case: Case) -> None:
        tokens = case.token_ids(seed=1)[:22]
        case.decode(case.session(), tokens, prefilled=19)
        with pytest.raises(AssertionError, match="fewer than three tokens"):
            case.decode(case.session(), tokens, prefilled=20)

    def test_a_sequence_that_does_not_outrun_the_windows(self, qwen2: Family, case: Case) -> None:
        checks.require_window_bites(case.plan.mask, 6)
        with pytest.raises(AssertionError, match="5 tokens do not outrun a window of 5"):
            checks.require_window_bites(case.plan.mask, 5)
        with pytest.raises(AssertionError, match="no layer has a window"):
            checks.windows_matter(Case.build(qwen2, "dense"))

    def test_a_sequence_within_the_original_context(self, qwen2: Family) -> None:
        raw = dict(qwen2.tiny["yarn"])
        raw["rope_scaling"] = {**raw["rope_scaling"], "original_max_position_embeddings": 72}
        with pytest.raises(AssertionError, match="72 tokens stay within the original 72"):
            checks.cached_equals_one_shot(Case.build(qwen2, "yarn", raw=raw))

    def test_two_histories_that_are_one(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        tokens = case.token_ids(seed=1)
        monkeypatch.setattr(Case, "token_ids", lambda self, seed: tokens)
        with pytest.raises(AssertionError, match="the two histories give the same logits"):
            checks.swapped_cache_rebinds(case)


def test_without_pytest_the_kit_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a bare "No module named 'pytest'"."""
    monkeypatch.setitem(sys.modules, "pytest", None)
    monkeypatch.delitem(sys.modules, "fuel_core.testing")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fuel-core\[testing\]'"):
        importlib.import_module("fuel_core.testing")
