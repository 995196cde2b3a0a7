"""Where things live: what the import contracts say, and that they leave nothing out."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import grimp

ROOT = Path(__file__).parent.parent
CONTRACTS: dict[str, dict[str, Any]] = {
    contract["name"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
}
PURITY = "Pure files touch no socket, thread, clock or file"


def test_every_file_without_input_and_output_is_kept_so_by_the_contract() -> None:
    packages = ("ack_modes", "broker_adapter", "sdk", "spark_connector")
    graph = grimp.build_graph(*packages, include_external_packages=True)
    impure = set(CONTRACTS[PURITY]["forbidden_modules"])
    named = set(CONTRACTS[PURITY]["source_modules"])
    pure = {
        module
        for module in graph.modules
        if module.split(".")[0] in packages
        and not graph.find_children(module)
        and not {each.split(".")[0] for each in graph.find_upstream_modules(module)} & impure
    }
    inside = {module for module in pure if any(module.startswith(f"{each}.") for each in named)}
    assert sorted(pure - named - inside) == []


def test_every_file_of_a_package_has_its_floor() -> None:
    inside = [contract for name, contract in CONTRACTS.items() if name.startswith("Inside ")]
    assert len(inside) == 14
    assert all(contract["exhaustive"] for contract in inside)
