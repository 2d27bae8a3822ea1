"""Trees: one encoding for each directory, nothing else decodes, a diff is what differs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail.errors import Damaged
from backtrail.files.trees import (
    EMPTY,
    EMPTY_DIGEST,
    MAGIC,
    NOTHING,
    Difference,
    Entry,
    Kind,
    Tree,
    diff_trees,
    digest_of,
    encode_tree,
    flatten,
    is_control,
    look_up,
    parse_tree,
)

NAMES = st.binary(min_size=1, max_size=8).filter(
    lambda name: not {0, *b"/"} & {*name} and name not in (b".", b"..") and not is_control(name)
)
FEW = st.sampled_from([b"a", b"b", b"c.txt", b"\xff"])
MODES = st.integers(0, 0o7777)
KINDS: list[Kind] = ["file", "link", "directory", "opaque", "skipped"]


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    kind = draw(st.sampled_from(KINDS))
    length = 32 if kind in ("file", "directory") else draw(st.integers(1, 40))
    value = draw(st.binary(min_size=length, max_size=length))
    if kind == "link":
        value = value.replace(b"\0", b"x")
    return Entry(kind, draw(MODES), draw(st.integers(0, 2**63)), value)


LEAVES = st.builds(
    Entry,
    st.sampled_from(["file", "link", "skipped"]),
    st.sampled_from([0o644, 0o755]),
    st.just(1),
    st.sampled_from([b"1" * 32, b"2" * 32]),
)
OPAQUE = st.just(Entry("opaque", 0, 0, b"mounted"))
Nested = dict[bytes, Any]
NESTED: st.SearchStrategy[Nested] = st.recursive(
    st.dictionaries(FEW, LEAVES | OPAQUE, max_size=3),
    lambda below: st.dictionaries(
        FEW, LEAVES | OPAQUE | st.tuples(st.sampled_from([0o755, 0o700]), below), max_size=4
    ),
    max_leaves=12,
)


class Shelf(dict[bytes, bytes]):
    """Blobs in a dict."""

    def put(self, nested: Nested) -> bytes:
        tree: Tree = {}
        for name, value in nested.items():
            if isinstance(value, Entry):
                tree[name] = value
            else:
                tree[name] = Entry("directory", value[0], 0, self.put(value[1]))
        encoded = encode_tree(tree)
        self[digest_of(encoded)] = encoded
        return digest_of(encoded)


@given(st.dictionaries(NAMES, entries()))
def test_a_tree_comes_back(tree: Tree) -> None:
    """What was encoded is decoded, names in order."""
    decoded = parse_tree(encode_tree(tree))
    assert decoded == tree
    assert list(decoded) == sorted(tree)


@given(st.dictionaries(NAMES, entries()), st.randoms())
def test_equal_directories_have_equal_bytes(tree: Tree, random: Any) -> None:
    """The order in which names were found does not show."""
    items = list(tree.items())
    random.shuffle(items)
    assert encode_tree(dict(items)) == encode_tree(tree)


@given(st.dictionaries(FEW, entries()), st.dictionaries(FEW, st.none() | entries()))
def test_a_tree_that_changed_is_as_if_made_anew(tree: Tree, changes: dict[bytes, Entry]) -> None:
    """Whatever came, went or became something else; and the one before is what it was."""
    made = NOTHING.changed(tree)
    before = made.encoded()
    after = made.changed(changes)
    expected = {name: entry for name, entry in {**tree, **changes}.items() if entry is not None}
    assert after.tree == expected
    assert after.encoded() == encode_tree(expected)
    assert made.tree == tree
    assert made.encoded() == before


@given(st.dictionaries(NAMES, entries()), st.data())
def test_only_one_encoding_is_decoded(tree: Tree, data: st.DataObject) -> None:
    """Any other bytes are damaged, or another tree with exactly these bytes."""
    encoded = bytearray(encode_tree(tree))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    cut = bytes(encoded[: data.draw(st.integers(0, len(encoded)))])
    for changed in (bytes(encoded), cut):
        try:
            decoded = parse_tree(changed)
        except Damaged:
            continue
        assert encode_tree(decoded) == changed


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"/etc", b"a\0b", b"x" * 1025])
def test_no_name_leads_outside(name: bytes) -> None:
    """A tree from a strange store cannot name a path elsewhere."""
    with pytest.raises(Damaged):
        parse_tree(encode_tree({name: Entry("file", 0o644, 1, b"1" * 32)}))


@pytest.mark.parametrize(
    "entry",
    [
        Entry("file", 0o10000, 1, b"1" * 32),
        Entry("file", 0o644, 1, b"1" * 31),
        Entry("directory", 0o755, 0, b""),
        Entry("link", 0o777, 3, b"a\0b"),
        Entry("link", 0o777, 0, b""),
        Entry("link", 0o777, 4096, b"x" * 4096),
    ],
)
def test_no_entry_that_no_scan_makes(entry: Entry) -> None:
    """Modes have twelve bits, digests a length, and links a text that the system takes."""
    with pytest.raises(Damaged):
        parse_tree(encode_tree({b"a": entry}))


def test_names_twice_or_out_of_order_are_damage() -> None:
    """A directory has one order, and each name once."""
    one = encode_tree({b"a": Entry("file", 0, 0, b"1" * 32)})[4:]
    two = encode_tree({b"b": Entry("file", 0, 0, b"1" * 32)})[4:]
    assert parse_tree(MAGIC + one + two)
    for wrong in (MAGIC + two + one, MAGIC + one + one, b"BTT0" + one, MAGIC + b"\0" + one):
        with pytest.raises(Damaged):
            parse_tree(wrong)


def test_the_empty_directory() -> None:
    """It has a digest like any other."""
    assert parse_tree(EMPTY) == {}
    assert digest_of(EMPTY) == EMPTY_DIGEST


# --- several directories -----------------------------------------------------------------


def naive(shelf: Shelf, a: bytes, b: bytes) -> list[Difference]:
    """The difference of two trees as that of two flat dicts; nothing across what is opaque."""
    old, new = dict(flatten(shelf.__getitem__, a)), dict(flatten(shelf.__getitem__, b))
    opaque = [p for side in (old, new) for p, entry in side.items() if entry.kind == "opaque"]
    found = []
    for path in sorted(old.keys() | new.keys(), key=lambda path: path.split(b"/")):
        before, after = old.get(path), new.get(path)
        if any(path.startswith(above + b"/") for above in opaque) or before == after:
            continue
        if (
            before and after and before.kind == after.kind == "directory"
            and before.mode == after.mode
        ):  # fmt: skip
            continue
        found.append(Difference(path, before, after))
    return found


@given(NESTED, NESTED)
def test_a_diff_is_that_of_flat_dicts(a: Nested, b: Nested) -> None:
    """Every path that differs, once, parents before children."""
    shelf = Shelf()
    before, after = shelf.put(a), shelf.put(b)
    assert list(diff_trees(shelf.__getitem__, before, after)) == naive(shelf, before, after)


@given(NESTED)
def test_a_diff_from_nothing_is_everything(a: Nested) -> None:
    """None stands for no tree at all."""
    shelf = Shelf()
    root = shelf.put(a)
    everything = list(flatten(shelf.__getitem__, root))
    came = list(diff_trees(shelf.__getitem__, None, root))
    went = list(diff_trees(shelf.__getitem__, root, None))
    assert [(path, after) for path, _, after in came] == everything
    assert [(path, before) for path, before, _ in went] == everything


def test_a_diff_reads_only_what_differs() -> None:
    """Equal parts are not even fetched."""
    shelf = Shelf()
    same = (0o755, {b"x": Entry("file", 0, 0, b"1" * 32)})
    a = shelf.put({b"same": same, b"file": Entry("file", 0, 0, b"1" * 32)})
    b = shelf.put({b"same": same, b"file": Entry("file", 0, 0, b"2" * 32)})
    fetched: list[bytes] = []

    def get(digest: bytes) -> bytes:
        fetched.append(digest)
        return shelf[digest]

    assert [difference.path for difference in diff_trees(get, a, b)] == [b"file"]
    assert fetched == [a, b]
    assert not list(diff_trees(get, a, a))


@given(NESTED)
def test_every_path_can_be_looked_up(a: Nested) -> None:
    """And what no tree has, is not there."""
    shelf = Shelf()
    root = shelf.put(a)
    for path, entry in flatten(shelf.__getitem__, root):
        assert look_up(shelf.__getitem__, root, path) == entry
        if entry.kind != "directory":
            assert look_up(shelf.__getitem__, root, path + b"/below") is None
    assert look_up(shelf.__getitem__, root, b"nowhere") is None
    assert look_up(shelf.__getitem__, None, b"a") is None


def test_depth_is_no_limit() -> None:
    """Directories lie deeper than Python calls."""
    shelf = Shelf()
    roots = []
    for value in (b"1" * 32, b"2" * 32):
        root = shelf.put({b"file": Entry("file", 0o644, 1, value)})
        for _ in range(3000):
            root = _above(shelf, root)
        roots.append(root)
    path = b"d/" * 3000 + b"file"
    assert [d.path for d in diff_trees(shelf.__getitem__, *roots)] == [path]
    assert sum(1 for _ in flatten(shelf.__getitem__, roots[0])) == 3001
    assert look_up(shelf.__getitem__, roots[0], path)


def _above(shelf: Shelf, root: bytes) -> bytes:
    encoded = encode_tree({b"d": Entry("directory", 0o755, 0, root)})
    shelf[digest_of(encoded)] = encoded
    return digest_of(encoded)
