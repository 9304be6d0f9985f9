"""The curve of a sweep as SVG."""

from __future__ import annotations

from typing import Any

#: Size of the curve and room for its axes, in SVG units.
_WIDTH, _HEIGHT, _MARGIN = 480, 300, 56


def draw(report: dict[str, Any]) -> str:
    """The curve as SVG: decode speed over that without the technique, against Δppl in percent."""
    points = [(100 * p["dppl"], p["speed"], p["value"]) for p in report["points"]]
    right = max(x for x, _, _ in points) * 1.1 or 1.0
    low = min(0.9, *(y for _, y, _ in points))
    high = max(1.1, *(y for _, y, _ in points))

    def place(x: float, y: float) -> tuple[float, float]:
        across = _MARGIN + (_WIDTH - 2 * _MARGIN) * max(x, 0.0) / right
        return across, _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * (y - low) / (high - low)

    places = [place(x, y) for x, y, _ in points]
    curve = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    labels = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
        f'<text x="{x + 6:.1f}" y="{y - 6:.1f}">{value or "without"}</text>'
        for (x, y), (_, _, value) in zip(places, points, strict=True)
    ]
    ticks = [
        f'<text x="{_MARGIN - 8}" y="{place(0, y)[1] + 4:.1f}" text-anchor="end">{y:.2f}</text>'
        for y in (low, 1.0, high)
    ]
    ticks += [
        f'<text x="{place(x, low)[0]:.1f}" y="{_HEIGHT - _MARGIN + 18}" '
        f'text-anchor="middle">{x:.1f} %</text>'
        for x in (0.0, right / 2, right)
    ]
    axes = f"M{_MARGIN},{_MARGIN}V{_HEIGHT - _MARGIN}H{_WIDTH - _MARGIN}"
    title = f"{report['sweep']}: decode speed, times that without, against Δppl"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
            f'<text x="{_WIDTH / 2}" y="24" text-anchor="middle">{title}</text>',
            f'<path d="{axes}" fill="none" stroke="black"/>',
            f'<polyline points="{curve}" fill="none" stroke="black"/>',
            *ticks,
            *labels,
            "</svg>",
            "",
        ]
    )
