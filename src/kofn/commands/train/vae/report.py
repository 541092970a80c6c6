"""Output of `kofn train vae`: a table, a JSON file, curves and generated digits."""

from __future__ import annotations

from dataclasses import asdict
from statistics import fmean
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

from kofn.commands.results import add_figures, json_bytes, picture, png, spread, table
from kofn.commands.train.study import Results
from kofn.commands.train.vae.methods import METHODS
from kofn.commands.train.vae.model import INK, SIDE, Autoencoder, Data
from kofn.commands.train.vae.training import SAMPLES_AT_THE_END, Bounds, Settings

FILES = ("vae.json", "curves.png", "digits.png")
DRAWN = 16
DPI = 140
INKS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#222222", "#56B4E9", "#E69F00", "#8a8a8a")
FIGURES = ("held_out_evidence", "held_out_tight", "held_out", "training")


def of_method(results: Results, name: str) -> Results:
    return [each for each in results if each["method"] == name]


def best_first(settings: Settings, results: Results) -> list[str]:
    """Sort the methods by their held-out bound, best first."""

    def held_out(name: str) -> float:
        return -fmean(each["held_out"] for each in of_method(results, name))

    return sorted(settings.methods, key=held_out)


def as_json(settings: Settings, results: Results, seconds: float) -> bytes:
    """Return all figures of every run as indented UTF-8 JSON."""

    def run(each: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in each.items() if key not in ("key", "model", "history")}
        history = [dict(zip(Bounds._fields, epoch, strict=True)) for epoch in each["history"]]
        return {**kept, "history": history}

    def summary(name: str) -> dict[str, Any]:
        runs = of_method(results, name)
        found: dict[str, Any] = {"method": name, "about": METHODS[name].about}
        found["decoder_calls_for_an_image"] = runs[0]["calls"]
        found["seconds_for_an_epoch"] = fmean(each["seconds"] for each in runs) / settings.epochs
        for key in FIGURES:
            if all(each[key] is not None for each in runs):
                mean, deviation = spread([each[key] for each in runs])
                found[key] = {"mean": mean, "standard_deviation": deviation}
        return found

    result = {
        "data": "scikit-learn digits, a quarter held out",
        "unit": "nats per image; larger is better",
        "settings": asdict(settings),
        "samples_of_the_bounds": SAMPLES_AT_THE_END,
        "methods": [summary(name) for name in best_first(settings, results)],
        "runs": [run(each) for each in results],
        "seconds": round(seconds, 1),
    }
    return json_bytes(result)


def as_rich(settings: Settings, results: Results) -> Table:
    """Return a table of each method's bounds, mean ± standard deviation over seeds, best first."""
    seeds = "one seed" if settings.seeds == 1 else f"mean ± deviation of {settings.seeds} seeds"
    shown = table(
        title="digits, encoded by discrete latents",
        caption=(
            f"Nats per image, {seeds}; held-out images, hard samples.\n"
            "bound: evidence lower bound. tight: importance-weighted bound, "
            f"{SAMPLES_AT_THE_END} samples.\nlog p(x): sum over every choice. calls: decoder calls "
            "per training image."
        ),
    )
    shown.add_column("trained by", no_wrap=True)
    add_figures(shown, "bound", "tight", "log p(x)", "calls")
    for name in best_first(settings, results):
        runs = of_method(results, name)

        def cell(key: str, runs: Results = runs) -> str:
            if any(each[key] is None for each in runs):
                return "–"
            mean, deviation = spread([each[key] for each in runs])
            return f"{mean:.1f}" + (f" ± {deviation:.1f}" if len(runs) > 1 else "")

        figures = [cell(key) for key in ("held_out", "held_out_tight", "held_out_evidence")]
        shown.add_row(escape(name), *figures, f"{runs[0]['calls']:,}")
    return shown


def curves(settings: Settings, results: Results) -> bytes:
    """Draw the bound per epoch, on held-out images (left) and training images (right)."""
    figure, (left, right) = picture(11.5, 5.0, 1, 2, dpi=DPI, sharey=True)
    ends = {
        name: [run["history"][-1][1:3] for run in of_method(results, name)]
        for name in settings.methods
    }
    finals = [bound for pairs in ends.values() for pair in pairs for bound in pair]
    # Leave out values far below the others, which would compress the axis.
    top = max(finals)
    low = min(bound for bound in finals if bound > top - 60) - 25
    for number, name in enumerate(best_first(settings, results)):
        colour = INKS[number % len(INKS)]
        style = "--" if number >= len(INKS) else "-"
        for axes, key in ((left, "held_out"), (right, "training")):
            at = Bounds._fields.index(key)
            for count, run in enumerate(of_method(results, name)):
                epochs = [each[0] for each in run["history"]]
                values = [each[at] for each in run["history"]]
                below = max(max(pair) for pair in ends[name]) < low
                shown = f"{name} (below)" if below else name
                label = shown if count == 0 and axes is left else None
                axes.plot(epochs, values, style, color=colour, lw=1.3, alpha=0.85, label=label)
                # A single point is drawn as a marker, not a line.
                axes.lines[-1].set_marker("o" if len(epochs) == 1 else "")
    for axes, title in ((left, "held-out images"), (right, "training images")):
        axes.set(xlabel="epoch", ylim=(low, top + 6))
        axes.set_title(title, loc="left")
        axes.grid(axis="y", color="#e6e6e6")
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("evidence bound, hard samples (nats per image)")
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    return png(figure)


def generated(settings: Settings, results: Results, data: Data) -> bytes:
    """Draw one row of generated digits per method, below a row of real ones."""
    names = best_first(settings, results)
    count = len(names) + 1
    figure, rows = picture(11.5, 0.75 * count + 0.3, count, 1, dpi=DPI, squeeze=False)
    first = [("digits", data.held_out[:DRAWN] / INK)]
    for name in names:
        state = next(each["model"] for each in of_method(results, name) if each["model"])
        generator = torch.Generator().manual_seed(settings.seed)
        model = Autoencoder(settings.latent(name), data.training, generator)
        model.load_state_dict(state)
        first.append((name, model.generated(DRAWN, generator)))
    for axes, (name, images) in zip(rows[:, 0], first, strict=True):
        squares = images.reshape(DRAWN, SIDE, SIDE)
        padded = torch.nn.functional.pad(squares, (1, 1, 1, 1))
        strip = padded.permute(1, 0, 2).reshape(SIDE + 2, -1)
        axes.imshow(strip.numpy(), cmap="Greys", vmin=0, vmax=1, aspect="equal")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
    return png(figure)
