"""`accord media`: speech, text of pictures, translation, and descriptions of pictures.

A call goes to this node, or to another of the community that offers it.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from accord.cli.arguments import printable
from accord.cli.node import CommunityCli, label
from accord.cli.output import App

if TYPE_CHECKING:
    from accord.community.client import Client

app = App(no_args_is_help=True, epilog="Example: accord media read letter.png")

_MOST_BYTES: Final = 5 * 1024 * 1024
_CAPABILITIES: Final = {
    "experimental.stt.transcribe": "transcribe",
    "experimental.tts.speak": "speak",
    "experimental.ocr.read": "read",
    "experimental.trans.translate": "translate",
    "experimental.img.describe": "describe",
}
Model = Annotated[str | None, typer.Option(help="A model by its name (default: the best).")]
Language = Annotated[str | None, typer.Option(help="Its language, such as de.")]


@app.command("list", epilog="Example: accord media list")
def list_(cli: CommunityCli) -> None:
    """List what the community offers, by which model, and what it does without an accelerator."""

    async def ask(client: "Client") -> list[dict[str, Any]]:
        found = []
        for capability, verb in _CAPABILITIES.items():
            told = await client.post("/node/v1/routes", {"capability": capability})
            found += [
                {"verb": verb, "capability": capability, **each}
                for each in told["routes"]
                if each["usable"]
            ]
        return found

    found = cli.in_community(ask, with_models=True)
    cli.emit(
        {"offers": found},
        (
            (
                each["verb"],
                printable(each.get("model", "")),
                printable(each["name"])
                if each["local"]
                else label(each["node_id"], {each["node_id"]: each["name"]}),
                printable(each.get("about", "")[:300]),
            )
            for each in found
        ),
    )
    if not found:
        cli.note("nobody offers any of it: install accord[media], or name servers in [media]")


@app.command(epilog="Example: accord media transcribe note.wav --language en")
def transcribe(
    cli: CommunityCli,
    file: Annotated[Path, typer.Argument(help="A recording; the engine of a node takes WAV.")],
    language: Language = None,
    model: Model = None,
) -> None:
    """Print the words in a recording."""
    given = {"audio": _encoded(file), "language": language}
    _show(cli, _call(cli, "experimental.stt.transcribe", given, model))


@app.command(epilog='Example: accord media speak "The shed is open." --out shed.wav')
def speak(
    cli: CommunityCli,
    text: Annotated[str, typer.Argument(help="What is said.")],
    out: Annotated[Path, typer.Option(help="The WAV file to write.")],
    language: Language = None,
    voice: Annotated[str | None, typer.Option(help="A voice, where a server has several.")] = None,
    speed: Annotated[float | None, typer.Option(min=0.25, max=4, help="1 is normal.")] = None,
    model: Model = None,
) -> None:
    """Write a text as speech into a WAV file."""
    import base64

    given = {"text": text, "language": language, "voice": voice, "speed": speed}
    told = _call(cli, "experimental.tts.speak", given, model)
    audio = base64.b64decode(told["output"]["audio"])
    try:
        out.write_bytes(audio)
    except OSError as error:
        raise typer.BadParameter(
            f"the file cannot be written ({error.strerror})", param_hint="--out"
        ) from None
    cli.emit(
        {"file": str(out), "bytes": len(audio), "model": told["meta"]["model"]},
        f"{printable(str(out))}: {len(audio)} bytes by {printable(told['meta']['model'])}",
    )


@app.command(epilog="Example: accord media read scan.pdf --pages 3")
def read(
    cli: CommunityCli,
    file: Annotated[Path, typer.Argument(help="A picture, or a PDF of pictures.")],
    pages: Annotated[
        int | None, typer.Option(min=1, max=100, help="The most pages that it may have (20).")
    ] = None,
    model: Model = None,
) -> None:
    """Print the text of a picture or of scanned pages."""
    given = {"data": _encoded(file), "pages": pages}
    _show(cli, _call(cli, "experimental.ocr.read", given, model))


@app.command(epilog='Example: accord media translate "Der Schuppen ist offen." --to en')
def translate(
    cli: CommunityCli,
    text: Annotated[str, typer.Argument(help="What is translated.")],
    to: Annotated[str, typer.Option(help="Into which language, such as en.")],
    source: Annotated[
        str | None, typer.Option("--from", help="From which language (default: any).")
    ] = None,
    model: Model = None,
) -> None:
    """Print a text in another language."""
    given = {"text": text, "to": to, "from": source}
    _show(cli, _call(cli, "experimental.trans.translate", given, model))


@app.command(epilog='Example: accord media describe shed.jpg --question "Is the door open?"')
def describe(
    cli: CommunityCli,
    file: Annotated[Path, typer.Argument(help="A PNG, JPEG, WEBP or GIF.")],
    question: Annotated[str | None, typer.Option(help="What to say about it.")] = None,
    model: Model = None,
) -> None:
    """Print what a picture shows."""
    given = {"image": _encoded(file), "question": question}
    _show(cli, _call(cli, "experimental.img.describe", given, model))


def _call(
    cli: CommunityCli, capability: str, given: dict[str, Any], model: str | None
) -> dict[str, Any]:
    told = {name: value for name, value in given.items() if value is not None}
    params = {} if model is None else {"model": model}

    async def ask(client: "Client") -> dict[str, Any]:
        return await client.call(capability, params, told)

    answer: dict[str, Any] = cli.in_community(ask, with_models=True)
    return answer


def _show(cli: CommunityCli, told: dict[str, Any]) -> None:
    model = told["meta"]["model"]
    lines = [printable(line) for line in str(told["output"]["text"]).splitlines()]
    cli.emit({**told["output"], "model": model}, lines)
    if not lines:
        cli.note(f"{printable(model)} has found no words")


def _encoded(file: Path) -> str:
    import base64

    try:
        if file.stat().st_size > _MOST_BYTES:
            raise typer.BadParameter(f"it has more than {_MOST_BYTES} bytes", param_hint="FILE")
        return base64.b64encode(file.read_bytes()).decode()
    except OSError as error:
        raise typer.BadParameter(
            f"it cannot be read ({error.strerror})", param_hint="FILE"
        ) from None
