"""Stand-ins for a GPU: graphs on a tape, and triton's interpreter for its kernels."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fuel_core.testing.tape import TapeDevice


@pytest.fixture
def device() -> TapeDevice:
    return TapeDevice()


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Triton's interpreter, with bfloat16 as on a GPU, and NaN in whatever is allocated but not written.

    The interpreter holds bfloat16 as bit patterns, multiplies these in a matrix product, and cuts float32
    off where hardware rounds to the nearest (triton 3.7).
    """
    import triton.language as tl
    from triton.runtime import interpreter

    assert isinstance(tl.cdiv, interpreter.InterpretedFunction), (
        "triton was imported before TRITON_INTERPRET was set; tests/conftest.py sets it"
    )
    convert, multiply = interpreter._convert_float, interpreter.InterpreterBuilder.create_dot

    def rounding(data: np.ndarray, source: Any, target: Any, mode: object) -> np.ndarray:
        if (source, target) == (tl.float32, tl.bfloat16):
            return torch.from_numpy(data.copy()).bfloat16().view(torch.int16).numpy().view(np.uint16)
        return convert(data, source, target, mode).reshape(data.shape)

    def widened(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        wide = (builder.cast_impl(x, tl.float32) if x.dtype.scalar is tl.bfloat16 else x for x in (a, b))
        return multiply(builder, *wide, *rest)

    monkeypatch.setattr(interpreter, "_convert_float", rounding)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", widened)
    torch.use_deterministic_algorithms(True)  # fills new tensors: an old one may hold the right answer
    yield
    torch.use_deterministic_algorithms(False)
