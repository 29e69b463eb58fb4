"""The files of a commit: manifests, report, card, and what they must agree with."""
