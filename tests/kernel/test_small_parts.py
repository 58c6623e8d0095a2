from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.contracts import Finding
from accord.kernel import canonical, files, identifiers, schema, tokens
from accord.kernel.canonical import pointer
from accord.kernel.clock import SystemClock, TimestampError, format_time, parse_time
from accord.kernel.errors import AccordError


class StoppedClock:
    def __init__(self, now: float) -> None:
        self.time = now

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


def test_an_error_says_where_what_and_how_to_mend_it() -> None:
    error = AccordError("the port is in use", where="[station] port", mend="choose another")
    assert str(error) == "[station] port: the port is in use; choose another"
    assert str(AccordError("it broke")) == "it broke"


def test_a_pointer_escapes_what_would_be_ambiguous() -> None:
    assert pointer("a/b", 0, "~", "") == "/a~1b/0/~0/"
    assert str(Finding("r", "", "m")) == "(whole document): m [r]"


@given(st.binary(max_size=100))
def test_base64url_reads_back(data: bytes) -> None:
    assert canonical.decode_base64url(canonical.encode_base64url(data)) == data


@pytest.mark.parametrize(
    "text", ["A", "AB", "AAB", "AA==", "AA=", " AA", "AA\n", "A+", "A/AA", "ÄÄ", "=", "AAA=A"]
)
def test_base64url_has_one_spelling(text: str) -> None:
    with pytest.raises(canonical.Base64Error):
        canonical.decode_base64url(text)


def test_digests_write_their_two_forms_and_read_them_back() -> None:
    ours, theirs = canonical.sha256(b"x"), canonical.blake3(b"x")
    assert len(str(ours)) == 43
    assert str(theirs).startswith("blake3:")
    assert canonical.parse_digest(str(ours)) == ours
    assert canonical.parse_digest(str(theirs)) == theirs
    assert ours != theirs
    assert theirs.short == str(theirs)[:23]


@pytest.mark.parametrize(
    "text", ["", "blake3:", "blake3:" + "A" * 64, "sha256:" + "0" * 64, "A" * 42, "A" * 44]
)
def test_what_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(canonical.DigestError, match="is not a digest"):
        canonical.parse_digest(text)


def test_a_digest_of_wrong_size_cannot_be_made() -> None:
    with pytest.raises(canonical.DigestError):
        canonical.Digest("sha256", b"short")


def test_times_are_written_and_read_in_utc() -> None:
    assert format_time(1779783262.9) == "2026-05-26T08:14:22Z"
    assert format_time(1779783262.9, millis=True) == "2026-05-26T08:14:22.900Z"
    assert parse_time("2026-05-26T08:14:22Z") == 1779783262
    assert parse_time("2026-05-26T08:14:22.281Z") == 1779783262.281
    assert abs(parse_time(format_time(SystemClock().now())) - SystemClock().now()) < 60


@pytest.mark.parametrize(
    "text",
    [
        "2026-05-26T08:14:22",
        "2026-05-26T08:14:22+00:00",
        "2026-05-26 08:14:22Z",
        "2026-02-30T00:00:00Z",
        "2026-05-26T08:14:22.1234Z",
        "2026-05-26T08:14:60Z",
        "26-05-26T08:14:22Z",
        "٢026-05-26T08:14:22Z",
        "",
    ],
)
def test_other_forms_of_time_are_refused(text: str) -> None:
    with pytest.raises(TimestampError, match="is not a UTC timestamp"):
        parse_time(text)


def test_ulids_sort_in_the_order_of_their_making() -> None:
    clock = StoppedClock(1.0)
    source = identifiers.UlidSource(clock)
    made = [source.new() for _ in range(100)]
    clock.time = 0.5
    made += [source.new() for _ in range(100)]
    clock.time = 2.0
    made.append(source.new())
    assert made == sorted(set(made))
    assert all(map(identifiers.is_ulid, made))
    assert identifiers.milliseconds(made[0]) == 1000
    assert identifiers.milliseconds(made[-1]) == 2000


def test_counting_up_at_the_end_of_a_millisecond_goes_on_in_the_next() -> None:
    source = identifiers.UlidSource(StoppedClock(1.0), chance=lambda: 2**80 - 1)
    first, second = source.new(), source.new()
    assert first < second
    assert identifiers.milliseconds(second) == 1001


