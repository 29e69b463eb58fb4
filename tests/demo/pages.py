"""Document pages drawn with Pillow: letters, minutes, invoices, receipts, timetables, flow diagrams, notices.

The fonts are the DejaVu files that matplotlib ships, so that a page looks the same on every machine.
"""

import random
from functools import cache
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

from tests.demo.encoded import encode

PEOPLE = [
    "Ana Pérez",
    "J. Lindqvist",
    "Mei Tanaka",
    "Omar Haddad",
    "Ruth Cohen",
    "Søren Dahl",
    "Ivy Okafor",
    "K. Novák",
]
STREETS = ["Mill Lane 4", "Station Road 17", "Quay Street 81", "Oak Avenue 230", "Church Square 2"]
GOODS = [
    ("Copper pipe 15 mm", 7.4), ("Ball valve", 12.9), ("Pipe clip, pack of 10", 3.2), ("Flux paste", 5.75),
    ("Oak board 2 m", 24.0), ("Wood screws 4×40", 6.1), ("Paint, white 5 l", 38.5), ("Brush set", 9.95),
    ("LED lamp E27", 4.6), ("Cable 3×1.5, 25 m", 29.9), ("Junction box", 2.35), ("Work gloves", 8.2),
]  # fmt: skip
GROCERIES = [
    ("Milk 1 l", 1.19), ("Rye bread", 2.85), ("Apples 1 kg", 2.49), ("Coffee 500 g", 6.99), ("Eggs, 10", 3.29),
    ("Butter", 2.39), ("Tomatoes", 1.79), ("Olive oil", 8.49), ("Rice 1 kg", 2.19), ("Soap", 0.95), ("Cheese", 4.15),
]  # fmt: skip
STOPS = ["Harbour", "Town Hall", "University", "Hospital", "Stadium", "Airport", "Zoo", "Castle"]
SUBJECTS = ["the roof of the east wing", "the new reading room", "the bicycle shed", "the heating", "the summer fair"]
SENTENCES = [
    "{who} reported on {what} and handed out a plan of the work.",
    "The costs of {what} are now put at {n},{m:03d} euros, which is {p} per cent above the first estimate.",
    "{who} asked whether {what} could wait until the spring; after a short discussion it was decided to go ahead.",
    "Two of the three offers for {what} had arrived in time, and the lower one was accepted.",
    "It was agreed that {who} will write to the council about {what} before the end of the month.",
    "Members noted that {what} had been closed for {p} days and that no complaints had been received.",
    "{who} thanked everybody who had helped with {what}, in particular the volunteers from the school.",
    "A vote was taken on {what}: {p} in favour, two against, one abstention.",
]
STEPS = ["Read order", "Check stock", "Reserve items", "Pack parcel", "Print label", "Hand to courier", "Send e-mail"]


@cache
def _font(size: int, name: str = "DejaVuSans") -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf", size)


def page_rows() -> list[dict]:
    """All drawn page rows, in a fixed order; each from a random state of its own."""
    rows = [_minutes_row(i, num_pages) for i, num_pages in enumerate((1, 1, 1, 2, 3))]
    rows += [_invoice_row(i) for i in range(5)]
    rows += [_receipt_row(i) for i in range(5)]
    rows += [_timetable_row(i) for i in range(4)]
    rows += [_flow_row(i) for i in range(4)]
    rows += [_notice_row(i) for i in range(3)]
    return rows


def _row(images: list[dict], turns: list[tuple[str, str]]) -> dict:
    texts = [{"user": user, "assistant": assistant} for user, assistant in turns]
    return {"images": images, "texts": texts, "source": "drawn_pages", "license": "Apache-2.0"}


def _wrap(text: str, font: ImageFont.FreeTypeFont, width: int) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        longer = f"{line} {word}".strip()
        if font.getlength(longer) > width and line:
            lines.append(line)
            line = word
        else:
            line = longer
    return [*lines, line]


