"""The pages that people read, and the code blocks in them."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]

# All pages that are written by hand; those on the methods, and the API reference, have tests of
# their own.
PAGES = ["README.md", *sorted(f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md"))]

FEDERATION = "deploy/test_guide.py::test_six_steps_make_a_federation"
COMPOSE = "docker/test_compose.py::test_docker_compose_up_gives_the_run_in_process"
QUICKSTART = "client/test_fair.py::test_the_page_says_how_many_lines_of_the_quickstart_change"
QUICKSTART_DEPLOYED = (
    "runtimes/test_runtimes.py::test_a_killed_run_continues_and_ends_as_in_process"
)
OWN_DATA = "deploy/test_own_data.py::test_four_nodes_with_a_file_each_give_the_run_in_process"
HOSPITALS = "docs/test_real_data.py::test_the_commands_make_the_hospitals_table_and_picture"
REPRODUCED = "docs/test_real_data.py::test_the_recipes_are_listed_and_one_is_run"
# The sections, and pages, whose blocks need more than a folder, each with the test that does what
# they say.
ELSEWHERE = {
    "docs/private.md#For owners": "deploy/test_accounts.py::test_three_runs_spend_one_budget",
    "README.md#Reproduce a paper's table": REPRODUCED,
    "README.md#You operate a federation": COMPOSE,
    "docs/data-sets.md#Clients that come with the data": (
        "docs/test_real_data.py::test_the_commands_on_clients_that_come_with_the_data_work"
    ),
    "docs/deployment.md#A federation in six steps": FEDERATION,
    "docs/deployment.md#Hospitals whose data never meet": (
        "deploy/test_profiles.py::test_the_way_by_commands"
    ),
    "docs/comparing.md#On a cluster": "docs/test_cluster.py::test_runs_on_ray_are_compared",
    "docs/comparing.md#Larger spaces": (
        "docs/test_real_data.py::test_optuna_asks_for_the_points_of_a_search"
    ),
    "docs/deployment.md#Table 1": (
        "deploy/test_site_tables.py::test_the_operator_reads_one_table_and_whom_it_waits_for"
    ),
    "docs/deployment.md#Compare methods on the devices": (
        "deploy/test_submit.py::test_a_comparison_submits_what_is_missing"
    ),
    "docs/deployment.md#After the run": (
        "deploy/test_released_models.py::test_a_released_model_is_what_each_owner_says"
    ),
    "docs/deployment.md#Keys that stay on the device": (
        "deploy/test_pki.py::test_a_bundle_for_a_key_of_the_device_holds_nothing_secret"
    ),
    "docs/nodes-trust.md#Limits of a device's owner": (
        "client/guard/test_limits.py::test_the_limits_of_the_page_are_taken"
    ),
    "docs/nodes-trust.md#Schemas": (
        "client/guard/test_accepted_schemas.py::test_accept_asks_and_schemas_lists_and_withdraws"
    ),
    "docs/nodes-trust.md#Weights": (
        "client/guard/test_initial_weights.py::test_accepted_weights_are_those_of_one_file_schema_and_model"
    ),
    "docs/nodes-trust.md#The log": (
        "client/guard/test_audit_log.py::test_the_log_is_read_run_by_run"
    ),
    "docs/privacy.md#Differential privacy": (
        "client/test_fair.py::test_the_recipe_for_differential_privacy_clips"
    ),
    "docs/nodes-device.md#Install a device": (
        "deploy/test_edge.py::test_a_bundle_as_enroll_makes_it_is_taken"
    ),
    "docs/deployment.md#A firewall": (
        "attacks/test_firewall.py::test_the_firewall_of_the_page_counts_by_address"
    ),
    "docs/deployment.md#Copies": (
        "deploy/test_outages.py::test_a_run_goes_on_from_a_copy_made_while_it_ran"
    ),
    "docs/docker.md#Flower's own nodes": (
        "runtimes/test_stock_nodes.py::test_the_composition_gives_the_run_of_our_own_nodes"
    ),
    "docs/docker.md#In containers": COMPOSE,
    "docs/docker.md#Settings": (
        "docker/test_compose.py::test_a_run_outlives_kills_and_more_clients_take_part"
    ),
    "docs/docker.md#GPU": "docker/test_compose.py::test_the_gpu_file_reserves_devices",
    "docs/nodes-device.md#Predict on a device": (
        "deploy/test_guide.py::test_the_tutorial_ends_at_a_prediction_on_a_device"
    ),
    "docs/measured.md#Four hospitals": HOSPITALS,
    "docs/measured.md#Papers' tables": REPRODUCED,
    "docs/publishing.md#An app as a bundle": (
        "test_new.py::test_flwr_build_and_pip_take_it_with_the_repository"
    ),
    "docs/publishing.md#An app on Flower's hub": (
        "test_new.py::test_the_hub_gets_every_file_of_the_app_and_no_run"
    ),
    "docs/schema.md#On real nodes": OWN_DATA,
    "docs/flower.md#The client: two lines change, one is new": QUICKSTART,
    "docs/flower.md#The server: three lines change, two are new": QUICKSTART,
    "docs/comparing.md#Your Flower app, and runs that exist": (
        "test_new.py::test_its_methods_are_compared_as_pages_say"
    ),
    "docs/flower.md#The method from the run config": (
        "experiments/studies/test_given_runs.py::test_methods_are_compared_in_flowers_quickstart"
    ),
    "docs/flower.md#Adapters and frozen parameters": (
        "docs/test_apps.py::test_an_adapters_round_takes_six_per_cent"
    ),
    "docs/flower.md#Deployed": QUICKSTART_DEPLOYED,
    "docs/using.md#Programs without PyTorch": (
        "docs/test_onnx.py::test_the_file_of_the_page_predicts_the_same"
    ),
    "docs/your-method.md": "docs/test_methods.py::test_every_block_of_python_is_run_by_a_test",
}

FENCE = re.compile(r"^( *)(`{3,})([^\s`]*)[^\n]*\n(.*?)^ *\2`*[ ]*$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
FILE_NAME = re.compile(r"# ([\w./-]+\.\w+)\n")


@dataclass(frozen=True)
class Block:
    """A fenced code block.

    Attributes
    ----------
    page, section
        The page that has it, as a path from the root, and the heading above it.
    line
        The line of the page on which its text begins, from 1.
    language
        What stands behind its fence: python, sh, toml or text.
    text
        What is between the fences, without their indentation.
    """

    page: str
    section: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """Where the block is, in words for errors."""
        return f"{self.page}, line {self.line}"

    @cached_property
    def file(self) -> str:
        """The file that the block is, which its first line names in a comment; "" where it names
        none."""
        named = FILE_NAME.match(self.text)
        return named[1] if named else ""

    @property
    def commands(self) -> list[str]:
        """The commands of a block in the shell's language; one that goes on in the next line is
        one."""
        lines = re.sub(r"\\\n *", "", self.text).splitlines()
        return [line for line in lines if line.strip() and not line.startswith("#")]

    @property
    def elsewhere(self) -> bool:
        """Whether another test runs it."""
        return self.page in ELSEWHERE or f"{self.page}#{self.section}" in ELSEWHERE


def blocks(page: str) -> list[Block]:
    """Return the code blocks of a page, from its top to its bottom; Sphinx's directives are
    none."""
    text = (ROOT / page).read_text()
    prose = FENCE.sub(lambda fenced: re.sub(r"[^\n]", " ", fenced[0]), text)
    headings = [(found.start(), found[1]) for found in HEADING.finditer(prose)]
    found = []
    for fenced in FENCE.finditer(text):
        indent, _, language, inside = fenced.groups()
        section = next((title for start, title in reversed(headings) if start < fenced.start()), "")
        if not language.startswith("{"):
            found.append(
                Block(
                    page,
                    section,
                    text.count("\n", 0, fenced.start(4)) + 1,
                    language,
                    re.sub(rf"^{indent}", "", inside, flags=re.MULTILINE),
                )
            )
    return found
