"""The step as torch.compile sees it: one graph, whatever the token, the length and the prompt."""

from contextlib import ExitStack

import pytest
import torch
from torch._dynamo import config as dynamo

from fuel_core.decode.buffers import append_inputs
from fuel_core.family import Family
from fuel_core.step import StepInputs
from fuel_core.testing import Case
from fuel_core.testing.dispatch import HOST_READ, dispatched


@pytest.mark.parametrize("tiny", ["dense", "mixed-window", "yarn"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, inside its tracer
def test_fifty_tokens_of_three_prompts_are_one_graph(qwen2: Family, tiny: str) -> None:
    """A Python number in the cache, or a changing stride of the positions, made engines recompile at
    every step."""
    case = Case.build(qwen2, tiny, dtype=torch.float32)
    session = case.session(rows=3)
    pool = case.pool(rows=3)

    def step(inputs: StepInputs) -> torch.Tensor:
        return case.decoder.logits(case.decoder.step(inputs, pool.layers)[:, -1])

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="eager")
    with torch.no_grad(), ExitStack() as after_warm_up:
        for length, reference in zip((5, 9, 21), session.caches, strict=True):
            cache = pool.acquire()
            for token in case.token_ids(seed=length, count=length + 50):
                inputs = append_inputs([[token]], (cache,), pool)
                found = compiled(inputs)
                torch.testing.assert_close(found, session.step([[token]], (reference,)), atol=1e-6, rtol=0)
                cache.advance([token])
                if cache.version == 1:
                    after_warm_up.enter_context(dynamo.patch(error_on_recompile=True))


def test_the_step_has_no_branch_on_device_values(qwen2: Family) -> None:
    case = Case.build(qwen2, "mixed-window")
    session = case.session()
    session.prefill([1, 2, 3])
    session.step([[4]])
    lists = [dispatched(lambda t=t: session.step([[t]])) for t in (5, 6, 7)]  # type: ignore[misc]
    assert lists[0] == lists[1] == lists[2]
    assert HOST_READ not in lists[0]


def test_the_recorder_sees_host_reads() -> None:
    """Non-vacuity of the test above."""
    assert HOST_READ in dispatched(lambda: torch.ones(1).item())
