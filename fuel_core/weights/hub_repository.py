"""One repository of the Hugging Face hub, asked for its files through huggingface_hub and its cache.

huggingface_hub is imported inside functions: it takes a while, and most loads need no network.
"""

import re
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fuel_core.errors import CheckpointError, FuelError, FuelWarning, RequestError
from fuel_core.weights.hub_errors import explain, why_silent
from fuel_core.weights.hub_files import CONFIG_FILE, refuse_without_config
from fuel_core.weights.hub_progress import unseen_bar
from fuel_core.weights.progress import Progress

_TOKEN = re.compile(r"[!-~]+")
_ATTEMPTS = 3
_PAUSE_S = 1.0


class CacheMustDo(Exception):
    """The hub is not to be asked; the text says why."""


class HubDown(CacheMustDo):
    """The hub was asked and gave no answer."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a repository holds at one commit: path -> bytes."""

    commit: str
    sizes: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class HubRepository:
    """A hub repository, and how its caller wants it asked."""

    repo: str
    revision: str | None
    cache_dir: str | Path | None
    token: str | bool | None
    local_files_only: bool
    endpoint: str | None

    def __post_init__(self) -> None:
        # the HTTP library would refuse it too, and print it
        if isinstance(self.token, str) and not _TOKEN.fullmatch(self.token):
            raise RequestError("the token is empty or holds a character that no token has")

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo} at revision {self.revision!r}"

    def list_files(self) -> Listing:
        """Ask the hub what it holds; fails at once, where a request for a file is repeated for 23 s.

        Raises:
            CacheMustDo: the hub may not be asked, or gives no answer.
        """
        from huggingface_hub import HfApi
        from huggingface_hub.constants import HF_HUB_ETAG_TIMEOUT
        from huggingface_hub.errors import OfflineModeIsEnabled

        if self.local_files_only:
            raise CacheMustDo("local_files_only is set")
        api = HfApi(endpoint=self.endpoint, token=self.token)
        try:
            info = api.model_info(
                self.repo, revision=self.revision, files_metadata=True, timeout=HF_HUB_ETAG_TIMEOUT
            )
        except OfflineModeIsEnabled as error:
            raise CacheMustDo("HF_HUB_OFFLINE is set") from error
        except Exception as error:
            if why := why_silent(error):
                raise HubDown(f"the hub cannot be reached ({why})") from error
            explained = self._explained(error)
            if self._cached_config() is not None:
                raise CheckpointError(f"{explained}; HF_HUB_OFFLINE=1 loads the copy in the cache") from error
            raise explained from error
        assert info.sha is not None
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        return Listing(commit=info.sha, sizes=sizes)

    def cached_folder(self, why: CacheMustDo) -> Path:
        """The folder of the copy in the cache, which may be a part; a warning says what was not wished."""
        from huggingface_hub.constants import HF_HUB_CACHE

        config = self._cached_config()
        if config is None:
            raise CheckpointError(
                f"{self} is not in the cache {self.cache_dir or HF_HUB_CACHE}, and {why}; load it once while "
                "the hub can be asked"
            ) from why
        if isinstance(why, HubDown):
            warnings.warn(
                f"{why}: {self} is read from the cache, as it was at commit {config.parent.name[:12]}",
                FuelWarning,
                stacklevel=2,
            )
        return config.parent

    def fetch_config(self, listing: Listing) -> Path:
        """Fetch config.json, note in the cache which commit the revision is, and return the folder."""
        refuse_without_config(listing.sizes, str(self))
        folder = self.fetch(CONFIG_FILE, self.revision).parent
        if folder.name != listing.commit:
            # a push in between; or huggingface_hub gave an older copy, as the file was refused
            folder = self.fetch(CONFIG_FILE, listing.commit).parent
        return folder

    def fetch_all(self, commit: str, sizes: Mapping[str, int], progress: Progress | None) -> None:
        """Fetch files one by one; ``sizes`` are their bytes."""
        task, done, total = f"downloading {self.repo}", 0, sum(sizes.values())

        def report(before: int, size: int, file_bytes: int) -> None:
            if progress is not None:
                progress(task, before + min(file_bytes, size), total)

        report(0, 0, 0)
        for name, size in sizes.items():
            self.fetch(name, commit, partial(report, done, size))
            done += size
            report(done, 0, 0)

    def fetch(self, name: str, revision: str | None, advanced: Callable[[int], None] | None = None) -> Path:
        """Fetch one file unless the cache has it; ``advanced`` learns how many of its bytes have come.

        huggingface_hub itself goes on where a connection ended early. After a reset it gives up, and
        the file begins anew.
        """
        bar, attempt = unseen_bar(advanced), 1
        while True:
            try:
                return Path(self._file(filename=name, revision=revision, tqdm_class=bar))
            except Exception as error:
                # what the hub answers and what the disk refuses are OSErrors; a broken connection is none
                if attempt == _ATTEMPTS or isinstance(error, (OSError, ValueError)):
                    raise self._explained(error) from error
            attempt += 1
            time.sleep(_PAUSE_S)

    def refuse_full_disk(self, folder: Path, sizes: Mapping[str, int]) -> None:
        """Refuse what cannot fit before hours are spent on it."""
        free = shutil.disk_usage(folder).free
        if sum(sizes.values()) <= free:
            return
        # a file may be in the cache under another commit: only now is that worth a request for each
        try:
            plans = [self._file(filename=name, revision=folder.name, dry_run=True) for name in sizes]
        except Exception as error:
            raise self._explained(error) from error
        needed = sum(plan.file_size for plan in plans if plan.will_download)
        if needed > free:
            raise CheckpointError(
                f"{self} needs {needed / 1e6:,.0f} MB more on the disk of {folder.parents[2]}, which has "
                f"{free / 1e6:,.0f} MB free; make room, or name another cache (cache_dir, HF_HOME)"
            )

    @property
    def _file(self) -> Callable[..., Any]:
        """``hf_hub_download`` of this repository, its cache and its hub."""
        from huggingface_hub import hf_hub_download

        return partial(
            hf_hub_download, self.repo, cache_dir=self.cache_dir, token=self.token, endpoint=self.endpoint
        )

    def _cached_config(self) -> Path | None:
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            return Path(self._file(filename=CONFIG_FILE, revision=self.revision, local_files_only=True))
        except LocalEntryNotFoundError:
            return None
        except Exception as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> FuelError:
        from huggingface_hub import constants

        return explain(error, asked=str(self), page=f"{self.endpoint or constants.ENDPOINT}/{self.repo}")
