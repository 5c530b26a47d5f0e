"""Releases in a cluster of processes: no request is lost while a model, its settings and every process are replaced."""

from measure_release import measure


def test_nothing_is_lost_while_everything_is_replaced():
    seen = measure(rate=40, steady_s=2)
    counts = seen["counts"]
    assert set(seen["phases"]) > {"a model is released", "its settings change", "backends are replaced"}
    assert counts.get("lost", 0) == counts.get("exchanged", 0) == counts.get("refused", 0) == 0, seen
    assert counts["good"] > 200, seen