@pytest.mark.parametrize(
    "text", ["", "8" + "0" * 25, "0" * 25, "0" * 27, "0" * 25 + "U", "0" * 25 + "a"]
)
def test_what_is_no_ulid_is_refused(text: str) -> None:
    assert not identifiers.is_ulid(text)
    with pytest.raises(identifiers.UlidError):
        identifiers.milliseconds(text)


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
)
def test_a_token_verifies_for_its_gateway_until_it_expires(gateway: str, secret: str) -> None:
    token = tokens.make(gateway, secret, now=1000)
    assert tokens.verify(token, ["old", secret], now=1300) == gateway
    assert tokens.verify(token, [secret], now=1301) is None
    assert tokens.verify(token, [secret + "x"], now=1000) is None
    assert tokens.verify(token, [], now=1000) is None
    assert tokens.expiry(token) == 1300


@pytest.mark.parametrize("token", ["", "=", "a", "ä", "%%%", "Og", "A" * 100_000, "Z3c6MTow"])
def test_what_is_no_token_verifies_as_nobody(token: str) -> None:
    assert tokens.verify(token, ["s"], now=0) is None
    assert tokens.expiry(token) is None


def test_the_secret_that_matches_may_stand_anywhere_in_the_rotation() -> None:
    token = tokens.make("gw", "b", now=0, ttl=-1)
    for rotation in (["b"], ["a", "b"], ["b", "a"], ["", "a", "b", ""]):
        assert tokens.verify(token, rotation, now=10**9) == "gw"


SCHEMA = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string", "pattern": "^[a-z]+$"}, "age": {"minimum": 0}},
    "additionalProperties": False,
}


def test_findings_point_to_the_place_and_name_the_rule() -> None:
    compiled = schema.compile_schema(SCHEMA)
    assert compiled.is_valid({"name": "a"})
    assert compiled.findings({"name": "a"}) == []
    found = {
        (finding.rule, finding.pointer)
        for finding in compiled.findings({"name": "A", "age": -1, "x": 1})
    }
    assert found == {
        ("schema.pattern", "/name"),
        ("schema.minimum", "/age"),
        ("schema.additionalProperties", ""),
    }
    assert [finding.rule for finding in compiled.findings({})] == ["schema.required"]


def test_findings_do_not_repeat_what_may_be_secret() -> None:
    compiled = schema.compile_schema({"properties": {"password": {"pattern": "^x$"}}})
    (finding,) = compiled.findings({"password": "hunter2"})
    assert "hunter2" not in finding.message


def test_findings_are_bounded() -> None:
    compiled = schema.compile_schema({"items": {"type": "string"}})
    assert len(compiled.findings(list(range(10_000)))) == schema.MAX_FINDINGS


def test_an_equal_schema_is_compiled_once() -> None:
    first = schema.compile_schema({"type": "string", "minLength": 1})
    assert schema.compile_schema({"minLength": 1.0, "type": "string"}) is first


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ({"pattern": "(?=a)b"}, "linear time"),
        ({"pattern": r"(a)\1"}, "linear time"),
        ({"pattern": "("}, "an invalid pattern"),
        ({"pattern": "((a{1,999}){1,999}){1,999}"}, "linear time"),
        ({"patternProperties": {"(?!a)": {}}}, "linear time"),
        ({"type": "nonsense"}, "/type"),
        ({"$ref": "http://127.0.0.1:9/x"}, "outside the schema"),
        ({"$ref": "file:///etc/passwd"}, "outside the schema"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        (7, "not a schema"),
        ({"const": float("nan")}, "not JSON"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(bad: object, what: str) -> None:
    with pytest.raises(schema.SchemaError, match=what):
        schema.compile_schema(bad)


def test_a_pattern_built_to_explode_runs_in_linear_time() -> None:
    compiled = schema.compile_schema({"pattern": "^(a+)+$"})
    assert not compiled.is_valid("a" * 100_000 + "!")


def test_the_2019_draft_is_what_is_validated() -> None:
    assert schema.compile_schema({"dependentRequired": {"a": ["b"]}}).findings({"a": 1})
    assert schema.compile_schema({"type": "integer"}).is_valid(1.0)
    assert schema.compile_schema({"format": "email"}).is_valid("no mail"), "format is an annotation"


def test_a_private_file_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "note"
    files.replace_private(file, b"one")
    file.chmod(0o644)
    files.replace_private(file, b"two")
    assert file.read_bytes() == b"two"
    assert file.stat().st_mode & 0o777 == 0o600
    (tmp_path / "folder" / "within").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        files.replace_private(tmp_path / "folder", b"three")
    assert {each.name for each in tmp_path.iterdir()} == {"note", "folder"}


def test_a_private_file_is_created_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "key"
    files.create_private(file, b"one")
    with pytest.raises(FileExistsError):
        files.create_private(file, b"two")
    assert file.read_bytes() == b"one"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]
