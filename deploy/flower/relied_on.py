"""The one list of what is relied on inside Flower, beside its documented API.

Its documented API, which any module may use, is what flwr.app, flwr.clientapp (with `mod` and `typing`) and
flwr.serverapp (with `strategy`) export. All else that we import, replace, override or read is named here, with what
stops working without it. `python -m fairbloom.deploy.flower` compares the list with the Flower that is installed, and
counts it with `--count`. The columns of Flower's tables are in server/tables.py.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

User = Literal["library", "client", "server", "operator"]
"""Who needs a name: whatever runs on Flower; `fairbloom client`; `fairbloom server`; the operator's commands."""

INFLATABLE = "flwr.supercore.inflatable.inflatable_utils"
OBJECTS = "flwr.supercore.inflatable.inflatable_object"

STATE_FACTORY = "flwr.server.superlink.linkstate.linkstate_factory"
STORE_FACTORY = "flwr.supercore.object_store.object_store_factory"
SQL = "flwr.supercore.sql_mixin"
STATE = f"{STATE_FACTORY}:SqlLinkState"
FLEET = "flwr.superlink.servicer.fleet.fleet_handlers"

SERVERAPP = "flwr.superlink.cli.flwr_serverapp"
RUN_SERVERAPP = "flwr.superlink.runtime.run_serverapp"
HTTP_RETRY = "flwr.supercore.retry.http_retry"

CONTROL = "flwr.supercore.control:ControlHttpClient"
CONSTANTS = "flwr.common.constant"

FLEET_PROTOBUF = {f"flwr.proto:{name}_pb2": "" for name in ("fab", "fleet", "heartbeat", "message", "node", "run")}

CONNECTION_WORDS = (
    *("Connection attempt failed", "Giving up reconnection", "SSL/TLS handshake error detected"),
    "Connection successful",
)


@dataclass(frozen=True)
class Need:
    """Names inside Flower that one thing needs: module:attribute with parameters, or with a class's constants.

    A module of Protocol Buffers, which is made from the description of the wire format, is one name. `texts` has what
    is relied on in modules' source: options of commands, paths, words that are logged.
    """

    user: User
    without: str
    names: Mapping[str, str]
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


