# SPDX-License-Identifier: Apache-2.0
"""python -m gacc.plot JOB [-o FILE.svg]: how a job went, as a picture. Needs no display and no other package.

Loss, gradient norm and learning rate of the whole job by step, and how long each rank waits for the others in a window, over the newest ones.
"""
from __future__ import annotations

import argparse
import math
import sys
from html import escape
from typing import Any, Iterable, Optional, Sequence

from .client import connect
from .errors import GaccError

WIDTH, HEIGHT = 860, 200  # of one picture
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 28, 30
RANKS = 64  # bars at most
MOST_WINDOWS, MOST_MICROS = 20, 100_000  # for the waiting times: as many windows as these allow, but one at least
INK, LINE = "#333", "#1769aa"

Points = Sequence[tuple[float, float]]


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers in between, about five."""
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(k for k in (1, 2, 5, 10) if (high - low) / (k * step) <= 5)
    first = math.ceil(low / step)
    return [k * step for k in range(first, math.floor(high / step) + 1)]


def _range(values: Iterable[float]) -> tuple[float, float]:
    known = list(values)
    low, high = min(known), max(known)
    pad = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return low - pad, high + pad


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 11) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{INK}">{escape(text)}</text>'


def _frame(y: float, title: str, bottom: float, low: float, high: float) -> list[str]:
    """Title, axes and the marks of the vertical one."""
    out = [_text(LEFT, y + TOP - 10, title, size=13),
           f'<path d="M{LEFT} {y + TOP}V{bottom:.1f}H{WIDTH - RIGHT}" fill="none" stroke="{INK}"/>']
    for t in _ticks(low, high):
        at = bottom - (t - low) / (high - low) * (bottom - y - TOP)
        out += [f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>', _text(LEFT - 6, at + 4, f"{t:.4g}", "end")]
    return out


def _can_be_drawn(value: float) -> bool:
    return abs(value) < 1e300  # neither NaN nor infinite, nor are differences


def _curve(y: float, title: str, points: Points) -> list[str]:
    """A curve over steps. What cannot be drawn leaves a gap."""
    bottom = y + HEIGHT - BOTTOM
    drawn = [p for p in points if _can_be_drawn(p[1])]
    if not drawn:
        return [_text(LEFT, y + TOP - 10, f"{title}: no values", size=13)]
    (left, right), (low, high) = _range(p[0] for p in points), _range(p[1] for p in drawn)
    out = _frame(y, title, bottom, low, high)
    for t in _ticks(left, right):
        if t >= 0 and t == int(t):
            out.append(_text(LEFT + (t - left) / (right - left) * (WIDTH - LEFT - RIGHT), bottom + 16, f"{t:.0f}", "middle"))
    path, pen = "", "M"
    for x, v in points:
        if _can_be_drawn(v):
            path += f"{pen}{LEFT + (x - left) / (right - left) * (WIDTH - LEFT - RIGHT):.1f} {bottom - (v - low) / (high - low) * (bottom - y - TOP):.1f}"
            pen = "L"
        else:
            pen = "M"
    return out + [f'<path class="curve" d="{path}" fill="none" stroke="{LINE}" stroke-width="1.5" stroke-linecap="round"/>']


def _bars(y: float, title: str, values: Sequence[tuple[int, float]]) -> list[str]:
    bottom = y + HEIGHT - BOTTOM
    if not values:
        return [_text(LEFT, y + TOP - 10, f"{title}: not known", size=13)]
    high = max(v for _, v in values) * 1.05 or 1.0
    out, room = _frame(y, title, bottom, 0.0, high), (WIDTH - LEFT - RIGHT) / len(values)
    for i, (rank, v) in enumerate(values):
        x, tall = LEFT + (i + 0.15) * room, v / high * (bottom - y - TOP)
        out.append(f'<rect class="rank" x="{x:.1f}" y="{bottom - tall:.1f}" width="{0.7 * room:.1f}" height="{tall:.1f}" fill="{LINE}"/>')
        if room >= 24 or i % 8 == 0:
            out.append(_text(x + 0.35 * room, bottom + 16, str(rank), "middle"))
    return out


def waits(messages: Iterable[Any]) -> list[tuple[int, float]]:
    """(rank, milliseconds) by rank: from a rank's last push of a window to the last of all ranks, in the mean over the windows of these
    HistoryResponses. Of many ranks those that wait least, whom the others wait for."""
    pushed: dict[int, dict[int, int]] = {}  # a large window comes in several messages
    for m in messages:
        last = pushed.setdefault(m.result.window, {})
        for micro in m.micros:
            last[micro.rank] = max(last.get(micro.rank, 0), micro.pushed_unix_nanos)
    waited: dict[int, list[int]] = {}
    for last in pushed.values():
        for rank, at in last.items():
            waited.setdefault(rank, []).append(max(last.values()) - at)
    mean = ((rank, sum(ns) / len(ns) / 1e6) for rank, ns in waited.items())
    return sorted(sorted(mean, key=lambda v: v[1])[:RANKS])


def svg(title: str, records: Sequence[dict[str, Any]], waiting: Sequence[tuple[int, float]]) -> str:
    """The picture, from gacc.history() and waits()."""
    out: list[str] = []
    curves = (("loss", "loss"), ("grad_norm", "gradient norm, before clipping"), ("lr", "learning rate"))
    for i, (key, name) in enumerate(curves):
        out += _curve(30 + i * HEIGHT, f"{name}, by step", [(r["step"], r[key]) for r in records])
    out += _bars(30 + len(curves) * HEIGHT, "ms that a rank waits for the last one, by rank, in the newest windows", waiting)
    tall = 30 + (len(curves) + 1) * HEIGHT
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{tall}" viewBox="0 0 {WIDTH} {tall}" font-family="sans-serif">',
                      f'<rect width="{WIDTH}" height="{tall}" fill="white"/>', _text(LEFT, 20, title, size=15), *out, "</svg>\n"])


def plot(job: str, endpoint: Optional[str] = None) -> str:
    with connect(endpoint) as client:
        now = client.job(job)
        n = min(MOST_WINDOWS, max(1, MOST_MICROS // (now.spec.ranks * now.micro_size or 1)))
        return svg(f"job {now.id} ({now.name}): {now.state}, {now.applied_step} steps", client.records(now), waits(client.windows(now, n)))


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gacc.plot", description="Draws how a job went: loss, norm, learning rate, waiting time per rank.")
    parser.add_argument("job", metavar="JOB", help="id or name")
    parser.add_argument("-o", "--output", metavar="FILE.svg", help="where to (JOB.svg); - is the standard output")
    parser.add_argument("--endpoint", help="of gaccd (GACC_ENDPOINT, or the node's)")
    asked = parser.parse_args(arguments)
    path = asked.output or asked.job.replace("/", "-") + ".svg"
    try:
        picture = plot(asked.job, asked.endpoint)
        if path == "-":
            sys.stdout.write(picture)
        else:
            with open(path, "w", encoding="utf-8") as f:
                f.write(picture)
            print(path)
        return 0
    except (GaccError, OSError) as e:
        print(f"gacc.plot: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
