"""Starts ministack, an emulator of AWS, with IAM enforced, on a free port of this machine.

    with Emulator(log) as emulator:
        s3 = emulator.client("s3")

Run as a program, it is ministack itself, with corrections.
"""

import os
import runpy
import socketserver
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from ports import free_ports  # noqa: E402

REGION = "eu-west-1"
START_S = 30
# The log has a line with this for each resource of a type that ministack lacks.
UNKNOWN = "unknown to the emulator: "
PATCHES = Path(__file__).resolve().parents[3] / "shared/tools/ms_patched.py"
# The root user of ministack's account.
ROOT_USER = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": REGION}


class Emulator:
    def __init__(self, log, accept_unknown_types=False):
        self.port, self.log = free_ports(1)[0], Path(log)
        self.options = {"ACCEPT_UNKNOWN_TYPES": "1"} if accept_unknown_types else {}
        self.folder = tempfile.TemporaryDirectory()
        self.process = None

    @property
    def url(self):
        return f"http://localhost:{self.port}"

    @property
    def environment(self):
        """Variables that direct AWS's SDKs and tools to the emulator."""
        return ROOT_USER | {"AWS_ENDPOINT_URL": self.url, "AWS_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true"}

    def client(self, service):
        import boto3

        os.environ.update(self.environment)
        return boto3.client(service)

    def __enter__(self):
        settings = {
            "AUTH": "true",
            # Functions inherit its variables, so they call the emulator, too.
            "AWS_ENDPOINT_URL": self.url,
            "GATEWAY_PORT": str(self.port),
            "BIND_HOST": "127.0.0.1",
            "MINISTACK_HOST": "localhost",
            "MINISTACK_REGION": REGION,
            "S3_DATA_DIR": self.folder.name,
            "TMPDIR": self.folder.name,
            # Unused services that would open further ports.
            "IOT_MTLS_ENABLED": "false",
            "SFTP_ENABLED": "false",
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__], env=os.environ | ROOT_USER | settings | self.options, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"{self.url}/_ministack/health", timeout=2):
                    return self
            except OSError:
                time.sleep(0.1)
        self.__exit__()
        raise SystemExit(f"error: the emulator did not start within {START_S} s; see {self.log}")

    def __exit__(self, *_):
        # The functions that it started are in its session, and end with it.
        try:
            os.killpg(self.process.pid, 9)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.folder.cleanup()


def expand_nested_templates():
    """Applies transforms to the templates of nested stacks, which ministack omits."""
    from ministack.services.cloudformation import engine, provisioners

    parse, deploy = engine._parse_template, provisioners._cfn_nested_stack_deploy

    def deploy_expanded(name, properties, *arguments, **named):
        given = [{"Key": key, "Value": str(value)} for key, value in (properties.get("Parameters") or {}).items()]
        engine._parse_template = lambda body: engine._apply_transforms(parse(body), given)
        try:
            return deploy(name, properties, *arguments, **named)
        finally:
            engine._parse_template = parse

    provisioners._cfn_nested_stack_deploy = deploy_expanded


def pass_parameters_to_sam():
    """Passes the values of parameters to SAM's translator, which ministack omits."""
    from ministack.services.cloudformation import changesets, engine, handlers
    from samtranslator.translator import transform as sam

    apply, expand = engine._apply_transforms, sam.transform

    def apply_with_parameters(template, given=None, previous=None):
        values = engine._transform_parameters(template, given, previous)
        sam.transform = lambda template, _, policies: expand(template, values, policies)
        try:
            return apply(template, given, previous)
        finally:
            sam.transform = expand

    for module in (changesets, engine, handlers):
        module._apply_transforms = apply_with_parameters


