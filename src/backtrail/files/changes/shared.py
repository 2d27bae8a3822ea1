"""A session's files as several processes record them, each for a moment: an agent's hooks.

The hook before a call opens a bracket, the hook after it, another process, ends it. So the
calls under way are those in the catalogue, and an event that is owed has its bracket's id,
since the store takes an id once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...errors import BacktrailError
from ..names import shown
from .brackets import Bracket, Runner, is_dead
from .recorder import Recorder

if TYPE_CHECKING:
    from ..workspace.workspace import Workspace
    from .brackets import Process, Running, Sought


class SharedRecorder(Recorder):
    """A recorder of a session that other processes record, too."""

    shared = True

    def _owe_others(self, tree: bytes, besides: str = "", *, prompt: bool = False) -> None:
        workspace = self.workspace
        if workspace is None or any(one.id != besides for one in self.mine(workspace)):
            # Another process may be about to append what its call did.
            return
        known = self.known_tree()
        if not prompt or known is None or known == tree:
            self.owe_others(tree)
            return
        from .reversal import Reversals

        back = Reversals(self._store, self._id).find(workspace.blobs.get, known, tree)
        self.owe_others(tree, back)

    def outdated(self) -> list[str]:
        """The files that are other than the agent thinks, since they were taken back.

        To be asked before its prompt is appended: from then on it knows.
        """
        workspace = self.watched()
        now = None if workspace is None else workspace.catalogue.lines.tree(workspace.place.n)
        if workspace is None or now is None:
            return []
        from .reversal import last_prompt, restores, unknown

        last = last_prompt(self._store.walk(self._id))
        found = restores(self._store, self._store.record(self._id), last[1]) if last else []
        if last is None or not found:
            return []
        return [shown(path) for path in unknown(workspace.blobs.get, last[0], found, now)]

    def going(self, workspace: Workspace) -> list[tuple[str, Bracket]]:
        self.under_way = {b.id: b for b in self.mine(workspace) if not b.ended}
        return list(self.under_way.items())

    def find(self, sought: Sought) -> Bracket | None:
        """The call under way that another process began."""
        workspace = self.watched()
        there = [] if workspace is None else self.mine(workspace)
        bracket = sought.among(b for b in there if not (b.left or _is_being_recorded(b)))
        if bracket is not None:
            self.under_way[bracket.id] = bracket
        return bracket

    def ask(self, sought: Sought) -> None:
        """A person is asked whether a call may run. Without a result that is not known."""
        workspace = self.watched()
        if workspace is None:
            return
        open_now = [b for b in self.mine(workspace) if not (b.ended or b.left)]
        waiting = [b for b in open_now if not b.question and b.agent == sought.agent]
        bracket = sought.among(open_now)
        if bracket is None or bracket.question:
            bracket = sought.alike(waiting) or bracket or (waiting[-1] if waiting else None)
        if bracket is not None:
            workspace.catalogue.lines.ask(workspace.place.n, bracket, time.time())

    def end_agent(
        self, agent: str | None, running: Running | None = None, *, late: bool = True
    ) -> None:
        """End what an agent of the session left under way (None: all of them), and owe it.

        A call whose process is `running` on goes on without its agent. Of one that a person was
        asked about and that has no result it is not known whether it ran. Unless it is `late`, the
        agent was at work until now.
        """
        workspace = self.watched()
        if workspace is None or workspace.is_new():
            return
        try:
            for bracket in self.mine(workspace):
                if agent not in (None, bracket.agent) or _is_being_recorded(bracket):
                    continue
                process = None
                if running is not None and not (bracket.ended or bracket.left):
                    process = running(bracket)
                if process is not None:
                    self._give_up(workspace, bracket, process)
                elif bracket.left and not is_dead(bracket):
                    continue
                else:
                    self._end_left(workspace, bracket, late=late or is_dead(bracket))
        except BacktrailError as error:
            # The conversation is kept all the same.
            self._host.missed(error)

    def _give_up(self, workspace: Workspace, bracket: Bracket, process: Process) -> None:
        """A call goes on without its agent, in a process that is the bracket's from now on."""
        workspace.scan(self.log, self._store)
        split = workspace.catalogue.lines.split(
            workspace.place.n, bracket, over=False, left_to=Runner(process.pid, process.born)
        )
        how, since = "interrupted", process.since
        if self.owe_so_far(workspace, bracket, split, how, bracket.id, since) and split:
            self.tree = split.tree


def _is_being_recorded(bracket: Bracket) -> bool:
    """Whether a process is about to append what a call did."""
    return bracket.ended and not is_dead(bracket)
