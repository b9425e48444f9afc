"""What `stepc completions` prints, in the shells that it is for."""

import subprocess

import pytest

BASH = """
source <({stepc} completions bash)
COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_stepc
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
# zsh's own functions, as far as the script uses them.
ZSH = """
compdef() {{}}; _files() {{ print FILES }}; compset() {{}}
compadd() {{ while [[ $1 == -* && $1 != -- ]]; do [[ $1 == -S ]] && shift; shift; done; shift; print -l -- $@ }}
source <({stepc} completions zsh)
words=({words}) CURRENT=$#words
_stepc
"""


@pytest.fixture
def complete(build_dir):
    def run(shell, line):
        """What may follow the line, whose last word may have begun."""
        words = line.split(" ")
        if shell == "bash" and "=" in words[-1]:  # as bash cuts it
            words[-1:] = words[-1].replace("=", " = ").split(" ")
        quoted = " ".join(f"'{word}'" for word in words)
        script = (BASH if shell == "bash" else ZSH).format(stepc=build_dir / "src/stepc", words=quoted)
        command = [shell, "--norc", "-c"] if shell == "bash" else [shell, "-f", "-c"]
        done = subprocess.run([*command, script], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        last = words[-1].split("=")[-1]
        return {word for word in done.stdout.split() if word.startswith(last)}

    return run


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize("line, expected", [
    ("stepc tr", {"train"}),
    ("stepc data t", {"tokenize"}),
    ("stepc data tokenize --thr", {"--threads"}),
    ("stepc train run.toml --resu", {"--resume"}),
    ("stepc train run.toml --prof", {"--profile"}),
    ("stepc train run.toml --ran", {"--ranks"}),
    ("stepc train run.toml --optim.mom", {"--optim.momentum="}),
    ("stepc eval run.toml --resu", set()),
    ("stepc train run.toml --optim.name=a", {"adamw", "agd"}),
    ("stepc train run.toml --train.seed=1 --output.keep_best=t", {"true"}),
    ("stepc init --pre", {"--preset"}),
])
def test_what_follows(complete, shell, line, expected):
    assert complete(shell, line) == expected


def test_an_unknown_shell_is_refused(stepc):
    result = stepc("completions", "fish")
    assert result.returncode == 2 and result.stderr.count("\n") == 1 and "bash" in result.stderr


def test_config_wants_to_know_what(stepc):
    result = stepc("config")
    assert (result.returncode, result.stderr) == \
        (2, "stepc: give --defaults or --page; `stepc config --help` says more\n")
    defaults = stepc("config", "--defaults").stdout
    assert defaults.startswith("# Every key of run.toml")
    (stepc.path / "run.toml").write_text(defaults)
    assert stepc("eval", "run.toml", "--data.seq_len=32", "--data.eval_windows=1").returncode == 0