def _minutes_row(i: int, num_pages: int) -> dict:
    """Minutes of a meeting, one to three pages, to be read out and asked about."""
    draw = random.Random(700 + i)
    size, serif = ((1200, 1600), (850, 1200), (1000, 1414), (900, 1270), (800, 1130))[i], "DejaVuSerif"
    images, pages = [], []
    for number in range(num_pages):
        paragraphs = []
        for _ in range(4 if num_pages > 1 else 5):
            what = draw.choice(SUBJECTS)
            chosen = draw.sample(SENTENCES, 3)
            values = {
                "what": what,
                "n": draw.randint(2, 48),
                "m": draw.randrange(0, 1000, 50),
                "p": draw.randint(3, 29),
            }
            paragraphs.append(" ".join(s.format(who=draw.choice(PEOPLE), **values) for s in chosen))
        heading = f"Minutes of meeting no. {41 + i}" + (f", page {number + 1}" if num_pages > 1 else "")
        images.append(_draw_page(heading, paragraphs, size, serif, f"minutes_{i}_{number + 1}"))
        pages.append(heading + "\n\n" + "\n\n".join(paragraphs))
    chair = draw.choice(PEOPLE)
    turns = [
        ("Transcribe the page." if num_pages == 1 else "Transcribe all pages.", "\n\n".join(pages)),
        ("What kind of document is this?", f"The minutes of meeting no. {41 + i} of a committee."),
        (f"Is {chair} mentioned?", "Yes." if any(chair in page for page in pages) else "No."),
    ]
    return _row(images, turns)


