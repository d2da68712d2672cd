"""The invariants of decoding, each a function that raises AssertionError where it is broken.

Equivalences run in float64 at 1e-10, so that no tolerance hides a fault; checks against float32
oracles say where their bound comes from.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from fuel_core.cache import CachePool
from fuel_core.decode import DecodeSession
from fuel_core.errors import CapacityError, FuelError, GeometryError, RequestError
from fuel_core.plans.mask import MaskPlan
from fuel_core.plans.scaling import Llama3Scaling, LongRopeScaling, YarnScaling
from fuel_core.testing.case import PREFILLED, TOKENS, Case
from fuel_core.testing.dispatch import HOST_READ, dispatched

EXACT = 1e-10
"""Bound of an equivalence in float64, on logits of size 1: a thousand roundings."""

FLOAT32_RELATIVE = 1e-4
"""Bound of an equivalence in float32, of the largest logit. Roundings give up to 1e-5 through the
tiny models' layers; the mildest core mutation gives more than 1e-3."""

ORACLE_ABSOLUTE = 2e-4
"""Bound against transformers in float32, for logits of standard deviation 1 to 10: both sides err by
up to 3e-5."""


def gap(a: Tensor, b: Tensor) -> float:
    """The largest difference; infinite when one side is no number."""
    difference = (a.double() - b.double()).abs()
    return float("inf") if difference.isnan().any() else float(difference.max())


def assert_close(found: Tensor, wanted: Tensor, bound: float, what: str) -> None:
    assert found.shape == wanted.shape, f"{what}: shape {list(found.shape)}, not {list(wanted.shape)}"
    assert gap(found, wanted) <= bound, f"{what}: off by {gap(found, wanted):.3g}, allowed {bound:.3g}"


def require_window_bites(plan: MaskPlan, tokens: int) -> None:
    """Refuse a window test whose sequence does not outrun every window."""
    widths = [window for window in plan.windows if window is not None]
    assert widths, "vacuous: no layer has a window"
    assert max(widths) < tokens, f"vacuous: {tokens} tokens do not outrun a window of {max(widths)}"


def held_step_equals_eager_step(case: Case) -> None:
    """Replaying the held plan gives the bits that an eager step gives."""
    tokens = case.token_ids(seed=1)
    planned, eager = case.session(rows=2), case.session(rows=2)
    for session in (planned, eager):
        session.prefill(tokens[:PREFILLED], session.caches[0])
        session.prefill(tokens[3:PREFILLED], session.caches[1])
    for position, token in enumerate(tokens[PREFILLED:], start=PREFILLED):
        rows = [[token], [tokens[position - 3]]]
        with torch.no_grad():
            held, once = planned.step(rows), eager.run_once(rows, eager.caches)
        assert torch.equal(held, once), (
            f"token {position}: replay and eager step differ by {gap(held, once):.3g}"
        )
    assert (eager.counters.plans, planned.counters.plans) == (0, 1)


def cached_equals_one_shot(case: Case) -> None:
    """Every position's logits through the cache are those of the one-shot forward, although what
    lies beyond the tokens of the pool is NaN. Ends at the first that is not."""
    tokens = case.token_ids(seed=2)
    session = case.session()
    for layer in session.pool.layers:
        for tensor in layer.tensors:
            tensor.fill_(torch.nan)
    wanted = case.one_shot(tokens)
    relative = FLOAT32_RELATIVE * float(wanted.abs().max())
    bound = EXACT if wanted.dtype is torch.float64 else relative
    compared = 0
    for logits in case.decode_in_turn(session, tokens):
        rows = slice(compared, compared + len(logits))
        assert_close(logits, wanted[rows], bound, f"cached decode against one shot, from token {compared}")
        compared += len(logits)
    assert compared == len(tokens)
    for variant in case.plan.rope.variants:
        scaling = variant.scaling
        if isinstance(scaling, Llama3Scaling | YarnScaling | LongRopeScaling):
            original = scaling.original_length
            assert original < TOKENS, f"vacuous: {TOKENS} tokens stay within the original {original}"


