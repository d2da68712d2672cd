"""Fetching a checkpoint from the Hugging Face hub, through huggingface_hub's cache."""

from pathlib import Path

from fuel_core.errors import CheckpointError

WANTED_FILES = ("*.json", "*.safetensors", "*.jinja")
"""What a checkpoint needs here. Code and pickles are never fetched."""


def download(repo: str) -> Path:
    """Return the local folder of a hub repository, fetching what is not in the cache yet.

    Raises:
        CheckpointError: it does not exist, is not open to this user, or cannot be reached.
    """
    # huggingface_hub takes a while to import, and most loads need no network
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(repo, allow_patterns=list(WANTED_FILES)))
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"the hub has no repository {repo}, or it is private: check the name, and log in with "
            "`hf auth login` if you have access"
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(f"{repo} cannot be fetched from the hub: {error}") from error
