"""What the command line says of loading a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuel_core.cli.progress import progress_bars
from fuel_core.decode import backend_named
from fuel_core.loading import default_device, load, usable_device
from fuel_core.model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class LoadingOptions:
    """Arguments of :func:`fuel_core.loading.load`; None for what was not given."""

    ref: str
    revision: str | None
    dtype: str | None
    device: str | None
    options: Mapping[str, str | None]
    allow_unknown_keys: bool

    @property
    def stated(self) -> dict[str, Any]:
        """What decides the model and its numbers, by its name, where it was given."""
        named = {"model": self.ref, "revision": self.revision, "dtype": self.dtype, "options": self.options}
        return {name: value for name, value in named.items() if value}

    def load(self, *, backend: str | None) -> LanguageModel:
        """The model; bars on standard error show how far it is.

        Args:
            backend: the name of what is to run it; one that cannot is refused before anything is read.

        Raises: RequestError for the backend; else as :func:`fuel_core.loading.load`.
        """
        on = default_device() if self.device is None else usable_device(self.device)
        if backend is not None:
            backend_named(backend).batch_size(1, on)
        with progress_bars() as progress:
            return load(
                self.ref,
                revision=self.revision,
                dtype=self.dtype,
                device=self.device,
                options=self.options,
                allow_unknown_keys=self.allow_unknown_keys,
                progress=progress,
            )
