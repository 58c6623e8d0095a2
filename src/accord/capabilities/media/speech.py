"""Speech by espeak-ng, and the words in a recording by PocketSphinx. For a child process.

espeak-ng is a synthesizer by rules: it is understood in a hundred languages, and sounds like a
machine. PocketSphinx has a small model of American English, and gets every third word of a free
sentence wrong. Neither needs an accelerator.
"""

import ctypes
import wave
from io import BytesIO
from typing import Any, Final

from accord.capabilities import models
from accord.community.errors import Code, CommunityError, bad_request

WORDS_PER_MINUTE: Final = 160
SAMPLE_RATE: Final = 16_000
"""Samples per second of what is heard and said."""

_RETRIEVE: Final = 1  # espeak_Initialize: AUDIO_OUTPUT_RETRIEVAL
_NO_EXIT: Final = 0x8000
_UTF8: Final = 1
_RATE: Final = 1
_LONGEST_SECONDS: Final = 600


def speak(text: str, *, language: str, speed: float) -> bytes:
    """Return a WAV file of 16,000 samples per second; `bad_request` for an unknown language."""
    numpy: Any = models.library("numpy", "media")
    library = models.speech_library()
    espeak = ctypes.CDLL(str(library))
    rate = espeak.espeak_Initialize(_RETRIEVE, 0, str(library.parent).encode(), _NO_EXIT)
    if rate <= 0:
        raise CommunityError(Code.INTERNAL_ERROR, "espeak-ng cannot be started")
    said = bytearray()
    hear = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
    )

    def add(samples: Any, count: int, _events: Any) -> int:
        if samples and count > 0:
            said.extend(ctypes.string_at(samples, 2 * count))
        return 0

    heard = hear(add)
    espeak.espeak_SetSynthCallback(heard)
    if espeak.espeak_SetVoiceByName(language.encode()):
        raise bad_request(f"espeak-ng does not speak {language}", "/input/language")
    espeak.espeak_SetParameter(_RATE, round(WORDS_PER_MINUTE * speed), 0)
    written = text.encode()
    failed = espeak.espeak_Synth(written, len(written) + 1, 0, _UTF8, 0, _UTF8, None, None)
    if failed or espeak.espeak_Synchronize():
        raise CommunityError(Code.INTERNAL_ERROR, "espeak-ng failed")
    samples = numpy.frombuffer(bytes(said), "<i2")
    return write_wav(_resampled(samples, rate))


def write_wav(samples: Any) -> bytes:
    """Return a WAV file with one channel of `SAMPLE_RATE` samples per second."""
    made = BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(samples.astype("<i2").tobytes())
    return made.getvalue()


def read_wav(data: bytes) -> Any:
    """Return the samples of a WAV file of 8 or 16 bits, mixed to one channel; or `bad_request`."""
    numpy: Any = models.library("numpy", "media")
    try:
        with wave.open(BytesIO(data)) as file:
            rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            if not 4000 <= rate <= 192_000 or not 1 <= channels <= 16 or width not in (1, 2):
                raise _unsupported()
            if file.getnframes() > _LONGEST_SECONDS * rate:
                raise bad_request(
                    f"the recording is longer than {_LONGEST_SECONDS} seconds",
                    "/input/audio",
                    mend="cut it into parts",
                )
            raw = file.readframes(file.getnframes())
    except (wave.Error, EOFError):
        raise _unsupported() from None
    raw = raw[: len(raw) - len(raw) % (width * channels)]
    if not raw:
        raise bad_request("the recording is empty", "/input/audio")
    if width == 1:
        samples = (numpy.frombuffer(raw, "u1").astype("f4") - 128) * 256
    else:
        samples = numpy.frombuffer(raw, "<i2").astype("f4")
    return _resampled(samples.reshape(-1, channels).mean(axis=1), rate)


def transcribe(data: bytes) -> str:
    """Return the words in a WAV file."""
    samples = read_wav(data)
    sphinx: Any = models.library("pocketsphinx", "media")
    decoder = sphinx.Decoder(samprate=SAMPLE_RATE, loglevel="FATAL")
    decoder.start_utt()
    decoder.process_raw(samples.astype("<i2").tobytes(), full_utt=True)
    decoder.end_utt()
    found = decoder.hyp()
    return "" if found is None else str(found.hypstr)


def spoken_languages() -> tuple[str, ...]:
    """Return the languages that espeak-ng speaks, by their codes of two or three letters."""
    data = models.speech_library().parent / "espeak-ng-data"
    known = {path.name.removesuffix("_dict") for path in data.glob("*_dict")}
    return tuple(sorted(each for each in known if len(each) in (2, 3)))


def _resampled(samples: Any, rate: int) -> Any:
    numpy: Any = models.library("numpy", "media")
    if rate == SAMPLE_RATE or not len(samples):
        return samples
    count = int(len(samples) * SAMPLE_RATE / rate)
    at = numpy.arange(count) * (rate / SAMPLE_RATE)
    return numpy.interp(at, numpy.arange(len(samples)), samples)


def _unsupported() -> CommunityError:
    return bad_request(
        "the recording is not a WAV file of 8 or 16 bits",
        "/input/audio",
        mend="convert it, or have a server do it: [media] stt",
    )
