"""Lines of progress where there is no terminal."""

from bert_pipeline import progress
from bert_pipeline.progress import Progress


def test_lines_have_the_mean_rate_and_the_time_left(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with Progress("pages") as shown:
        for second in range(31):
            now = float(second)
            shown.show(1000 + 40 * second, None if second < 15 else 4000)
    assert capsys.readouterr().err.splitlines() == [
        "1,400 pages, 40.0 pages/s",
        "1,800 of 4,000 pages, 40.0 pages/s, 55 s left",
        "2,200 of 4,000 pages, 40.0 pages/s, 45 s left",
    ]


def test_lines_for_a_log_are_not_printed(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_INTERVAL_SECONDS", -1.0)
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    lines: list[str] = []
    Progress("pages", lines.append).show(7, 9, rate=1.0)
    assert lines == ["7 of 9 pages, 1.0 pages/s, 2 s left"]
    assert capsys.readouterr().err == ""
