"""Prometheus' text format, read as strictly as its description has it: whatever is doubtful is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
HELP = re.compile(rf"# HELP ({NAME}) (\S.*)")
TYPE = re.compile(rf"# TYPE ({NAME}) (counter|gauge|histogram)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
OF_HISTOGRAMS = ("_bucket", "_sum", "_count")

Labels = tuple[tuple[str, str], ...]


class Exposition:
    """All samples of a page."""

    def __init__(self, text: str) -> None:
        assert text.endswith("\n")
        self.kinds: dict[str, str] = {}
        self.samples: dict[tuple[str, Labels], float] = {}
        family = ""
        lines = text.removesuffix("\n").split("\n")
        for before, line in zip(["", *lines], lines, strict=False):
            if found := HELP.fullmatch(line):
                assert found[1] not in self.kinds, f"{found[1]} is there twice"
                continue
            if found := TYPE.fullmatch(line):
                family = found[1]
                assert HELP.fullmatch(before)[1] == family, line  # type: ignore[index]
                self.kinds[family] = found[2]
                assert (found[2] == "counter") == family.endswith("_total"), line
                continue
            self._take(family, line)
        for name, kind in self.kinds.items():
            if kind == "histogram":
                self._expect_histogram(name)

    def _take(self, family: str, line: str) -> None:
        found = SAMPLE.fullmatch(line)
        assert found is not None, line
        name, inside, value = found[1], found[2] or "", float(found[3])
        suffix = name.removeprefix(family)
        assert suffix in (OF_HISTOGRAMS if self.kinds[family] == "histogram" else ("",)), line
        labels = tuple((each[1], each[2]) for each in LABEL.finditer(inside))
        assert ",".join(f'{key}="{label}"' for key, label in labels) == inside, line
        assert len(dict(labels)) == len(labels), line
        assert (name, labels) not in self.samples, f"{line} is there twice"
        assert self.kinds[family] == "gauge" or value >= 0, line
        self.samples[name, labels] = value

    def _expect_histogram(self, name: str) -> None:
        for (counted, labels), count in self.samples.items():
            if counted != f"{name}_count":
                continue
            assert (f"{name}_sum", labels) in self.samples
            buckets = [
                (float(dict(other)["le"]), value)
                for (sample, other), value in self.samples.items()
                if sample == f"{name}_bucket" and other[:-1] == labels
            ]
            assert buckets == sorted(buckets), name
            assert [value for _, value in buckets] == sorted(value for _, value in buckets), name
            assert buckets[-1] == (float("inf"), count), name

    def value(self, name: str, /, **labels: str) -> float:
        return self.samples[name, tuple(labels.items())]

    def by(self, name: str) -> Mapping[Labels, float]:
        """All samples of that name."""
        return {labels: value for (sample, labels), value in self.samples.items() if sample == name}
