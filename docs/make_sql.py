"""Writes dashboards/sql: the tables, views and quantities for DuckDB alone. ``python docs/make_sql.py``."""

from __future__ import annotations

from pathlib import Path

from probe.dashboards import plain_sql

FOLDER = Path(__file__).resolve().parents[1] / "dashboards" / "sql"

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in plain_sql.texts().items():
        (FOLDER / f"{name}.sql").write_text(text, encoding="utf-8")
