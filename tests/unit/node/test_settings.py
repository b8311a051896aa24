"""Settings from a file, from variables and from flags: who goes first, and what is said of a wrong one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from quorate.cli.run_node import told_by
from quorate.cli.wrong import WrongUsage
from quorate.node.config import BadConfig, NodeConfig, load_config, make_config
from quorate.node.settings import Given, from_environment, from_pair, from_text

EXAMPLE = Path(__file__).parents[3] / "docs" / "node.toml"
FILE = """
cluster = "c"
node = 1
directory = "data"
listen = "127.0.0.1:9092"
voters = [1, 2]
rack = "from the file"

[peers]
2 = "127.0.0.1:9093"

[raft]
election_timeout_s = 3
heartbeat_s = 0.5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def variables(**values: str) -> list[Given]:
    return from_environment({f"QUORATE_{name}": value for name, value in values.items()}, NodeConfig)


def flags(*pairs: str) -> list[Given]:
    return [one for pair in pairs for one in from_pair(pair, "--set", NodeConfig)]


# ---- who goes first ----


def test_a_flag_goes_before_a_variable_and_that_before_the_file(file: Path) -> None:
    told = load_config(file)
    assert (told.raft.election_timeout_s, told.raft.heartbeat_s, told.rack) == (3.0, 0.5, "from the file")
    others = variables(RAFT__ELECTION_TIMEOUT_S="4", RAFT__HEARTBEAT_S="0.25", RACK="b")
    told = load_config(file, others)
    assert (told.raft.election_timeout_s, told.raft.heartbeat_s, told.rack) == (4.0, 0.25, "b")
    told = load_config(file, [*others, *flags("raft.heartbeat_s=0.125")])
    assert (told.raft.election_timeout_s, told.raft.heartbeat_s, told.rack) == (4.0, 0.125, "b")


