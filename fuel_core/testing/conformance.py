"""The tests of a family: a class that a family's test file inherits from."""

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from fuel_core.family import Family, Mutation
from fuel_core.plans.model_plan import LatentAttentionPlan, ModelPlan
from fuel_core.registry import Registry
from fuel_core.testing import checks
from fuel_core.testing.case import PREFILLED, Case
from fuel_core.testing.crossing import crossing_equals_fresh_passes
from fuel_core.testing.mutations import CORE_MUTATIONS, CoreMutation
from fuel_core.testing.oracle import OracleLogits, OracleRun, TransformersOracle

GREEDY_TOKENS = 24


class Conformance:
    """Invariants, parity with transformers and mutations for every tiny config of one family.

    Attributes:
        family: the family's name; its plugin must be installed.
        goldens: the folder of this family's goldens, or None for none: one file a tiny config with
            its plan and the operations of its held step, for a reviewer to read.
    """

    family: ClassVar[str]
    goldens: ClassVar[Path | None] = None

    @classmethod
    @cache
    def definition(cls) -> Family:
        """The family, looked up once for a class: discovery reads what is installed, file by file."""
        return Registry.discover().family(cls.family)

    @classmethod
    @cache
    def plans(cls) -> dict[str, ModelPlan]:
        """What each tiny config is planned as, by its name."""
        return {tiny: Case.build(cls.definition(), tiny).plan for tiny in cls.definition().tiny}

    @classmethod
    def parameters(cls, name: str) -> list[Any]:
        """What pytest runs a test over that asks for ``name``."""
        if name == "tiny":
            return list(cls.definition().tiny)
        if name == "family_mutation":
            return [pytest.param(m, id=m.name) for m in cls.definition().mutations]
        unused = pytest.mark.skip(reason="no tiny config of this family uses the part")
        return [
            pytest.param(m, id=m.name, marks=() if any(map(m.uses, cls.plans().values())) else unused)
            for m in CORE_MUTATIONS
        ]

    @pytest.fixture
    def oracle(self, fuel_oracles: OracleLogits) -> Callable[[str], OracleRun]:
        """tiny -> the oracle's logits of a sequence, and the sequence."""
        return lambda tiny: fuel_oracles.run(self.definition(), tiny)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
    def test_cached_equals_one_shot(self, tiny: str, dtype: torch.dtype) -> None:
        checks.cached_equals_one_shot(Case.build(self.definition(), tiny, dtype=dtype))

    @pytest.mark.parametrize(
        "check",
        [
            checks.held_step_equals_eager_step,
            checks.plans_once,
            checks.masks_add_no_operation,
            checks.swapped_cache_rebinds,
            checks.prefill_keeps_the_plan,
            checks.any_chunk_size_prefills_alike,
            checks.cache_bytes_are_exact,
            checks.rows_are_independent,
            checks.bad_requests_change_nothing,
            checks.gradients_flow,
        ],
        ids=lambda check: check.__name__,
    )
    def test_invariant(self, tiny: str, check: Callable[[Case], None]) -> None:
        check(Case.build(self.definition(), tiny))

    def test_windows_matter(self, tiny: str) -> None:
        """Wherever a tiny config has a window; a family without any says so by skipping."""
        if all(window is None for window in self.plans()[tiny].mask.windows):
            pytest.skip("no layer of this config has a window")
        checks.windows_matter(Case.build(self.definition(), tiny))

    def test_latent_forms_agree(self, tiny: str) -> None:
        """Wherever a tiny config has latent attention; a family without any says so by skipping."""
        if not all(isinstance(layer.mixer, LatentAttentionPlan) for layer in self.plans()[tiny].layers):
            pytest.skip("no layer of this config has latent attention")
        checks.latent_forms_agree(Case.build(self.definition(), tiny))

    def test_the_crossing_equals_fresh_passes(self, tiny: str) -> None:
        """Wherever a tiny config has two RoPE tables; a family without any says so by skipping."""
        if self.plans()[tiny].switch_length is None:
            pytest.skip("one RoPE table serves every length of this config")
        crossing_equals_fresh_passes(Case.build(self.definition(), tiny))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
    def test_held_step_equals_eager_step_in_low_precision(self, tiny: str, dtype: torch.dtype) -> None:
        checks.held_step_equals_eager_step(Case.build(self.definition(), tiny, dtype=dtype))

    def test_the_family_states_mutations(self) -> None:
        """Without one nothing shows that these tests see a fault of this family."""
        assert self.definition().mutations

    def test_logits_equal_transformers(self, tiny: str, oracle: Callable[[str], OracleRun]) -> None:
        wanted, tokens = oracle(tiny)
        case = Case.build(self.definition(), tiny, dtype=torch.float32)
        checks.assert_close(case.one_shot(tokens), wanted, checks.ORACLE_ABSOLUTE, "one shot")
        cached = case.decode(case.session(), tokens)
        checks.assert_close(cached, wanted, checks.ORACLE_ABSOLUTE, "cached")

    def test_greedy_text_equals_transformers(self, tiny: str, tmp_path: Path) -> None:
        case = Case.build(self.definition(), tiny, dtype=torch.float32)
        case.save(tmp_path)
        prompt = case.token_ids(seed=41, count=PREFILLED)
        session = case.session()
        logits = session.prefill(prompt)
        chosen: list[int] = []
        for _ in range(GREEDY_TOKENS):
            best = logits.topk(2).values
            if float(best[0] - best[1]) < 1e-3:
                break  # a near tie is decided by rounding, in either library
            chosen.append(int(logits.argmax()))
            logits = session.step([[chosen[-1]]])[0]
        assert len(chosen) >= 3, "vacuous: a near tie at once; choose another seed for this config"
        assert TransformersOracle(tmp_path).greedy(prompt, len(chosen)) == chosen

    def test_core_mutation_is_seen(
        self, core_mutation: CoreMutation, oracle: Callable[[str], OracleRun], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every tiny config that uses the broken part sees it, in one check at least."""
        seen = 0
        for tiny, plan in self.plans().items():
            if not core_mutation.uses(plan):
                continue
            wanted = oracle(tiny)
            with monkeypatch.context() as patch:
                core_mutation.patch(patch)
                assert self._red(tiny, wanted), f"{tiny}: no check sees that {core_mutation.name}"
                if core_mutation.spares_planned_token:
                    checks.rebinding_alone_is_wrong(Case.build(self.definition(), tiny))
            seen += 1
        assert seen, "vacuous: no tiny config uses the part"

    def test_family_mutation_is_seen(
        self, family_mutation: Mutation, oracle: Callable[[str], OracleRun]
    ) -> None:
        """The oracle sees the fault in every tiny config, or in those whose config it changes."""
        seen = 0
        for tiny, raw in self.definition().tiny.items():
            broken = dict(raw) if family_mutation.config is None else family_mutation.config(dict(raw))
            if family_mutation.config is not None and broken == raw:
                continue
            wanted, tokens = oracle(tiny)
            case = Case.build(self.definition(), tiny, dtype=torch.float32, raw=broken)
            if family_mutation.decoder is not None:
                family_mutation.decoder(case.decoder)
            distance = checks.gap(case.one_shot(tokens), wanted)
            assert distance > checks.ORACLE_ABSOLUTE, f"{tiny}: not seen that {family_mutation.name}"
            seen += 1
        assert seen, "vacuous: the mutation changes no tiny config"

    def test_golden(self, tiny: str, request: pytest.FixtureRequest) -> None:
        """The plan and the operations of the held step are as the reviewed file says."""
        if self.goldens is None:
            pytest.skip("the test class names no folder of goldens")
        case = Case.build(self.definition(), tiny, dtype=torch.float32)
        found = golden(case)
        path = self.goldens / f"{self.family}-{tiny}.txt"
        if request.config.getoption("--fuel-update-goldens"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found)
        assert path.is_file(), f"{path} is missing; write it with --fuel-update-goldens and review it"
        assert found == path.read_text(), f"{path} differs; if that is meant, --fuel-update-goldens"

    def _red(self, tiny: str, oracle: OracleRun) -> bool:
        """Whether a check fails now; the cheapest goes first."""
        wanted, tokens = oracle

        def parity(case: Case) -> None:
            checks.assert_close(case.one_shot(tokens), wanted, checks.ORACLE_ABSOLUTE, "one shot")

        def crossing(case: Case) -> None:
            if case.plan.switch_length is not None:
                crossing_equals_fresh_passes(case)

        exact = (checks.swapped_cache_rebinds, checks.cached_equals_one_shot, crossing)
        for check, dtype in ((parity, torch.float32), *((check, torch.float64) for check in exact)):
            try:
                check(Case.build(self.definition(), tiny, dtype=dtype))
            except AssertionError:
                return True
        return False


def golden(case: Case) -> str:
    """A readable account of a plan and of the operations that one replay dispatches."""
    plan = case.plan
    lines = [
        f"{plan.family}: {len(plan.layers)} layers, width {plan.hidden_size}, vocabulary {plan.vocab_size}",
        f"positions {plan.position_limit}, {plan.norm}, head {'tied' if plan.tied else 'own'}"
        f"{', biased' if plan.head_bias else ''}",
    ]
    for layer, parts in enumerate(plan.layers):
        rope = plan.rope.variant(layer)
        recipe = "none" if rope is None else f"{rope.base:g} x {rope.width} {rope.layout} {rope.scaling}"
        lines.append(
            f"layer {layer}: {parts.mixer}; {parts.feed_forward}; window {plan.mask.window(layer)}; "
            f"rope {recipe}; cache {plan.cache.layers[layer]}{'; parallel' if parts.parallel else ''}"
        )
    operations = Counter(checks.step_operations(case))
    lines.append(f"operations of a replay: {operations.total()}")
    lines += [f"  {count:3} {name}" for name, count in operations.items()]
    lines.append("")
    return "\n".join(lines)
