import math
import random
import struct
import subprocess

import pytest

from accord.kernel.canonical import CanonicalError, decode, encode, spell
from accord.testing import nodejs

SCRIPT = """
const lines = require("fs").readFileSync(0, "utf8").trim().split("\\n");
const view = new DataView(new ArrayBuffer(8));
process.stdout.write(lines.map(hex => {
  view.setBigUint64(0, BigInt("0x" + hex));
  return JSON.stringify(view.getFloat64(0));
}).join("\\n"));
"""


def random_doubles(seed: int, count: int) -> list[float]:
    chance = random.Random(seed)
    numbers = [
        0.0, -0.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 1e21, 1e16, 1e-6, 1e-7,
        9007199254740991.0, 9007199254740992.0, 123456789012345680000.0, 0.1, -1.5, 3e-6,
    ]  # fmt: skip
    while len(numbers) < count:
        bits: float = struct.unpack(">d", chance.randbytes(8))[0]
        shapes = (
            bits,
            float(chance.randrange(-(10**22), 10**22)),
            chance.uniform(-1e6, 1e6),
            round(chance.uniform(-100, 100), 2),
            chance.randrange(10**6) * 10.0 ** chance.randrange(-12, 24),
        )
        numbers.append(shapes[len(numbers) % len(shapes)])
    return [number for number in numbers if math.isfinite(number)]


def test_numbers_are_spelled_as_node_spells_them() -> None:
    numbers = random_doubles(seed=8785, count=200_000)
    answer = subprocess.run(
        [nodejs.node_program(), "-e", SCRIPT],
        input="\n".join(struct.pack(">d", number).hex() for number in numbers),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    theirs = answer.stdout.split("\n")
    assert [spell(number) for number in numbers] == theirs
    assert encode(numbers).decode() == f"[{','.join(theirs)}]"


def test_every_spelling_reads_back_as_the_same_double() -> None:
    for number in random_doubles(seed=1, count=20_000):
        assert decode(spell(number)) == number


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (-1.5, "-1.5"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (123e-7, "0.0000123"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.5e-9, "1.5e-9"),
        (5e-324, "5e-324"),
    ],
)
def test_the_layout_follows_ecmascript(number: float, text: str) -> None:
    assert spell(number) == text
    assert encode(number).decode() == text


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_has_no_spelling(number: float) -> None:
    with pytest.raises(CanonicalError):
        spell(number)