def rebinding_alone_is_wrong(case: Case) -> None:
    """Under a fault of the rebind the token that plans is right, and the next one is wrong."""
    tokens = case.token_ids(seed=2)
    wanted = case.one_shot(tokens)
    session = case.session()
    session.prefill(tokens[:PREFILLED])
    planned, rebound = (session.step([[token]])[0] for token in tokens[PREFILLED : PREFILLED + 2])
    assert_close(planned, wanted[PREFILLED], EXACT, "the planned token")
    assert gap(rebound, wanted[PREFILLED + 1]) > EXACT, "the first rebound token is right"


def plans_once(case: Case) -> None:
    """One plan serves all tokens, dispatches the same operations for each and keeps nothing."""
    tokens = case.token_ids(seed=3)
    session = case.session()
    session.prefill(tokens[:PREFILLED])
    lists = [dispatched(partial(session.step, [[t]])) for t in tokens[PREFILLED : PREFILLED + 6]]
    assert all(operations == lists[1] for operations in lists[1:]), "the operations change by token"
    assert HOST_READ not in lists[1], "the step reads a device value on the host"
    with _only_new_objects():
        before = _live_tensors()
        for token in tokens[PREFILLED + 6 :]:
            session.step([[token]])
        gc.collect(0)
        left = _live_tensors() - before
    assert left <= 0, f"{left} tensors were left behind"
    assert session.counters.plans == 1
    assert session.counters.replays == len(tokens) - PREFILLED


@contextmanager
def _only_new_objects() -> Iterator[None]:
    """Let the collector, and who asks it, pass over what exists already: a million objects of libraries.

    What is made within stays in the youngest generation. A collection of all generations would have the
    collector believe that nothing is older, and pass over the million at once when they are back.
    """
    collecting = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()


def _live_tensors() -> int:
    # by type: asking an arbitrary object for its class runs its code
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def step_operations(case: Case) -> list[str]:
    """The operations of one replay of this case's held step."""
    tokens = case.token_ids(seed=3)
    session = case.session()
    session.prefill(tokens[:PREFILLED])
    session.step([[tokens[PREFILLED]]])
    return dispatched(lambda: session.step([[tokens[PREFILLED + 1]]]))


def masks_add_no_operation(case: Case) -> None:
    """A step of one token dispatches as many operations with windows as without any."""
    dense = case.with_plan(replace(case.plan, mask=MaskPlan.dense(len(case.plan.layers))))
    assert step_operations(case) == step_operations(dense)


def swapped_cache_rebinds(case: Case) -> None:
    """Another cache, of the same pool or a foreign one, is answered for what it holds, by the same
    plan; and so is the first one afterwards."""
    ours, theirs = case.token_ids(seed=4), case.token_ids(seed=5)
    wanted = {"ours": case.one_shot(ours), "theirs": case.one_shot(theirs)}
    separation = gap(wanted["ours"][PREFILLED:], wanted["theirs"][PREFILLED:])
    assert separation > 10 * EXACT, "vacuous: the two histories give the same logits"
    session = case.session(rows=2, strict=True)
    foreign = case.pool()
    for other in (session.caches[1], foreign.acquire()):
        first = session.caches[0]
        first.reset()
        session.prefill(ours[:PREFILLED], first)
        session.prefill(theirs[:PREFILLED], other)
        plans = []
        for step in range(6):
            cache, tokens, name = (first, ours, "ours") if step % 2 == 0 else (other, theirs, "theirs")
            position = cache.length
            logits = session.step([[tokens[position]]], (cache,))[0]
            plans.append(session.held_plan((cache,)))
            assert_close(logits, wanted[name][position], EXACT, f"{name} at token {position}")
        assert all(plan is plans[0] for plan in plans), "the plan was replaced"
    assert session.counters.plans == 1
    assert session.counters.rebinds >= 5, "a foreign pool was not bound"


