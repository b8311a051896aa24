"""Which NATS subject a topic takes its messages from, and what a subject may look like.

Words between dots. `*` stands for any one word, `>` at the end for any one or more
(docs.nats.io, "Subject-Based Messaging").
"""

from __future__ import annotations

import re

SUBJECT = "quorate.nats.subject"
"""The topic's setting."""
SUBJECT_HEADER = "nats.subject"
"""Where the setting has wildcards, a record's header with the subject that the message was sent to."""
SUBJECT_CHARACTERS_MAX = 255

_WORD = re.compile(r"[!-~]+")


def why_bad_subject(subject: str) -> str:
    """In words; empty for a subject that can be subscribed to."""
    if not subject or len(subject) > SUBJECT_CHARACTERS_MAX:
        return f"a subject has 1 to {SUBJECT_CHARACTERS_MAX} characters"
    words = subject.split(".")
    if not all(map(_WORD.fullmatch, words)):
        return "a subject is words with dots between them, of visible ASCII characters"
    if any(("*" in word and word != "*") or (">" in word and word != ">") for word in words):
        return "* and > stand for whole words"
    if ">" in words[:-1]:
        return "> is the last word, if it is there"
    if words[0].startswith("$"):
        return "what begins with $ is the NATS server's own"
    return ""


def has_wildcard(subject: str) -> bool:
    return "*" in subject or subject.endswith(">")
