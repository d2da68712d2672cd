"""The checks of ``fuel doctor``, in order; each survives any other's failure. Functions import torch."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial

from fuel_core.errors import FuelWarning, PluginError
from fuel_core.inspection import machine
from fuel_core.inspection.finding import Finding, Problem, survived
from fuel_core.plugin import FamilyCard
from fuel_core.registry import Registry

_PROMPT = "In the beginning"
_TOKENS = 2


def examination(discover: Callable[[], Registry]) -> Iterator[Finding]:
    """Yield what each check finds, light ones first; ``discover`` gives the plugins that work."""
    reinstall = "pip install --force-reinstall fuel-core"
    registry = Registry(plugins=())

    def plugins() -> Finding:
        nonlocal registry
        registry = discover()
        return installed_plugins(registry)

    yield survived("versions", machine.versions, remedy=reinstall)
    yield survived("hub cache", machine.hub_cache, remedy="pip install --force-reinstall huggingface-hub")
    yield survived("plugins", plugins, remedy=reinstall)
    torch = survived("torch", machine.torch_import, remedy="pip install --force-reinstall torch")
    yield torch
    checks: list[tuple[str, Callable[[], Finding], str]] = [
        ("devices", machine.devices, reinstall),
        ("threads", machine.threads, reinstall),
        ("kernels", machine.kernels, reinstall),
        ("families", partial(importable_families, registry), reinstall),
        *_bundled_checkpoints(registry),
    ]
    for name, check, remedy in checks:
        if torch.status == "ok":
            yield survived(name, check, remedy=remedy)
        else:
            yield Finding(name=name, skipped="torch cannot be imported")


def _bundled_checkpoints(registry: Registry) -> Iterator[tuple[str, Callable[[], Finding], str]]:
    for card in registry.cards:
        if card.bundled is not None:
            remedy = f"pip install --force-reinstall {registry.provider(card).distribution}"
            yield f"bundled {card.name}", partial(bundled_checkpoint, registry, card), remedy


def installed_plugins(registry: Registry) -> Finding:
    """The installed plugins; each that is broken, and each name that several claim, is a problem."""
    broken = [
        Problem(cause=f"{failure}: {failure.cause}", remedy=failure.remedy) for failure in registry.failures
    ]
    clashing = [
        Problem(cause=str(clash), remedy="pip uninstall one, or list in FUEL_PLUGINS those to use")
        for clash in registry.clashes
    ]
    notes = [f"{excluded} is left out by FUEL_PLUGINS" for excluded in registry.excluded]
    if not registry.plugins:
        notes.append("no usable plugin is installed; pip install fuel-qwen brings one")
    families = {str(plugin): [card.name for card in plugin.cards] for plugin in registry.plugins}
    return Finding(name="plugins", facts=families, problems=(*broken, *clashing), notes=tuple(notes))


def importable_families(registry: Registry) -> Finding:
    """Import the code of each family: a plugin is found by its cards, which may name what is not there."""
    problems = []
    for card in registry.cards:
        try:
            registry.definition(card)
        except PluginError as error:
            plugin = registry.provider(card).distribution
            remedy = f"pip install --force-reinstall {plugin}, or pip uninstall it and tell its authors"
            problems.append(Problem(cause=f"{type(error).__name__}: {error}", remedy=remedy))
    facts = {"importable": len(registry.cards) - len(problems)}
    return Finding(name="families", facts=facts, problems=tuple(problems))


def bundled_checkpoint(registry: Registry, card: FamilyCard) -> Finding:
    """Load the checkpoint that a family bundles, as ``fuel run`` does, and generate two tokens."""
    from fuel_core.loading import load

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load(card.name, registry=registry)
        completion = model.generate(_PROMPT, max_tokens=_TOKENS)
    facts = {
        "family": card.name,
        "plugin": str(registry.provider(card)),
        "device": str(model.device),
        "tokens": len(completion.token_ids),
        "text": completion.text,
        "load_ms": round(completion.timings.load_ms),
    }
    notes = [str(warning.message) for warning in caught if issubclass(warning.category, FuelWarning)]
    return Finding(name=f"bundled {card.name}", facts=facts, notes=tuple(notes))
