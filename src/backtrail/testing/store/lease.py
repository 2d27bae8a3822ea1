"""Rules of leases: one holder at a time, freed by leaving and by death."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from ...errors import SessionBusy
from ...events import SessionInfo
from ...stores.base import Store
from .base import ContractBase, child, enter, joined, note, seqs


class LeaseRules(ContractBase):
    """`lease`."""

    def test_lease_has_one_holder(self, tmp_path: Path) -> None:
        """A second holder is `SessionBusy`, which names the first; leaving frees it."""
        store = self.started(tmp_path)
        other = self.second(store, tmp_path)
        with store.lease("s") as lease:
            assert lease.session_id == "s"
            assert (lease.owner.pid, lease.owner.host) == (os.getpid(), socket.gethostname())
            for contender in (store, other):
                with pytest.raises(SessionBusy) as caught:
                    enter(contender.lease("s"))
                owner = caught.value.owner
                assert (owner.pid, owner.host) == (os.getpid(), socket.gethostname())
                assert str(os.getpid()) in str(caught.value)
                assert socket.gethostname() in str(caught.value)
        enter(other.lease("s"))
        enter(store.lease("s"))

    def test_lease_is_about_one_session(self, tmp_path: Path) -> None:
        """Another session, and reading or appending to this one, go on."""
        store = self.started(tmp_path)
        store.create(SessionInfo(id="t"))
        with store.lease("s"), store.lease("t"):
            assert seqs(self.put(self.second(store, tmp_path), "s", [note()])) == [1]
            store.update("s", title="x")

    def test_lease_is_freed_by_an_error(self, tmp_path: Path) -> None:
        """However the block ends, the lease ends with it."""
        store = self.started(tmp_path)
        with pytest.raises(KeyError), store.lease("s"):
            raise KeyError("x")
        enter(store.lease("s"))

    def test_lease_is_waited_for(self, tmp_path: Path) -> None:
        """`wait` is a number of seconds, after which it is `SessionBusy`."""
        store = self.started(tmp_path)
        other = self.second(store, tmp_path)
        held, free = threading.Event(), threading.Event()

        def hold() -> None:
            with store.lease("s"):
                held.set()
                free.wait(20)

        thread = threading.Thread(target=hold)
        thread.start()
        try:
            assert held.wait(20)
            began = time.monotonic()
            with pytest.raises(SessionBusy):
                enter(other.lease("s", wait=0.1))
            assert time.monotonic() - began >= 0.09
            threading.Timer(0.05, free.set).start()
            enter(other.lease("s", wait=20))
        finally:
            free.set()
            thread.join(20)

    def test_lease_of_a_deleted_session_is_left_without_an_error(self, tmp_path: Path) -> None:
        """The holder may delete the session; a new one of that id has no holder in the end."""
        store = self.started(tmp_path)
        with store.lease("s"):
            store.delete("s")
            store.create(SessionInfo(id="s"))
        enter(store.lease("s"))

    def test_lease_of_a_killed_process_is_free(self, tmp_path: Path) -> None:
        """While it lives, the holder is named; its death frees the lease at once."""
        self.need_shared()
        store = self.started(tmp_path)
        heard, say = os.pipe()

        def hold() -> None:
            with self.make(tmp_path / "place").lease("s"):
                os.write(say, b"held")
                time.sleep(60)

        pid = child(hold)
        try:
            os.close(say)
            assert os.read(heard, 4) == b"held"
            with pytest.raises(SessionBusy) as caught:
                enter(store.lease("s"))
            assert (caught.value.owner.pid, caught.value.owner.host) == (pid, socket.gethostname())
        finally:
            os.close(heard)
            os.kill(pid, signal.SIGKILL)
            joined([pid])
        enter(store.lease("s", wait=1))

    def test_lease_is_not_inherited_by_a_forked_process(self, tmp_path: Path) -> None:
        """A child does not hold its parent's lease, and does not keep it alive."""
        self.need_shared()
        store = self.started(tmp_path)
        heard, say = os.pipe()

        def linger(inherited: Store) -> None:
            for contender in (inherited, self.make(tmp_path / "place")):
                with pytest.raises(SessionBusy):
                    enter(contender.lease("s"))
            os.write(say, b"done")
            time.sleep(60)

        with store.lease("s"):
            pid = child(lambda: linger(store))
            os.close(say)
            answer = os.read(heard, 4)
        try:
            os.close(heard)
            assert answer == b"done"
            enter(store.lease("s", wait=1))
        finally:
            os.kill(pid, signal.SIGKILL)
            joined([pid])
