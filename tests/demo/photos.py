"""Photographs whose makers gave them away, cropped, scaled and re-encoded, each with its own conversation.

The originals come with the wheels of scikit-image (`skimage/data`) and scikit-learn (`sklearn/datasets/images`);
put the files named in `LICENSES` into one folder. Who made which is in `jobs/demo/README.md`.
"""

from pathlib import Path

from PIL import Image

from tests.demo.encoded import encode

SOURCE = "open_photos"
LICENSES = {
    "astronaut.png": "public-domain",
    "brick.png": "CC0-1.0",
    "camera.png": "CC0-1.0",
    "cell.png": "CC0-1.0",
    "chelsea.png": "CC0-1.0",
    "china.jpg": "CC-BY-2.0",
    "clock_motion.png": "public-domain",
    "coffee.png": "CC0-1.0",
    "flower.jpg": "CC-BY-2.0",
    "grass.png": "CC0-1.0",
    "gravel.png": "CC0-1.0",
    "horse.png": "CC0-1.0",
    "hubble_deep_field.jpg": "public-domain",
    "retina.jpg": "CC0-1.0",
    "rocket.jpg": "public-domain",
}

# View: file, crop box or None, longest side, format, EXIF orientation or 0. Row: views, then turns.
Q = "What does this photo show?"
ROWS = [
    (
        [("astronaut.png", None, 512, "JPEG", 0)],
        [
            (Q, "A smiling astronaut in an orange pressure suit, with her helmet on the table in front of her."),
            (
                "What is behind her?",
                "The flag of the United States on the left and a model of a space shuttle on the right.",
            ),
            (
                "Is this a snapshot or a posed portrait?",
                "A posed portrait: the light is even, and she faces the camera.",
            ),
        ],
    ),
    (
        [("astronaut.png", (150, 0, 320, 200), 200, "JPEG", 6)],
        [("Describe the person's expression.", "She smiles broadly and looks straight into the camera.")],
    ),
    (
        [("astronaut.png", (330, 0, 512, 210), 210, "WEBP", 0)],
        [("Which spacecraft is the model of?", "A space shuttle standing upright with its orange external tank.")],
    ),
    (
        [("camera.png", None, 512, "JPEG", 0)],
        [
            ("Is this picture in colour?", "No, it is black and white."),
            ("What is the man doing?", "He looks through a camera that stands on a tripod."),
            ("Where was it taken?", "On a lawn in a city: high buildings and trees stand on the horizon."),
        ],
    ),
    (
        [("camera.png", (40, 40, 330, 320), 290, "PNG", 0)],
        [
            ("What is he wearing?", "A dark coat."),
            ("Which way does he look?", "To the right, into the camera's viewfinder."),
        ],
    ),
    (
        [("chelsea.png", None, 451, "JPEG", 0)],
        [
            (Q, "The face of a ginger tabby cat, seen from close by."),
            ("What colour are its eyes?", "Green-yellow, with dark pupils."),
            ("Does it look at the camera?", "Not quite; it looks past it, to the right."),
            ("Is the background sharp?", "No, the background is out of focus."),
        ],
    ),
    (
        [("chelsea.png", (150, 20, 420, 200), 270, "WEBP", 0)],
        [
            (
                "Which animal is this, and how can you tell?",
                "A cat: vertical pupils, a small pink-brown nose and long whiskers.",
            )
        ],
    ),
    (
        [("chelsea.png", None, 360, "JPEG", 6)],
        [("Is the picture the right way up?", "Yes. The cat's ears are at the top and its chin at the bottom.")],
    ),
    (
        [("coffee.png", None, 600, "JPEG", 0)],
        [
            (Q, "An espresso in a red cup on a red saucer, on a wooden table."),
            ("What lies on the saucer?", "A small metal spoon."),
            ("Is the cup full?", "Nearly: the coffee comes to a little below the rim."),
        ],
    ),
    (
        [("coffee.png", (140, 10, 440, 250), 240, "JPEG", 6)],
        [("What drink is this?", "Coffee with a thin crema, most likely an espresso.")],
    ),
    (
        [("rocket.jpg", None, 640, "JPEG", 0)],
        [
            (Q, "A white rocket on its launch pad at dusk, lit by floodlights."),
            (
                "What are the towers around it for?",
                "They are lightning towers; they draw strikes away from the rocket.",
            ),
            ("How many rockets are there?", "One."),
        ],
    ),
    (
        [("rocket.jpg", (200, 60, 420, 427), 367, "WEBP", 0)],
        [("Has the rocket lifted off?", "No, it still stands on the pad and there is no flame.")],
    ),
    (
        [("china.jpg", None, 640, "JPEG", 0)],
        [
            (
                "Describe the building.",
                "An octagonal pagoda of several storeys with green and yellow tiled roofs that curve upwards.",
            ),
            ("What lies behind it?", "A wide lake under a hazy sky."),
            ("In which style is it built?", "In the traditional Chinese style."),
            ("What time of day might it be?", "Daytime; the light is clear and comes from the front."),
        ],
    ),
    (
        [("china.jpg", (180, 20, 470, 340), 320, "JPEG", 0)],
        [("What is at the very top of the building?", "A rounded finial in the colour of gold.")],
    ),
    ([("china.jpg", (0, 300, 640, 427), 640, "JPEG", 0)], [("What grows in front?", "Bushes and trees, dark green.")]),
    (
        [("flower.jpg", None, 640, "JPEG", 0)],
        [
            (Q, "An orange dahlia in full bloom before dark green leaves."),
            ("Is there a second flower?", "Yes, part of another one is at the bottom edge."),
        ],
    ),
    (
        [("flower.jpg", (150, 40, 470, 350), 160, "JPEG", 0)],
        [("Which colour is the flower?", "Orange, darker towards its centre.")],
    ),
    (
        [("hubble_deep_field.jpg", (100, 100, 900, 700), 640, "JPEG", 0)],
        [
            (
                "What are the bright spots?",
                "Galaxies, seen by the Hubble Space Telescope; a few with spikes are stars of our own.",
            ),
            (
                "Why do they differ in colour?",
                "Older and more distant galaxies look redder, young ones with hot stars bluer.",
            ),
        ],
    ),
    (
        [("hubble_deep_field.jpg", (0, 400, 1000, 610), 1000, "WEBP", 0)],
        [("Can you count the galaxies?", "Not by eye: there are hundreds, many only a few pixels wide.")],
    ),
    (
        [("retina.jpg", None, 720, "JPEG", 0)],
        [
            ("What kind of picture is this?", "A fundus photograph: the inside of the back of an eye."),
            ("What is the bright disc on the left?", "The optic disc, where nerve and blood vessels enter the eye."),
            ("And the dark spot in the middle?", "The macula, with the fovea at its centre."),
        ],
    ),
    (
        [("cell.png", None, 330, "PNG", 0)],
        [("What is seen?", "One bright round cell on a grey background with faint interference bands.")],
    ),
    (
        [("clock_motion.png", None, 400, "JPEG", 0)],
        [
            (
                "Why is this hard to recognise?",
                "The camera moved sideways during the exposure, so that everything is smeared.",
            ),
            ("What might it be?", "A round wall clock."),
        ],
    ),
    (
        [("horse.png", None, 400, "PNG", 0)],
        [("Name the animal.", "A horse, as a black silhouette."), ("Which way does it face?", "To the right.")],
    ),
    (
        [("brick.png", (0, 0, 256, 256), 256, "JPEG", 0), ("grass.png", (0, 0, 256, 256), 256, "JPEG", 0)],
        [
            ("What are these two surfaces?", "The first is brickwork, the second is grass."),
            ("Which one is regular?", "The brickwork; the grass has no pattern."),
        ],
    ),
    (
        [
            ("gravel.png", (0, 0, 200, 200), 200, "JPEG", 0),
            ("grass.png", (200, 200, 400, 400), 200, "WEBP", 0),
            ("brick.png", (200, 0, 400, 200), 200, "JPEG", 0),
        ],
        [("Which of the three pictures shows loose stones?", "The first; it shows gravel.")],
    ),
    (
        [("coffee.png", None, 300, "JPEG", 0), ("flower.jpg", None, 300, "JPEG", 0)],
        [
            (
                "What do the two pictures have in common?",
                "One round thing fills the middle of each: a red cup, and an orange flower.",
            ),
            ("Which was taken outdoors?", "The second one."),
        ],
    ),
    (
        [
            ("chelsea.png", None, 240, "JPEG", 0),
            ("horse.png", None, 200, "PNG", 0),
            ("rocket.jpg", None, 240, "JPEG", 6),
            ("china.jpg", None, 240, "WEBP", 0),
        ],
        [
            ("Which pictures show animals?", "The first, a cat, and the second, a horse."),
            ("Which of them are buildings or machines?", "The third is a rocket on its pad and the fourth a pagoda."),
        ],
    ),
]


def photo_rows(folder: Path) -> list[dict]:
    """Rows of `ROWS`; `folder` holds the files that `LICENSES` names. A row's licence lists those of its pictures."""
    rows = []
    for number, (views, turns) in enumerate(ROWS):
        images = [_view(Path(folder), f"{number:02d}{'abcd'[i]}", *view) for i, view in enumerate(views)]
        rows.append(
            {
                "images": images,
                "texts": [{"user": user, "assistant": assistant} for user, assistant in turns],
                "source": SOURCE,
                "license": " AND ".join(sorted({LICENSES[view[0]] for view in views})),
            }
        )
    return rows


def _view(folder: Path, number: str, file: str, box: tuple | None, longest: int, kind: str, orientation: int) -> dict:
    image = Image.open(folder / file)
    image = image.convert("RGB" if image.mode not in ("L", "1") else "L").crop(box)
    image.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    return encode(image, f"{Path(file).stem}_{number}", kind, quality=62, orientation=orientation)
