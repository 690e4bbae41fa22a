"""Runs a built function as `sam local` would, except for the container: SAM's own code reads the built template, finds
the routes and computes the environment; then the files that SAM would mount answer an event.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / ".aws-sam/build/template.yaml"
EVENT = ROOT / "tests/lambda/http_plain.json"

os.environ.setdefault("AWS_DEFAULT_REGION", "eu-west-1")
sys.path.insert(0, str(ROOT / "tests/lambda"))

import archive  # noqa: E402
from samcli.cli.types import CfnParameterOverridesType  # noqa: E402
from samcli.commands.local.lib.local_lambda import LocalLambdaRunner  # noqa: E402
from samcli.lib.config.samconfig import SamConfig  # noqa: E402
from samcli.lib.providers.api_provider import ApiProvider  # noqa: E402
from samcli.lib.providers.sam_function_provider import SamFunctionProvider  # noqa: E402
from samcli.lib.providers.sam_stack_provider import SamLocalStackProvider  # noqa: E402


def options(*command):
    """The options of a SAM command in samconfig.toml."""
    return SamConfig(str(ROOT)).get_all(list(command), "parameters")


def stacks(given):
    overrides = CfnParameterOverridesType().convert((given,), None, None)
    found, _ = SamLocalStackProvider.get_stacks(str(BUILT), parameter_overrides=overrides)
    return found


def routes():
    """The routes of `sam local start-api`: methods and path, and the function."""
    given = options("local", "start-api")
    provider = ApiProvider(stacks(given["parameter_overrides"]), str(ROOT), given["disable_authorizer"])
    return {(tuple(route.methods), route.path): route.function_name for route in provider.api.routes}


def respond():
    """The response to an event of the function of `sam local invoke`."""
    functions = SamFunctionProvider(stacks(options("local", "invoke")["parameter_overrides"]))
    function = functions.get("ApiFunction")
    runner = LocalLambdaRunner(None, functions, str(ROOT), str(ROOT), aws_region="eu-west-1")
    variables = {name: str(value) for name, value in runner._make_env_vars(function).resolve().items()}
    response, _, _ = archive.invoke(Path(function.codeuri).resolve(), variables, EVENT.read_bytes())
    return response