RELIED_ON = (
    Need(
        "library",
        "messages, rounds and runs of any kind",
        {
            f"{CONSTANTS}:ErrorCode": ("NODE_UNAVAILABLE INVALID_FAB CLIENT_APP_CRASHED CLIENT_APP_RAISED_EXCEPTION"),
            "flwr.common.serde:recorddict_from_proto": "",
            "flwr.common.serde:recorddict_to_proto": "",
            "flwr.common.serde:run_from_proto": "run_proto",
            "flwr.proto.recorddict_pb2:RecordDict": "",
            "flwr.proto.node_pb2:NodeInfo": "",
            "flwr.supercore.run:Run.create_empty": "run_id",
            "flwr.supercore.task_identity:TaskIdentity": "",
            "flwr.app:Metadata": "message_id created_at",
        },
        {"flwr.app.metadata": ('"_message_id"', '"_created_at"')},
    ),
    Need(
        "library",
        "what Flower's strategies log as they start",
        {
            "flwr.serverapp.strategy.strategy_utils:log_strategy_start_info": (
                "num_rounds arrays train_config evaluate_config"
            )
        },
    ),
    Need(
        "library",
        "runs on deployed clients that do not wait long for a reply that broke off",
        {
            f"{INFLATABLE}:ObjectPushError": "",
            f"{INFLATABLE}:pull_objects": "initial_backoff backoff_cap max_tries_per_object max_time",
        },
    ),
    Need(
        "library",
        "a simulation with too few nodes that fails at once",
        {},
        {"flwr.superlink.grid.inmemory_grid": ("class InMemoryGrid(Grid)",)},
    ),
    Need(
        "server",
        "programs of Flower's that talk to nobody but the federation",
        {},
        {
            "flwr.supercore.telemetry": ("FLWR_TELEMETRY_ENABLED",),
            "flwr.supercore.constant": ("FLWR_DISABLE_UPDATE_CHECK",),
            "flwr.supercore.logger": ("FLWR_LOG_LEVEL",),
            CONSTANTS: ("FLWR_HOME",),
        },
    ),
    Need(
        "client",
        "calls of a node to its SuperLink",
        {
            **FLEET_PROTOBUF,
            "flwr.supercore.error:FlowerError.from_json": "value",
            "flwr.supercore.primitives.asymmetric:generate_key_pairs": "",
            "flwr.supercore.primitives.asymmetric:public_key_to_bytes": "",
            "flwr.supercore.primitives.asymmetric:sign_message": "private_key message",
        },
    ),
    Need(
        "client",
        "messages that are sent in parts",
        {
            f"{INFLATABLE}:inflate_object_from_contents": "object_id object_contents",
            f"{OBJECTS}:get_all_nested_objects": "obj",
            f"{OBJECTS}:get_object_tree": "obj",
            f"{OBJECTS}:no_object_id_recompute": "",
            "flwr.app.message.message:remove_content_from_message": "message",
            "flwr.common.serde:message_from_proto": "",
            "flwr.common.serde:message_to_proto": "message",
        },
        {"flwr.clientapp.client_app": ("function registered with name",)},
    ),
    Need(
        "server",
        "an HTTP API that asks for a credential, and log lines on what operators change",
        {
            "flwr.superlink.main:create_app": "config superlink_lifespan_class",
            "flwr.superlink.config_loader:SuperLinkLifespanConfig": (
                "host port database authn_plugin event_log_plugin enable_event_log fleet_event_log_plugin "
                "enable_supernode_auth superexec_auth_secret isolation runtime_dependency_install simulation insecure "
                "control_address health_server_address certificates artifact_provider fleet_api_type "
                "fleet_api_address ssl_ca_certfile ssl_certfile ssl_keyfile"
            ),
            "flwr.superlink.auth_plugin:NoOpControlAuthnPlugin": "",
            "flwr.proto:control_pb2": "",
        },
        {
            "flwr.superlink.main": (
                *("superlink_lifespan.startup()", "superlink_lifespan.shutdown()"),
                "app.state.linkstate_factory",
            ),
            "flwr.superlink.routers.control.router": (
                *("start-run", "stop-run", "register-node", "unregister-node"),
                *("start-automation", "stop-automation"),
            ),
            "flwr.supercore.protobuf.translation": ("request.state.protobuf_request",),
            "flwr.supercore.constant": ('"flwr-task-token"',),
        },
    ),
    Need(
        "server",
        "the port of the fleet API, and limits of what a client's calls and replies may cost",
        {
            **{
                f"{FLEET}:{call}": "request state"
                for call in ("activate_node", "deactivate_node", "get_run", "get_fab")
            },
            "flwr.app.message:make_message": "metadata error",
            **FLEET_PROTOBUF,
            "flwr.supercore.error:FlowerError": "code message public_details",
            "flwr.supercore.primitives.asymmetric:bytes_to_public_key": "",
            "flwr.supercore.primitives.asymmetric:verify_signature": "public_key message signature",
        },
    ),
    Need(
        "server",
        "runs that go on after their process died, the database was busy or the disk was full",
        {
            STATE: "",
            f"{STORE_FACTORY}:SqlObjectStore": "",
            f"{STORE_FACTORY}:SqlObjectStore.get_object_tree": "object_id",
            f"{STORE_FACTORY}:SqlObjectStore.preregister": "run_id object_tree",
            f"{INFLATABLE}:validate_object_content": "content",
            f"{OBJECTS}:get_object_children_ids_from_object_content": "object_content",
            f"{SQL}:SQLITE_PRAGMAS": "",
            f"{STATE}.session": "",
            f"{STATE}.query": "query data",
            f"{STATE}.initialize": "",
            f"{STATE}._cleanup_expired_task_tokens": "",
            f"{STATE}.activate_task": "task_id",
            f"{STATE}.cleanup_run": "run_id",
            f"{STATE}.create_node": "owner_aid owner_name public_key heartbeat_interval name",
            f"{STATE}.delete_messages": "message_ins_ids",
            f"{STATE}.delete_node": "owner_aid node_id",
            f"{STATE}.finish_task": "task_id sub_status details",
            f"{STATE}.object_store": "",
            f"{STATE}.get_node_id_by_public_key": "public_key",
            f"{CONSTANTS}:NOOP_ACCOUNT_NAME": "",
            f"{CONSTANTS}:NOOP_FLWR_AID": "",
            f"{STATE}.get_message_res": "message_ids run_id",
        },
    ),
    Need(
        "server",
        "processes of runs that show nobody their token, and are started again when they are killed",
        {
            "flwr.proto:runtime_pb2": "",
            f"{SERVERAPP}:flwr_serverapp": "",
            f"{RUN_SERVERAPP}:HttpGrid": "token",
            f"{RUN_SERVERAPP}:HttpGrid.pull_messages": "message_ids",
            f"{RUN_SERVERAPP}:HttpGrid.push_messages": "messages",
            f"{RUN_SERVERAPP}:HttpGrid._runtime_client": "",
            "flwr.supercore.protobuf.client:ProtobufClient._unary_unary": (
                "path rpc_method request response_type timeout"
            ),
            f"{HTTP_RETRY}:MAX_RETRY_DELAY": "",
        },
        {
            "flwr.common.args": ('"--token"', "--root-certificates"),
            HTTP_RETRY: CONNECTION_WORDS,
            SERVERAPP: ("--runtime-api-address",),
            "flwr.supercore.constant": ('"flwr-serverapp"',),
            "flwr.supercore.protobuf.constants": ("application/protobuf",),
            "flwr.supercore.routers.runtime.router": ("/acquire-task",),
            "flwr.supercore.exit.exit": ("Exit Code:",),
        },
    ),
    Need(
        "operator",
        "registering clients, and the status of clients and runs",
        {},
        {
            "flwr.superlink.routers.control.router": ("list-nodes", "list-runs", "register-node", "unregister-node"),
            "flwr.superlink.runtime.run_serverapp": ("ServerApp failed with exception: ",),
        },
    ),
    Need(
        "operator",
        "submitting runs",
        {"flwr.cli.build:build_fab_from_disk": ""},
        {"flwr.cli.utils": ("Connection to the SuperLink is unavailable", "Authentication failed")},
    ),
)


