"""Random histories: whatever happened, a scan that knows the past agrees with one that does not."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backtrail.files.workspace.verdicts import Limits
from tests.files.scanning import Site, plainly, settle, truth

NAMES = ["a", "b", "c", "dd", "e\udcff"]


class History:
    """A person that edits a directory at random, and the paths touched."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.touched: set[bytes] = set()

    def step(self) -> None:
        """Do one thing."""
        acts: list[Callable[[Path], None]] = [
            self.write, self.write, self.edit_back, self.chmod, self.remove, self.rename,
            self.make, self.link, self.swap, self.replace,
        ]  # fmt: skip
        act = self.random.choice(acts)
        place = self.path()
        try:
            act(place)
        except OSError:
            return
        self.touch(place)

    def touch(self, place: Path) -> None:
        self.touched.add(os.fsencode(place.relative_to(self.root)))

    def path(self) -> Path:
        """Some path, whatever is there, at most three deep."""
        place = self.root
        for _ in range(self.random.randint(1, 3)):
            place = place / self.random.choice(NAMES)
        return place

    def content(self) -> bytes:
        """Contents are short and of few lengths, so that sizes say little."""
        return self.random.choice(b"xyz").to_bytes(1, "big") * self.random.choice([1, 4])

    def write(self, place: Path) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_symlink():
            place.write_bytes(self.content())

    def edit_back(self, place: Path) -> None:
        """Another content of the same size, and the old time."""
        status = place.lstat()
        if place.is_symlink() or not place.is_file():
            return
        with open(place, "r+b") as file:
            file.write(self.random.choice(b"pqr").to_bytes(1, "big") * status.st_size)
        os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))

    def chmod(self, place: Path) -> None:
        if not place.is_symlink():
            place.chmod(self.random.choice([0o600, 0o644, 0o755, 0o4755, 0o1777]))

    def remove(self, place: Path) -> None:
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()

    def rename(self, place: Path) -> None:
        target = self.path()
        place.rename(target)
        self.touch(target)

    def swap(self, place: Path) -> None:
        """Two names change places: their directory has the same names as before."""
        other = place.with_name(self.random.choice(NAMES))
        aside = self.root.with_name("aside")
        place.rename(aside)
        try:
            other.rename(place)
        finally:
            aside.rename(other)
            self.touch(other)

    def make(self, place: Path) -> None:
        place.mkdir(parents=True)

    def link(self, place: Path) -> None:
        place.symlink_to(self.random.choice(["a", "../b", "nowhere"]))

    def replace(self, place: Path) -> None:
        """By another kind of thing, or by a new file under the same name."""
        self.remove(place)
        self.random.choice([self.write, self.make, self.link])(place)


@pytest.fixture(params=range(12))
def history(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Site, History]]:
    site = Site(tmp_path / "site")
    yield site, History(site.root, request.param)
    for base, directories, _ in os.walk(site.root):
        for name in directories:
            if not os.path.islink(os.path.join(base, name)):
                os.chmod(os.path.join(base, name), 0o755)


def test_a_warm_scan_agrees_with_a_fresh_one(history: tuple[Site, History]) -> None:
    """And both with the disk."""
    site, somebody = history
    for _ in range(40):
        for _ in range(somebody.random.randint(1, 6)):
            somebody.step()
        if somebody.random.random() < 0.3:
            site.reload()
        if somebody.random.random() < 0.1:
            settle(site)
        digest = site.scan()
        assert digest == site.fresh()
        assert plainly(site.paths(digest)) == truth(site.root)


def test_declared_paths_agree_with_a_fresh_scan(history: tuple[Site, History]) -> None:
    """If they are all that changed."""
    site, somebody = history
    site.scan()
    for _ in range(40):
        somebody.touched.clear()
        for _ in range(somebody.random.randint(1, 4)):
            somebody.step()
        with_directories = {
            b"/".join(path.split(b"/")[:depth])
            for path in somebody.touched
            for depth in range(1, path.count(b"/") + 2)
        }
        # Directories that a step made or emptied on its way were not declared by name.
        declared = somebody.touched if somebody.random.random() < 0.5 else with_directories
        digest = site.scan(declared)
        if declared is with_directories:
            assert digest == site.fresh()
        else:
            assert (
                plainly(site.paths(digest)).items()
                >= {
                    path: found for path, found in truth(site.root).items() if path in declared
                }.items()
            )
            site.scan()


def forgetful(site: Site) -> None:
    """An index that goes by size and time of change only, as many tools do."""
    for known in site.index.directories():
        for name, file in known.files.items():
            file.racy = False
            place = next(
                (p for p in site.root.rglob("*") if os.fsencode(p.name) == name
                 and p.lstat().st_ino == file.inode), None,
            )  # fmt: skip
            if place is not None:
                file.ctime = place.lstat().st_ctime_ns


def test_size_and_time_alone_are_not_enough(tmp_path: Path) -> None:
    """These histories bite: a scan that forgets the time of the inode fails most of them."""
    failed = 0
    for seed in range(6):
        site = Site(tmp_path / f"site{seed}")
        somebody = History(site.root, seed)
        for _ in range(300):
            somebody.step()
            forgetful(site)
            if site.scan() != site.fresh():
                failed += 1
                break
    assert failed >= 3


def test_no_racy_flags_are_not_enough(tmp_path: Path) -> None:
    """Where the clock is coarse, a change right after a scan shows only to who looks again."""
    site = Site(tmp_path / "site", limits=Limits(granularity=-10_000_000_000))
    (site / "a").write_text("1")
    site.scan()
    stopped = os.stat(site / "a").st_ctime_ns
    (site / "a").write_text("2")
    assert site.index.root is not None
    known = site.index.root.files[b"a"]
    now = os.stat(site / "a")
    # As if the clock had not moved: the numbers of both writes are the same.
    known.mtime, known.ctime = now.st_mtime_ns, now.st_ctime_ns
    assert stopped <= now.st_ctime_ns
    assert site.scan() != site.fresh()
