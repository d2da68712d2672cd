"""The conformance kit: what every model family must hold, as tests over its tiny configs.

A family's test file is a class::

    from fuel_core.testing import Conformance

    class TestQwen2(Conformance):
        family = "qwen2"

A checkpoint that its wheel carries is tested by a class that inherits from ``BundledCheckpoint``. That a
published config.json gives the plan which its model card describes is ``PublishedModel(...).require(raw)``.

Run with pytest; the kit needs ``pip install fuel-core[testing]``.
"""

from importlib.util import find_spec

if find_spec("pytest") is None:
    raise ModuleNotFoundError(
        "fuel_core.testing needs pytest and transformers: pip install 'fuel-core[testing]'", name="pytest"
    )

from fuel_core.testing.bundled import BundledCheckpoint
from fuel_core.testing.case import Case
from fuel_core.testing.conformance import Conformance
from fuel_core.testing.published import PublishedModel
from fuel_core.testing.recording import RecordingBackend

__all__ = ["BundledCheckpoint", "Case", "Conformance", "PublishedModel", "RecordingBackend"]
