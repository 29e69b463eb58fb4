"""The table of results is made of what the benches print."""

from tests.bench.table import table


def test_a_row_a_figure_and_nothing_else():
    lines = [
        "pip says something\n",
        '{"bench": "b", "metric": "m", "input": "i|j", "ours": 0.5, "peer": {"p": 1, "q": 2}, "unit": "u"}\n',
        '{"bench": "b", "metric": "n", "input": "i", "skipped": "no peer"}\n',
    ]
    assert list(table(lines))[2:] == [
        "| b | m | i/j | 0.5 | p: 1, q: 2 | u |",
        "| b | n | i | not measured: no peer |  |  |",
    ]
