"""How a planned step is run. Backends differ in plan, bind and replay, and in nothing else."""

from fuel_core.decode.backends.contract import Backend, HeldStep
from fuel_core.decode.backends.eager import EagerBackend
from fuel_core.errors import RequestError

__all__ = ["Backend", "EagerBackend", "HeldStep", "backend_named"]


def backend_named(name: str) -> Backend:
    """Return the backend of a name.

    Raises:
        RequestError: there is none of this name.
    """
    backends = {"eager": EagerBackend}
    if name not in backends:
        raise RequestError(f"backend {name!r} is unknown; known are {', '.join(backends)}")
    return backends[name]()
