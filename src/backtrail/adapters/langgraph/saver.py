"""`BacktrailSaver`: LangGraph's checkpoints in a session, each state stored once."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ...errors import AlreadyExists, NotFound
from ...events import MAIN_LOG, NewEvent, SessionInfo, new_id
from ...events.lognames import log_name, log_texts
from ...session import threads
from ...stores.base import Store
from .. import Place, needs
from .building import Builder
from .codec import Codec
from .deltas import WRITES
from .line import Line
from .pruning import needed, remove
from .tuples import as_tuple, config_of, listed

with needs("langgraph"):
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        get_checkpoint_id,
        get_serializable_checkpoint_metadata,
    )
    from langgraph.checkpoint.serde.base import SerializerProtocol

if TYPE_CHECKING:
    from ...session.session import Session

KEY = "langgraph:"
_NAMESPACES = "subagents/"
_PAGE = 16


class BacktrailSaver(BaseCheckpointSaver[Any]):
    """A checkpointer whose threads are sessions: one class for sync and async graphs.

    `store` is a Store, a URL, or None for the default store. `cwd` is the folder of new
    threads, where `session(thread_id)` looks after the files.
    """

    def __init__(
        self,
        store: Store | str | None = None,
        *,
        serde: SerializerProtocol | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(serde=serde)
        self._place = Place(store)
        self.store = self._place.store
        self._cwd = None if cwd is None else str(Path(cwd))
        self._sessions: dict[str, str] = {}
        self._lines: dict[tuple[str, str], Line] = {}

    def close(self) -> None:
        """Close the store, if it was opened here."""
        self._place.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await threads.run(self.close)

    # --- threads -----------------------------------------------------------------------------

    def threads(self) -> list[str]:
        """The ids of all threads, the last used first."""
        return [info.key[len(KEY) :] for info in self._infos() if info.key]

    def _infos(self) -> list[SessionInfo]:
        return [info for info in self.store.sessions() if (info.key or "").startswith(KEY)]

    def session_id(self, thread_id: str) -> str:
        """The id of the session that a thread is; `NotFound` if there is none."""
        found = self._find(str(thread_id))
        if found is None:
            raise NotFound(f"no thread `{thread_id}` in this store")
        return found

    def session(self, thread_id: str, **options: Any) -> Session:
        """The session of a thread, to look at, rewind and fork; made if there is none."""
        from ...session.session import Session

        id = self._find(str(thread_id)) or self._make(str(thread_id))
        return Session.resume(self.store, id, **options)

    def _find(self, thread_id: str) -> str | None:
        id = self._sessions.get(thread_id)
        if id is None:
            found = self.store.sessions(key=KEY + thread_id, limit=1)
            if not found:
                return None
            id = self._sessions[thread_id] = found[0].id
        return id

    def _make(self, thread_id: str) -> str:
        info = SessionInfo(
            id=new_id(), key=KEY + thread_id, cwd=self._cwd, agent_name="langgraph",
            metadata={"langgraph": {"thread_id": thread_id}},
        )  # fmt: skip
        try:
            self.store.create(info)
        except AlreadyExists:
            # Another process was first.
            return self._find(thread_id) or self._make(thread_id)
        self._sessions[thread_id] = info.id
        return info.id

    def _line(self, config: RunnableConfig, *, make: bool = False) -> Line | None:
        given = config["configurable"]
        return self._line_of(str(given["thread_id"]), given.get("checkpoint_ns") or "", make=make)

    def _line_of(self, thread_id: str, ns: str, *, make: bool = False) -> Line | None:
        line = self._lines.get((thread_id, ns))
        if line is None:
            id = self._find(thread_id) or (self._make(thread_id) if make else None)
            if id is None:
                return None
            log = MAIN_LOG if not ns else _NAMESPACES + log_name(ns)
            line = self._lines.setdefault((thread_id, ns), Line(self.store, id, log, thread_id, ns))
        return line

    def _forget(self, thread_id: str) -> None:
        self._sessions.pop(thread_id, None)
        for name in [name for name in self._lines if name[0] == thread_id]:
            self._lines.pop(name, None)

    def _lines_of(self, thread_id: str) -> list[Line]:
        id = self._find(thread_id)
        if id is None:
            return []
        try:
            logs = self.store.logs(id)
        except NotFound:
            self._forget(thread_id)
            return []
        names = [""]
        for log in logs:
            if log.startswith(_NAMESPACES):
                names.append("/".join(log_texts(log.removeprefix(_NAMESPACES))))
        return [line for ns in names if (line := self._line_of(thread_id, ns)) is not None]

    # --- writing -----------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint: what changed since its parent, and new messages as messages."""
        thread_id = str(config["configurable"]["thread_id"])
        ns = config["configurable"].get("checkpoint_ns") or ""
        about = get_serializable_checkpoint_metadata(config, metadata)
        for attempt in range(2):
            line = self._line(config, make=True)
            assert line is not None
            builder = Builder(line, Codec(self.serde), checkpoint, about, new_versions)
            try:
                with line.lock:
                    builder.put(get_checkpoint_id(config))
                break
            except NotFound:
                # Deleted meanwhile; begun anew, once.
                self._forget(thread_id)
                if attempt:
                    raise
        return config_of(thread_id, ns, checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote for a checkpoint, as one event."""
        codec = Codec(self.serde)
        checkpoint_id = config["configurable"]["checkpoint_id"]
        data = {
            "checkpoint": checkpoint_id,
            "task": task_id,
            "path": task_path,
            "writes": [
                [WRITES_IDX_MAP.get(channel, number), channel, codec.encode(value)]
                for number, (channel, value) in enumerate(writes)
            ],
        }
        if all(channel in WRITES_IDX_MAP for channel, _ in writes):
            data["replaces"] = True
        event = NewEvent(WRITES, data)
        for attempt in range(2):
            line = self._line(config, make=True)
            assert line is not None
            try:
                with line.lock:
                    if not line.begun:
                        line.refresh()
                    [stored] = line.append(lambda: [event])
                    if line.where(checkpoint_id) is None:
                        line.early.setdefault(checkpoint_id, []).append(stored.seq)
                return
            except NotFound:
                self._forget(line.thread_id)
                if attempt:
                    raise

    # --- reading -----------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """A checkpoint by its id; without one the newest, after a rewind that on the live path."""
        line = self._line(config)
        if line is None:
            return None
        try:
            with line.lock:
                line.refresh()
                id = get_checkpoint_id(config) or line.top
                seq = None if id is None else line.where(id)
                if seq is None:
                    return None
                whole = line.whole(seq)
                writes = line.writes(whole)
        except NotFound:
            self._forget(line.thread_id)
            return None
        return as_tuple(Codec(self.serde), line, whole, writes, {})

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints that match, newest first; of all threads, if no config is given."""
        wanted: list[tuple[str, Line, int]] = []
        until = get_checkpoint_id(before) if before else None
        only = get_checkpoint_id(config) if config else None
        for line in self._lines_for(config):
            try:
                with line.lock:
                    found = line.all()
            except NotFound:
                self._forget(line.thread_id)
                continue
            wanted += [
                (id, line, seq)
                for id, seq in found.items()
                if (only is None or id == only) and (until is None or id < until)
            ]
        wanted.sort(key=lambda one: one[0], reverse=True)
        return listed(Codec(self.serde), wanted, filter or {}, limit)

    def _lines_for(self, config: RunnableConfig | None) -> Sequence[Line]:
        if not config:
            return [line for name in self.threads() for line in self._lines_of(name)]
        if "thread_id" not in config["configurable"]:
            return []
        if config["configurable"].get("checkpoint_ns") is None:
            return self._lines_of(str(config["configurable"]["thread_id"]))
        line = self._line(config)
        return [] if line is None else [line]

    # --- removing and copying ----------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all that belongs to it."""
        id = self._find(str(thread_id))
        if id is not None:
            try:
                self.store.delete(id)
            except NotFound:
                pass
        self._forget(str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs, in all threads, and what was written for them."""
        wanted = set(run_ids)
        if not wanted:
            return
        codec = Codec(self.serde)
        for thread_id in self.threads():
            for line in self._lines_of(thread_id):
                with line.lock:
                    found = line.all()
                    gone = [
                        id
                        for id, seq in found.items()
                        if codec.decode(line.whole(seq).metadata).get("run_id") in wanted
                    ]
                    if gone:
                        remove(line, found, gone)
                        self._lines.pop((line.thread_id, line.ns), None)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the newest checkpoint of each namespace, or with `delete` none."""
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"a strategy is keep_latest or delete, not {strategy!r}")
        for thread_id in map(str, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            for line in self._lines_of(thread_id):
                with line.lock:
                    line.refresh()
                    found = line.all()
                    keep = needed(line, found, Codec(self.serde))
                    gone = [id for id in found if id not in keep]
                    if gone:
                        remove(line, found, gone)
                        self._lines.pop((line.thread_id, line.ns), None)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """A thread that begins with all of another: a fork, which shares what is stored."""
        source = self._find(str(source_thread_id))
        if source is None:
            return
        target = str(target_thread_id)
        info = self.store.info(source)
        copied = SessionInfo(
            id=new_id(), key=KEY + target, cwd=info.cwd, agent_name="langgraph",
            title=info.title, metadata={**info.metadata, "langgraph": {"thread_id": target}},
        )  # fmt: skip
        self.store.create(copied, base=(source, info.head))
        for log in self.store.logs(source):
            if log != MAIN_LOG:
                events = [
                    NewEvent(event.kind, event.data, event.id, event.follows, event.ts)
                    for event in self.store.read(source, log=log)
                ]
                self.store.append(copied.id, events, log=log)
        self._sessions[target] = copied.id

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Whole numbers; a version that another saver made goes on in its way."""
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}.{0:016}"
        return 1 if current is None else int(current) + 1

    # --- the same for asyncio ----------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple`, in a worker thread."""
        return await threads.run(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, some at a time in a worker thread; nothing is held between them."""
        found = await threads.run(self.list, config, filter=filter, before=before, limit=limit)

        def page() -> Sequence[CheckpointTuple]:
            return [*islice(found, _PAGE)]

        while True:
            some = await threads.run(page)
            for one in some:
                yield one
            if len(some) < _PAGE:
                return

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put`, in a worker thread."""
        return await threads.run(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """`put_writes`, in a worker thread."""
        await threads.run(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread`, in a worker thread."""
        await threads.run(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`, in a worker thread."""
        await threads.run(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread`, in a worker thread."""
        await threads.run(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`prune`, in a worker thread."""
        await threads.run(self.prune, thread_ids, strategy=strategy)
