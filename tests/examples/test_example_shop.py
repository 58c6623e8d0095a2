"""The service of the guide is the example, in under 60 lines."""

from pathlib import Path

from examples import shop

ROOT = Path(__file__).parents[2]


def test_the_guide_prints_the_example_in_under_60_lines() -> None:
    source = (ROOT / "examples/shop.py").read_text()
    assert len(source.splitlines()) < 60
    printed = source.partition('"""\n\n')[2]
    assert printed
    assert (
        f"```python\n# shop.py\n{printed}```"
        in (ROOT / "docs/guides/write-a-service.md").read_text()
    )


def test_the_example_has_every_kind_of_surface() -> None:
    manifest = shop.service.contract.manifest()
    assert {"rpc", "operations", "events", "jobs", "state", "resources"} <= set(manifest)
    assert manifest["operations"]["Shop.Show"]["transfer"]["direction"] == "send"