def count_names() -> Mapping[User, int]:
    """Return how many names are relied on, by who needs them; a name that several need counts for the first."""
    first = dict[str, User]()
    for need in RELIED_ON:
        for name in need.names:
            first.setdefault(name, need.user)
    return Counter(first.values())


def missing(needs: Iterable[Need] = RELIED_ON) -> dict[str, list[str]]:
    """Return what the installed Flower lacks of these needs, by what does not work without it."""
    lacking = {need.without: [*_missing_names(need), *_missing_texts(need)] for need in needs}
    return {without: names for without, names in lacking.items() if names}


def look_up(module: str, name: str) -> Any:
    """Return what a name of the list stands for, in a module of Flower."""
    _check_listed(module, name)
    return getattr(importlib.import_module(module), name)


def replace(module: str, name: str, by: object) -> None:
    """Put something of ours in the place of a name of the list, in a module of Flower."""
    _check_listed(module, name)
    setattr(importlib.import_module(module), name, by)


def _check_listed(module: str, name: str) -> None:
    if not any(f"{module}:{name}" in need.names for need in RELIED_ON):
        raise KeyError(f"{module}:{name} is not in RELIED_ON: name there what needs it")


def _missing_names(need: Need) -> Iterator[str]:
    for name, parameters in need.names.items():
        try:
            lacking = set(parameters.split()) - _parameters(_object(name))
        except (ImportError, AttributeError):
            yield name
        else:
            if lacking:
                yield f"{name}({', '.join(sorted(lacking))})"


def _object(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for attribute in path.split("."):
        if inspect.ismodule(found) and not hasattr(found, attribute):  # a module that nobody has imported
            importlib.import_module(f"{found.__name__}.{attribute}")
        found = getattr(found, attribute)
    return found


def _parameters(found: Any) -> set[str]:
    """Return the parameters of a function or class, or the constants of a class."""
    constants = set(vars(found)) if inspect.isclass(found) else set[str]()
    try:
        return constants | set(inspect.signature(found).parameters)
    except (TypeError, ValueError):  # a constant, or a module of Protocol Buffers
        return constants


def _missing_texts(need: Need) -> Iterator[str]:
    for module, texts in need.texts.items():
        source = _source(module)
        yield from (f"{module}: {text!r}" for text in texts if text not in source)


def _source(module: str) -> str:
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        return ""
    return "" if spec is None or spec.origin is None else Path(spec.origin).read_text()