def prefill_keeps_the_plan(case: Case) -> None:
    """Several tokens at once on the same cache leave the held plan in place, and it goes on right."""
    tokens = case.token_ids(seed=6)
    wanted = case.one_shot(tokens)
    session = case.session()
    session.prefill(tokens[:10])
    session.step([tokens[10:11]])
    plan = session.held_plan(session.caches)
    assert_close(session.step([tokens[11:31]])[0], wanted[30], EXACT, "a step of 20 tokens")
    for position in range(31, 35):
        logits = session.step([tokens[position : position + 1]])[0]
        assert_close(logits, wanted[position], EXACT, f"token {position}")
    assert session.held_plan(session.caches) is plan
    assert session.counters.plans == 1


def any_chunk_size_prefills_alike(case: Case) -> None:
    """Prefill in chunks of any size gives what one chunk gives, and leaves the same cache."""
    tokens = case.token_ids(seed=7)
    wanted, wanted_next = case.one_shot(tokens), case.one_shot([*tokens, tokens[0]])[-1]
    for chunk in (1, 3, 16, len(tokens) - 1, len(tokens)):
        session = case.session(capacity=TOKENS + 1)
        logits = session.prefill(tokens, chunk_tokens=chunk, all_positions=True)
        assert_close(logits, wanted, EXACT, f"chunks of {chunk}")
        assert session.caches[0].version == 1, "a call counts once, whatever its chunks"
        last = session.step([[tokens[0]]])[0]
        assert_close(last, wanted_next, EXACT, f"after chunks of {chunk}")


def windows_matter(case: Case) -> None:
    """Control: with no layer windowed a causal mask from outside changes nothing. Discrimination:
    one mask for all layers gives other logits than the plan's."""
    tokens = case.token_ids(seed=8)
    require_window_bites(case.plan.mask, len(tokens))
    causal = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    ids = torch.tensor([tokens])
    dense = case.with_plan(replace(case.plan, mask=MaskPlan.dense(len(case.plan.layers))))
    with torch.no_grad():
        one_mask = case.decoder(ids, mask=causal)[0]
    assert_close(dense.one_shot(tokens), one_mask, EXACT, "control: no layer windowed")
    assert gap(case.one_shot(tokens), one_mask) > 1e-3, "the windows change no logit"


def latent_forms_agree(case: Case) -> None:
    """Absorbed and expanded, cached and in one shot: four ways to the same logits."""
    tokens = case.token_ids(seed=12)
    wanted = case.one_shot(tokens)
    for form in ("absorbed", "expanded"):
        layers = tuple(replace(layer, mixer=replace(layer.mixer, form=form)) for layer in case.plan.layers)
        forced = case.with_plan(replace(case.plan, layers=layers))
        assert_close(forced.one_shot(tokens), wanted, EXACT, f"{form}, one shot")
        assert_close(forced.decode(forced.session(), tokens), wanted, EXACT, f"{form}, cached")


def cache_bytes_are_exact(case: Case) -> None:
    """What a pool says of its bytes is what its tensors hold."""
    pool = case.pool(rows=3, capacity=11)
    held = sum(t.numel() * t.element_size() for layer in pool.layers for t in layer.tensors)
    assert pool.bytes == held
    assert pool.bytes_per_token * 11 * 4 == held


