"""Fetching a checkpoint from the Hugging Face hub, through huggingface_hub's cache.

One file follows the other, the weights come last. So a copy in the cache that holds its weights
holds the rest too, and Ctrl-C ends a download at once, which ``snapshot_download`` does not: its
threads finish their files first. Little speed is lost, as Xet opens many connections for one file.
A file stands under its name in the cache only when it is whole.
"""

from pathlib import Path

from fuel_core.errors import CheckpointError
from fuel_core.weights.checkpoint import INDEX_FILE, SINGLE_FILE
from fuel_core.weights.hub_files import (
    CONFIG_FILE,
    beside_weights,
    missing_weights,
    refuse_missing_shards,
    refuse_without_weights,
    weight_files,
)
from fuel_core.weights.hub_repository import CacheMustDo, HubRepository
from fuel_core.weights.progress import Progress

__all__ = ["CONFIG_FILE", "download", "download_config"]


def download(
    repo: str,
    revision: str | None = None,
    *,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
    endpoint: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Return the local folder of a hub repository, fetching what is not in the cache yet.

    What is fetched: the configs, the tokenizer, chat templates and one set of safetensors; never
    code, pickles or another engine's format. A hub that does not answer is no error while the cache
    holds a whole copy; a warning says so.

    Args:
        repo: ``organisation/name``.
        revision: a branch, tag or commit; by default the branch ``main``.
        cache_dir: by default the cache that all users of huggingface_hub share (``HF_HUB_CACHE``).
        token: whom the hub takes us for; by default who is logged in, False for nobody.
        local_files_only: ask the cache and never the hub, as ``HF_HUB_OFFLINE=1`` does.
        endpoint: the hub's address; by default ``HF_ENDPOINT``.
        progress: told of the bytes of all files that are to come; not called when there are none.

    Raises:
        CheckpointError: repository or revision is not there, not open to this user or of no use here,
            or does not answer and is not in the cache; or the disk is full.
        RequestError: repo, revision or token is malformed.
    """
    source = HubRepository(
        repo=repo,
        revision=revision,
        cache_dir=cache_dir,
        token=token,
        local_files_only=local_files_only,
        endpoint=endpoint,
    )
    try:
        listing = source.list_files()
    except CacheMustDo as why:
        folder = source.cached_folder(why)
        if missing := missing_weights(folder):
            raise CheckpointError(
                f"the cache holds only a part of {source}, without {missing}, and {why}; load it once while "
                "the hub can be asked: what is there is kept"
            ) from why
        return folder
    refuse_without_weights(listing.sizes, str(source))
    folder = source.fetch_config(listing)
    if SINGLE_FILE not in listing.sizes:
        source.fetch(INDEX_FILE, listing.commit)
    names = [*beside_weights(listing.sizes), *weight_files(listing.sizes, folder)]
    refuse_missing_shards(names, listing.sizes, str(source))
    absent = {name: listing.sizes[name] for name in names if not (folder / name).exists()}
    if absent:
        source.refuse_full_disk(folder, absent)
        source.fetch_all(listing.commit, absent, progress)
    return folder


def download_config(
    repo: str,
    revision: str | None = None,
    *,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
    endpoint: str | None = None,
) -> Path:
    """Return the local folder of a hub repository's config.json, fetching nothing else.

    Arguments and errors are those of :func:`download`.
    """
    source = HubRepository(
        repo=repo,
        revision=revision,
        cache_dir=cache_dir,
        token=token,
        local_files_only=local_files_only,
        endpoint=endpoint,
    )
    try:
        return source.fetch_config(source.list_files())
    except CacheMustDo as why:
        return source.cached_folder(why)
