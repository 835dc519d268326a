"""Write clients.yaml for another number of clients: python3 docker/clients.py 12."""

import argparse
import sys
from pathlib import Path

FILE = Path(__file__).with_name("clients.yaml")

HEAD = """\
# {number} clients. Written by: python3 docker/clients.py {number}
#
#   CLIENT_MEMORY, CLIENT_THREADS  of each client
#
# With --profile gpu each client has a twin with the GPUs, which starts first and takes its place.

x-client: &client
  user: ${{RUN_AS:-1000:1000}}
  read_only: true
  tmpfs: [/tmp]
  cap_drop: [ALL]
  security_opt: [no-new-privileges:true]
  mem_limit: ${{CLIENT_MEMORY:-2g}}
  pids_limit: 256
  attach: false
  restart: on-failure
  stop_grace_period: 20s
  logging:
    driver: json-file
    options: {{max-size: 10m, max-file: "3"}}
  environment:
    ENDS_WITH: /signals/ended
    OMP_NUM_THREADS: ${{CLIENT_THREADS:-1}}
  networks: [fleet]

x-cpu: &cpu
  image: fairbloom-client
  pull_policy: never

x-gpu: &gpu
  profiles: [gpu]
  image: fairbloom-client-gpu
  pull_policy: never
  deploy:
    resources:
      reservations:
        devices: [{{driver: nvidia, count: all, capabilities: [gpu]}}]

services:
  certificates:
    environment:
      CLIENTS: {names}

  enrolment:
    environment:
      CLIENTS: {names}

  experiment:
    environment:
      CLIENTS: {names}
    depends_on:
{started}
"""

BUILD = """\
    build:
      context: ..
      dockerfile: docker/Dockerfile
      target: client
      args:
        BASE: # of the shell, else the Dockerfile's
        TORCH: ${TORCH:-torch==2.13.0+cpu}
        TORCH_INDEX: ${TORCH_INDEX:-}
"""
"""Of the first client alone: built once for each, the images of all but the last would be left over."""

CLIENT = """
  {name}:
    <<: [*client, *cpu]
{build}    command: [/client/client.toml, --state-dir, /client/state, --partition-id, "{partition}"]
    volumes:
      - {{type: volume, source: clients, target: /client, volume: {{subpath: {name}}}}}
      - signals:/signals:ro
    depends_on:
      enrolment: {{condition: service_completed_successfully}}
      {name}-gpu: {{condition: service_started, required: false}}
  {name}-gpu:
    <<: [*client, *gpu]
    command: [/client/client.toml, --state-dir, /client/state, --partition-id, "{partition}"]
    volumes:
      - {{type: volume, source: clients, target: /client, volume: {{subpath: {name}}}}}
      - signals:/signals:ro
    depends_on:
      enrolment: {{condition: service_completed_successfully}}
"""


def render(number: int) -> str:
    """Return clients.yaml for so many clients, named as Fairbloom's tasks name them."""
    names = [f"client-{i:0{len(str(number - 1))}d}" for i in range(number)]
    started = "\n".join(f"      {name}: {{condition: service_started}}" for name in names)
    clients = "".join(CLIENT.format(name=name, partition=i, build="" if i else BUILD) for i, name in enumerate(names))
    return HEAD.format(number=number, names=" ".join(names), started=started) + clients


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", type=int)
    number = parser.parse_args().number
    if number < 1:
        sys.exit(f"{number} clients: at least one is needed")
    FILE.write_text(render(number))
