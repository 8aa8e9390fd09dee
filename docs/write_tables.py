"""Writes the tables of results in the documentation from the files under docs/results: `python docs/write_tables.py`."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").glob("*.md"))]


def bench_games(found: dict[str, Any]) -> str:
    lines = [
        "| game | parallel games | game steps/s | with final observations | × coin_game | × overcooked | compile s | memory MB |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in [*found["games"], *found["peers"]]:
        if row["parallel"] != 1024:
            continue
        ratios = [row.get(f"ratio_to_jaxmarl:{peer}", "") for peer in ("coin_game", "overcooked")]
        final = f"{row['with_final_observations']:,}" if "with_final_observations" in row else ""
        cells = [row["game"], row["parallel"], f"{row['game_steps_per_s']:,}", final, *ratios, row["compile_s"], row["memory_mb"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    machine = found["machine"]
    lines.append(
        f"\nPeak memory of the whole process, all games and sizes: {found['peak_memory_mb']:,} MB. "
        f"{machine['cores']} cores, Python {machine['python']}, jax {machine['jax']}."
    )
    return "\n".join(lines)


TABLES: dict[str, Callable[[Any], str]] = {"bench_games": bench_games}


def filled(page: str) -> str:
    """The page with every marked table written anew from its file."""

    def write(match: re.Match[str]) -> str:
        name = match.group(1)
        found = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))
        return f"<!-- table: {name} -->\n{TABLES[name](found)}\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end -->", write, page, flags=re.DOTALL)


def main() -> None:
    """Write the pages; with --check, only say whether they are up to date."""
    stale = [page for page in PAGES if filled(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")]
    if "--check" in sys.argv:
        sys.exit(f"not up to date: {', '.join(page.name for page in stale)}" if stale else 0)
    for page in stale:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
