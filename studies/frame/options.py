"""A study as data: its options, and how the settings of a run are made of what was given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from inspect import cleandoc
from types import SimpleNamespace
from typing import Any

from kofn.commands.files import InputError
from kofn.commands.options import at_least, one_of, valid_seed


class Settings(SimpleNamespace):
    """The values of all options that determine a result."""

    @property
    def every_seed(self) -> range:
        return range(self.seed, self.seed + self.seeds)


@dataclass(frozen=True)
class Option:
    """An option of the command line, and the setting that it determines."""

    name: str
    help: str
    """May contain {default}, or {names}, which says that it may be repeated, and the names."""
    default: Any
    """A tuple where the option may be repeated."""
    setting: str = ""
    """Name of the setting, if it differs from that of the option."""
    read: Callable[[str, Any], Any] = lambda name, value: value
    """Takes the name and a value; returns the setting or raises InputError."""
    quick: Any = None
    """The value with --quick, if that is another one."""
    beside_quick: bool = False
    """Whether it may be given together with --quick."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The values that are allowed, and what each is."""
    metavar: str | None = None

    @property
    def repeats(self) -> bool:
        return isinstance(self.default, tuple)

    @property
    def text(self) -> str:
        """The help text."""
        if not self.repeats:
            return self.help.format(default=self.default)
        others = ", ".join(name for name in self.names if name not in self.default)
        usual = f"{'By' if others else 'All by'} default: {', '.join(map(str, self.default))}."
        also = f" Also available: {others}." if others else ""
        return self.help.format(names=f"repeat the option for several. {usual}{also}")

    def value(self, given: Any, quick: bool) -> Any:
        """Return the setting for what was given, which is None or empty if nothing was."""
        instead = self.default
        if quick and self.quick is not None:
            if given is not None and not self.beside_quick:
                raise InputError(f"--quick chooses --{self.name} itself; give only one of them")
            instead = self.quick
        if self.repeats:
            return tuple(dict.fromkeys(self.read(self.name, each) for each in given or instead))
        return self.read(self.name, instead if given is None else given)


def count(name: str, help: str, default: int, low: int = 1, **more: Any) -> Option:
    """Return an option for an integer; the help has the default if --quick has another."""
    help = f"{help}; by default {{default:,}}." if "quick" in more else help
    return Option(name, help, default, read=partial(at_least, low=low), **more)


def names(name: str, help: str, allowed: Mapping[str, str], usual: int | None = None) -> Option:
    """Return an option for some of the names; by default the first `usual` of them, or all."""
    more: Any = {"names": allowed, "metavar": "NAME", "read": partial(one_of, allowed=allowed)}
    return Option(name, help, tuple(allowed)[:usual], f"{name}s", **more)


class Study:
    """A comparison of methods, each trained with several seeds: its name and its options."""

    def __init__(self, name: str, quick: str, *options: Option, seeds: int = 3) -> None:
        self.name, self.quick = name, quick  # the help text of --quick
        runs = "Number of runs of each method"
        first = "Random seed of the first run; later runs use the next integers."
        numbers = count("seeds", runs, seeds, quick=1), Option("seed", first, 0, read=valid_seed)
        self.options = *options, *numbers

    @property
    def help(self) -> str:
        return cleandoc(import_module(f"studies.{self.name}").__doc__ or "")

    def settings(self, given: Mapping[str, Any], quick: bool = False) -> Settings:
        """Return the settings for the options that were given, by name."""
        values = {
            option.setting or option.name: option.value(given.get(option.name), quick)
            for option in self.options
        }
        return Settings(**values)

    def about(self, settings: Settings) -> dict[str, dict[str, str]]:
        """Return what the chosen names are, by setting."""
        return {
            option.setting: {name: option.names[name] for name in vars(settings)[option.setting]}
            for option in self.options
            if any(option.names.values())
        }