def test_the_command_line_is_put_together_in_that_order(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_RACK", "from a variable")
    monkeypatch.setenv("QUORATE_RAFT__PRIORITY", "5")
    monkeypatch.setenv("QUORATE_CONFIG", str(file))
    told = told_by(None, None, ["raft.priority=6"], {"listen": "127.0.0.1:1", "rack": None}, ["2=other:7"])
    assert told.rack == "from a variable"
    assert told.raft.priority == 6
    assert told.listen == "127.0.0.1:1"
    assert told.peers == {2: "other:7"}


def test_a_node_needs_no_file_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_CLUSTER", "c")
    monkeypatch.setenv("QUORATE_VOTERS", "1,2, 3")
    monkeypatch.setenv("QUORATE_PEERS", "2=two:9092,3=three:9092")
    told = told_by(
        None, None, [], {"node": "1", "directory": "data", "listen": "127.0.0.1:9092", "rack": None}, []
    )
    assert told.voters == (1, 2, 3)
    assert told.peers == {2: "two:9092", 3: "three:9092"}
    assert told.directory == "data"


def test_a_directory_is_relative_to_the_file_that_names_it_and_otherwise_to_where_one_is(file: Path) -> None:
    assert load_config(file).directory == str(file.parent / "data")
    assert load_config(file, flags("directory=data")).directory == "data"


def test_tables_of_several_places_are_put_together_and_lists_are_not(file: Path) -> None:
    told = load_config(file, variables(PEERS__3="127.0.0.1:9094", VOTERS="1,2,3"))
    assert told.peers == {2: "127.0.0.1:9093", 3: "127.0.0.1:9094"}
    assert told.voters == (1, 2, 3)
    assert load_config(file, variables(PEERS="", VOTERS="1")).peers == {}


def test_json_may_stand_for_a_list_or_a_table(file: Path) -> None:
    told = load_config(file, variables(VOTERS="[2, 1]", RAFT='{"heartbeat_s": 0.0625}'))
    assert told.voters == (2, 1)
    assert (told.raft.heartbeat_s, told.raft.election_timeout_s) == (0.0625, 3.0)


def test_texts_are_taken_for_what_a_setting_is(file: Path) -> None:
    told = load_config(file, flags("confirm.automatic=false", "rack=1", "store.journal_bytes=1048576"))
    assert told.confirm.automatic is False
    assert told.rack == "1"
    assert told.store.journal_bytes == 1 << 20


def test_variables_of_others_are_left_alone(file: Path) -> None:
    of_kubernetes = {
        "QUORATE_SERVICE_HOST": "10.0.0.1",
        "QUORATE_SERVICE_PORT": "9092",
        "QUORATE_SERVICE_PORT_KAFKA": "9092",
        "QUORATE_PORT": "tcp://10.0.0.1:9092",
        "QUORATE_PORT_9092_TCP_ADDR": "10.0.0.1",
        "QUORATE_NODES_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "QUORATE_BOOTSTRAP": "10.0.0.1:9092",
        "PATH": "/bin",
    }
    assert from_environment(of_kubernetes, NodeConfig) == []
    assert load_config(file, from_environment(of_kubernetes, NodeConfig)) == load_config(file)


# ---- what is wrong ----


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('raft = {heartbeat_s = "fast"}', "raft.heartbeat_s: expected float, got str"),
        ('raft = {heartbeat_s = "0.1"}', "raft.heartbeat_s: expected float, got str"),
        (
            "raft = {hartbeat_s = 0.1}",
            "raft.hartbeat_s: there is no such setting; did you mean raft.heartbeat_s?",
        ),
        ("raft = {x = 1}", "raft.x: there is no such setting; there are: election_timeout_s, heartbeat_s,"),
        ("heartbeat_s = 0.1", "heartbeat_s: there is no such setting; did you mean raft.heartbeat_s?"),
        ("raft = 3", "raft: expected a table, got int"),
        ("raft = {heartbeat_s = {a = 1}}", "raft.heartbeat_s: expected float, got object"),
        ("raft = {heartbeat_s = nan}", "raft.heartbeat_s: nan is no number to count with"),
        ("raft = {election_timeout_s = inf}", "raft.election_timeout_s: inf is no number to count with"),
        ("raft = {heartbeat_s = 9}", "raft: heartbeat_s must lie between 0 and election_timeout_s"),
        ("voters = [1, 'two']", "voters[1]: expected int, got str"),
        ("voters = 1", "voters: expected array, got int"),
        ("peers = {two = 'h:1'}", "peers: 'two' is no int, by which these are named"),
        ("peers = {2 = 'h'}", "peers.2: 'h' is not an address: write host:port"),
        ("http = '9192'", "http: '9192' is not an address: write host:port"),
        ("log_format = 'xml'", "log_format: 'xml' is unknown; there are: text, json"),
        ("rack = ' a'", "rack: at most 100 characters"),
        ("nats = 'x'", "nats: 'x' is no NATS server"),
        (
            "topics = [{id = 'x', partitions = 'y', voters = []}]",
            "topics[0].partitions: expected int, got str",
        ),
        ("topics = [{id = 'x'}]", "topics[0]: object missing required field partitions"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_file_and_key(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "node.toml"
    key = line.partition(" ")[0]
    kept = [each for each in FILE.split("\n\n")[0].splitlines() if not each.startswith(f"{key} ")]
    more = "" if key in ("peers", "voters") else "\npeers = {2 = '127.0.0.1:9093'}"
    if key == "voters":
        more = "\npeers = {2 = '127.0.0.1:9093'}"
    file.write_text("\n".join([*kept, line]) + more, encoding="utf-8")
    with pytest.raises(BadConfig) as refused:
        load_config(file)
    assert str(refused.value).startswith(f"{file}: {words}"), str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("QUORATE_RAFT__HEARTBEAT_S", "fast", "raft.heartbeat_s: expected float, got 'fast'"),
        (
            "QUORATE_RAFT__HARTBEAT_S",
            "1",
            "raft.hartbeat_s: there is no such setting; did you mean QUORATE_RAFT__HEARTBEAT_S?",
        ),
        ("QUORATE_LISTN", "h:1", "listn: there is no such setting; did you mean QUORATE_LISTEN?"),
        ("QUORATE_NODE", "one", "node: expected int, got 'one'"),
        ("QUORATE_NODE__X", "1", "node: there is nothing below this setting, and no 'x' either"),
        ("QUORATE_VOTERS", "1,two", "voters[1]: expected int, got str"),
        ("QUORATE_VOTERS", "[1,", "voters: "),
        (
            "QUORATE_PEERS",
            "127.0.0.1:9093",
            "peers: '127.0.0.1:9093' is no pair; write KEY=VALUE,KEY=VALUE, …",
        ),
        ("QUORATE_LISTEN", "nowhere", "listen: 'nowhere' is not an address: write host:port"),
        ("QUORATE_RAFT__HEARTBEAT_S", "9", "raft: heartbeat_s must lie between 0 and election_timeout_s"),
        ("QUORATE_RAFT", "fast", "raft: expected a table, got str"),
        ("QUORATE_ZZZ", "1", "zzz: there is no such setting; there are: cluster, node,"),
    ],
)
def test_what_is_wrong_in_a_variable_is_named_with_it(file: Path, name: str, value: str, words: str) -> None:
    with pytest.raises(BadConfig) as refused:
        load_config(file, from_environment({name: value}, NodeConfig))
    assert str(refused.value).startswith(f"{name}: {words}"), str(refused.value)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("raft.heartbeat_s=fast", "--set raft.heartbeat_s: expected float, got 'fast'"),
        (
            "raft.hartbeat_s=1",
            "--set raft.hartbeat_s: there is no such setting; did you mean raft.heartbeat_s?",
        ),
        ("raft", "--set: 'raft' is no setting; write KEY=VALUE, as in raft.heartbeat_s=0.1"),
        ("=1", "--set: '=1' is no setting"),
        ("listen=nowhere", "--set listen: 'nowhere' is not an address"),
    ],
)
def test_what_is_wrong_in_a_flag_is_named_with_it(file: Path, pair: str, words: str) -> None:
    with pytest.raises(BadConfig) as refused:
        load_config(file, flags(pair))
    assert str(refused.value).startswith(words), str(refused.value)


