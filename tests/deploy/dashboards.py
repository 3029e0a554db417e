"""Makes Grafana's dashboards in deploy/chart/files/dashboards from deploy/dashboards.toml, or checks that they are current:

    dashboards.py [--regenerate]
"""

import argparse
import json
import tomllib

from compose import ROOT

DESCRIPTION, FOLDER = ROOT / "deploy/dashboards.toml", ROOT / "deploy/chart/files/dashboards"
WIDTH, HEIGHT, COLUMNS = 12, 8, 2
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def panel(number: int, described: dict) -> dict:
    targets = [
        {"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": query, "legendFormat": legend}
        for place, (legend, query) in enumerate(described["queries"].items())
    ]
    # The description of a panel states whether the panel is empty in a healthy fleet.
    note = " Usually empty." if described.get("usually_empty") else ""
    defaults = {"unit": described["unit"]} | ({} if described.get("may_be_negative") else {"min": 0})
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": described["title"],
        "description": described["meaning"] + note,
        "datasource": SOURCE,
        "gridPos": {"x": number % COLUMNS * WIDTH, "y": number // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def board(name: str, described: dict) -> dict:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return {
        "uid": f"kvasir-{name}",
        "title": described["title"],
        "tags": ["kvasir"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source]},
        "panels": [panel(number, at) for number, at in enumerate(described["panel"])],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--regenerate", action="store_true")
    options = parser.parse_args()
    boards = tomllib.loads(DESCRIPTION.read_text())
    made = {FOLDER / f"{name}.json": json.dumps(board(name, at), indent=1) + "\n" for name, at in boards.items()}
    if options.regenerate:
        FOLDER.mkdir(exist_ok=True)
        for file in set(FOLDER.glob("*.json")) - set(made):
            file.unlink()
        for file, text in made.items():
            file.write_text(text)
    present = {file: file.read_text() for file in FOLDER.glob("*.json")}
    assert present == made, "deploy/chart/files/dashboards differs from deploy/dashboards.toml: run this with --regenerate"


if __name__ == "__main__":
    main()
