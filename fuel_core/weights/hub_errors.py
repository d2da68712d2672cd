"""What goes wrong between here and the hub, in words that say what to do about it.

huggingface_hub is imported inside functions: it takes a while, and most loads need no network.
"""

import errno
from pathlib import Path

from fuel_core.errors import CheckpointError, FuelError, RequestError

_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


def why_silent(error: Exception) -> str | None:
    """Why a request got no answer from the hub; None where this error is its answer."""
    from huggingface_hub.errors import HfHubHTTPError

    if not isinstance(error, HfHubHTTPError):
        return _in_short(error)  # mostly the HTTP library's own, which huggingface_hub passes through
    status = error.response.status_code
    return f"it answers HTTP {status}" if status >= 500 or status in (408, 429) else None


def explain(error: Exception, *, asked: str, page: str) -> FuelError:
    """The error to raise for one of huggingface_hub's.

    Args:
        asked: the repository, and the revision unless it is the default.
        page: where people read about the repository.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalTokenNotFoundError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    match error:
        case HFValidationError():
            return RequestError(f"{asked} is nothing that the hub could hold: {error}")
        case LocalTokenNotFoundError():
            return CheckpointError(
                f"token=True asks for a login, and there is none on this machine: {_LOG_IN}"
            )
        case GatedRepoError(response=response) if response.status_code == 401:
            return CheckpointError(f"{asked} is gated: ask for access at {page}, then {_LOG_IN}")
        case GatedRepoError():
            return CheckpointError(
                f"{asked} is gated, and this login has no access: ask for it at {page}, or {_LOG_IN}"
            )
        case RepositoryNotFoundError(response=response) if response.status_code != 401:
            return CheckpointError(
                f"the hub has no {asked}, or it is private and this login may not read it: check the name; "
                f"ask its owner for access, or {_LOG_IN}"
            )
        case RevisionNotFoundError():
            return CheckpointError(f"the hub has no {asked}; {page}/tree/main lists branches and tags")
        case RemoteEntryNotFoundError():
            return CheckpointError(
                f"{asked} changed while it was downloaded ({_in_short(error)}): load it again"
            )
        case HfHubHTTPError(response=response, server_message=message) if response.status_code == 401:
            if "Invalid credentials" in (message or ""):
                return CheckpointError(
                    f"the hub refuses the token: it is wrong, revoked or expired; {_LOG_IN} anew"
                )
            return CheckpointError(
                f"the hub has no {asked}, or it is private: check the name; if you may read it, {_LOG_IN}"
            )
        case HfHubHTTPError(response=response, server_message=message):
            return CheckpointError(
                f"the hub refuses {asked} with HTTP {response.status_code}"
                + (f": {message}" if message else "")
            )
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return CheckpointError(
                f"the disk filled up while {asked} was downloaded; make room, or name another cache "
                "(cache_dir, HF_HOME), and load it again: complete files are kept"
            )
        case OSError(filename=str(file), strerror=str(why)):
            return CheckpointError(f"{asked} cannot be kept in the cache: {why}: {Path(file)}")
    return CheckpointError(
        f"the download of {asked} broke off ({_in_short(error)}); load it again: complete files are kept"
    )


def _in_short(error: BaseException) -> str:
    """Kind and first line; the cause's where huggingface_hub gives no more than general advice."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip()
    return ": ".join([type(error).__name__, *text.splitlines()[:1]])
