"""When a step cannot be captured or compiled: who is at fault, said once, and an eager step instead."""

import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from weakref import WeakSet

import torch
from torch import nn

from fuel_core.blocks.decoder import Decoder
from fuel_core.cache import CachePool
from fuel_core.decode.backends.eager import EagerStep
from fuel_core.errors import FuelWarning
from fuel_core.step import StepInputs


class Fallback:
    """Serves models whose step failed eagerly, and warns once a model.

    A model whose layers cannot be captured at one batch size cannot at another; what only found too
    little memory is tried again, since a smaller batch may fit.
    """

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._failed: WeakSet[Decoder] = WeakSet()

    def serves(self, decoder: Decoder) -> bool:
        """Whether this model failed before."""
        return decoder in self._failed

    def step(self, why: str, lasts: bool, decoder: Decoder, pool: CachePool, inputs: StepInputs) -> EagerStep:
        """Warn of what failed and return the step that serves instead.

        Args:
            lasts: every batch size of this model will fail in this way.
        """
        if lasts:
            self._failed.add(decoder)
        warnings.warn(
            f"{decoder.plan.family}: backend {self._backend!r} cannot plan the step of "
            f"{inputs.rows_B.shape[0]} row(s): {why}. It runs eagerly instead: slower, with the same "
            "results",
            FuelWarning,
            stacklevel=2,
        )
        return EagerStep(decoder, pool, inputs)

    def part(self, what: str, why: str, decoder: Decoder, inputs: StepInputs) -> None:
        """Warn that a part of a step could not be captured, though the step was."""
        warnings.warn(
            f"{decoder.plan.family}: backend {self._backend!r} cannot capture {what} of "
            f"{inputs.rows_B.shape[0]} row(s): {why}. It runs operation by operation: slower, with the "
            "same results",
            FuelWarning,
            stacklevel=2,
        )


def lasting(error: Exception) -> bool:
    """Whether a step of fewer rows would fail too."""
    return not isinstance(error, torch.OutOfMemoryError)


def reason(error: Exception, decoder: Decoder) -> str:
    """Which module failed, in which line, and how: one line of text."""
    cause = _cause(error)
    what = f"{type(cause).__name__}: {_first_line(cause)}"
    place = _traced_place(error, decoder) or _raised_place(error, decoder)
    return f"{place}: {what}" if place else what


def _cause(error: BaseException) -> BaseException:
    """What a compiler wrapped; it chains the cause, or keeps it."""
    from torch._dynamo.exc import BackendCompilerFailed

    while True:
        if isinstance(error, BackendCompilerFailed):
            error = error.inner_exception
        elif error.__cause__ is not None:
            error = error.__cause__
        else:
            return error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "without a message"


def _raised_place(error: BaseException, decoder: Decoder) -> str | None:
    """The innermost frame that is a method of one of the model's modules."""
    names = {module: name for name, module in decoder.named_modules()}
    frames = [
        (names[owner], owner, frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if isinstance(owner := _first_argument(frame), nn.Module) and owner in names
    ]
    if not frames:
        return None
    name, module, frame, line = frames[-1]
    return _place(name, module, traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name))


def _first_argument(frame: FrameType) -> object:
    """What a method calls ``self``, whatever it calls it."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _traced_place(error: BaseException, decoder: Decoder) -> str | None:
    """As above, of an error of the tracer: it raises outside of the model and keeps the model's stack."""
    from torch._dynamo.exc import Unsupported

    if not isinstance(error, Unsupported):
        return None
    for summary in reversed(list(error.real_stack)):
        for name, module in decoder.named_modules():
            if _is_in(summary, _codes(type(module))):
                return _place(name, module, summary)
    return None


def _codes(kind: type[nn.Module]) -> Iterable[CodeType]:
    return (member.__code__ for member in vars(kind).values() if isinstance(member, FunctionType))


def _is_in(summary: traceback.FrameSummary, codes: Iterable[CodeType]) -> bool:
    return any(
        code.co_filename == summary.filename
        and code.co_name == summary.name
        and summary.lineno in {line for *_, line in code.co_lines()}
        for code in codes
    )


def _place(name: str, module: nn.Module, summary: traceback.FrameSummary) -> str:
    where = f"{Path(summary.filename).name}:{summary.lineno}"
    line = f"`{summary.line}`" if summary.line else "its code"
    return f"{name or 'the model'} ({type(module).__name__}) at {line} ({where})"