def rows_are_independent(case: Case) -> None:
    """A row's logits do not depend on its neighbours: to the bit at equal batch size and lengths, to
    1e-10 for rows of other lengths."""
    rows = [case.token_ids(seed=20 + row)[: 12 + 5 * row] for row in range(3)]
    steps = case.token_ids(seed=30)[:6]

    def run(session: DecodeSession, prompts: list[list[int]]) -> list[Tensor]:
        for cache, prompt in zip(session.caches, prompts, strict=True):
            cache.reset()
            session.prefill(prompt, cache)
        return [session.step([[token]] * len(prompts)) for token in steps]

    together = run(case.session(rows=3), rows)
    neighbours = [rows[0], [token ^ 1 for token in rows[1]], rows[2][::-1]]
    changed = run(case.session(rows=3), neighbours)
    for a, b in zip(together, changed, strict=True):
        assert torch.equal(a[0], b[0]), "a row changed with the tokens of its neighbours"
    assert gap(together[0][1], changed[0][1]) > 1e-6, "vacuous: the neighbours did not change"
    for row, prompt in enumerate(rows):
        alone = run(case.session(), [prompt])
        for a, b in zip(together, alone, strict=True):
            assert_close(a[row], b[0], EXACT, f"row {row} against itself alone")


def bad_requests_change_nothing(case: Case) -> None:
    """What cannot be served is refused with a typed error that names both sides; session, cache and
    plan go on as if it had not been asked."""
    tokens = case.token_ids(seed=9)
    session = case.session(capacity=16)
    cache = session.caches[0]
    session.prefill(tokens[:10])
    session.step([[tokens[10]]])
    plan = case.plan

    def pool(**changes: object) -> CachePool:
        settings = {"rows": 1, "capacity": 16, "dtype": plan.numerics.cache, **changes}
        spec = settings.pop("spec", plan.cache)
        return CachePool(spec, **settings)  # type: ignore[arg-type]

    shorter = type(plan.cache)(plan.cache.layers + plan.cache.layers[:1])
    requests: list[tuple[type[FuelError], Callable[[], object], tuple[str, ...]]] = [
        (RequestError, lambda: session.step([[]]), ("at least one token",)),
        (RequestError, lambda: session.prefill([]), ("at least one token",)),
        (RequestError, lambda: session.step([[plan.vocab_size]]), (str(plan.vocab_size),)),
        (RequestError, lambda: session.step([[-1]]), ("-1",)),
        (RequestError, lambda: session.step([[1], [2]]), ("2 row(s)", "1 cache")),
        (CapacityError, lambda: session.prefill(tokens[:6]), ("6 token(s)", "11 of 16")),
        (CapacityError, lambda: session.step([tokens[:6]]), ("6 token(s)", "11 of 16")),
        (
            GeometryError,
            lambda: session.step([[1]], (pool(spec=shorter).acquire(),)),
            (str(len(plan.layers)), str(len(plan.layers) + 1)),
        ),
        (
            GeometryError,
            lambda: session.step([[1]], (pool(dtype=torch.float16).acquire(),)),
            ("float16", str(plan.numerics.cache)),
        ),
    ]
    for kind, request, parts in requests:
        with pytest.raises(kind) as caught:
            request()
        message = str(caught.value)
        assert message.startswith(f"{plan.family}: session."), f"{message!r} does not say whose it is"
        for part in parts:
            assert part in message, f"{message!r} does not name {part}"
        assert cache.token_ids == tokens[:11]
    wanted = case.one_shot(tokens[:16])
    for position in range(11, 16):
        logits = session.step([[tokens[position]]])[0]
        assert_close(logits, wanted[position], EXACT, f"token {position} after refusals")
    assert session.counters.plans == 1
    with pytest.raises(CapacityError, match="16 of 16"):
        session.step([[1]])


def gradients_flow(case: Case) -> None:
    """Every parameter that is trained takes part in the one-shot forward's gradient."""
    decoder = case.decoder
    decoder.requires_grad_(True)
    try:
        logits = decoder(torch.tensor([case.token_ids(seed=10, count=12)]))
        logits.square().mean().backward()
        for path, module in decoder.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                if not module.weight_rules[name].trained:
                    continue
                assert parameter.grad is not None, f"{path}.{name} has no gradient"
                assert parameter.grad.abs().max() > 0, f"the gradient of {path}.{name} vanishes"
    finally:
        decoder.requires_grad_(False)
        decoder.zero_grad()
