"""What a long-term store is given by deploy/prometheus/remote-write.yml: the recorded series, and of each rank only
what is recorded for weeks."""

import re

import yaml
from support.paths import REPOSITORY

FOLDER = REPOSITORY / "deploy" / "prometheus"
SHIPPED = yaml.safe_load((FOLDER / "remote-write.yml").read_text())
RECORDED = [
    rule["record"] for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]
]
(RELABEL,) = SHIPPED["remote_write"][0]["write_relabel_configs"]


def test_of_each_rank_only_what_is_recorded_for_weeks_is_kept() -> None:
    kept = {name for name in RECORDED if re.fullmatch(RELABEL["regex"], name)}
    assert "rank_phase:laggard_rank_phase_seconds:mean5m" in kept
    assert not {name for name in kept if name.startswith("rank:")}, "each 15 s, of each rank"
    assert {name for name in RECORDED if name.startswith(("job_id_user", "kind:"))} <= kept
    assert RELABEL["action"] == "keep" and not re.fullmatch(RELABEL["regex"], "laggard_rank_steps_total")
