"""Every error that fuel raises on purpose.

::

    FuelError
    ├── PluginError            an installed plugin cannot be used
    │   ├── UnknownFamily      no installed plugin provides this name or model type
    │   └── FamilyClash        two plugins claim one name or model type
    ├── ConfigError            config.json is unreadable, contradictory or not understood
    ├── CheckpointError        a weight file or tensor is missing, damaged or unexpected
    ├── TokenizerError         the tokenizer files are missing or unreadable
    ├── PlanError              a plan contradicts itself or its model
    ├── RequestError           the caller asked for something that cannot be done
    │   ├── CapacityError      more tokens than a cache or a model can hold
    │   └── GeometryError      a tensor or cache has a shape, dtype or device that does not fit
    └── SessionError           a held decode plan cannot serve
        ├── TopologyChanged    the buffers or weights that a plan was bound to are no longer these
        ├── ReplanError        a strict session was asked to plan again
        └── SessionBusy        a session was called while another call of it runs

A message says what was asked, what was found and what to do. ``FuelWarning`` is the category of
every warning: something works, but differently from what one might expect.
"""


class FuelError(Exception):
    """Base of all errors that fuel raises on purpose."""


class PluginError(FuelError):
    """An installed plugin cannot be used."""


class UnknownFamily(PluginError):
    """No installed plugin provides the family or model type that was asked for."""


class FamilyClash(PluginError):
    """Two installed plugins claim the name or model type that was asked for."""


class ConfigError(FuelError):
    """A config.json is unreadable, contradicts itself or holds keys that nobody understands."""


class CheckpointError(FuelError):
    """A weight file or tensor is missing, damaged, of the wrong shape, or unexpected."""


class TokenizerError(FuelError):
    """The tokenizer files of a checkpoint are missing or unreadable."""


class PlanError(FuelError):
    """A mask, RoPE, cache or model plan contradicts itself or its model."""


class RequestError(FuelError):
    """The caller asked for something that cannot be done; nothing was changed."""


class CapacityError(RequestError):
    """More tokens than a cache row, or the positions of a model, can hold."""


class GeometryError(RequestError):
    """A tensor or cache has a shape, dtype or device that does not fit the model."""


class SessionError(FuelError):
    """A held decode plan cannot serve."""


class TopologyChanged(SessionError):
    """The buffers or weights that a held plan was bound to are no longer the model's."""


class ReplanError(SessionError):
    """A strict session would have had to plan again after its warm-up."""


class SessionBusy(SessionError):
    """A session was called while it serves somebody else."""


class FuelWarning(UserWarning):
    """Something works, but differently from what the caller may expect."""
