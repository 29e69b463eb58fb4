"""Short conversations without pictures, among them other scripts than Latin."""

TURNS = [
    [("What is 17 × 6?", "102.")],
    [("Convert 5 miles to kilometres.", "5 miles are about 8.05 km, since a mile is 1.609 km.")],
    [("How do you say “good morning” in Japanese?", "おはようございます (ohayō gozaimasu).")],
    [("Translate “The library is closed today.” into Greek.", "Η βιβλιοθήκη είναι κλειστή σήμερα.")],
    [
        ("Which is larger, 3/8 or 0.4?", "0.4, because 3/8 = 0.375."),
        ("By how much?", "By 0.025."),
        ("As a percentage of 3/8?", "0.025 / 0.375 ≈ 6.7 %."),
    ],
    [
        ("Name three uses of baking soda.", "Baking, cleaning, and taking smells out of a refrigerator."),
        ("Thanks! 👍", "You're welcome! 😊"),
    ],
    [
        (
            "Explain why the sky is blue, in three sentences.",
            "Sunlight holds all colours. Molecules of the air scatter short, blue waves far more strongly than long, "
            "red ones. So blue light reaches our eyes from every part of the sky.",
        )
    ],
    [
        (
            "Rewrite politely: “Send me the file now.”",
            "Could you please send me the file as soon as you have a moment?",
        )
    ],
]


def written_rows() -> list[dict]:
    """One text-only row for each conversation of `TURNS`."""
    return [
        {
            "images": [],
            "texts": [{"user": user, "assistant": assistant} for user, assistant in turns],
            "source": "written_text",
            "license": "Apache-2.0",
        }
        for turns in TURNS
    ]