def send_preflights_to_routes():
    """ministack answers preflight requests itself, without the configuration of a template, whose names have a capital. AWS
    sends those with a route to its integration, and adds headers.
    """
    import inspect

    from ministack.services import apigateway

    text = inspect.getsource(apigateway._handle_execute_in_scope)
    for found, replaced in (
        ('if method == "OPTIONS":', 'if method == "OPTIONS" and not _match_route(api_id, method, "/" + path.lstrip("/")):'),
        ('cors_cfg = api.get("corsConfiguration") or {}', "cors_cfg = _cors_configuration(api)"),
        ("resp_headers.update(_cors_response_headers(", "resp_headers.update(_cors_headers(method, "),
    ):
        assert text.count(found) == 1, f"ministack has no `{found}`"
        text = text.replace(found, replaced)
    apigateway._cors_configuration = lambda api: {
        name[0].lower() + name[1:]: value for name, value in (api.get("corsConfiguration") or {}).items()
    }
    apigateway._cors_headers = lambda method, cors, origin: (
        apigateway._cors_preflight_response(cors, origin)[1] if method == "OPTIONS" else apigateway._cors_response_headers(cors, origin)
    )
    exec(text, vars(apigateway))


def accept_alarms_on_expressions():
    """ministack rejects alarms on expressions; each is kept as an alarm on the expression's first metric."""
    from ministack.services.cloudformation import provisioners

    kept = provisioners._cw_metric_alarm_record

    def record(name, properties):
        queries = properties.get("Metrics")
        if queries:
            stat = next(query["MetricStat"] for query in queries if "MetricStat" in query)
            plain = {"Statistic": stat["Stat"], "Period": stat["Period"], **stat["Metric"]}
            properties = {key: value for key, value in properties.items() if key != "Metrics"} | plain
        return kept(name, properties)

    provisioners._cw_metric_alarm_record = record


def convert_numbers_of_parameters():
    """ministack compares the concurrency of an event source as a number, but keeps one from a parameter as text."""
    from ministack.services import lambda_svc

    limit_of = lambda_svc._sqs_esm_concurrency

    def limit(mapping, *others):
        scaling = mapping.get("ScalingConfig") or {}
        if "MaximumConcurrency" in scaling:
            scaling["MaximumConcurrency"] = int(scaling["MaximumConcurrency"])
        return limit_of(mapping, *others)

    lambda_svc._sqs_esm_concurrency = limit


def accept_unknown_types():
    """Accepts resources of types that ministack lacks, without effect, so that stacks with them can be created."""
    from ministack.services.cloudformation import engine, provisioners

    provision = provisioners._provision_resource

    def provision_known(kind, name, *others):
        try:
            return provision(kind, name, *others)
        except ValueError as error:
            if not str(error).startswith("Unsupported resource type"):
                raise
            print(f"{UNKNOWN}{kind}", flush=True)
            return name, {"Arn": f"arn:aws:unknown:{REGION}:000000000000:{name}"}

    validate = engine.validate_template_support

    def validate_known(template, *others, **named):
        try:
            return validate(template, *others, **named)
        except ValueError as error:
            if "Unrecognized resource types" not in str(error):
                raise
        # Types are not checked in templates with a transform.
        return validate(template | {"Transform": "any"}, *others, **named)

    for module in list(sys.modules.values()):
        if getattr(module, "_provision_resource", None) is provision:
            module._provision_resource = provision_known
        if getattr(module, "validate_template_support", None) is validate:
            module.validate_template_support = validate_known


def treat_requests_as_tls():
    """ministack has no TLS, which the policies of buckets and queues require."""
    from ministack.core import iam_evaluator

    resolve = iam_evaluator._resolve_condition_key
    iam_evaluator._resolve_condition_key = (
        lambda key, context: "true" if key.lower() == "aws:securetransport" else resolve(key, context)
    )


def add_distributed_maps():
    """Adds item batches and result writers of Distributed Maps, from a file next to the repository, if it exists."""
    if PATCHES.is_file():
        runpy.run_path(str(PATCHES))
    else:
        print(f"skipped: {PATCHES} does not exist", flush=True)


if __name__ == "__main__":
    add_distributed_maps()
    pass_parameters_to_sam()
    expand_nested_templates()
    send_preflights_to_routes()
    accept_alarms_on_expressions()
    convert_numbers_of_parameters()
    treat_requests_as_tls()
    if os.environ.get("ACCEPT_UNKNOWN_TYPES"):
        accept_unknown_types()
    # The runtime API of functions writes each response in two parts; Nagle's algorithm would delay the second by 40 ms.
    socketserver.StreamRequestHandler.disable_nagle_algorithm = True
    from ministack.app import main

    main()
