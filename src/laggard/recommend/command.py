"""`laggard recommend`: what to change, from files or from a running collector. Nothing is changed without --apply."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from laggard import wire
from laggard.kit.address import without_login
from laggard.kit.collector_client import answer
from laggard.kit.errors import UsageError
from laggard.kit.flags import JOB_HELP, add_collector
from laggard.kit.parts import Line
from laggard.kit.progress import Progress, size_of, size_text
from laggard.kit.terminal import show
from laggard.kit.users import by_uid
from laggard.kit.words import ascii_line, counted, printable_line
from laggard.recommend.advice.recommend import recommend
from laggard.recommend.advice.situation import ModelSize
from laggard.recommend.advice.values import Recommendation, change_text, gain_text
from laggard.recommend.inputs import Inputs, read_inputs

_SHELL = ("export ", "unset ")
"""The beginnings of texts that are to be copied as a whole."""


def recommendation_lines(found: Recommendation) -> list[Line]:
    return [line._replace(text=ascii_line(line.text)) for line in _lines(found)]


def _lines(found: Recommendation) -> Iterator[Line]:
    yield Line(_headline(found), "fail" if found.blocked_by else "name")
    for number, item in enumerate(found.items, 1):
        yield Line("")
        yield Line(f"{number}. {change_text(item)}", "name")
        yield Line(f"   Why: {printable_line(item.reason)}")
        yield Line(f"   Gain: {gain_text(item.gain)}")
        yield from (Line(f"   Evidence: {printable_line(line, 200)}") for line in item.evidence)
        yield from (_command("Apply", line) for line in item.apply.splitlines() if line)
        if item.revert:
            yield _command("Revert", item.revert)
        yield Line(f"   Risk: {item.risk}")
        yield Line(f"   Source: {item.source}", "aside")
    if found.notes:
        yield Line("")
        yield from map(Line, found.notes)
    if found.files:
        yield Line("")
        yield Line(f"`--write DIR` writes {', '.join(found.files)}.")


def _command(label: str, text: str) -> Line:
    line = printable_line(text)
    is_shell = line.startswith(_SHELL)
    return Line(f"   {label}:", command=ascii_line(line)) if is_shell else Line(f"   {label}: {line}")


def _headline(found: Recommendation) -> str:
    if found.blocked_by:
        return f"Repair the fabric before anything is tuned: {', '.join(found.blocked_by)}."
    if not found.items:
        return "Nothing to change, as far as what was given tells."
    first = found.items[0]
    more = f", and {counted(len(found.items) - 1, 'more change')}" if len(found.items) > 1 else ""
    return f"{change_text(first)}{more}."


_CONFIG = "ds_config.json"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "FILES: a DeepSpeed configuration, the job's environment (`env`), its NCCL log, `healthcheck --format json` of "
        "its nodes, `ring --format json`, a recording (`laggard run --record DIR`), and all else that `diagnose` "
        "reads. Without files a collector is asked. Exit status: 0 done, 1 blocked by critical findings of the fabric, "
        "2 nothing was known, 64 wrong usage."
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="what is known of the job; - is standard input")
    add_collector(parser)
    parser.add_argument("--job", metavar="[USER:]NAME", help=JOB_HELP)
    parser.add_argument("--write", metavar="DIR", help="write what to apply there, as files; nothing is overwritten")
    parser.add_argument(
        "--apply", action="store_true", help="change the DeepSpeed configuration given; the old one is kept beside it"
    )
    size = parser.add_argument_group("the model's memory, so that nothing is recommended that does not fit")
    size.add_argument("--parameters", type=_amount, metavar="N", help="of the model, such as 8e9; of one stage or part")
    size.add_argument("--gpu-memory", type=_amount, metavar="BYTES", help="of each GPU, such as 80e9")
    size.add_argument("--gpus", type=int, metavar="N", help="among which ZeRO divides; default: the recording's ranks")
    size.add_argument("--activations", type=_amount, default=0.0, metavar="BYTES", help="of one sample; default: open")
    size.add_argument("--resident", type=_amount, default=0.0, metavar="BYTES", help="what a GPU holds besides")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one laggard.recommendation/1")


def _amount(text: str) -> float:
    """Raises ValueError, which argparse tells."""
    value = float(text)
    if not 0 <= value < 1e18:
        raise ValueError(text)
    return value


def main(arguments: argparse.Namespace) -> int:
    inputs = _inputs(arguments.files) if arguments.files else None
    if arguments.apply and (inputs is None or inputs.deepspeed_path in (None, "-")):
        raise UsageError("--apply changes a DeepSpeed configuration: give one as a file")
    size = _model_size(arguments, bool(inputs))
    if inputs and size:
        inputs = inputs._replace(situation=inputs.situation._replace(model_size=size))
    found = _recommendation(inputs) if inputs else _ask(arguments.collector, by_uid(arguments.job))
    if arguments.write:
        write_files(found.files, Path(arguments.write))
    if arguments.apply and inputs and inputs.deepspeed_path:
        _apply(found.files, Path(inputs.deepspeed_path))
    if arguments.format == "json":
        sys.stdout.buffer.write(wire.encode(found) + b"\n")
    else:
        show(recommendation_lines(found))
    sys.stdout.flush()
    if found.blocked_by:
        return 1
    return 2 if inputs and not found.items and inputs.unknown else 0


def _inputs(paths: list[str]) -> Inputs:
    with Progress() as progress:
        size_bytes = size_of(paths)
        progress.begin_reading(f"reading {size_text(size_bytes)}", size_bytes)
        return read_inputs(paths)


def _model_size(arguments: argparse.Namespace, from_files: bool) -> ModelSize | None:
    """Raises UsageError for one of the two alone, and where a collector is asked."""
    parameters, memory = arguments.parameters, arguments.gpu_memory
    if parameters is None and memory is None:
        return None
    if not parameters or not memory:
        raise UsageError("--parameters and --gpu-memory go together: give both")
    if not from_files:
        raise UsageError("--parameters goes with a DeepSpeed configuration: give one as a file")
    if arguments.gpus is not None and arguments.gpus < 1:
        raise UsageError(f"--gpus {arguments.gpus}: give 1 or more")
    return ModelSize(parameters, memory, arguments.gpus, arguments.activations, arguments.resident)


def _recommendation(inputs: Inputs) -> Recommendation:
    from msgspec import structs

    found = recommend(inputs.situation)
    return structs.replace(found, notes=(*found.notes, *inputs.unknown))


def _ask(url: str, job: str | None) -> Recommendation:
    with answer(url, "recommendation", {"job": job} if job else {}) as found:
        try:
            return wire.decode(found.read(), Recommendation)
        except wire.WireError as error:
            raise UsageError(f"what answers at {without_login(url)} is not a laggard collector: {error}") from None


def write_files(files: dict[str, str], directory: Path) -> None:
    """Writes a recommendation's files. Raises UsageError where one is there already."""
    if not files:
        raise UsageError("there is nothing to write: no change has a file")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with open(directory / os.path.basename(name), "x", encoding="utf-8") as file:
                file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{error.filename} is there already: give --write another directory") from None
    except OSError as error:
        raise UsageError(f"cannot write {error.filename}: {error.strerror}") from None


def _apply(files: dict[str, str], path: Path) -> None:
    """Writes the new configuration in one step. What was there is beside it, as NAME.before."""
    if _CONFIG not in files:
        print("laggard: nothing to apply: the configuration stays as it is", file=sys.stderr)
        return
    before, new = path.with_name(f"{path.name}.before"), path.with_name(f".{path.name}.new")
    try:
        with open(before, "xb") as file:
            file.write(path.read_bytes())
        new.write_text(files[_CONFIG], encoding="utf-8")
        os.replace(new, path)
    except FileExistsError:
        raise UsageError(f"{before} is there already: move it away, it is the configuration before") from None
    except OSError as error:
        raise UsageError(f"cannot write {error.filename}: {error.strerror}") from None
