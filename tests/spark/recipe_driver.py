"""A driver with jars of its own, which a session that runs already cannot take: `test_recipes` runs it.

On its input, as JSON, are a recipe, names for it, where `events` are to be read and which jars it needs. It prints
`opened`, which the recipe makes of them, one row a line.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from quorate.spark.session import local_session


def main() -> None:
    given: dict[str, Any] = json.load(sys.stdin)
    with local_session("recipe", master="local[1]", settings={"spark.jars": given["jars"]}) as spark:
        events = spark.read.format("quorate").options(**given["options"]).load()
        names: dict[str, Any] = {**given["names"], "events": events}
        exec(compile(given["recipe"], "recipe", "exec"), names)
        for row in names["opened"].collect():
            print(json.dumps(row.asDict(recursive=True)))


if __name__ == "__main__":
    main()
