"""What the viewer plans is what the library plans and what then happens: random histories."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from backtrail import BacktrailError, Session
from backtrail.session.parts import Parts
from backtrail.stores import open_store

from .viewer import Viewer, files_in, viewing

NAMES = ["a.txt", "b.txt", "sub/c.txt", "sub/d.txt", "e.txt"]
WAYS = ["keep", "merge", "aside", "overwrite"]


class History:
    """A session that works in a folder, and a person who does, too."""

    def __init__(self, seed: int, viewer: Viewer, root: Path) -> None:
        self.draw = random.Random(seed)
        self.viewer, self.root, self.id = viewer, root, f"s{seed}"
        root.mkdir(parents=True)
        for name in NAMES[:3]:
            self.change(name)

    def change(self, name: str | None = None) -> None:
        """A write, an edit of a line, or a removal."""
        path = self.root / (name or self.draw.choice(NAMES))
        kind = self.draw.random()
        if path.exists() and kind < 0.2:
            path.unlink()
        elif path.exists() and kind < 0.8:
            lines = path.read_text().splitlines()
            lines[self.draw.randrange(len(lines))] = f"line {self.draw.random()}"
            path.write_text("\n".join(lines) + "\n")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{name} {n} {self.draw.random()}\n" for n in range(6)))

    def live(self) -> None:
        """Some turns, and edits by the person between them."""
        with Session.create(self.viewer.store, self.id, cwd=self.root) as s:
            for n in range(self.draw.randint(1, 4)):
                s.append({"role": "user", "content": f"turn {n}"})
                for _ in range(self.draw.randint(0, 2)):
                    with s.tool("bash", {"command": "x"}):
                        self.change()
                s.append({"role": "assistant", "content": "done"})
                if self.draw.random() < 0.5:
                    self.change()

    def wish(self) -> dict[str, Any]:
        """A way back, as the page asks for it."""
        prompts = self.viewer.get(f"s/{self.id}/outline")["prompts"]
        scope = self.draw.choice(["both", "files", "conversation"])
        chosen = self.draw.random()
        if chosen < 0.3:
            found: dict[str, Any] = {"verb": "undo"}
        elif chosen < 0.45:
            found = {"verb": "rewind", "turn": self.draw.choice(prompts)}
        else:
            point = self.draw.choice(["to", "before"])
            found = {"verb": "rewind", point: self.draw.choice(prompts), "scope": scope}
            found["mode"] = (
                self.draw.choice(["mine", "mine", "exact"]) if scope != "conversation" else "mine"
            )
        return found

    def library(self, wish: dict[str, Any]) -> list[tuple[str, str]]:
        """What the library plans for it, without the server."""
        ways: Any = wish.get("decisions", {})
        with Session(Parts(self.viewer.store, self.id, {"files": True})) as s:
            if wish["verb"] == "undo":
                plan = s.undo(on_conflict=ways, dry_run=True)
            elif "turn" in wish:
                prompt = next(s.events(after=wish["turn"] - 1, limit=1))
                plan = s.rewind(turn=prompt, on_conflict=ways, dry_run=True)
            else:
                plan = s.rewind(
                    wish.get("to"), before=wish.get("before"), scope=wish["scope"],
                    mode=wish["mode"], on_conflict=ways, dry_run=True,
                )  # fmt: skip
        return [(file.path, file.action) for file in plan.files]


def run(seed: int, viewer: Viewer, root: Path) -> None:
    """One history: three plans that are the same, and what is on the disk then."""
    history = History(seed, viewer, root)
    history.live()
    wish = history.wish()
    first = viewer.post(f"s/{history.id}/preview", wish)
    ways = {
        f["path"]: history.draw.choice(WAYS) for f in first["files"] if f["action"] == "conflict"
    }
    wish["decisions"] = {
        path: "keep" if way == "merge" and first["ways"].get(path) else way
        for path, way in ways.items()
    }
    before = files_in(root)
    shown = viewer.post(f"s/{history.id}/preview", wish)
    plan = [(file["path"], file["action"]) for file in shown["files"]]
    assert plan == history.library(wish)
    assert files_in(root) == before
    status, done, _ = viewer.ask(f"/api/s/{history.id}/act", {**wish, "plan": shown["plan"]})
    assert status == 200, done
    assert [(file["path"], file["action"]) for file in done["files"]] == plan
    assert (done["left"], done["dropped"]) == (shown["left"], shown["dropped"])
    assert viewer.store.info(history.id).message_count == shown["left"]
    after = files_in(root)
    folders = {file["path"] for file in shown["files"] if file["folder"]}
    acted = dict(plan)
    for path in {*before, *after} - folders:
        action = acted.get(path, "skip")
        if action in ("skip", "conflict"):
            assert after.get(path) == before.get(path), (path, action)
        elif action == "delete":
            assert path in before and path not in after
        elif action == "create":
            assert path not in before and path in after
        else:
            assert path in before and path in after and before[path] != after[path], (path, action)
    assert {p for p, action in plan if action == "create"} - folders <= set(after)


def histories(tmp_path: Path, seeds: range) -> None:
    """Run some of them on one viewer."""
    with open_store(f"sqlite:///{tmp_path}/store.db") as store, viewing(store) as viewer:
        for seed in seeds:
            try:
                run(seed, viewer, tmp_path / f"p{seed}")
            except (AssertionError, BacktrailError) as error:
                raise AssertionError(f"history {seed}: {error}") from error


@pytest.mark.parametrize("part", range(5))
def test_a_plan_is_what_happens(tmp_path: Path, part: int) -> None:
    """Fifty histories."""
    histories(tmp_path, range(part * 10, part * 10 + 10))


@pytest.mark.torture
@pytest.mark.parametrize("part", range(19))
def test_a_plan_is_what_happens_a_thousand_times(tmp_path: Path, part: int) -> None:
    """The others of a thousand."""
    histories(tmp_path, range(50 + part * 50, 100 + part * 50))


def test_a_plan_of_an_earlier_moment_is_refused(viewer: Viewer, root: Path) -> None:
    """Disk or log have moved: 409, and nothing is done; the new plan is another one."""
    shown = viewer.post("s/work/preview", {"verb": "undo"})
    (root / "LICENSE").write_text("mine\n")
    before = files_in(root)
    status, found, _ = viewer.ask("/api/s/work/act", {"verb": "undo", "plan": shown["plan"]})
    assert (status, found["error"]["code"]) == (409, "conflict")
    assert files_in(root) == before
    again = viewer.post("s/work/preview", {"verb": "undo"})
    assert again["plan"] != shown["plan"]
    with Session.resume(viewer.store, "work") as s:
        s.append({"role": "user", "content": "more"})
    assert viewer.ask("/api/s/work/act", {"verb": "undo", "plan": again["plan"]})[0] == 409
    assert viewer.ask("/api/s/work/act", {"verb": "undo"})[0] == 400
    assert files_in(root) == before