def test_a_flag_with_a_name_of_its_own_is_named_once(file: Path) -> None:
    with pytest.raises(WrongUsage, match=re.escape("--listen: 'nowhere' is not an address: write host:port")):
        told_by(None, file, [], {"listen": "nowhere"}, [])
    with pytest.raises(
        WrongUsage, match=re.escape("--peer: peers.2: 'x' is not an address: write host:port")
    ):
        told_by(None, file, [], {}, ["2=x"])


def test_what_nobody_said_is_named_with_the_ways_to_say_it(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(FILE.replace('cluster = "c"', ""), encoding="utf-8")
    missing = "cluster is missing; write it there, or say QUORATE_CLUSTER or --set cluster=VALUE"
    with pytest.raises(BadConfig, match=re.escape(f"{file}: {missing}")):
        load_config(file)
    with pytest.raises(
        BadConfig, match=re.escape("settings: node is missing; say QUORATE_NODE or --set node=")
    ):
        make_config(from_text(("cluster",), "c", "--cluster", NodeConfig))


def test_nothing_at_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUORATE_CONFIG", raising=False)
    with pytest.raises(
        WrongUsage, match="name a directory that `quorate format` made, or a file with --config"
    ):
        told_by(None, None, [], {}, [])


# ---- the example ----


def test_the_example_is_a_configuration() -> None:
    told = load_config(EXAMPLE)
    assert told.voters == (1, 2, 3)
    assert told.directory == str(EXAMPLE.parent / "data")


def test_what_the_example_calls_a_default_is_one_and_stands_where_it_belongs() -> None:
    table, defaults_count = "", 0
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        if found := re.match(r"\[(\w+)\]", line):
            table = found[1]
        elif found := re.match(r"# (\w+) = ([^#]+)", line):
            key, value = found[1], tomllib.loads(f"value = {found[2]}")["value"]
            fields = {each.name: each for each in msgspec.structs.fields(NodeConfig)}
            struct = fields[table].type if table else NodeConfig
            default = {each.name: each.default for each in msgspec.structs.fields(struct)}[key]
            assert value == default, f"{table}.{key}"
            defaults_count += 1
    assert defaults_count > 15
