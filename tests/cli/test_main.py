"""Exit codes, help, terminals, signals: the command line as a shell sees it."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.cli.arguments import format_moment
from headrace.cli.main import COMMANDS, app

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess

COMMAND = [sys.executable, "-c", "from headrace.cli.main import main; main()"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["stream", "--help"], 0),
        (["version"], 0),
        (["stream", "read"], 2),
        (["stream", "read", "x", "--bogus"], 2),
        (["nonsense"], 2),
        (["stream", "ls", "--url", "not-a-url"], 2),
        (["serve", "--port", "many"], 2),
        (["stream", "ls", "--url", "http://127.0.0.1:1"], 4),
    ],
)
def test_exit_code_tells_how_it_went(headrace: Headrace, words: list[str], code: int) -> None:
    done = headrace(*words)
    assert done.code == code
    assert bool(done.err) == (code != 0)
    assert bool(done.out) == (code == 0)


def test_help_names_every_command(headrace: Headrace) -> None:
    shown = headrace("--help").out.decode()
    for commands in COMMANDS.values():
        assert [command.name for command in commands if f" {command.name} " not in shown] == []


def test_every_command_has_examples_that_can_be_run() -> None:
    nouns = [command for commands in COMMANDS.values() for command in commands]
    endings = {command.name: app[command.name].help_epilogue or "" for command in nouns}
    for name, ending in {**endings, "headrace": app.help_epilogue or ""}.items():
        lines = [line for line in ending.splitlines() if "headrace " in line]
        assert lines, name
        for line in lines:
            words = shlex.split(line.partition("headrace ")[2])
            app.parse_args(words, print_error=False, exit_on_error=False)


def test_version_is_a_flag_too(headrace: Headrace) -> None:
    (told,) = headrace("version").lines
    assert headrace("--version").out.decode().startswith(f"headrace {told['headrace']} ")


def test_help_shows_no_default_where_nothing_is_chosen(headrace: Headrace) -> None:
    shown = headrace("search", "--help").out.decode()
    assert "[default: 50]" in shown
    assert "False" not in shown


def test_a_missing_stream_is_named(at: ServerProcess, headrace: Headrace, name: str) -> None:
    assert f"there is no such stream: {name}\n" in headrace("stream", "read", name).err
    assert "headrace stream ls" in headrace("stream", "info", name).err


def test_what_waiting_does_not_mend_has_no_hint_to_wait(at: ServerProcess, headrace: Headrace, tmp_path: Path) -> None:
    where = ["--data-dir", str(tmp_path / "data")]
    done = headrace("recover", "--from", str(tmp_path / "nowhere"), *where)
    assert done.code == 1
    assert done.err == f"headrace: there is no object store in {tmp_path / 'nowhere'}\n"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("2026-11-15", "2026-11-15T00:00:00+00:00"),
        ("2026-11-15T10:30", "2026-11-15T10:30:00+00:00"),
        ("2026-11-15T10:30:00+02:00", "2026-11-15T10:30:00+02:00"),
        ("1794819489312000000", "1794819489312000000"),
        ("yesterday", "yesterday"),
        (None, None),
    ],
)
def test_a_date_is_a_moment(given: str | None, meant: str | None) -> None:
    assert format_moment(given) == meant


def test_interrupted_tail_ends_with_130(at: ServerProcess, headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    headrace("stream", "append", name, "1")
    # A shell's background jobs ignore the interrupt, and so would their children.
    listening = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); " + COMMAND[-1]
    words = [*COMMAND[:-1], listening, "stream", "tail", name, "--offset", "-1"]
    tail = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert tail.stdout is not None
    assert tail.stdout.readline() == b"1\n"
    tail.send_signal(signal.SIGINT)
    out, err = tail.communicate(timeout=20)
    assert tail.returncode == 130
    assert out == b""
    assert err == b""


def test_reader_may_stop_reading(at: ServerProcess, headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    headrace("stream", "append", name, stdin=b"".join(b'"%0900d"\n' % number for number in range(3000)))
    reading = subprocess.Popen([*COMMAND, "stream", "read", name], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert reading.stdout is not None
    assert reading.stderr is not None
    reading.stdout.readline()
    reading.stdout.close()
    assert reading.stderr.read() == b""
    reading.stderr.close()
    assert reading.wait(20) == 0


class Terminal:
    """A command whose standard streams are a terminal."""

    def __init__(self, words: list[str]) -> None:
        near, far = pty.openpty()
        environ = {**os.environ, "COLUMNS": "120", "TERM": "xterm", "NO_COLOR": "1"}
        self._process = subprocess.Popen([*COMMAND, *words], stdin=far, stdout=far, stderr=far, env=environ)
        os.close(far)
        self._end = near

    def say(self, text: str) -> None:
        os.write(self._end, text.encode())

    def shown(self) -> str:
        """Everything it printed until it ended."""
        seen = b""
        while True:
            try:
                piece = os.read(self._end, 65536)
            except OSError:
                break
            if not piece:
                break
            seen += piece
        return seen.decode().replace("\r\n", "\n")

    def ended(self) -> int:
        os.close(self._end)
        return self._process.wait(20)


@pytest.fixture
def terminal(at: ServerProcess) -> Iterator[Callable[..., Terminal]]:
    yield lambda *words: Terminal(list(words))


def test_people_are_told_that_there_is_nothing(terminal: Callable[..., Terminal], name: str) -> None:
    listing = terminal("stream", "ls", "--prefix", name)
    assert "There is nothing yet." in listing.shown()
    assert listing.ended() == 0


def test_names_stay_whole_in_narrow_tables(terminal: Callable[..., Terminal], headrace: Headrace, name: str) -> None:
    long = f"{name}/{'x' * 40}"
    headrace("stream", "create", long)
    listing = terminal("stream", "ls", "--prefix", name)
    assert long in listing.shown()
    assert listing.ended() == 0


def test_people_see_tables(terminal: Callable[..., Terminal], headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    listing = terminal("stream", "ls", "--prefix", name)
    shown = listing.shown()
    assert listing.ended() == 0
    assert "content type" in shown
    assert name in shown
    assert "{" not in shown
    one = terminal("stream", "info", name)
    assert f"name          {name}\n" in one.shown()
    assert one.ended() == 0


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1)])
def test_delete_asks_a_person(
    terminal: Callable[..., Terminal], headrace: Headrace, name: str, answer: str, code: int
) -> None:
    headrace("stream", "create", name)
    deleting = terminal("stream", "delete", name)
    deleting.say(answer)
    assert "[y/N]" in deleting.shown()
    assert deleting.ended() == code
    assert headrace("stream", "info", name).code == (1 if code == 0 else 0)


@pytest.mark.parametrize("verb", ["serve", "up"])
def test_server_runs_until_it_is_told_to_stop(headrace: Headrace, tmp_path: Path, name: str, verb: str) -> None:
    running = subprocess.Popen(
        [*COMMAND, verb, "--port", "0", "--data-dir", str(tmp_path / "data"), "--auto-tune=256"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert running.stderr is not None
    announced = next(line for line in running.stderr if "listens on" in line)
    url = announced.split("listens on ")[1].split()[0]
    assert headrace("stream", "create", name, "--url", url).code == 0
    running.send_signal(signal.SIGTERM)
    _, last_words = running.communicate(timeout=20)
    assert running.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in last_words
    assert (tmp_path / "data").is_dir()


def test_server_says_so_when_its_port_is_taken(at: ServerProcess, tmp_path: Path) -> None:
    port = at.url.rpartition(":")[2]
    words = ["serve", "--port", port, "--data-dir", str(tmp_path / "data")]
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "--port" in done.stderr


@pytest.mark.parametrize(
    ("words", "name"), [(["serve"], "keys.db"), (["key", "list"], "keys.db"), (["serve", "--port", "0"], "headrace.db")]
)
def test_a_damaged_file_is_told_in_one_line(headrace: Headrace, tmp_path: Path, words: list[str], name: str) -> None:
    (tmp_path / name).write_bytes(b"nonsense" * 1024)
    done = headrace(*words, "--data-dir", str(tmp_path))
    assert done.code == 1
    assert done.err.startswith(f"headrace: {tmp_path / name} is damaged, or not a database")
    assert done.err.count("\n") == 1


def test_a_directory_in_place_of_the_log_is_told_in_one_line(headrace: Headrace, tmp_path: Path) -> None:
    (tmp_path / "headrace.db").mkdir()
    done = headrace("serve", "--port", "0", "--data-dir", str(tmp_path))
    assert done.code == 1
    assert done.err.startswith(f"headrace: {tmp_path / 'headrace.db'} cannot be used")
    assert done.err.count("\n") == 1


def test_server_refuses_a_certificate_that_is_not_there(headrace: Headrace, tmp_path: Path) -> None:
    done = headrace("serve", "--tls-cert", str(tmp_path / "absent.pem"), "--data-dir", str(tmp_path))
    assert done.code == 2
    assert "absent.pem" in done.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script_that_knows_verbs_and_options(shell: str) -> None:
    done = subprocess.run([*COMMAND, "completion", shell], capture_output=True, text=True, check=True, timeout=60)
    assert all(word in done.stdout for word in ("tail", "routing-key", "completion"))


def test_bash_completes_a_verb() -> None:
    script = 'COMP_WORDS=(headrace stream ta); COMP_CWORD=2; eval "$1"; _headrace; echo "${COMPREPLY[@]}"'
    completion = subprocess.run(
        [*COMMAND, "completion", "bash"], capture_output=True, text=True, check=True, timeout=60
    )
    command = ["bash", "-c", script, "bash", completion.stdout]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip() == "tail"
