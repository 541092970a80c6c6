"""The study of autoencoders with discrete latents: how they are trained, and what is reported."""

import math
from copy import deepcopy
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import torch

from kofn import schedules
from kofn.commands.files import InputError
from studies.frame import pictures, report, run
from studies.frame.data import INK, SIDE, digits
from studies.frame.options import Settings
from studies.vae.methods import METHODS, decoder_calls
from studies.vae.model import Autoencoder, Latent

BATCH = 64
RATE = 2e-3
COLD = 0.1  # the final temperature of annealed methods
ANNEALED = 0.8  # share of the steps
SAMPLES_PER_EPOCH = 32
SAMPLES_AT_THE_END = 128
MOST_CHOICES = 4096


def latent_of(settings: Settings, method: str) -> Latent:
    if METHODS[method].subsets:
        return Latent(1, settings.items, settings.k)
    return Latent(settings.factors, settings.n)


class Bounds(NamedTuple):
    """Bounds in nats per image: the evidence bound and the importance-weighted bound."""

    epoch: int
    training: float
    held_out: float
    training_tight: float
    held_out_tight: float


class Run(run.Run):
    """One method with one seed; a part is an epoch."""

    TITLE = "{}, seed {}"
    SHOWN = "bound {0.held_out:.1f}"
    Measurement = Bounds

    @classmethod
    def runs(cls, settings: Settings) -> list[run.Key]:
        k, most = settings.k, settings.items - 1
        if not 1 <= k <= most:
            raise InputError(f"-k must be in 1..{most}, below --items; got {k}")
        for name in settings.methods:
            fewest = METHODS[name].fewest_samples
            if settings.samples < fewest:
                raise InputError(f"--method {name} needs --samples of at least {fewest}")
            latent = latent_of(settings, name)
            if METHODS[name].enumerates and latent.size > MOST_CHOICES:
                raise InputError(
                    f"--method {name} sums over every choice, at most {MOST_CHOICES:,}; there are "
                    f"{math.exp(min(latent.log_size, 700)):.3g}; choose another --method, or fewer "
                    "categories"
                )
        return [(name, seed) for seed in settings.every_seed for name in settings.methods]

    @classmethod
    def parts(cls, settings: Settings) -> int:
        return settings.epochs

    def build(self, name: str) -> None:
        self.name, self.method = name, METHODS[name]
        self.data = digits(self.settings.seed, by_class=True)
        latent = latent_of(self.settings, name)
        self.model = Autoencoder(latent, self.data.training, self.generator)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=RATE)
        self.in_epoch = -(-len(self.data.training) // BATCH)
        cooling = max(1, round(ANNEALED * self.in_epoch * self.settings.epochs))
        self.temperature = schedules.exponential(1.0, COLD, steps=cooling)

    def train(self) -> None:
        """Train on every image once."""
        order = torch.randperm(len(self.data.training), generator=self.generator)
        self.epoch = torch.split(order, BATCH)
        for _ in self.epoch:
            self.step()

    def step(self) -> None:
        images = self.data.training[self.epoch[self.steps % self.in_epoch]]
        temperature = self.temperature(self.steps)
        choice = self.model.choice(images, temperature if self.method.cools else 1.0)

        def cost(z: torch.Tensor) -> torch.Tensor:
            return -self.model.log_likelihood(images, z)

        how = {"temperature": temperature} if self.method.anneals else {}
        samples = self.settings.samples
        expected = self.method.estimate(choice, cost, self.generator, samples=samples, **how)
        self.descend((expected + self.model.divergence(choice)).mean())

    def measured(self) -> Bounds:
        some, held_out = self.data.training[: len(self.data.held_out)], self.data.held_out
        found = [self._bounds(images, SAMPLES_PER_EPOCH) for images in (some, held_out)]
        loose, tight = zip(*found, strict=True)
        return Bounds(self.done + 1, *loose, *tight)

    def result(self) -> dict[str, Any]:
        """Return the results of a finished run, and its model."""
        found = {"method": self.name, "seed": self.seed, **super().result()}
        choices = self.model.latent.size
        found["calls"] = decoder_calls(self.name, self.settings.samples, choices)
        for part in ("training", "held_out"):
            images = getattr(self.data, part)
            bounds = self._bounds(images, SAMPLES_AT_THE_END)
            found[part], found[f"{part}_tight"] = bounds
            evidence = self.model.evidence(images) if choices <= MOST_CHOICES else None
            found[f"{part}_evidence"] = evidence
        # One model per method is enough to generate digits.
        first = self.seed == self.settings.seed
        found["model"] = deepcopy(self.model.state_dict()) if first else None
        return found

    def _bounds(self, images: torch.Tensor, samples: int) -> tuple[float, float]:
        # Its own generator: how often the bounds are measured does not change the training.
        generator = torch.Generator().manual_seed(self.seed)
        how = generator, self.temperature(self.steps) if self.method.cools else 1.0
        parts = [
            [len(part) / len(images) * bound for bound in self.model.bounds(part, samples, *how)]
            for part in torch.split(images, 256)
        ]
        loose, tight = map(sum, zip(*parts, strict=True))
        return loose, tight


DRAWN = 16
INKS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#222222", "#56B4E9", "#E69F00", "#8a8a8a")


class Report(report.Report):
    """Bounds on the likelihood of images."""

    KEY = ("method", "seed")
    GROUP = ()
    PICTURES = ("curves", "digits")
    TITLE = "digits, encoded by discrete latents"
    CAPTION = (
        "Nats per image, {seeds}; held-out images, hard samples.\n"
        "bound: evidence lower bound. tight: importance-weighted bound, "
        f"{SAMPLES_AT_THE_END} samples.\nlog p(x): sum over every choice. calls: decoder calls "
        "per training image."
    )
    FIRST = "trained by"
    SHOWN: ClassVar = {
        "held_out": ("bound", ".1f±"),
        "held_out_tight": ("tight", ".1f±"),
        "held_out_evidence": ("log p(x)", ".1f±"),
        "calls": ("calls", ",.0f"),
    }
    BEST = "-held_out"
    Measurement = Bounds

    def figures(self, **key: Any) -> report.Figures:
        names = (*self.SHOWN, "training", "seconds")
        return {name: [each[name] for each in self.of(**key)] for name in names}

    def summary(self) -> dict[str, Any]:
        return {
            "data": "scikit-learn digits, a quarter held out",
            "unit": "nats per image; larger is better",
            "settings": vars(self.settings),
            "samples_of_the_bounds": SAMPLES_AT_THE_END,
            "methods": list(self.summaries()),
        }

    def summary_of(self, figures: report.Figures, **key: Any) -> dict[str, Any]:
        names = ("held_out_evidence", "held_out_tight", "held_out", "training")
        return {
            "about": self.study.about(self.settings)["methods"][key["method"]],
            "decoder_calls_for_an_image": figures["calls"][0],
            "seconds_for_an_epoch": fmean(figures["seconds"]) / self.settings.epochs,
            **report.means({name: figures[name] for name in names}),
        }

    def run(self, each: dict[str, Any]) -> dict[str, Any]:
        kept = {name: each[name] for name in each if name not in ("key", "model")}
        return {**kept, **super().run(each)}

    def curves(self) -> Any:
        """Draw the bound per epoch, on held-out images (left) and training images (right)."""
        figure, (axes,) = pictures.panels(11.5, 5.0, 1, 2, sharey=True)
        runs_of = {name: self.of(method=name) for name in self.methods()}
        histories = {name: [*map(self.history, runs)] for name, runs in runs_of.items()}
        ends = {
            name: [bound for history in runs for bound in history[-1][1:3]]
            for name, runs in histories.items()
        }
        # Leave out values far below the others, which would compress the axis.
        top = max(map(max, ends.values()))
        low = min(bound for bounds in ends.values() for bound in bounds if bound > top - 60) - 25
        for panel, part in zip(axes, ("held_out", "training"), strict=True):
            for number, (name, runs) in enumerate(histories.items()):
                label = f"{name} (below)" if max(ends[name]) < low else name
                ink = {"color": INKS[number % 8], "ls": "-" if number < 8 else "--"}
                for history in runs:
                    epochs = [each.epoch for each in history]
                    bounds = [getattr(each, part) for each in history]
                    pictures.line(panel, epochs, bounds, lw=1.3, alpha=0.85, label=label, **ink)
            pictures.plain(panel, f"{part.replace('_', '-')} images")
            panel.set(xlabel="epoch", ylim=(low, top + 6))
            panel.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axes[0].set_ylabel("evidence bound, hard samples (nats per image)")
        pictures.legend(figure, fontsize=9)
        return figure

    def digits(self) -> Any:
        """Draw one row of generated digits per method, below a row of real ones."""
        data, seed = digits(self.settings.seed, by_class=True), self.settings.seed
        rows = {"digits": data.held_out[:DRAWN] / INK}
        for name in self.methods():
            generator = torch.Generator().manual_seed(seed)
            model = Autoencoder(latent_of(self.settings, name), data.training, generator)
            model.load_state_dict(self.of(method=name, seed=seed)[0]["model"])
            rows[name] = model.generated(DRAWN, generator)
        figure, axes = pictures.panels(11.5, 0.75 * len(rows) + 0.3, len(rows))
        for panel, (name, images) in zip(axes[:, 0], rows.items(), strict=True):
            squares = torch.nn.functional.pad(images.view(DRAWN, SIDE, SIDE), (1, 1, 1, 1))
            strip = squares.movedim(0, 1).flatten(1)
            pictures.image(panel, strip, cmap="Greys", aspect="equal")
            panel.spines[:].set_visible(False)
            panel.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
        return figure
