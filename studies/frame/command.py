"""The command line of a study, built from its options."""

from collections.abc import Callable
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from kofn.commands import starting
from kofn.commands.examples import shown
from kofn.commands.terminal import GuardedCommand
from studies.frame.options import Option, Study
from studies.table import STUDIES


def main(name: str) -> None:
    """Run a study by the arguments of this process."""
    starting.begin()
    app(STUDIES[name])(prog_name=f"python -m studies.{name}")


def app(study: Study) -> typer.Typer:
    """Return the command of a study."""
    typed = f"python -m studies.{study.name}"
    made = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    examples = shown("Examples:", f"{typed} --quick", f"{typed} --resume")
    made.command(study.name, cls=GuardedCommand, epilog=examples)(_function(study))
    return made


def _function(study: Study) -> Callable[..., None]:
    """Return a function whose signature says what the options are, as Typer wants it."""

    def start(*, quick: bool, out: Path, resume: bool, force: bool, **given: Any) -> None:
        # This import takes seconds; made here, an interrupt during it is handled as usual.
        from studies.frame.conduct import conduct

        conduct(study, study.settings(given, quick), out, resume=resume, force=force)

    parameters = [
        *map(_of_option, study.options),
        _parameter("quick", bool, False, study.quick),
        _parameter("out", Path, Path(f"kofn-{study.name}"), "Directory to write the results to."),
        _parameter("resume", bool, False, "Continue the run saved in --out."),
        _parameter("force", bool, False, "Overwrite earlier results."),
    ]
    start.__doc__ = study.help
    start.__annotations__ = {each.name: each.annotation for each in parameters}
    start.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return start


def _of_option(option: Option) -> Parameter:
    kind: Any = type(option.default)
    if option.repeats:
        kind = list[type(option.default[0])]  # type: ignore[misc]
    if option.repeats or option.quick is not None:  # the text says the default
        return _parameter(option.name, kind | None, None, option.text, metavar=option.metavar)
    return _parameter(option.name, kind, option.default, option.text)


def _parameter(name: str, kind: Any, default: Any, help: str, **more: Any) -> Parameter:
    flag = f"--{name}" if len(name) > 1 else f"-{name}"
    annotation = Annotated[kind, typer.Option(flag, help=help, **more)]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
