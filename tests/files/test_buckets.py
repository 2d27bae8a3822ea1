"""Contents on S3: the contract on two servers; packs, never an object a content, never a list."""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from backtrail import Session
from backtrail.errors import NotFound, StoreFailed, Unsupported
from backtrail.files import materialize
from backtrail.files.contents.blobs import Blobs, Reference
from backtrail.files.contents.shared import SharedBlobs
from backtrail.files.contents.shared.nearcopy import CachedContents
from backtrail.files.contents.shared.packplaces import InBucket
from backtrail.files.depot import open_blobs
from backtrail.stores import open_store
from backtrail.stores.postgres.address import parse
from backtrail.testing import BlobContract
from backtrail.testing.store.base import child, joined
from tests import buckets, postgres

LATER = 4e9


@pytest.fixture(scope="module", params=["moto", "ministack"])
def endpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A server that speaks S3."""
    postgres.server()
    with buckets.running(request.param, tmp_path_factory.mktemp("bucket")) as found:
        yield found


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket, which the environment leads to."""
    for name, value in {**buckets.KEYS, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    return buckets.make_bucket(endpoint)


class TestInBucket(BlobContract):
    """The bytes of all but the smallest writes are in packs."""

    url = ""

    @pytest.fixture(autouse=True)
    def place(self, bucket: str) -> None:
        """Where they go."""
        self.url = f"s3://{bucket}/some/prefix"

    def make(self, place: Path) -> Blobs:
        return SharedBlobs(parse(postgres.url_for(place)), "", self.url)


def contents(count: int, length: int) -> list[tuple[bytes, bytes]]:
    """Contents that cannot be compressed."""
    found = [random.Random(n).randbytes(length) for n in range(count)]
    return [(sha256(content).digest(), content) for content in found]


def nothing(roots: object, get: object) -> set[bytes]:
    """A `keep` that holds nothing."""
    return set()


def test_many_contents_are_few_objects(endpoint: str, bucket: str, tmp_path: Path) -> None:
    """Packs of 8 to 16 MB, each put once; little goes into the index alone."""
    with SharedBlobs(parse(postgres.url_for(tmp_path)), "", f"s3://{bucket}/p") as blobs:
        blobs.write(contents(5, 1000), [Reference("s", "l", contents(1, 1000)[0][0])])
        assert buckets.objects(endpoint, bucket) == {}
        many = contents(400, 100_000)
        blobs.write(many)
        there = buckets.objects(endpoint, bucket)
        assert all(name.startswith("p/packs/") for name in there)
        assert all(8_000_000 < size < 17_000_000 for size in sorted(there.values())[1:])
        assert len(there) <= 5
        assert sum(there.values()) == 40_000_000
        for digest, content in many[::37]:
            assert blobs.get(digest) == content
        assert dict(blobs.get_many([digest for digest, _ in many])) == dict(many)


def test_a_copy_is_filled_by_few_requests(
    endpoint: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is about to be read comes by pack, and is not asked for again."""
    asked: list[int] = []
    plain = InBucket.get_ranges

    def counted(self: InBucket, key: str, spans: list[tuple[int, int]]) -> list[bytes]:
        asked.append(len(spans))
        return plain(self, key, spans)

    monkeypatch.setattr(InBucket, "get_ranges", counted)
    address, url = parse(postgres.url_for(tmp_path)), f"s3://{bucket}/p"
    many = contents(300, 50_000)
    for name in "ab":
        (tmp_path / name).mkdir()
    with CachedContents(SharedBlobs(address, "", url), tmp_path / "a") as one:
        one.write(many)
        for digest, content in many:
            assert one.get(digest) == content
        assert asked == []
    with CachedContents(SharedBlobs(address, "", url), tmp_path / "b") as two:
        two.fetch([digest for digest, _ in many])
        assert sum(asked) == 300
        assert len(asked) == len(buckets.objects(endpoint, bucket)) <= 3
        for digest, content in many:
            assert two.get(digest) == content
        assert sum(asked) == 300


def test_a_sweep_removes_packs_after_a_grace(
    endpoint: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the index, a day later the objects; half-empty packs are made anew."""
    address = parse(postgres.url_for(tmp_path))
    with SharedBlobs(address, "", f"s3://{bucket}/p") as blobs:
        many = contents(100, 100_000)
        blobs.write(many)
        before = buckets.objects(endpoint, bucket)
        kept = {digest for digest, _ in many[:10]}
        blobs.sweep(lambda roots, get: kept, LATER)
        there = buckets.objects(endpoint, bucket)
        # A reader that asked the index before may still be at the old ones.
        assert before.keys() < there.keys()
        assert sum(there.values()) - sum(before.values()) == 1_000_000
        monkeypatch.setattr(InBucket, "grace", 0.0)
        blobs.sweep(lambda roots, get: kept, LATER)
        assert sum(buckets.objects(endpoint, bucket).values()) == 1_000_000
        assert [blobs.get(digest) for digest, _ in many[:10]] == [c for _, c in many[:10]]
        blobs.sweep(nothing, LATER)
        assert buckets.objects(endpoint, bucket) == {}


def test_erasing_makes_the_pack_anew_at_once(endpoint: str, bucket: str, tmp_path: Path) -> None:
    """Nothing of it is left in the bucket, nor in another machine's copy at its next look."""
    address, url = parse(postgres.url_for(tmp_path)), f"s3://{bucket}/p"
    secret = b"the secret word" * 40_000
    digest = sha256(secret).digest()
    others = contents(20, 100_000)
    with SharedBlobs(address, "", url) as blobs:
        (tmp_path / "b").mkdir()
        copy = CachedContents(SharedBlobs(address, "", url), tmp_path / "b")
        blobs.write([*others[:10], (digest, secret), *others[10:]])
        assert copy.get(digest) == secret
        old = set(buckets.objects(endpoint, bucket))
        blobs.remove([digest])
        assert not old & set(buckets.objects(endpoint, bucket))
        with pytest.raises(NotFound):
            blobs.get(digest)
        assert dict(blobs.get_many([d for d, _ in others])) == dict(others)
        copy.close()
        with (
            CachedContents(SharedBlobs(address, "", url), tmp_path / "b") as again,
            pytest.raises(NotFound),
        ):
            again.get(digest)
        for name in ("cache.db", "cache.db-wal"):
            path = tmp_path / "b" / name
            assert not path.exists() or b"the secret word" not in path.read_bytes()


def test_a_pack_that_was_not_finished_is_given_up(
    endpoint: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that dies after its upload leaves an object that goes; what is slow comes again."""
    from backtrail.files.contents.shared import packindex as index
    from backtrail.files.contents.shared import sweeper as sweep

    address = parse(postgres.url_for(tmp_path))
    monkeypatch.setattr(InBucket, "grace", 0.0)
    monkeypatch.setattr(sweep, "_ABANDONED", 0.0)
    with SharedBlobs(address, "", f"s3://{bucket}/p") as blobs:
        finish = index.finish
        tries: list[int] = []

        def slow(*given: object) -> bool:
            tries.append(1)
            if len(tries) == 1:
                blobs.sweep(nothing, LATER)
                assert buckets.objects(endpoint, bucket) == {}
            return finish(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(index, "finish", slow)
        many = contents(10, 100_000)
        blobs.write(many)
        assert len(tries) == 2
        assert dict(blobs.get_many([d for d, _ in many])) == dict(many)
        assert len(buckets.objects(endpoint, bucket)) == 1

        def dies(*given: object) -> bool:
            raise KeyboardInterrupt

        monkeypatch.setattr(index, "finish", dies)
        with pytest.raises(KeyboardInterrupt):
            blobs.write(contents(30, 90_000))
        assert len(buckets.objects(endpoint, bucket)) == 2
        blobs.sweep(lambda roots, get: {d for d, _ in many}, LATER)
        assert len(buckets.objects(endpoint, bucket)) == 1


def test_a_session_keeps_its_files_there(endpoint: str, bucket: str, tmp_path: Path) -> None:
    """Recorded, gone back to, and nothing in the local folder but a copy."""
    (tmp_path / "work").mkdir()
    url = postgres.url_for(tmp_path)
    with (
        open_store(url, blobs=f"s3://{bucket}/p") as store,
        Session.create(store, "s", cwd=tmp_path / "work") as session,
    ):
        for n in range(8):
            (tmp_path / "work" / f"f{n}").write_bytes(random.Random(n).randbytes(100_000))
        point = session.checkpoint("one")
        (tmp_path / "work" / "f0").write_text("new")
        with session.tool("bash", {"command": "rm"}) as call:
            (tmp_path / "work" / "f1").unlink()
            call.result = "done"
        session.rewind(point, mode="exact")
    for n in range(8):
        found = (tmp_path / "work" / f"f{n}").read_bytes()
        assert found == random.Random(n).randbytes(100_000)
    assert sum(buckets.objects(endpoint, bucket).values()) > 700_000


# --- errors ------------------------------------------------------------------------------


def test_a_bucket_that_is_none_is_named(bucket: str, tmp_path: Path) -> None:
    """The error says which, and what to do; no reference is stored."""
    with SharedBlobs(parse(postgres.url_for(tmp_path)), "", "s3://no-such-bucket-here/p") as blobs:
        some = contents(10, 100_000)
        with pytest.raises(StoreFailed, match=r"s3://no-such-bucket-here/p.*make it first"):
            blobs.write(some, [Reference("s", "l", some[0][0])])
        assert list(blobs.references()) == []
        assert list(blobs.digests()) == []


def test_a_server_that_is_none_is_named(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint cannot be reached."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{postgres.free_port()}")
    with (
        SharedBlobs(parse(postgres.url_for(tmp_path)), "", f"s3://{bucket}/p") as blobs,
        pytest.raises(StoreFailed, match="AWS_ENDPOINT_URL"),
    ):
        blobs.write(contents(10, 100_000))


def test_contents_in_a_bucket_need_a_database() -> None:
    """By themselves they could not be found again."""
    with pytest.raises(Unsupported, match="postgresql"):
        open_blobs("s3://bucket/prefix")


@pytest.mark.parametrize("code", ["AccessDenied", "PermanentRedirect", "InvalidAccessKeyId"])
def test_an_answer_of_the_bucket_is_reported(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is denied, another region, an unknown key: as servers answer them."""
    from tests.answers import answering

    status = {"AccessDenied": 403, "PermanentRedirect": 301, "InvalidAccessKeyId": 403}[code]
    said = {"AccessDenied": "denied", "PermanentRedirect": "AWS_REGION"}.get(code, "AWS_ACCESS")
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    for name, value in buckets.KEYS.items():
        monkeypatch.setenv(name, value)
    with answering(status, body) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with SharedBlobs(parse(postgres.url_for(tmp_path)), "", "s3://bucket/p") as blobs:
            with pytest.raises(StoreFailed, match=said) as caught:
                blobs.write(contents(10, 100_000))
            assert "testing-secret" not in str(caught.value)


def test_a_forked_process_gets_an_error(endpoint: str, bucket: str, tmp_path: Path) -> None:
    """A child whose parent used a bucket gets an error, and does not hang; the parent goes on."""
    many = contents(20, 50_000)
    with SharedBlobs(parse(postgres.url_for(tmp_path)), "", f"s3://{bucket}/p") as blobs:
        blobs.write(many[:10])

        def work() -> None:
            for use in (lambda: blobs.write(many[10:]), lambda: blobs.get(many[0][0])):
                with pytest.raises(Unsupported, match="spawn"):
                    use()
            # What needs no bucket works.
            blobs.write(contents(1, 10))
            blobs.close()

        assert joined([child(work)]) == [0]
        assert dict(blobs.get_many([digest for digest, _ in many[:10]])) == dict(many[:10])
        assert blobs.get(contents(1, 10)[0][0]) == contents(1, 10)[0][1]


def test_a_tree_comes_at_once(
    endpoint: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine writes two hundred files by a handful of requests and questions."""
    url, blobs = postgres.url_for(tmp_path), f"s3://{bucket}/p"
    work = tmp_path / "work"
    for n in range(200):
        path = work / f"d{n % 7}" / f"e{n % 3}" / f"f{n}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.Random(n).randbytes(5000))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "a"))
    with open_store(url, blobs=blobs) as store, Session.create(store, "s", cwd=work) as session:
        point = session.checkpoint("one")
    asked: list[int] = []
    plain = InBucket.get_ranges

    def counted(self: InBucket, key: str, spans: list[tuple[int, int]]) -> list[bytes]:
        asked.append(len(spans))
        return plain(self, key, spans)

    monkeypatch.setattr(InBucket, "get_ranges", counted)
    monkeypatch.setattr(SharedBlobs, "get", lambda self, digest: pytest.fail("asked for one"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "b"))
    with open_store(url, blobs=blobs) as store:
        materialize(store, point, tmp_path / "there")
    assert len(asked) <= 6
    for path in work.rglob("f*"):
        assert (tmp_path / "there" / path.relative_to(work)).read_bytes() == path.read_bytes()
