"""The example that teaches environments runs and says what it promises."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "examples" / "01_env.py"


def test_the_example_runs(capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "problems: []"
    assert [line.split()[0] for line in lines[1:-1]] == [
        *("system", "user", "assistant", "tool", "assistant", "tool", "assistant"),
    ]
    assert lines[-2].split() == ["assistant", "Done."]
    assert lines[-1] == "ordering blindly: reward 0, success False"
    assert len(EXAMPLE.read_text().splitlines()) <= 100
