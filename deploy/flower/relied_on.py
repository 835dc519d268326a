"""The one list of what is relied on inside Flower, beside its documented API.

Its documented API, which any module may use, is what flwr.app, flwr.clientapp (with `mod` and `typing`) and
flwr.serverapp (with `strategy`) export. All else that we import, replace, override or read is named here, with what
stops working without it. `python -m fairbloom.deploy.flower` compares the list with the Flower that is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

User = Literal["library", "client", "app", "server", "operator"]
"""Who needs a name: whatever runs on Flower; `fairbloom client`; the same with `bundles = "any"`; `fairbloom server`;
the operator's commands."""

INFLATABLE = "flwr.supercore.inflatable.inflatable_utils"
OBJECTS = "flwr.supercore.inflatable.inflatable_object"

SUPERLINK = "flwr.superlink.cli.flower_superlink"
HTTP_APP = "flwr.superlink.main"
STATE_FACTORY = "flwr.server.superlink.linkstate.linkstate_factory"
STORE_FACTORY = "flwr.supercore.object_store.object_store_factory"
SQL = "flwr.supercore.sql_mixin"
STATE = "flwr.server.superlink.linkstate.sql_linkstate:SqlLinkState"
FLEET = "flwr.server.superlink.fleet.grpc_rere.fleet_servicer:FleetServicer"
RUNTIME = "flwr.superlink.servicer.runtime.runtime_handlers"
TABLES = "flwr.supercore.state.schema"

SUPEREXEC_LOOP = "flwr.supercore.superexec.run_superexec"
SUPEREXEC = "flwr.supercore.cli.flower_superexec"
SERVERAPP = "flwr.superlink.cli.flwr_serverapp"
HTTP_RETRY = "flwr.supercore.retry.http_retry"

CONTROL = "flwr.supercore.control:ControlHttpClient"
CONSTANTS = "flwr.common.constant"

CONNECTION_WORDS = (
    *("Connection attempt failed", "Giving up reconnection", "SSL/TLS handshake error detected"),
    "Connection successful",
)


