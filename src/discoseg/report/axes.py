"""The axes of a chart as SVG: scales, ticks, grid and labels. How they look says page.css, in light and dark."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_WIDTH, _HEIGHT = 420, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 8, 8, 42
INNER_WIDTH, INNER_HEIGHT = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
_X_TICKS, _Y_TICKS = 7, 6  # at most


@dataclass(frozen=True)
class Scale:
    """Values from ``low`` to ``high``; ``log`` arithmic or not; ``whole``: ticks at whole numbers only."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @classmethod
    def over(cls, values: Iterable[float], *, log: bool = False, whole: bool = False, margin: float = 0.04) -> "Scale":
        """Return a scale that holds all finite ``values`` (where ``log``, all positive ones), with a margin."""
        known = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        if log:
            low, high = low / 1.2, high * 1.2
        else:
            room = margin * (high - low) or 0.5 * abs(high) or 0.5
            low, high = low - room, high + room
        return cls(low, high, log and bool(known), whole)

    def place(self, values: Floats | float) -> Floats:
        """Return where values lie, as a fraction of the axis; nan where they have no place."""
        numbers = np.asarray(values, dtype=np.float64)
        numbers = np.where(np.isfinite(numbers), numbers, np.nan)
        if not self.log:
            return (numbers - self.low) / (self.high - self.low)
        logs = np.log(np.where(numbers > 0, numbers, np.nan))
        return (logs - math.log(self.low)) / (math.log(self.high) - math.log(self.low))

    def ticks(self, most: int) -> list[float]:
        """Return round numbers on the axis, about ``most`` of them or fewer."""
        if self.log:
            subs = (1,) if self.high > 200 * self.low else (1, 2, 5)
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [sub * 10.0**power for power in powers for sub in subs]
            found = [tick for tick in found if self.low <= tick <= self.high]
            return found[:: math.ceil(len(found) / most)] if found else []
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(part * power for part in (1, 2, 5, 10) if part * power >= rough * (1 - 1e-9))
        step = max(1.0, round(step)) if self.whole else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


@dataclass(frozen=True)
class Axes:
    """Two scales with their labels; what is drawn in them has the units of :meth:`points`."""

    x: Scale
    y: Scale
    x_label: str
    y_label: str

    def points(self, x: Floats | float, y: Floats | float) -> Floats:
        """Return the places (N, 2) of values, from the upper left corner of the inner area."""
        places = np.broadcast_arrays(self.x.place(x) * INNER_WIDTH, (1 - self.y.place(y)) * INNER_HEIGHT)
        return np.stack([np.atleast_1d(place) for place in places], axis=-1)

    def svg(self, marks: Iterable[str], *, title: str) -> Markup:
        """Return the chart with ``marks`` in its inner area, beyond which they are cut off."""
        parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">']
        for tick in self.x.ticks(_X_TICKS):
            x = _LEFT + float(self.x.place(tick)) * INNER_WIDTH
            parts.append(f'<path class="tick" d="M{x:.1f} {_TOP + INNER_HEIGHT}v4"/>')
            parts.append(f'<text class="x" x="{x:.1f}" y="{_TOP + INNER_HEIGHT + 16}">{_text(tick)}</text>')
        for tick in self.y.ticks(_Y_TICKS):
            y = _TOP + (1 - float(self.y.place(tick))) * INNER_HEIGHT
            parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}h{INNER_WIDTH}"/>')
            parts.append(f'<text class="y" x="{_LEFT - 6}" y="{y + 3.5:.1f}">{_text(tick)}</text>')
        parts.append(f'<text class="x" x="{_LEFT + INNER_WIDTH / 2:g}" y="{_HEIGHT - 7}">{escape(self.x_label)}</text>')
        middle = f"translate(11 {_TOP + INNER_HEIGHT / 2:g})"
        parts.append(f'<text class="x" transform="{middle} rotate(-90)">{escape(self.y_label)}</text>')
        parts.append(f'<svg x="{_LEFT}" y="{_TOP}" width="{INNER_WIDTH}" height="{INNER_HEIGHT}">')
        parts += marks
        parts.append(f'</svg><path class="axis" d="M{_LEFT} {_TOP}v{INNER_HEIGHT}h{INNER_WIDTH}"/></svg>')
        return Markup("".join(parts))


def line(points: Floats) -> str:
    """Return points (N, 2) as an SVG path; it is interrupted where one has no place."""
    moves, drawing = [], False
    for x, y in points.tolist():
        known = math.isfinite(x) and math.isfinite(y)
        if known:
            moves.append(f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}")
        drawing = known
    return "".join(moves)


def _text(tick: float) -> str:
    """Return a tick's label, with a true minus sign.

    >>> _text(0.1 + 0.2), _text(-5.0), _text(1e-5)
    ('0.3', '−5', '1e−5')
    """
    return f"{tick:g}".replace("e-0", "e-").replace("e+0", "e").replace("-", "−")