def _draw_page(heading: str, paragraphs: list[str], size: tuple[int, int], font: str, name: str) -> dict:
    width, height = size
    page = Image.new("L", size, 255)
    pen = ImageDraw.Draw(page)
    body, title = _font(width // 50, font), _font(width // 30, f"{font}-Bold")
    margin, y = width // 9, height // 12
    pen.text((margin, y), heading, font=title, fill=0)
    y += width // 12
    for paragraph in paragraphs:
        for line in _wrap(paragraph, body, width - 2 * margin):
            pen.text((margin, y), line, font=body, fill=20)
            y += width // 32
        y += width // 40
    return encode(page, name, "PNG", colours=6)


def _invoice_row(i: int) -> dict:
    draw = random.Random(800 + i)
    lines = [(name, price, draw.randint(1, 12)) for name, price in draw.sample(GOODS, 4 + i)]
    net = sum(round(price * 100) * count for _, price, count in lines)
    tax = (net * 20 + 50) // 100
    buyer, number, date = draw.choice(PEOPLE), 20_417 + 13 * i, f"{3 + 4 * i} March 2024"
    page = Image.new("RGB", ((900, 1100), (700, 900), (1000, 1300), (800, 640), (1100, 1500))[i], "white")
    pen, width = ImageDraw.Draw(page), page.width
    small, bold = _font(width // 45), _font(width // 28, "DejaVuSans-Bold")
    pen.rectangle((0, 0, width, width // 9), fill=("#1f4e79", "#7a1f2b", "#225c3a", "#444444", "#5b3a78")[i])
    pen.text((width // 20, width // 30), "HOLM & SONS  ·  BUILDING SUPPLIES", font=bold, fill="white")
    y = width // 7
    for text in (f"Invoice no. {number}", f"Date: {date}", f"To: {buyer}, {STREETS[i]}"):
        pen.text((width // 20, y), text, font=small, fill="black")
        y += width // 28
    y += width // 40
    columns = (width // 20, width * 11 // 20, width * 14 // 20, width * 19 // 20)
    for j, (name, price, count) in enumerate([("Article", None, None), *lines]):
        if j % 2 == 0:
            pen.rectangle((columns[0] - 8, y - 4, columns[3] + 8, y + width // 28), fill="#eeeeee")
        cells = (
            ("Article", "Pieces", "Price", "Amount")
            if j == 0
            else (name, count, f"{price:.2f}", f"{price * count:.2f}")
        )
        pen.text((columns[0], y), str(cells[0]), font=small, fill="black")
        for x, cell in zip((columns[1] + 60, columns[2] + 90, columns[3]), cells[1:], strict=True):
            pen.text((x, y), str(cell), font=small, fill="black", anchor="ra")
        y += width // 24
    for label, cents in (("Net", net), ("VAT 20 %", tax), ("Total EUR", net + tax)):
        y += width // 26
        pen.text((columns[2], y), label, font=small, fill="black")
        pen.text((columns[3], y), f"{cents / 100:.2f}", font=small, fill="black", anchor="ra")
    turns = [
        ("What is the total?", f"{(net + tax) / 100:.2f} euros, VAT included."),
        ("Who has to pay, and when was it issued?", f"{buyer}; it was issued on {date}."),
        ("List the articles with their amounts.", "\n".join(f"- {n}: {p * c:.2f}" for n, p, c in lines)),
        (
            "Return number, date and total as JSON.",
            f'{{"number": {number}, "date": "{date}", "total": {(net + tax) / 100:.2f}}}',
        ),
    ]
    return _row([encode(page, f"invoice_{number}", "PNG", colours=12)], turns[: 1 + (i + 1) % 4])


def _receipt_row(i: int) -> dict:
    draw = random.Random(900 + i)
    bought = [(name, price, draw.choice((1, 1, 1, 2, 3))) for name, price in draw.sample(GROCERIES, 5 + i)]
    cents = sum(round(price * 100) * count for _, price, count in bought)
    page = Image.new("L", (360, 330 + 34 * len(bought)), 250)
    pen, mono = ImageDraw.Draw(page), _font(17, "DejaVuSansMono")
    pen.text((180, 30), "CORNER SHOP", font=_font(26, "DejaVuSansMono-Bold"), fill=10, anchor="mm")
    pen.text((180, 62), STREETS[i], font=mono, fill=30, anchor="mm")
    y = 105
    for name, price, count in bought:
        pen.text((20, y), (f"{count}x " if count > 1 else "") + name, font=mono, fill=20)
        pen.text((340, y), f"{price * count:.2f}", font=mono, fill=20, anchor="ra")
        y += 34
    pen.line((20, y + 4, 340, y + 4), fill=60)
    pen.text((20, y + 18), "TOTAL", font=_font(22, "DejaVuSansMono-Bold"), fill=0)
    pen.text((340, y + 18), f"{cents / 100:.2f}", font=_font(22, "DejaVuSansMono-Bold"), fill=0, anchor="ra")
    pen.text((180, y + 90), f"2024-05-{11 + i}  17:{20 + i}", font=mono, fill=40, anchor="mm")
    pen.text((180, y + 130), "THANK YOU", font=mono, fill=40, anchor="mm")
    # Photographed rather than scanned: a little turned, grey around it.
    page = page.rotate((-3, 2, 0, 4, -1)[i], Image.Resampling.BICUBIC, expand=True, fillcolor=150)
    dearest = max(bought, key=lambda item: item[1] * item[2])
    turns = [
        ("How much was paid?", f"{cents / 100:.2f}."),
        ("On which day?", f"On 2024-05-{11 + i}."),
        ("What cost the most?", f"{dearest[0]}, {dearest[1] * dearest[2]:.2f}."),
        ("How many different things were bought?", f"{len(bought)}."),
        ("Was soap among them?", "Yes." if any(name == "Soap" for name, _, _ in bought) else "No."),
    ]
    orientation = 6 if i == 3 else 0
    image = encode(page, f"receipt_{i}", "JPEG", quality=55, orientation=orientation)
    return _row([image], turns[: 2 + i % 4])


def _timetable_row(i: int) -> dict:
    draw = random.Random(1000 + i)
    stops, step = STOPS[: 5 + i], [draw.randint(3, 9) for _ in range(4 + i)]
    starts = [(6 * 60 + 10 + 17 * i) + k * 45 for k in range(6 + i)]
    times = [[start + sum(step[:s]) for start in starts] for s in range(len(stops))]
    clock = [[f"{t // 60:02d}:{t % 60:02d}" for t in line] for line in times]
    page = Image.new("RGB", (180 + 90 * len(starts), 110 + 46 * len(stops)), "white")
    pen = ImageDraw.Draw(page)
    pen.rectangle((0, 0, page.width, 60), fill=("#003f5c", "#bc5090", "#2f7d32", "#c75b12")[i])
    pen.text((20, 14), f"Tram line {i + 3}   Monday to Friday", font=_font(26, "DejaVuSans-Bold"), fill="white")
    for s, (stop, line) in enumerate(zip(stops, clock, strict=True)):
        y = 80 + 46 * s
        if s % 2:
            pen.rectangle((0, y - 8, page.width, y + 38), fill="#f0f3f6")
        pen.text((20, y), stop, font=_font(20, "DejaVuSans-Bold"), fill="black")
        for k, time in enumerate(line):
            pen.text((180 + 90 * k, y), time, font=_font(20), fill="black")
    turns = [
        (f"When does the first tram leave {stops[0]}?", f"At {clock[0][0]}."),
        (f"When does it reach {stops[-1]}?", f"At {clock[-1][0]}, {sum(step)} minutes later."),
        (
            f"I have to be at {stops[2]} by {clock[2][3]}. Which tram do I take from {stops[0]}?",
            f"The one at {clock[0][3]}.",
        ),
        (
            "Copy the timetable.",
            "\n".join(f"{stop}: {' '.join(line)}" for stop, line in zip(stops, clock, strict=True)),
        ),
    ]
    return _row([encode(page, f"timetable_{i}", ("PNG", "WEBP", "PNG", "PNG")[i], colours=10)], turns[: 2 + i % 3])


def _flow_row(i: int) -> dict:
    steps = STEPS[: 4 + i]
    across = i % 2 == 0
    size = (60 + 210 * len(steps), 180) if across else (190, 40 + 110 * len(steps))
    page = Image.new("RGB", size, "#fffdf5")
    pen, font = ImageDraw.Draw(page), _font(17)
    for k, step in enumerate(steps):
        x, y = (30 + 210 * k, 60) if across else (12, 30 + 110 * k)
        pen.rounded_rectangle((x, y, x + 165, y + 60), 12, outline="#225588", width=3, fill="#dbe9f6")
        pen.text((x + 82, y + 30), step, font=font, fill="black", anchor="mm")
        if k + 1 < len(steps):
            x, y = (x + 165, y + 30) if across else (x + 82, y + 60)
            end = (x + 45, y) if across else (x, y + 50)
            pen.line((x, y, *end), fill="#225588", width=3)
            left, right = ((-10, -7), (-10, 7)) if across else ((-7, -10), (7, -10))
            pen.polygon([end, *((end[0] + a, end[1] + b) for a, b in (left, right))], fill="#225588")
    turns = [
        ("How many steps has the process?", f"{len(steps)}."),
        (f"What comes after “{steps[1]}”?", f"“{steps[2]}”."),
        (
            "Describe the process in one sentence.",
            f"First {steps[0].lower()}, then {', then '.join(s.lower() for s in steps[1:])}.",
        ),
    ]
    return _row([encode(page, f"flow_{i}", "PNG", colours=12)], turns)


def _notice_row(i: int) -> dict:
    title = ("LOST CAT", "POOL CLOSED", "CHOIR SEEKS VOICES")[i]
    lines = (
        ["Grey, white paws, answers to Momo.", "Last seen near Mill Lane 4.", "Please call 555 0142."],
        ["For repairs, 3 to 17 June.", "Season tickets are extended by two weeks.", "We ask for your patience."],
        ["Sopranos and tenors welcome!", "Thursdays, 19:30, in the school hall.", "No audition."],
    )[i]
    page = Image.new("RGB", ((600, 800), (420, 300), (794, 1123))[i], ("#ffe97a", "#bfe3ff", "#ffffff")[i])
    pen, width = ImageDraw.Draw(page), page.width
    pen.text(
        (width // 2, page.height // 5), title, font=_font(width // 14, "DejaVuSans-Bold"), fill="#222222", anchor="mm"
    )
    for k, line in enumerate(lines):
        y = page.height // 2 + k * width // 12
        pen.text((width // 2, y), line, font=_font(width // 28), fill="#222222", anchor="mm")
    turns = [("What does the notice say?", f"{title.capitalize()}. {' '.join(lines)}"), ("What is its title?", title)]
    return _row([encode(page, f"notice_{i}", "PNG", colours=8)], turns)
