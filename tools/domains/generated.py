"""Text that this script writes: records, tables, logs and exercises, the same in every run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

Item = TypeVar("Item")

_FIRST = [
    "Ada",
    "Bram",
    "Chloe",
    "Dario",
    "Esra",
    "Femi",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Kaja",
    "Luis",
    "Mina",
    "Noor",
    "Otto",
    "Petra",
]
_LAST = [
    "Abe",
    "Brandt",
    "Costa",
    "Dahl",
    "Eze",
    "Fontaine",
    "Grau",
    "Haas",
    "Ito",
    "Jansen",
    "Kovac",
    "Lund",
    "Moreau",
    "Novak",
]
_TOWNS = [
    "Aarhus",
    "Bergen",
    "Coimbra",
    "Delft",
    "Essen",
    "Faro",
    "Ghent",
    "Halle",
    "Izmir",
    "Jena",
    "Kiel",
    "Lyon",
    "Malmo",
    "Nice",
]
_GOODS = [
    "desk lamp",
    "garden hose",
    "bicycle bell",
    "wool blanket",
    "kettle 1.7 l",
    "tape measure",
    "paint roller",
    "door handle",
    "seed tray",
    "rain barrel",
    "torch",
    "folding ruler",
]
_PATHS = [
    "/",
    "/login",
    "/api/v2/orders",
    "/api/v2/orders/{}",
    "/static/app.css",
    "/search?q=hose",
    "/feed.xml",
]


class Draw:
    """Draws from a seed; only `Random.random` is used, which no version of Python changes."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def below(self, count: int) -> int:
        """A number from 0 to `count` − 1."""
        return int(self._random.random() * count)

    def one(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[self.below(len(items))]

    def price(self) -> float:
        """A price with two decimals."""
        return round(1 + 199 * self._random.random() ** 3, 2)


def _date(draw: Draw) -> str:
    return f"20{20 + draw.below(6)}-{1 + draw.below(12):02}-{1 + draw.below(28):02}"


def order(draw: Draw) -> str:
    """A JSON object of an order."""
    items = [
        {"sku": f"{draw.below(9000) + 1000}-{draw.one('ABCDEFGH')}", "name": draw.one(_GOODS)}
        | {"quantity": 1 + draw.below(4), "price": draw.price()}
        for _ in range(1 + draw.below(3))
    ]
    total = round(sum(float(item["quantity"]) * float(item["price"]) for item in items), 2)
    record = {
        "id": 40000 + draw.below(60000),
        "customer": {
            "name": f"{draw.one(_FIRST)} {draw.one(_LAST)}",
            "city": draw.one(_TOWNS),
            "newsletter": draw.below(2) == 1,
        },
        "created_at": f"{_date(draw)}T{draw.below(24):02}:{draw.below(60):02}:{draw.below(60):02}Z",
        "items": items,
        "total": total,
        "coupon": None if draw.below(3) else f"SPRING{draw.below(30)}",
        "tags": [tag for tag in ("gift", "express", "fragile") if draw.below(3) == 0],
    }
    return json.dumps(record, indent=2 if draw.below(2) else None)


def comma_separated(draw: Draw) -> str:
    """Readings of a weather station as CSV."""
    rows = ["station,date,t_min,t_max,rain_mm,wind_ms,remark"]
    town, low = draw.one(_TOWNS), draw.below(15)
    for day in range(1, 10):
        low += draw.below(5) - 2
        remark = draw.one(("", "", "", "fog", '"thunder, hail"', "sensor replaced"))
        rain = draw.below(120) / 10 if draw.below(2) else 0
        high, wind = low + 4 + draw.below(60) / 10, draw.below(140) / 10
        rows.append(
            f"{town},2024-0{1 + draw.below(9)}-{day:02},{low},{high:.1f},{rain},{wind},{remark}"
        )
    return "\n".join(rows)


def markdown_table(draw: Draw) -> str:
    """A table of a stock in Markdown."""
    rows = [
        "| article | in stock | ordered | price, € | supplier |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for _ in range(6):
        supplier = f"{draw.one(_LAST)} & {draw.one(_LAST)}"
        counts = f"{draw.below(400)} | {draw.below(50) * 10 or '–'}"
        rows.append(f"| {draw.one(_GOODS)} | {counts} | {draw.price():.2f} | {supplier} |")
    return "\n".join(rows)


def log(draw: Draw) -> str:
    """Lines of a web server's log."""
    lines = []
    for _ in range(7):
        place = draw.one(_PATHS).format(40000 + draw.below(60000))
        host = f"192.0.2.{1 + draw.below(250)}"
        day = 1 + draw.below(28)
        clock = f"{draw.below(24):02}:{draw.below(60):02}:{draw.below(60):02}"
        when = f"{day:02}/Mar/2024:{clock} +0100"
        status = draw.one((200, 200, 200, 304, 404, 500))
        lines.append(f'{host} - - [{when}] "GET {place} HTTP/1.1" {status} {draw.below(90000)}')
    return "\n".join(lines)


def settings(draw: Draw) -> str:
    """A configuration in YAML."""
    lines = [
        "server:",
        f"  host: {draw.one(_TOWNS).lower()}.example.net",
        f"  port: {8000 + draw.below(999)}",
    ]
    lines += ["  tls:", f"    enabled: {'true' if draw.below(2) else 'false'}", "jobs:"]
    for _ in range(3):
        name = f"{draw.one(('backup', 'import', 'report', 'clean-up', 'mail'))}-{draw.below(90)}"
        lines += [
            f"  - name: {name}",
            f'    schedule: "{draw.below(60)} {draw.below(24)} * * {draw.below(7)}"',
        ]
        lines += [
            f"    retries: {draw.below(5)}",
            f"    notify: [{draw.one(_FIRST).lower()}@example.org]",
        ]
    return "\n".join(lines)


def statements(draw: Draw) -> str:
    """Rows of a database as SQL."""
    lines = []
    for _ in range(5):
        name = f"{draw.one(_FIRST)} {draw.one(_LAST)}"
        place = f"{draw.below(900)}, '{name}', '{draw.one(_TOWNS)}'"
        values = f"{place}, '{_date(draw)}', {draw.price():.2f}"
        lines.append(f"INSERT INTO account (id, owner, city, opened, balance) VALUES ({values});")
    return "\n".join(lines)


def linear_equation(draw: Draw) -> str:
    """An equation, solved."""
    a, c, x = 2 + draw.below(8), 1 + draw.below(6), draw.below(19) - 9
    a += a == c
    b, d = draw.below(30) - 10, 0
    d = a * x + b - c * x
    return (
        f"Solve {a}x {b:+d} = {c}x {d:+d}.\n"
        f"Subtract {c}x and {b}: {a - c}x = {d - b}. Divide by {a - c}: x = {x}.\n"
        f"Check: {a}·({x}) {b:+d} = {a * x + b}, and {c}·({x}) {d:+d} = {c * x + d}."
    )


def long_sum(draw: Draw) -> str:
    """A word problem of a purchase."""
    count, name, good = 2 + draw.below(7), draw.one(_FIRST), draw.one(_GOODS)
    cents, paid = 50 + draw.below(1950), 0
    total = count * cents
    paid = (total // 1000 + 1 + draw.below(3)) * 10
    return (
        f'Q: {name} buys {count} articles ("{good}") at {cents / 100:.2f} each and pays with '
        f"{paid}.00. "
        f"What is the change?\nA: {count} × {cents / 100:.2f} = {total / 100:.2f}. "
        f"{paid}.00 − {total / 100:.2f} = {paid - total / 100:.2f}."
    )


def fraction_sum(draw: Draw) -> str:
    """Fractions, added step by step in LaTeX."""
    from math import gcd

    b, d = 2 + draw.below(9), 2 + draw.below(9)
    a, c = 1 + draw.below(b - 1) if b > 2 else 1, 1 + draw.below(9)
    numerator, denominator = a * d + c * b, b * d
    shared = gcd(numerator, denominator)
    reduced = rf" = \frac{{{numerator // shared}}}{{{denominator // shared}}}" if shared > 1 else ""
    return (
        rf"$$\frac{{{a}}}{{{b}}} + \frac{{{c}}}{{{d}}} = "
        rf"\frac{{{a} \cdot {d} + {c} \cdot {b}}}{{{b} \cdot {d}}} = "
        rf"\frac{{{numerator}}}{{{denominator}}}{reduced}$$"
    )


def polynomial(draw: Draw) -> str:
    """A product of two linear factors, its derivative and its zeros."""
    p, q = draw.below(13) - 6, draw.below(13) - 6
    middle, constant = -(p + q), p * q
    return (
        f"Let f(x) = (x − ({p}))(x − ({q})) = x² {middle:+d}x {constant:+d}. "
        f"Then f'(x) = 2x {middle:+d}, which vanishes at x = {(p + q) / 2:g}, where f has its "
        f"minimum {-((p - q) ** 2) / 4:g}. The zeros are {min(p, q)} and {max(p, q)}."
    )


def agenda(draw: Draw) -> str:
    """A list of appointments."""
    lines = [f"WEEK {1 + draw.below(52)}  ({draw.one(_FIRST)})", "-" * 28]
    for day in ("Mo", "Tu", "We", "Th", "Fr"):
        what = draw.one(
            ("dentist", "call w/ {}", "train to {}", "??", "day off", "pick up {}", "no meeting!")
        )
        lines.append(
            f"{day} {7 + draw.below(12):02}:{draw.one(('00', '15', '30', '45'))}  "
            + what.format(draw.one(_TOWNS))
        )
    return "\n".join(lines)


def parts(draw: Draw) -> str:
    """A list of parts with dots up to the numbers."""
    rows = [f"PARTS LIST no. {draw.below(900)}/{draw.one('ABC')}", ""]
    for number in range(1, 7):
        name = draw.one(_GOODS)
        count, mark = 1 + draw.below(40), "x" if draw.below(2) else " "
        rows.append(f"  {number}) {name} {'.' * (26 - len(name))} {count:>3} pcs  [{mark}]")
    return "\n".join(rows)


def nested(draw: Draw) -> str:
    """Nested bullets with odd marks."""
    lines = []
    for _ in range(3):
        way = f"{draw.one(_TOWNS)} → {draw.one(_TOWNS)}"
        lines.append(f"* {way} ({1 + draw.below(9)} h {draw.below(60)} min)")
        for mark in ("  - ", "  + ", "    · "):
            means = draw.one(("bus", "ferry", "on foot", "tram", "night train"))
            lines.append(f"{mark}{means} #{draw.below(99)}")
    return "\n".join(lines)


DATA = (order, comma_separated, markdown_table, log, order, settings, statements)
EXERCISES = (linear_equation, long_sum, fraction_sum, polynomial)
LISTS = (agenda, parts, nested)


def written(kinds: Sequence[Callable[[Draw], str]], count: int, seed: int) -> list[str]:
    """Texts of some kinds, by turns."""
    draw = Draw(seed)
    return [kinds[number % len(kinds)](draw) for number in range(count)]