@dataclass(frozen=True)
class Need:
    """Names inside Flower that one thing needs: module:attribute with parameters, or columns of a database's table.

    `texts` has what is relied on in modules' source: options of commands, words that are logged.
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
            f"{CONSTANTS}:ErrorCode.NODE_UNAVAILABLE": "",
            f"{CONSTANTS}:ErrorCode.INVALID_FAB": "",
            f"{CONSTANTS}:ErrorCode.CLIENT_APP_CRASHED": "",
            f"{CONSTANTS}:ErrorCode.CLIENT_APP_RAISED_EXCEPTION": "",
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
            "flwr.proto:fab_pb2": "",
            "flwr.proto:fleet_pb2": "",
            "flwr.proto:fleet_pb2_grpc": "",
            "flwr.proto:heartbeat_pb2": "",
            "flwr.proto:message_pb2": "",
            "flwr.proto:node_pb2": "",
            "flwr.proto:run_pb2": "",
            f"{CONSTANTS}:SIGNATURE_HEADER": "",
            f"{CONSTANTS}:TIMESTAMP_HEADER": "",
            "flwr.supercore.error:FlowerError.from_json": "value",
            "flwr.supercore.primitives.asymmetric:generate_key_pairs": "",
            "flwr.supercore.primitives.asymmetric:sign_message": "private_key message",
        },
    ),
    Need(
        "client",
        "messages whose parts travel one by one",
        {
            f"{INFLATABLE}:ObjectPullError": "object_id reason",
            f"{INFLATABLE}:ObjectUnavailableError": "object_id",
            f"{INFLATABLE}:inflate_object_from_contents": "object_id object_contents",
            f"{OBJECTS}:get_all_nested_objects": "obj",
            f"{OBJECTS}:get_object_tree": "obj",
            f"{OBJECTS}:iterate_object_tree": "tree",
            f"{OBJECTS}:no_object_id_recompute": "",
            "flwr.app.message.message:remove_content_from_message": "message",
            "flwr.common.serde:message_to_proto": "message",
        },
        {"flwr.clientapp.client_app": ("function registered with name",)},
    ),
    Need(
        "app",
        "apps that come with a run",
        {
            "flwr.cli.install:install_from_fab": "fab_file skip_prompt",
            "flwr.clientapp.utils:get_load_client_app_fn": "default_app_ref app_path multi_app",
        },
    ),
    Need(
        "server",
        "a control API that asks for a credential",
        {
            f"{HTTP_APP}:create_app": "config superlink_lifespan_class",
            f"{SUPERLINK}:flower_superlink": "",
            f"{SUPERLINK}:uvicorn": "",
            "flwr.superlink.dependencies.account:AccountAccessDependency": "authn_plugin",
            "flwr.superlink.dependencies.account:AccountAccessDependency.__call__": "request",
            "flwr.superlink.auth_plugin:NoOpControlAuthnPlugin": "",
            "flwr.superlink.auth_plugin:NoOpControlAuthnPlugin.validate_tokens_in_metadata": "metadata",
            "flwr.superlink.auth_plugin:NoOpControlAuthnPlugin.refresh_tokens": "metadata",
            "flwr.supercore.auth:compute_superexec_signature": "auth_secret method timestamp nonce body_sha256",
            "flwr.supercore.auth:derive_auth_secret": "",
            "flwr.supercore.auth:verify_superexec_signature": "",
            "flwr.supercore.auth.typing:AccountInfo": "flwr_aid account_name",
            "flwr.supercore.constant:SUPEREXEC_AUTH_BODY_SHA256_HEADER": "",
            "flwr.supercore.constant:SUPEREXEC_AUTH_NONCE_HEADER": "",
            "flwr.supercore.constant:SUPEREXEC_AUTH_SIGNATURE_HEADER": "",
            "flwr.supercore.constant:SUPEREXEC_AUTH_TIMESTAMP_HEADER": "",
            "flwr.supercore.constant:TASK_TOKEN_HEADER": "",
            f"{CONSTANTS}:ACCESS_TOKEN_KEY": "",
            f"{CONSTANTS}:NOOP_ACCOUNT_NAME": "",
            f"{CONSTANTS}:NOOP_FLWR_AID": "",
        },
        {
            SUPERLINK: (
                *("--isolation", "--fleet-api-address", "--enable-supernode-auth", "--database"),
                *("--disable-runtime-dependency-installation", "FLWR_INTERNAL_GRPC_CONTROL_API"),
            ),
            "flwr.common.args": ("--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile"),
            "flwr.supercore.auth.superexec_secret": ("--superexec-auth-secret-file",),
            HTTP_APP: (
                *("app.state.account_access_dep", "app.state.control_event_log_plugin", "app.state.runtime_handlers"),
                *("app.state.superexec_auth_secret", "app.state.linkstate_factory"),
            ),
            "flwr.supercore.runtime.runtime_http_client": ("acquire-task", "pull-pending-tasks", "claim-task"),
        },
    ),
    Need(
        "server",
        "an audit log of what operators change",
        {
            "flwr.common.event_log_plugin:EventLogWriterPlugin": "",
            "flwr.common.event_log_plugin:EventLogWriterPlugin.compose_log_before_event": "",
            "flwr.common.event_log_plugin:EventLogWriterPlugin.compose_log_after_event": "",
            "flwr.common.event_log_plugin:EventLogWriterPlugin.write_log": "",
        },
        {
            "flwr.superlink.routers.control.router": (
                *("start-run", "stop-run", "register-node", "unregister-node"),
                *("start-automation", "stop-automation"),
            ),
        },
    ),
    Need(
        "server",
        "limits of what a client's calls and replies may cost",
        {
            f"{SUPERLINK}:FleetServicer": "state_factory objectstore_factory enable_supernode_auth",
            f"{SUPERLINK}:GRPC_MAX_MESSAGE_LENGTH": "",
            f"{SUPERLINK}:generic_create_grpc_server": (
                "servicer_and_add_fn server_address max_message_length certificates interceptors"
            ),
            FLEET: "",
            f"{FLEET}.ActivateNode": "request context",
            f"{FLEET}.SendNodeHeartbeat": "request context",
            f"{FLEET}.PullMessages": "request context",
            f"{FLEET}.PullObject": "request context",
            f"{FLEET}.GetRun": "request context",
            f"{FLEET}.GetFab": "request context",
            f"{FLEET}.ConfirmMessageReceived": "request context",
            f"{FLEET}.PushMessages": "request context",
            f"{FLEET}.PushObject": "request context",
            "flwr.server.superlink.linkstate:LinkStateFactory": "",
            "flwr.supercore.object_store:ObjectStoreFactory": "",
            "flwr.app.message:make_message": "metadata error",
            "flwr.common.serde:message_from_proto": "",
            f"{CONSTANTS}:PUBLIC_KEY_HEADER": "",
            f"{CONSTANTS}:SUPERLINK_NODE_ID": "",
            "flwr.proto.fleet_pb2:ActivateNodeRequest": "",
            "flwr.proto.fleet_pb2:PullMessagesResponse": "",
            "flwr.proto.fleet_pb2:PushMessagesRequest": "",
            "flwr.proto.fleet_pb2:PushMessagesResponse": "",
            "flwr.proto.fleet_pb2:Reconnect": "",
            "flwr.proto.message_pb2:ConfirmMessageReceivedResponse": "",
            "flwr.proto.message_pb2:ObjectTree": "",
            "flwr.proto.message_pb2:PullObjectRequest": "",
            "flwr.proto.message_pb2:PullObjectResponse": "",
            "flwr.proto.message_pb2:PushObjectRequest": "",
            "flwr.proto.message_pb2:PushObjectResponse": "",
            "flwr.supercore.error:rpc_error_translator": "",
            "flwr.supercore.utils:get_metadata_bytes": "",
            "flwr.supercore.utils:get_metadata_str": "",
            "flwr.supercore.utils:int64_to_uint64": "",
            "flwr.supercore.utils:uint64_to_int64": "",
            f"{STATE}._cleanup_push_session": "session_id cleanup_messages",
            f"{STATE}._store_generated_message": "message",
            f"{STATE}.store_message_res": "message",
            f"{STATE}.deactivate_node": "node_id",
            f"{TABLES}.linkstate_models:MessageIns": (
                "message_id run_id group_id message_type created_at ttl dst_node_id delivered_at"
            ),
            f"{TABLES}.objectstore_models:StoredObject": "object_id content",
            f"{TABLES}.objectstore_models:ObjectChild": "parent_id child_id",
            f"{TABLES}.corestate_models:ObjectPushSession": "session_id",
            f"{TABLES}.corestate_models:ObjectPushSessionRoot": "root_object_id",
        },
        {SUPERLINK: ("_run_fleet_api_grpc_rere",)},
    ),
    Need(
        "server",
        "runs that go on after their process died, the database was busy or the disk was full",
        {
            f"{STATE_FACTORY}:SqlLinkState": "",
            f"{STORE_FACTORY}:SqlObjectStore": "",
            f"{SQL}:SQLITE_PRAGMAS": "",
            f"{SQL}:SqlMixin": "",
            f"{SQL}:SqlMixin.session": "",
            f"{SQL}:SqlMixin.query": "query data",
            STATE: "",
            f"{STATE}.initialize": "log_queries",
            f"{STATE}.store_object": "run_id session_id object_id object_content",
            f"{STATE}._cleanup_expired_task_tokens": "",
            f"{STATE}.activate_task": "task_id",
            f"{STATE}.create_node": "owner_aid owner_name public_key heartbeat_interval name",
            f"{STATE}.delete_messages": "message_ins_ids",
            f"{STATE}.delete_node": "owner_aid node_id",
            f"{STATE}.finish_task": "task_id sub_status details",
            f"{STATE}.object_store": "",
            f"{STATE}.delete_sessions_in_run": "run_id",
            f"{STATE}.get_message_ids_from_run_id": "run_id",
            f"{STATE}.get_node_id_by_public_key": "public_key",
            f"{STATE}.get_run_status": "run_ids",
            f"{STATE}.get_task_by_token": "token",
            "flwr.supercore.object_store.sql_object_store:SqlObjectStore": "",
            "flwr.supercore.corestate.sql_corestate:_task_status_filter": "status",
            "flwr.supercore.constant:TaskType": "",
            "flwr.supercore.date:now": "",
            "flwr.supercore.error:ApiErrorCode": "",
            "flwr.supercore.error:FlowerError": "",
            "flwr.supercore.run:RunStatus": "",
            f"{CONSTANTS}:HEARTBEAT_DEFAULT_INTERVAL": "",
            f"{CONSTANTS}:HEARTBEAT_PATIENCE": "",
            f"{CONSTANTS}:Status": "",
            f"{CONSTANTS}:SubStatus": "",
            f"{TABLES}.corestate_models:Task": "",
            f"{TABLES}.linkstate_models:MessageRes": (
                "message_id reply_to_message_id src_node_id run_id group_id message_type created_at ttl delivered_at"
            ),
            f"{TABLES}.linkstate_models:Node": "node_id status public_key",
            f"{RUNTIME}:acquire_task": "request state",
            f"{RUNTIME}:pull_messages": "request state task",
            f"{RUNTIME}:confirm_message_received": "request state task",
            f"{RUNTIME}:push_messages": "request state task",
            f"{RUNTIME}:push_object": "request state task",
        },
    ),
    Need(
        "server",
        "processes of runs that show nobody their token, and are started again when they are killed",
        {
            f"{SUPEREXEC_LOOP}:get_executor": "executor_type",
            f"{SUPEREXEC_LOOP}:make_simple_http_retry_invoker": "",
            f"{SUPEREXEC}:flower_superexec": "",
            f"{SERVERAPP}:flwr_serverapp": "",
            "flwr.supercore.superexec.executor:LaunchResult.accepted": "",
            f"{HTTP_RETRY}:MAX_RETRY_DELAY": "",
        },
        {
            "flwr.common.args": ('"--token"',),
            HTTP_RETRY: CONNECTION_WORDS,
            SERVERAPP: ("--runtime-api-address",),
            SUPEREXEC: ("--runtime-api-address",),
            "flwr.supercore.exit.exit": ("Exit Code:",),
        },
    ),
    Need(
        "operator",
        "registering clients, and the status of clients and runs",
        {
            f"{CONTROL}.from_server_address": "server_address insecure root_certificates interceptors",
            f"{CONTROL}.RegisterNode": "",
            f"{CONTROL}.UnregisterNode": "",
            f"{CONTROL}.ListNodes": "",
            f"{CONTROL}.ListRuns": "",
            "flwr.proto.control_pb2:RegisterNodeRequest": "",
            "flwr.proto.control_pb2:UnregisterNodeRequest": "",
            "flwr.proto.control_pb2:ListNodesRequest": "",
            "flwr.proto.control_pb2:ListRunsRequest": "",
            "flwr.cli.run_utils:format_runs": "",
            "flwr.supercore.interceptors.http.runtime_version:RuntimeVersionHttpInterceptor": "",
            "flwr.supercore.primitives.asymmetric:public_key_to_bytes": "",
        },
        {"flwr.superlink.runtime.run_serverapp": ("ServerApp failed with exception: ",)},
    ),
    Need(
        "operator",
        "submitting runs",
        {"flwr.cli.build:build_fab_from_disk": ""},
        {"flwr.cli.utils": ("Connection to the SuperLink is unavailable", "Authentication failed")},
    ),
)


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
    """Return the columns of a table, or the parameters of a function or class."""
    if hasattr(found, "__table__"):
        return {column.name for column in found.__table__.columns}
    try:
        return set(inspect.signature(found).parameters)
    except (TypeError, ValueError):  # a constant, or a class of Protocol Buffers
        return set()


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
