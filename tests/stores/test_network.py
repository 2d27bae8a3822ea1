"""Network file systems: their locks do not hold, so a store is refused there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from backtrail.errors import Unsupported
from backtrail.stores import open_store
from backtrail.stores.disk import fs

URLS = ("file:{}/s", "sqlite:///{}/s.db")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux names its mounts in /proc")
@pytest.mark.parametrize("mount", ["/proc", "/sys"])
def test_file_system_is_known_by_its_device(mount: str) -> None:
    """As the kernel lists its mounts."""
    assert fs._file_system(os.stat(mount).st_dev) == {"/proc": "proc", "/sys": "sysfs"}[mount]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("there", [True, False])
def test_network_file_system_is_refused(
    url: str, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new store and one that is there; the variable allows it, for as long as it is set."""
    if there:
        open_store(url.format(tmp_path)).close()
    # What an earlier look has found is asked again in another process.
    monkeypatch.setattr(fs, "_local", set())
    monkeypatch.setattr(fs, "_file_system", lambda device: "nfs4")
    with pytest.raises(Unsupported, match=f"network file system .nfs4.*{fs.ALLOW_NETWORK}=1"):
        open_store(url.format(tmp_path))
    monkeypatch.setenv(fs.ALLOW_NETWORK, "1")
    open_store(url.format(tmp_path)).close()
    monkeypatch.delenv(fs.ALLOW_NETWORK)
    with pytest.raises(Unsupported):
        open_store(url.format(tmp_path))
