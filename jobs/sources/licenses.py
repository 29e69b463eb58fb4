"""Licences by the names that the Hub takes.

The `license` of a card must be one of the identifiers below, or a list of them, or the Hub refuses the card. Anything
else is `other`, with its own name in `license_name`. The identifiers are those that the Hub's refusal lists, as of May
2026, and https://huggingface.co/docs/hub/repositories-licenses. A newer one becomes `other` under its name: a job must
not fail at its end for a word in a card.
"""

import re
from collections.abc import Iterable

__all__ = ["ACCEPTED", "front_matter", "listed"]

_OTHER = "other"
_ACCEPTED = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0
lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl
openmdw-1.0 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license
fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 grok2-community gemma unknown
other
"""
ACCEPTED = frozenset(_ACCEPTED.split())


def front_matter(names: Iterable[str]) -> dict[str, str | list[str]]:
    """`license` of a card, and `license_name` where one of the names is not the Hub's; {} of no names.

    `A AND B` is both: front_matter(["CC-BY-2.0 AND public-domain"]) is
    {"license": ["cc-by-2.0", "other"], "license_name": "public-domain"}.
    """
    parts = sorted({part.lower() for name in names for part in re.split(r"\s+and\s+", name.strip(), flags=re.I)} - {""})
    known = sorted({part if part in ACCEPTED else _OTHER for part in parts})
    others = [re.sub(r"[^a-z0-9.]+", "-", part).strip("-.") for part in parts if part not in ACCEPTED]
    found: dict[str, str | list[str]] = {"license": known[0] if len(known) == 1 else known} if known else {}
    if any(others):
        found["license_name"] = "-and-".join(dict.fromkeys(filter(None, others)))
    return found


def listed(front: dict) -> list[str]:
    """The licences in a card's front matter; `other` by its own name where it has one."""
    value = front.get("license") or []
    names = [str(name) for name in (value if isinstance(value, list) else [value])]
    return [str(front["license_name"]) if name == _OTHER and front.get("license_name") else name for name in names]
