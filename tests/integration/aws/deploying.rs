//! The CloudFormation templates, checked by AWS's own tools, by an emulator, and against the code. `make test` sets the
//! variables that name the tools; without them these tests are skipped.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Write},
    process::{ChildStdin, ChildStdout, Command, Stdio},
    sync::Mutex,
    time::{Duration, SystemTime},
};

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use kivu::{
    cloud::Cloud,
    config::{AuthConfig, AuthMode, Config, Limits, Load, Policy},
    observer::record_encoding,
    telemetry::{self, Embedded},
};
use kivu_http::{App, BindScope, Guard, make_key, router};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    app::{routes, scripted},
    built::compiled,
    server::bundle,
    source_files::{CRATES, sources},
    tools::{root, succeed, tool},
};

const CERTIFICATE: &str = "arn:aws:acm:us-east-1:000000000000:certificate/a";
/// Lambda's limit for a request and for a response.
const PAYLOAD_BYTES: usize = 6 * 1024 * 1024;
/// The longest number in JSON, with its comma.
const NUMBER_BYTES: usize = 13;

/// A script in `tests/deploy`, in the Python environment with its packages.
fn script(name: &str) -> Option<Command> {
    let mut command = Command::new(tool("TEST_DEPLOY")?.join("python"));
    command
        .current_dir(root())
        .args(["-W", "ignore"])
        .arg(format!("tests/deploy/{name}.py"));
    Some(command)
}

#[test]
fn the_official_checkers_find_nothing() {
    let (Some(mut validate), Some(checkov)) = (script("validate"), tool("TEST_CHECKOV")) else {
        return;
    };
    succeed(validate.arg(checkov));
}

#[test]
fn quotas_below_the_requirements_are_reported() {
    let Some(mut quotas) = script("quotas") else {
        return;
    };
    succeed(&mut quotas);
}

/// New accounts allow 3008 MB for a function and 10 concurrent executions.
#[test]
fn defaults_fit_a_new_account() {
    let Some([deployment]) =
        Deployment::resolve([json!({ "Batch": "yes", "LargeModels": "s3://b/models/m" })])
    else {
        return;
    };
    for (name, function) in deployment.all("AWS::Lambda::Function") {
        assert!(number(&function["MemorySize"]) <= 3008, "{name}");
        assert!(function["ReservedConcurrentExecutions"].is_null(), "{name}");
    }
    // Queue and state machine have a limit each; at least half the executions are left to the API.
    let queue =
        number(&deployment.of("BatchFunctionUploads")["ScalingConfig"]["MaximumConcurrency"]);
    let parts = number(&deployment.of("LargeFiles")["DefinitionSubstitutions"]["MaxConcurrency"]);
    assert!(queue + parts <= 5, "{queue} files and {parts} parts");
}

/// Servers share each key's daily quota.
#[test]
fn quotas_of_keys_are_shared() {
    let (Some(mut quotas), Some((_folder, bundle))) = (script("key_quotas"), bundle()) else {
        return;
    };
    succeed(quotas.arg(env!("CARGO_BIN_EXE_kivu")).arg(bundle));
}

#[test]
fn operations_survive_interruptions() {
    let Some(mut operations) = script("operations") else {
        return;
    };
    succeed(&mut operations);
}

/// Requests get versions, whose configuration is fixed when they are published.
#[test]
fn every_parameter_publishes_a_version() {
    let Some(mut versions) = script("versions") else {
        return;
    };
    succeed(&mut versions);
}

/// The checks before a release, with the function as the new version.
#[test]
fn releases_are_checked() {
    let (Some(mut checks), Some((_folder, bundle))) = (script("checks"), bundle()) else {
        return;
    };
    succeed(
        checks
            .arg(compiled("api"))
            .arg(env!("CARGO_BIN_EXE_kivu"))
            .arg(bundle),
    );
}

#[test]
fn later_deployments_are_built_as_before() {
    let Some(mut deployment) = script("deployment") else {
        return;
    };
    succeed(&mut deployment);
}

/// Messages and log entries that the troubleshooting page explains exist in the code.
#[test]
fn the_troubleshooting_page_quotes_the_code() {
    let folders = CRATES.iter().chain(&["functions"]);
    let files = folders.flat_map(|folder| sources(&root().join(folder), "rs"));
    let code: String = files
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect();
    let page = std::fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let quoted = page.split('`').skip(1).step_by(2);
    let mut reasons: Vec<&str> = quoted
        .filter_map(|text| text.strip_prefix("\"refused\":\"")?.strip_suffix('"'))
        .collect();
    assert!(reasons.len() > 5, "{reasons:?}");
    reasons.extend(["cannot start", "cannot read the keys", "request failed"]);
    let unknown: Vec<_> = reasons
        .iter()
        .filter(|reason| !code.contains(&format!("\"{reason}\"")))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?} are not in the code");
}

#[test]
fn the_emulator_creates_the_stack_with_all_parts() {
    let Some(mut everything) = script("everything") else {
        return;
    };
    succeed(&mut everything);
}

/// Validates the Terraform example with the AWS provider, and compares it with the template.
#[test]
fn the_example_for_terraform_is_valid() {
    let Some(mut example) = script("terraform") else {
        return;
    };
    let Some(terraform) = std::env::var_os("TEST_TERRAFORM") else {
        crate::skips::unsupported("terraform is not installed");
        return;
    };
    succeed(example.arg(terraform));
}

#[test]
fn impossible_combinations_are_refused() {
    let Some(mut rules) = script("rules") else {
        return;
    };
    succeed(&mut rules);
}

#[test]
fn instances_of_the_fleet_report_their_start() {
    let Some(mut fleet) = script("fleet") else {
        return;
    };
    succeed(&mut fleet);
}

#[test]
fn large_layers_are_sent_in_parts() {
    let Some(mut uploads) = script("uploads") else {
        return;
    };
    succeed(&mut uploads);
}

/// Container images with Debian's registry and tools, and AWS's emulator.
#[test]
fn images_are_made_pushed_and_run() {
    let (Some(mut images), Some(tools), Some((_folder, bundle))) =
        (script("images"), tool("TEST_IMAGES"), bundle())
    else {
        return;
    };
    if tools.as_os_str().is_empty() {
        crate::skips::unsupported("the tools for images are Debian 12's");
        return;
    }
    succeed(images.arg(compiled("api")).arg(bundle).arg(tools));
}

#[test]
fn archives_are_reproducible() {
    let mut command = Command::new("python3");
    succeed(command.current_dir(root()).arg("tests/lambda/packing.py"));
}

#[test]
fn the_list_of_crates_is_complete_and_reproducible() {
    let folder = tempfile::tempdir().unwrap();
    let list = |name: &str| {
        let out = folder.path().join(name);
        let mut command = Command::new("python3");
        succeed(
            command
                .current_dir(root())
                .arg("functions/parts.py")
                .arg(&out),
        );
        std::fs::read_to_string(out).unwrap()
    };
    let first = list("first");
    assert_eq!(first, list("second"));
    let list: Value = serde_json::from_str(&first).unwrap();
    let names: BTreeSet<&str> = list["components"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|part| part["name"].as_str())
        .collect();
    assert!(
        ["ort", "tokio", "tokenizers", "zstd-sys"]
            .iter()
            .all(|part| names.contains(part)),
        "{names:?}"
    );
    assert!(
        ["insta", "proptest"]
            .iter()
            .all(|other| !names.contains(other)),
        "dependencies of tests"
    );

    let Some(checkov) = tool("TEST_CHECKOV") else {
        return;
    };
    let validate = "import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
sys.exit(JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read()))";
    let mut command = Command::new(checkov.with_file_name("python"));
    succeed(
        command
            .args(["-W", "ignore", "-c", validate])
            .arg(folder.path().join("first")),
    );
}

#[test]
fn the_template_can_be_deployed_and_used() {
    let Ok(functions) = std::env::var("TEST_WALK") else {
        crate::skips::missing("TEST_WALK, which `make walk` sets");
        return;
    };
    let Some(mut walk) = script("walk") else {
        return;
    };
    if functions == "compiled" {
        walk.arg("--compiled").arg(compiled("api"));
    }
    succeed(walk.arg(env!("CARGO_BIN_EXE_kivu")));
}

/// Resources and policies in a deployment with certain parameters.
struct Deployment {
    resources: BTreeMap<String, Value>,
    /// Policy documents per role.
    policies: BTreeMap<String, Vec<Value>>,
}

impl Deployment {
    /// Resolves templates in one process for all tests, since its packages take seconds to load.
    #[expect(
        clippy::zombie_processes,
        reason = "it ends with the tests, which close its input"
    )]
    fn resolve<const COUNT: usize>(parameters: [Value; COUNT]) -> Option<[Self; COUNT]> {
        static RESOLVER: Mutex<Option<(ChildStdin, BufReader<ChildStdout>)>> = Mutex::new(None);
        let mut resolver = RESOLVER.lock().unwrap();
        if resolver.is_none() {
            let mut started = script("resolve")?
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            *resolver = Some((
                started.stdin.take().unwrap(),
                BufReader::new(started.stdout.take().unwrap()),
            ));
        }
        let (input, output) = resolver.as_mut().unwrap();
        Some(parameters.map(|parameters| {
            writeln!(input, "{parameters}").unwrap();
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            let mut resolved: Value =
                serde_json::from_str(&line).expect("the script prints its error");
            Self {
                resources: serde_json::from_value(resolved["resources"].take()).unwrap(),
                policies: serde_json::from_value(resolved["policies"].take()).unwrap(),
            }
        }))
    }

    fn of(&self, name: &str) -> &Value {
        &self
            .resources
            .get(name)
            .unwrap_or_else(|| panic!("no resource `{name}`"))["Properties"]
    }

    fn all<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let is_kind = move |(_, resource): &(&String, &Value)| resource["Type"] == kind;
        self.resources
            .iter()
            .filter(is_kind)
            .map(|(name, resource)| (name.as_str(), &resource["Properties"]))
    }
}

/// A Triton image.
fn image() -> String {
    format!(
        "000000000000.dkr.ecr.eu-west-1.amazonaws.com/triton@sha256:{:064}",
        0
    )
}

/// Deployments whose functions are configured differently.
fn deployments() -> Option<[Deployment; 5]> {
    let image = image();
    Deployment::resolve([
        json!({}),
        json!({ "AuthMode": "iam", "Batch": "yes", "Memory": 512, "Tracing": "Active" }),
        json!({ "AuthMode": "jwt", "JwtIssuer": "https://a", "JwtAudience": "b", "LargeModels": "s3://b/models/m", "Architecture": "x86_64" }),
        json!({ "AuthMode": "none", "LargeModels": "s3://b/models/m", "LargeRunsOn": "instances", "LargeMemory": 4096 }),
        json!({ "Fleet": "yes", "TritonImage": image, "Batch": "yes", "WebAclArn": "arn", "DomainName": "a.b", "CertificateArn": CERTIFICATE }),
    ])
}

/// A function's configuration, from the file in its archive and its environment variables.
fn configuration(function: &Value) -> Config {
    let folder = if function["FunctionName"]
        .as_str()
        .unwrap()
        .ends_with("-batch")
    {
        "batch"
    } else {
        "api"
    };
    let variables = function["Environment"]["Variables"].as_object().unwrap();
    let mut variables: BTreeMap<String, String> = variables
        .iter()
        .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
        .collect();
    variables.insert(
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE".into(),
        function["MemorySize"].to_string(),
    );
    let file = root().join("functions").join(folder).join("kivu.toml");
    Config::load(Some(&file), &variables).unwrap_or_else(|error| panic!("{}", error.chain()))
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .or_else(|| value.as_str()?.parse().ok())
        .unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn functions_accept_their_configuration() {
    let Some(deployments) = deployments() else {
        return;
    };
    for deployment in &deployments {
        for (name, function) in deployment.all("AWS::Lambda::Function") {
            let config = configuration(function);
            assert_eq!(
                (&function["Handler"], &function["Runtime"]),
                (&json!("bootstrap"), &json!("provided.al2023"))
            );
            let is_stored = config.cache.is_some();
            assert!(
                is_stored || function["EphemeralStorage"].is_null(),
                "{name} pays for a /tmp that it does not use"
            );
            if name == "BatchFunction" {
                continue;
            }
            Guard::new(
                &config.auth,
                BindScope::ApiGateway,
                &kivu_aws::cloud(&config),
            )
            .unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(
                config.auth.proxy_secret_id.is_some(),
                deployment.resources.contains_key("Distribution"),
                "{name}"
            );
            // CloudFormation would put a resolved secret into the variables, which are readable in the console.
            let variables = function["Environment"].to_string();
            assert!(!variables.contains("{{resolve"), "{name}: {variables}");
            let role = function["Role"]
                .as_str()
                .unwrap()
                .rsplit('/')
                .next()
                .unwrap();
            if let Some(secret) = &config.auth.proxy_secret_id {
                let granted = granted(deployment, role, "secretsmanager:GetSecretValue");
                assert!(granted.contains(secret), "{role}: {granted:?}");
            }
            assert!(config.limits.body_bytes <= PAYLOAD_BYTES);
            assert!(
                config.limits.values * NUMBER_BYTES <= PAYLOAD_BYTES,
                "the largest response must fit"
            );
            let memory = number(&function["MemorySize"]);
            let cpus = if name == "InstancesFunction" {
                memory / 2048
            } else {
                memory.div_ceil(1769)
            };
            assert_eq!(config.threads().get() as u64, cpus, "one thread per CPU");
        }
    }
}

/// Without parameters there is one function and one API, and only the secret has a charge at rest.
#[test]
fn the_smallest_deployment_is_small() {
    let Some([smallest, ..]) = deployments() else {
        return;
    };
    let count = |kind| smallest.all(kind).count();
    assert_eq!(
        (
            count("AWS::Lambda::Function"),
            count("AWS::ApiGatewayV2::Api")
        ),
        (1, 1)
    );
    assert_eq!(count("AWS::SecretsManager::Secret"), 1);
    for kind in [
        "AWS::EC2::VPC",
        "AWS::EC2::VPCEndpoint",
        "AWS::AutoScaling::AutoScalingGroup",
        "AWS::ApplicationAutoScaling::ScalableTarget",
        "AWS::CodeDeploy::DeploymentGroup",
        "AWS::CloudFront::Distribution",
        "AWS::SQS::Queue",
        "AWS::DynamoDB::Table",
    ] {
        assert_eq!(count(kind), 0, "{kind}");
    }
    assert!(smallest.of("ApiFunctionAliaslive")["ProvisionedConcurrencyConfig"].is_null());
}

/// Asserts that pages in browsers may use every method in the table of routes.
fn assert_all_methods(cors: &Value) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let routes = runtime.block_on(routes());
    let expected: BTreeSet<&str> = routes.iter().map(|(method, _)| method.as_str()).collect();
    let allowed = cors["AllowMethods"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str);
    assert_eq!(
        allowed
            .filter(|method| *method != "OPTIONS")
            .collect::<BTreeSet<_>>(),
        expected
    );
}

/// A function URL requires the same credentials as the API.
#[test]
fn function_urls_require_credentials() {
    let keys = json!({ "FunctionUrl": "yes", "ReservedConcurrency": 2, "CorsOrigins": "https://a.b,https://c.d" });
    let iam = json!({ "FunctionUrl": "unlimited", "AuthMode": "iam" });
    let Some([keys, iam]) = Deployment::resolve([keys, iam]) else {
        return;
    };
    let url = |deployment: &Deployment| deployment.of("FunctionUrl").clone();
    // Keys are checked by the function; a signature could only be checked by Lambda.
    assert_eq!(
        (&url(&keys)["AuthType"], &url(&iam)["AuthType"]),
        (&json!("NONE"), &json!("AWS_IAM"))
    );
    assert_eq!(
        configuration(keys.of("ApiFunction")).auth.mode,
        Some(AuthMode::Keys)
    );
    assert_eq!(
        url(&keys)["Cors"]["AllowOrigins"],
        json!(["https://a.b", "https://c.d"])
    );
    assert_all_methods(&url(&keys)["Cors"]);
    assert_eq!(url(&keys)["Qualifier"], "live");
    assert!(url(&iam)["Cors"].is_null());
    let is_public = |(_, permission): &(&str, &Value)| permission["Principal"] == "*";
    assert_eq!(
        iam.all("AWS::Lambda::Permission").filter(is_public).count(),
        0
    );
    let public: Vec<_> = keys
        .all("AWS::Lambda::Permission")
        .filter(is_public)
        .collect();
    assert_eq!(
        public.len(),
        2,
        "to call the URL, and to invoke the function through it"
    );
    for (name, permission) in public {
        let is_limited = permission["FunctionUrlAuthType"] == "NONE"
            || permission["InvokedViaFunctionUrl"] == true;
        assert!(is_limited, "{name} permits any caller");
    }
}

/// Lambda's limit for a streamed response.
const STREAM_BYTES: usize = 200 * 1024 * 1024;

/// The function whose responses are streamed has its own limits, and requires the same credentials as the API.
#[test]
fn streamed_responses_require_credentials_and_fit() {
    let url = json!({ "Streaming": "url", "StreamingConcurrency": 2, "KeyQuotas": "yes", "CorsOrigins": "https://a.b" });
    let signed_url = json!({ "Streaming": "unlimited", "AuthMode": "iam" });
    let (rest, signed_rest) = (
        json!({ "Streaming": "rest" }),
        json!({ "Streaming": "rest", "AuthMode": "iam" }),
    );
    let Some([url, signed_url, rest, signed_rest]) =
        Deployment::resolve([url, signed_url, rest, signed_rest])
    else {
        return;
    };
    for deployment in [&url, &signed_url, &rest, &signed_rest] {
        let function = deployment.of("StreamFunction");
        assert_eq!(
            function["Environment"]["Variables"]["RESPONSE_MODE"],
            "streaming"
        );
        assert!(
            deployment.of("ApiFunction")["Environment"]["Variables"]["RESPONSE_MODE"].is_null()
        );
        let limits = configuration(function).limits;
        assert!(
            limits.values * NUMBER_BYTES <= STREAM_BYTES,
            "the largest response must fit"
        );
        // AWS sends the first 6 MB at once and the others at 2 MB/s.
        let sending = Duration::from_secs((STREAM_BYTES / 2_000_000) as u64);
        let timeout = Duration::from_secs(number(&function["Timeout"]));
        assert!(
            limits.timeout() + sending <= timeout,
            "a computed response must be sent"
        );
        for (name, permission) in deployment.all("AWS::Lambda::Permission") {
            let is_limited = permission["SourceArn"].is_string() || permission["Principal"] == "*";
            assert!(is_limited, "{name} permits any caller");
        }
    }
    let mode = |deployment: &Deployment| {
        let url = deployment.of("StreamUrl");
        (
            url["InvokeMode"].clone(),
            url["AuthType"].clone(),
            url["Qualifier"].clone(),
        )
    };
    assert_eq!(
        mode(&url),
        (json!("RESPONSE_STREAM"), json!("NONE"), json!("live"))
    );
    assert_eq!(
        mode(&signed_url),
        (json!("RESPONSE_STREAM"), json!("AWS_IAM"), json!("live"))
    );
    assert_all_methods(&url.of("StreamUrl")["Cors"]);
    assert_eq!(
        configuration(url.of("StreamFunction")).auth.mode,
        Some(AuthMode::Keys)
    );
    let is_public = |(_, permission): &(&str, &Value)| permission["Principal"] == "*";
    let public = |deployment: &Deployment| {
        deployment
            .all("AWS::Lambda::Permission")
            .filter(is_public)
            .count()
    };
    assert_eq!(
        [&url, &signed_url, &rest, &signed_rest].map(public),
        [2, 0, 0, 0]
    );
    assert!(url.resources.keys().all(|name| name != "StreamApi"));
    for deployment in [&rest, &signed_rest] {
        assert_eq!(deployment.all("AWS::Lambda::Url").count(), 0);
        let limits = configuration(deployment.of("StreamFunction")).limits;
        assert!(
            limits.timeout() < Duration::from_mins(5),
            "REST APIs close idle connections"
        );
    }
    let security = |deployment: &Deployment| {
        let paths = &deployment.of("StreamApi")["Body"]["paths"];
        let method = &paths["/{proxy+}"]["x-amazon-apigateway-any-method"];
        let integration = &method["x-amazon-apigateway-integration"];
        assert_eq!(integration["responseTransferMode"], "STREAM");
        let uri = integration["uri"].as_str().unwrap();
        assert!(
            uri.contains("/2021-11-15/functions/")
                && uri.ends_with(":live/response-streaming-invocations")
        );
        assert_eq!(paths["/health"]["get"]["security"], json!([{ "NONE": [] }]));
        let stage = deployment.of("StreamApiliveStage");
        (method["security"].clone(), stage["DeploymentId"].clone())
    };
    let (open, signed) = (security(&rest), security(&signed_rest));
    assert_eq!(
        (open.0, signed.0),
        (Value::Null, json!([{ "AWS_IAM": [] }]))
    );
    assert_ne!(open.1, signed.1, "other credentials deploy the API again");
}

/// The deployment with all optional parts that can be combined.
fn everything() -> Option<Deployment> {
    Deployment::resolve([json!("everything")]).map(|[deployment]| deployment)
}

#[test]
fn the_key_encrypts_and_the_boundary_limits_everything() {
    let Some(deployment) = everything() else {
        return;
    };
    let key = "arn:aws:kms:eu-west-1:000000000000:key/a";
    for (kind, property, count) in [
        ("AWS::S3::Bucket", "BucketEncryption", 2),
        ("AWS::SecretsManager::Secret", "KmsKeyId", 2),
        ("AWS::Logs::LogGroup", "KmsKeyId", 7),
        ("AWS::SQS::Queue", "KmsMasterKeyId", 2),
        ("AWS::SNS::Topic", "KmsMasterKeyId", 1),
        ("AWS::Lambda::Function", "KmsKeyArn", 4),
    ] {
        let found: Vec<_> = deployment.all(kind).collect();
        assert_eq!(found.len(), count, "{kind}");
        for (name, resource) in found {
            assert!(
                resource[property].to_string().contains(key),
                "{name}: {}",
                resource[property]
            );
        }
    }
    assert_eq!(
        deployment.of("QuotaTable")["SSESpecification"]["KMSMasterKeyId"],
        key
    );
    for role in [
        "ApiRole",
        "LargeRole",
        "BatchRole",
        "LargeFilesRole",
        "MachineRole",
        "ChecksRole",
    ] {
        assert_eq!(granted(&deployment, role, "kms:Decrypt"), [key], "{role}");
    }
    for (name, role) in deployment.all("AWS::IAM::Role") {
        assert_eq!(
            role["PermissionsBoundary"], "arn:aws:iam::000000000000:policy/a",
            "{name}"
        );
    }
}

/// CloudWatch Logs sends the log group as encryption context, and no source account.
#[test]
fn the_documented_policy_permits_the_services_to_use_the_key() {
    let page = std::fs::read_to_string(root().join("docs/deploy.md")).unwrap();
    let policy = page
        .split("```json\n")
        .find(|block| block.contains("kms:"))
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let statements: Vec<Value> = serde_json::from_str(policy).unwrap();
    let of = |service: &str| {
        let is_of =
            |statement: &&Value| list(&statement["Principal"]["Service"]).contains(&json!(service));
        let statement = statements
            .iter()
            .find(is_of)
            .unwrap_or_else(|| panic!("no statement for {service}"));
        (list(&statement["Action"]), statement["Condition"].clone())
    };
    let (actions, condition) = of("logs.REGION.amazonaws.com");
    let context = json!({ "ArnLike": { "kms:EncryptionContext:aws:logs:arn": "arn:aws:logs:REGION:ACCOUNT:log-group:*" } });
    assert_eq!(condition, context);
    for action in [
        "Encrypt*",
        "Decrypt*",
        "ReEncrypt*",
        "GenerateDataKey*",
        "Describe*",
    ] {
        assert!(
            actions.contains(&json!(format!("kms:{action}"))),
            "{action}"
        );
    }
    for service in ["events.amazonaws.com", "cloudwatch.amazonaws.com"] {
        let (actions, condition) = of(service);
        assert_eq!(
            actions,
            [json!("kms:Decrypt"), json!("kms:GenerateDataKey*")],
            "{service}"
        );
        assert_eq!(
            condition,
            json!({ "StringEquals": { "aws:SourceAccount": "ACCOUNT" } }),
            "{service}"
        );
    }
}

#[test]
fn gradual_releases_are_judged_by_alarms() {
    let Some(deployment) = everything() else {
        return;
    };
    let group = deployment.of("ApiFunctionDeploymentGroup");
    let alarms = json!([{ "Name": "Errors" }, { "Name": "Failures" }]);
    assert_eq!(
        group["AlarmConfiguration"],
        json!({ "Enabled": true, "Alarms": alarms })
    );
    assert_eq!(group["AutoRollbackConfiguration"]["Enabled"], true);
    assert_eq!(
        group["DeploymentConfigName"],
        "CodeDeployDefault.LambdaCanary10Percent5Minutes"
    );
    // An alarm that needs as long as the shortest release, or longer, would be raised after it.
    for name in ["Errors", "Failures"] {
        let alarm = deployment.of(name);
        let metrics = alarm["Metrics"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|metric| &metric["MetricStat"]);
        let periods: Vec<u64> = metrics
            .chain([alarm])
            .filter_map(|metric| metric["Period"].as_u64())
            .collect();
        let needed = number(&alarm["EvaluationPeriods"]) * periods.iter().max().unwrap();
        assert!(
            needed <= 180,
            "{name} needs {needed} s of a release of 300 s"
        );
    }
    // API responses, since a 503 from the function is not an invocation error.
    let failed = &deployment.of("Failures")["Metrics"][1]["MetricStat"]["Metric"];
    assert_eq!(
        (&failed["Namespace"], &failed["MetricName"]),
        (&json!("AWS/ApiGateway"), &json!("5xx"))
    );
    let alias = &deployment.resources["ApiFunctionAliaslive"];
    assert!(alias["UpdatePolicy"]["CodeDeployLambdaAliasUpdate"].is_object());
    let function = "arn:aws:lambda:eu-west-1:000000000000:function:kivu-api";
    let updated = granted(&deployment, "ReleaseRole", "lambda:UpdateAlias");
    assert!(
        updated
            .iter()
            .all(|resource| resource.starts_with(function)),
        "{updated:?}"
    );
    // The checks run before requests move, by the name for which CodeDeploy has a permission.
    assert_eq!(
        alias["UpdatePolicy"]["CodeDeployLambdaAliasUpdate"]["BeforeAllowTrafficHook"],
        "kivu-checks"
    );
    let invoked = granted(&deployment, "ReleaseRole", "lambda:InvokeFunction");
    assert_eq!(
        invoked,
        ["arn:aws:lambda:eu-west-1:000000000000:function:kivu-checks"]
    );
}

#[test]
fn provisioned_concurrency_follows_its_schedule() {
    let Some(deployment) = everything() else {
        return;
    };
    // With both, each deployment would override the schedule.
    assert!(deployment.of("ApiFunctionAliaslive")["ProvisionedConcurrencyConfig"].is_null());
    let target = deployment.of("WarmEnvironments");
    assert_eq!(target["ResourceId"], "function:kivu-api:live");
    let actions: Vec<_> = target["ScheduledActions"]
        .as_array()
        .unwrap()
        .iter()
        .collect();
    let schedules: Vec<_> = actions
        .iter()
        .map(|action| action["Schedule"].as_str().unwrap())
        .collect();
    assert_eq!(
        schedules,
        ["cron(0 6 ? * MON-FRI *)", "cron(0 20 ? * MON-FRI *)"]
    );
    let least: Vec<_> = actions
        .iter()
        .map(|action| &action["ScalableTargetAction"]["MinCapacity"])
        .collect();
    assert_eq!(least, [&json!("1"), &json!(0)]);
    let most: Vec<_> = actions
        .iter()
        .map(|action| &action["ScalableTargetAction"]["MaxCapacity"])
        .collect();
    assert_eq!(most, [&json!("4"), &json!(0)]);
}

#[test]
fn provisioned_concurrency_follows_its_use() {
    let scaled = json!({ "ProvisionedConcurrency": 2, "WarmMost": 5 });
    let Some([scaled, fixed]) =
        Deployment::resolve([scaled, json!({ "ProvisionedConcurrency": 2 })])
    else {
        return;
    };
    for deployment in [&scaled, &fixed] {
        let provisioned = &deployment.of("ApiFunctionAliaslive")["ProvisionedConcurrencyConfig"];
        assert_eq!(number(&provisioned["ProvisionedConcurrentExecutions"]), 2);
    }
    let target = scaled.of("WarmEnvironments");
    assert_eq!(
        (
            number(&target["MinCapacity"]),
            number(&target["MaxCapacity"])
        ),
        (2, 5)
    );
    assert!(target["ScheduledActions"].is_null());
    let policy = &scaled.of("WarmScaling")["TargetTrackingScalingPolicyConfiguration"];
    let metric = &policy["PredefinedMetricSpecification"]["PredefinedMetricType"];
    assert_eq!(metric, "LambdaProvisionedConcurrencyUtilization");
    assert!(!fixed.resources.contains_key("WarmEnvironments"));
}

/// Functions can join an existing network and use an existing fleet, also for models that they cannot load.
#[test]
fn existing_networks_and_fleets_can_be_used() {
    let parameters = json!({
        "VpcSubnets": "subnet-1,subnet-2", "VpcSecurityGroups": "sg-1", "FleetUrls": "grpc://a:8001,grpc://b:8001",
        "FleetPolicy": "fleet", "Batch": "yes", "LargeModels": "s3://b/models/m",
    });
    let Some([deployment]) = Deployment::resolve([parameters]) else {
        return;
    };
    for (name, function) in deployment.all("AWS::Lambda::Function") {
        let network =
            json!({ "SubnetIds": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"] });
        assert_eq!(function["VpcConfig"], network, "{name}");
        let fleet = configuration(function).fleet;
        assert_eq!(
            (fleet.urls.len(), fleet.policy),
            (2, Policy::Fleet),
            "{name}"
        );
        let role = function["Role"]
            .as_str()
            .unwrap()
            .rsplit('/')
            .next()
            .unwrap();
        assert!(
            !granted(&deployment, role, "ec2:CreateNetworkInterface").is_empty(),
            "{name}"
        );
    }
    assert_eq!(deployment.all("AWS::EC2::VPC").count(), 0);
}

/// The API's functions can load models on demand; a job's models are always loaded at start.
#[test]
fn functions_can_load_models_on_demand() {
    let given = json!({
        "LoadModels": "on-demand", "MaxMemory": "800MB", "LargeModels": "s3://b/models", "Batch": "yes",
        "Streaming": "unlimited",
    });
    let Some([demand, start]) = Deployment::resolve([given, json!({})]) else {
        return;
    };
    let loads = |name: &str| {
        let config = configuration(demand.of(name));
        (config.load, config.max_memory)
    };
    assert_eq!(loads("ApiFunction"), (Load::OnDemand, Some(800_000_000)));
    assert_eq!(loads("LargeFunction"), (Load::OnDemand, None));
    assert_eq!(loads("StreamFunction"), (Load::OnDemand, None));
    assert_eq!(loads("BatchFunction"), (Load::Start, None));
    let config = configuration(start.of("ApiFunction"));
    assert_eq!((config.load, config.max_memory), (Load::Start, None));
}

/// Functions that check keys may count requests in the quota table, and nothing else.
#[test]
fn functions_may_count_requests() {
    let Some(deployment) = everything() else {
        return;
    };
    let table = "arn:aws:dynamodb:eu-west-1:000000000000:table/QuotaTable";
    for (role, function) in [("ApiRole", "ApiFunction"), ("LargeRole", "LargeFunction")] {
        assert_eq!(
            granted(&deployment, role, "dynamodb:UpdateItem"),
            [table],
            "{role}"
        );
        let config = configuration(deployment.of(function));
        assert_eq!(
            config.auth.quota_table.as_deref(),
            Some("QuotaTable"),
            "{function}"
        );
    }
    assert!(granted(&deployment, "BatchRole", "dynamodb:UpdateItem").is_empty());
}

/// All logs can go to a log group that the stack neither creates nor deletes.
#[test]
fn logs_can_outlive_the_stack() {
    let everything = || json!({ "Batch": "yes", "LargeModels": "s3://b/models/m", "Fleet": "yes", "TritonImage": image() });
    let mut kept = everything();
    kept["LogGroup"] = json!("kept");
    let Some([own, kept]) = Deployment::resolve([everything(), kept]) else {
        return;
    };
    assert_eq!(
        (
            own.all("AWS::Logs::LogGroup").count(),
            kept.all("AWS::Logs::LogGroup").count()
        ),
        (6, 0)
    );
    let group = "arn:aws:logs:eu-west-1:000000000000:log-group:kept:*";
    for (name, function) in kept.all("AWS::Lambda::Function") {
        assert_eq!(function["LoggingConfig"]["LogGroup"], "kept", "{name}");
    }
    for role in ["ApiRole", "LargeRole", "BatchRole", "MachineRole"] {
        assert_eq!(granted(&kept, role, "logs:PutLogEvents"), [group], "{role}");
    }
    assert_eq!(
        kept.of("ApiStage")["AccessLogSettings"]["DestinationArn"],
        group
    );
    let destination = &kept.of("LargeFiles")["LoggingConfiguration"]["Destinations"][0];
    assert_eq!(destination["CloudWatchLogsLogGroup"]["LogGroupArn"], group);
    let script = kept.of("Machine")["LaunchTemplateData"]["UserData"].to_string();
    assert_eq!(script.matches("--log-group-name kept ").count(), 2);
    assert!(script.contains("awslogs-group=kept "));
}

/// Endpoints pass only this account's credentials and buckets, so that no data can be sent to another one.
#[test]
fn endpoints_have_policies() {
    let Some(deployment) = everything() else {
        return;
    };
    let endpoints: Vec<_> = deployment.all("AWS::EC2::VPCEndpoint").collect();
    assert_eq!(endpoints.len(), 10);
    for (name, endpoint) in endpoints {
        for statement in endpoint["PolicyDocument"]["Statement"].as_array().unwrap() {
            let is_image_layer = statement["Action"] == "s3:GetObject";
            let condition = statement["Condition"]["StringEquals"].to_string();
            assert!(
                is_image_layer || condition.contains("000000000000"),
                "{name}: {statement}"
            );
        }
    }
}

/// Managed Instances run in the private network, by a role that the boundary limits, with whole CPUs.
#[test]
fn managed_instances_are_limited_and_reach_traces() {
    let boundary = "arn:aws:iam::000000000000:policy/a";
    let traced = json!({
        "LargeModels": "s3://b/models/m", "LargeRunsOn": "instances", "LargeMemory": 4096, "Tracing": "Active",
        "PermissionsBoundary": boundary, "Zones": "eu-west-1b,eu-west-1c",
    });
    let mut untraced = traced.clone();
    untraced["Tracing"] = json!("PassThrough");
    let Some([traced, untraced]) = Deployment::resolve([traced, untraced]) else {
        return;
    };
    for (name, role) in traced.all("AWS::IAM::Role") {
        assert_eq!(role["PermissionsBoundary"], boundary, "{name}");
    }
    let role = &traced.of("Instances")["PermissionsConfig"]["CapacityProviderOperatorRoleArn"];
    assert_eq!(role, "arn:aws:iam::000000000000:role/InstancesRole");
    assert_eq!(
        traced.of("TracesEndpoint")["ServiceName"],
        "com.amazonaws.eu-west-1.xray"
    );
    assert!(!untraced.resources.contains_key("TracesEndpoint"));
    let function = traced.of("InstancesFunction");
    let capacity =
        &function["CapacityProviderConfig"]["LambdaManagedInstancesCapacityProviderConfig"];
    let per_cpu = number(&capacity["ExecutionEnvironmentMemoryGiBPerVCpu"]) * 1024;
    assert_eq!(number(&function["MemorySize"]) % per_cpu, 0);
    let zones = ["SubnetA", "SubnetB"].map(|name| traced.of(name)["AvailabilityZone"].clone());
    assert_eq!(
        zones,
        ["eu-west-1b", "eu-west-1c"],
        "the given ones, since Lambda does not support every zone"
    );
}

/// Traces and metrics by route have a charge, so they are off by default.
#[test]
fn unused_telemetry_is_off_by_default() {
    let Some([smallest]) = Deployment::resolve([json!({})]) else {
        return;
    };
    assert_eq!(
        smallest.of("ApiFunction")["TracingConfig"]["Mode"],
        "PassThrough"
    );
    let is_by_route = smallest
        .all("AWS::CloudWatch::Alarm")
        .any(|(_, alarm)| alarm.to_string().contains("Route"))
        || smallest.of("Dashboard").to_string().contains("Route");
    let settings = &smallest.of("ApiStage")["DefaultRouteSettings"];
    assert_eq!(settings["DetailedMetricsEnabled"] == true, is_by_route);
}

/// An idle connection that the load balancer closes first would lose a request.
#[test]
fn the_load_balancer_keeps_connections_longer_than_the_functions() {
    let Some([_, _, _, _, fleet]) = deployments() else {
        return;
    };
    let attributes = fleet.of("Balancer")["LoadBalancerAttributes"]
        .as_array()
        .unwrap()
        .iter();
    let idle = attributes
        .clone()
        .find(|attribute| attribute["Key"] == "idle_timeout.timeout_seconds")
        .unwrap();
    let source = std::fs::read_to_string(root().join("fleet/src/connect.rs")).unwrap();
    let (_, kept) = source
        .split_once("const MAX_IDLE: Duration = Duration::from_secs(")
        .unwrap();
    let kept: u64 = kept.split_once(')').unwrap().0.parse().unwrap();
    assert!(
        number(&idle["Value"]) > kept,
        "{idle} s, but the functions keep them for {kept} s"
    );
}

/// The Triton image may be in another account or partition, in a repository with several path segments.
#[test]
fn instances_of_the_fleet_may_pull_their_image() {
    let digest = format!("@sha256:{:064}", 0);
    let images = [
        "111111111111.dkr.ecr.eu-west-1.amazonaws.com/a/b",
        "111111111111.dkr.ecr.eu-west-1.amazonaws.com.cn/a/b",
    ];
    let parameters =
        images.map(|image| json!({ "Fleet": "yes", "TritonImage": format!("{image}{digest}") }));
    let Some(deployments) = Deployment::resolve(parameters) else {
        return;
    };
    for deployment in &deployments {
        let repositories = granted(deployment, "MachineRole", "ecr:BatchGetImage");
        assert_eq!(
            repositories,
            ["arn:aws:ecr:eu-west-1:111111111111:repository/a/b"]
        );
        let metadata = &deployment.of("Machine")["LaunchTemplateData"]["MetadataOptions"];
        // The container shares the instance's network, so it needs no second hop.
        assert_eq!(metadata["HttpPutResponseHopLimit"], 1);
    }
}

#[test]
fn credentials_are_required_by_default() {
    let Some([smallest, iam, jwt, none, front]) = deployments() else {
        return;
    };
    let mode = |deployment: &Deployment| {
        configuration(deployment.of("ApiFunction"))
            .auth
            .mode
            .unwrap()
    };
    let modes = [&smallest, &iam, &jwt, &none, &front].map(mode);
    assert_eq!(
        modes,
        [
            AuthMode::Keys,
            AuthMode::Iam,
            AuthMode::Jwt,
            AuthMode::None,
            AuthMode::Keys
        ]
    );
    let routes =
        |deployment: &Deployment| deployment.of("DefaultRoute")["AuthorizationType"].clone();
    assert_eq!(
        [&smallest, &iam, &jwt, &none].map(routes),
        ["NONE", "AWS_IAM", "JWT", "NONE"]
    );
    assert_eq!(jwt.of("LargeRoute")["AuthorizationType"], "JWT");
    // API Gateway is the only way in.
    for deployment in [&smallest, &iam, &jwt, &none, &front] {
        for (name, permission) in deployment.all("AWS::Lambda::Permission") {
            let principal = permission["Principal"].as_str().unwrap();
            assert!(
                permission["SourceArn"].is_string(),
                "{name} permits any {principal}"
            );
        }
        assert_eq!(deployment.all("AWS::Lambda::Url").count(), 0);
        for (name, bucket) in deployment.all("AWS::S3::Bucket") {
            let private = bucket["PublicAccessBlockConfiguration"]
                .as_object()
                .unwrap();
            assert!(
                private.len() == 4 && private.values().all(|value| value == true),
                "{name}"
            );
        }
    }
}

/// Each route that requires credentials has one for its preflight requests, which have none; they allow any header, and
/// each method of the API.
#[test]
fn browsers_may_call_every_route() {
    let parameters = |mode| json!({ "AuthMode": mode, "JwtIssuer": "https://a", "JwtAudience": "b", "LargeModels": "s3://b/models/m", "CorsOrigins": "https://a.b,https://c.d" });
    let Some(deployments) = Deployment::resolve(["keys", "iam", "jwt"].map(parameters)) else {
        return;
    };
    for deployment in deployments {
        let routes: BTreeMap<&str, &str> = deployment
            .all("AWS::ApiGatewayV2::Route")
            .map(|(_, route)| {
                (
                    route["RouteKey"].as_str().unwrap(),
                    route["AuthorizationType"].as_str().unwrap(),
                )
            })
            .collect();
        for (route, _) in routes
            .iter()
            .filter(|(route, _)| !route.starts_with("GET "))
        {
            let preflights: &[&str] = match route.split_once(' ') {
                Some((_, path)) => &[&format!("OPTIONS {path}")],
                None => &["OPTIONS /", "OPTIONS /{proxy+}"],
            };
            for preflight in preflights {
                assert_eq!(routes.get(preflight), Some(&"NONE"), "{route}: {routes:?}");
            }
        }
        let cors = &deployment.of("Api")["CorsConfiguration"];
        assert_eq!(cors["AllowOrigins"], json!(["https://a.b", "https://c.d"]));
        // `*` does not include `authorization`, and it means any header only without cookies.
        assert_eq!(cors["AllowHeaders"], json!(["authorization", "*"]));
        assert_all_methods(cors);
        assert!(cors["AllowCredentials"].is_null());
    }
}

/// API Gateway and the router have the same open routes.
#[tokio::test]
async fn open_routes_are_open_in_gateway_and_router() {
    let Some([deployment, ..]) = deployments() else {
        return;
    };
    let (_, line) = make_key("a").unwrap();
    let guard = Guard::new(
        &AuthConfig {
            keys: vec![line],
            ..AuthConfig::default()
        },
        BindScope::ApiGateway,
        &Cloud::default(),
    )
    .unwrap();
    let router = router(App {
        guard,
        ..scripted(Limits::default())
    });
    let routes: Vec<&str> = deployment
        .all("AWS::ApiGatewayV2::Route")
        .filter_map(|(_, route)| route["RouteKey"].as_str())
        .collect();
    assert_eq!(routes.len(), 4, "{routes:?}");
    for path in routes.iter().filter_map(|route| route.strip_prefix("GET ")) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        assert_eq!(
            router.clone().oneshot(request).await.unwrap().status(),
            StatusCode::OK,
            "{path}"
        );
    }
}

#[test]
fn timeouts_are_consistent() {
    let Some([smallest, batch, large, ..]) = deployments() else {
        return;
    };
    for (deployment, function, integration) in [
        (&smallest, "ApiFunction", "ApiIntegration"),
        (&large, "LargeFunction", "LargeIntegration"),
    ] {
        let gateway = Duration::from_millis(number(&deployment.of(integration)["TimeoutInMillis"]));
        let limits = configuration(deployment.of(function)).limits;
        let function = Duration::from_secs(number(&deployment.of(function)["Timeout"]));
        assert!(
            function < gateway && gateway <= Duration::from_secs(30),
            "the function must answer before API Gateway does"
        );
        assert!(
            limits.timeout() < function,
            "a request must end before its function"
        );
    }
    let timeout = number(&batch.of("BatchFunction")["Timeout"]);
    let queue = batch.of("Uploads");
    assert!(number(&queue["VisibilityTimeout"]) >= 6 * timeout);
    assert_eq!(
        queue["RedrivePolicy"]["deadLetterTargetArn"],
        "arn:aws:sqs:eu-west-1:000000000000:DeadLetters"
    );
    let mapping = batch.of("BatchFunctionUploads");
    assert_eq!(
        mapping["FunctionResponseTypes"],
        json!(["ReportBatchItemFailures"])
    );
    // Messages must outlive all their tries.
    let tries = number(&queue["RedrivePolicy"]["maxReceiveCount"]);
    assert!(number(&queue["MessageRetentionPeriod"]) > tries * number(&queue["VisibilityTimeout"]));
}

fn list(value: &Value) -> Vec<Value> {
    value
        .as_array()
        .cloned()
        .unwrap_or_else(|| vec![value.clone()])
}

/// Resources on which a role may perform an action.
fn granted(deployment: &Deployment, role: &str, action: &str) -> Vec<String> {
    let statements = deployment.policies[role]
        .iter()
        .flat_map(|document| list(&document["Statement"]));
    let granting = statements
        .filter(|one| one["Effect"] == "Allow" && list(&one["Action"]).contains(&json!(action)));
    let resources = granting.flat_map(|statement| list(&statement["Resource"]));
    resources
        .map(|resource| resource.as_str().unwrap().to_owned())
        .collect()
}

/// Permissions that the services' documentation prescribes, and that emulators do not check.
#[test]
fn roles_have_the_prescribed_permissions() {
    let Some([_, deployment, ..]) = deployments() else {
        return;
    };
    let output = ["arn:aws:s3:::databucket/out/*"].as_slice();
    let traces = [
        "xray:PutTraceSegments",
        "xray:PutTelemetryRecords",
        "xray:GetSamplingRules",
        "xray:GetSamplingTargets",
    ];
    // https://docs.aws.amazon.com/step-functions/latest/dg/input-output-resultwriter.html
    let result_writer = [
        "s3:PutObject",
        "s3:ListMultipartUploadParts",
        "s3:AbortMultipartUpload",
    ];
    let result_writer = result_writer.map(|action| ("LargeFilesRole", action, output));
    // https://docs.aws.amazon.com/step-functions/latest/dg/xray-iam.html, and AWSXRayDaemonWriteAccess for functions
    let traces = ["ApiRole", "BatchRole", "LargeFilesRole"]
        .into_iter()
        .flat_map(|role| traces.map(|action| (role, action, ["*"].as_slice())));
    for (role, action, resources) in traces.chain(result_writer) {
        assert_eq!(
            granted(&deployment, role, action),
            resources,
            "{role}: {action}"
        );
    }
}

/// Whether a role may send a request for `resource` whose context has only these condition keys. Statements with other
/// conditions do not apply, as in AWS's evaluation.
fn is_allowed(
    deployment: &Deployment,
    role: &str,
    action: &str,
    resource: &str,
    keys: &[&str],
) -> bool {
    let matches = |pattern: &Value| {
        let pattern = pattern.as_str().unwrap();
        pattern
            .strip_suffix('*')
            .map_or(pattern == resource, |prefix| resource.starts_with(prefix))
    };
    let has_keys = |statement: &Value| {
        let operators = statement["Condition"]
            .as_object()
            .into_iter()
            .flat_map(serde_json::Map::values);
        operators
            .flat_map(|operator| operator.as_object().unwrap().keys())
            .all(|key| keys.contains(&key.as_str()))
    };
    deployment.policies[role]
        .iter()
        .flat_map(|document| list(&document["Statement"]))
        .any(|statement| {
            statement["Effect"] == "Allow"
                && list(&statement["Action"]).contains(&json!(action))
                && list(&statement["Resource"]).iter().any(matches)
                && has_keys(&statement)
        })
}

/// S3 requests per role. Only object lists carry `s3:prefix`; HeadBucket and reads of missing objects, which S3 answers
/// with 404 only if the role has `s3:ListBucket`, do not.
#[test]
fn roles_may_send_their_s3_requests() {
    let (models, data) = ("arn:aws:s3:::modelbucket", "arn:aws:s3:::databucket");
    let object = |bucket: &str, key: &str| format!("{bucket}/{key}");
    let Some([_, batch, _, _, fleet]) = deployments() else {
        return;
    };
    let cases: [(&Deployment, &str, &str, String, &[&str]); 9] = [
        (
            &batch,
            "ApiRole",
            "s3:GetObject",
            object(models, "models/a/latest"),
            &[],
        ),
        (&batch, "ApiRole", "s3:ListBucket", models.to_owned(), &[]),
        (
            &batch,
            "BatchRole",
            "s3:GetObjectVersion",
            object(data, "in/a.csv"),
            &[],
        ),
        (&batch, "BatchRole", "s3:ListBucket", data.to_owned(), &[]),
        (
            &batch,
            "BatchRole",
            "s3:PutObject",
            object(data, "out/a.csv"),
            &[],
        ),
        (
            &batch,
            "BatchRole",
            "s3:DeleteObject",
            object(data, "out/a.csv"),
            &[],
        ),
        (
            &batch,
            "LargeFilesRole",
            "s3:ListBucket",
            data.to_owned(),
            &["s3:prefix"],
        ),
        (
            &fleet,
            "MachineRole",
            "s3:GetObject",
            object(models, "triton/a/config.pbtxt"),
            &[],
        ),
        (
            &fleet,
            "MachineRole",
            "s3:ListBucket",
            models.to_owned(),
            &[],
        ),
    ];
    for (deployment, role, action, resource, keys) in cases {
        assert!(
            is_allowed(deployment, role, action, &resource, keys),
            "{role}: {action} on {resource}"
        );
    }
    assert!(!is_allowed(
        &batch,
        "BatchRole",
        "s3:DeleteObject",
        &object(data, "in/a.csv"),
        &[]
    ));
    assert!(!is_allowed(
        &batch,
        "BatchRole",
        "s3:PutObject",
        &object(data, "in/a.csv"),
        &[]
    ));
}

/// A file goes either to the queue or to the state machine, whose roles may read it.
#[test]
fn each_file_is_processed_once() {
    let Some([_, deployment, ..]) = deployments() else {
        return;
    };
    let batch = configuration(deployment.of("BatchFunction")).batch;
    let prefix = |rule: &str| {
        let detail = &deployment.of(rule)["EventPattern"]["detail"];
        assert_eq!(detail["bucket"]["name"], json!(["databucket"]), "{rule}");
        detail["object"]["key"][0]["prefix"].as_str().unwrap()
    };
    let (queued, large) = (prefix("UploadsRule"), prefix("LargeUploadsRule"));
    assert!(
        !queued.starts_with(large) && !large.starts_with(queued),
        "{queued} and {large}"
    );
    let rules: Vec<(&str, &str)> = batch
        .rules
        .iter()
        .map(|rule| (rule.input.as_str(), rule.output.as_str()))
        .collect();
    assert_eq!(
        (queued, &rules[..]),
        (batch.input.as_str(), &[(large, "out/large/")][..])
    );
    for output in [batch.output.as_str(), rules[0].1] {
        assert!(
            !output.starts_with(queued) && !output.starts_with(large),
            "{output} would be processed again"
        );
        let place = format!("arn:aws:s3:::databucket/{}*", batch.output);
        assert!(output.starts_with(&batch.output));
        assert!(granted(&deployment, "BatchRole", "s3:PutObject").contains(&place));
    }
    for (role, inputs) in [
        ("BatchRole", &[queued, large][..]),
        ("LargeFilesRole", &["out/"]),
    ] {
        let granted = granted(&deployment, role, "s3:GetObject");
        for input in inputs {
            assert!(
                granted.contains(&format!("arn:aws:s3:::databucket/{input}*")),
                "{role}: {granted:?}"
            );
        }
    }
    let machine = "arn:aws:states:eu-west-1:000000000000:stateMachine:kivu-large-files";
    let target = &deployment.of("LargeUploadsRule")["Targets"][0];
    assert_eq!(target["Arn"], machine);
    assert_eq!(
        granted(&deployment, "LargeUploadsRole", "states:StartExecution"),
        [machine]
    );
    // The rule's input is in the form that the state machine reads.
    let template = target["InputTransformer"]["InputTemplate"]
        .as_str()
        .unwrap()
        .replace("<key>", "\"large/a\"");
    assert_eq!(
        serde_json::from_str::<Value>(&template).unwrap(),
        json!({ "key": "large/a" })
    );
    assert_eq!(
        target["InputTransformer"]["InputPathsMap"],
        json!({ "key": "$.detail.object.key" })
    );
}

/// Step Functions charges per range, more than Lambda for computing it if ranges are small.
#[test]
fn large_files_are_split_into_few_ranges() {
    let text = std::fs::read_to_string(root().join("functions/batch/large.asl.json")).unwrap();
    let machine: Value = serde_json::from_str(&text).unwrap();
    let rows = number(&machine["States"]["Defaults"]["Parameters"]["rows"]);
    assert!(rows >= 700, "{rows} rows");
    // Step Functions reads the index only: its own readers of CSV and Parquet change rows.
    let reader = &machine["States"]["Ranges"]["ItemReader"];
    assert_eq!(reader["ReaderConfig"], json!({ "InputType": "JSONL" }));
    assert_eq!(reader["Parameters"]["Key.$"], "$.index.Payload.key");
}

/// Jobs send events to one bus only, and the deployment's rules may start jobs.
#[test]
fn jobs_send_events_and_rules_start_jobs() {
    let parameters = ["", "jobs"].map(|bus| json!({ "Batch": "yes", "JobEvents": bus }));
    let Some([silent, deployment]) = Deployment::resolve(parameters) else {
        return;
    };
    assert!(
        configuration(silent.of("BatchFunction"))
            .batch
            .event_bus
            .is_none()
    );
    assert!(granted(&silent, "BatchRole", "events:PutEvents").is_empty());
    let batch = configuration(deployment.of("BatchFunction")).batch;
    assert_eq!(
        (batch.event_bus.as_deref(), batch.queue.as_deref()),
        (Some("jobs"), Some("Uploads"))
    );
    let bus = "arn:aws:events:eu-west-1:000000000000:event-bus/jobs";
    assert_eq!(granted(&deployment, "BatchRole", "events:PutEvents"), [bus]);
    let queue = "arn:aws:sqs:eu-west-1:000000000000:Uploads";
    assert_eq!(
        granted(&deployment, "BatchRole", "sqs:SendMessage"),
        [queue],
        "to continue a file"
    );
    let statements = &deployment.of("UploadsPolicy")["PolicyDocument"]["Statement"];
    let source = "arn:aws:events:eu-west-1:000000000000:rule/kivu-*";
    let is_of_rules =
        |statement: &&Value| statement["Condition"]["ArnLike"]["aws:SourceArn"] == source;
    let statement = statements
        .as_array()
        .unwrap()
        .iter()
        .find(is_of_rules)
        .unwrap();
    assert_eq!(
        (&statement["Action"], &statement["Resource"]),
        (&json!("sqs:SendMessage"), &json!(queue))
    );
}

/// Uploads go to one index; files of the state machine do not.
#[test]
fn vectors_of_uploads_go_to_an_index() {
    let arn = "arn:aws:s3vectors:eu-west-1:000000000000:bucket/vectors/index/docs";
    let sink = json!({ "Batch": "yes", "BatchSink": arn, "BatchSinkId": "key", "BatchSinkMetadata": "title,url" });
    let Some([without, deployment]) = Deployment::resolve([json!({ "Batch": "yes" }), sink]) else {
        return;
    };
    let batch = |deployment: &Deployment| configuration(deployment.of("BatchFunction")).batch;
    assert_eq!(
        (batch(&without).sink, batch(&without).metadata.len()),
        (None, 0)
    );
    let found = batch(&deployment);
    assert_eq!(
        (found.sink.as_deref(), found.id.as_deref()),
        (Some(arn), Some("key"))
    );
    assert_eq!(found.metadata, ["title", "url"]);
    assert!(
        found.rules.iter().all(|rule| rule.sink.is_none()),
        "the rule for large files"
    );
    for action in ["s3vectors:PutVectors", "s3vectors:GetIndex"] {
        assert_eq!(granted(&deployment, "BatchRole", action), [arn]);
        assert!(granted(&without, "BatchRole", action).is_empty());
    }
}

#[test]
fn the_route_of_large_models_is_their_prefix() {
    let Some([_, _, large, ..]) = deployments() else {
        return;
    };
    let prefix = configuration(large.of("LargeFunction")).prefix.unwrap();
    assert_eq!(
        large.of("LargeRoute")["RouteKey"],
        format!("ANY {prefix}/{{proxy+}}")
    );
}

/// Alarms and dashboard use metrics that the function writes.
#[test]
fn metrics_of_alarms_and_dashboard_exist() {
    let Some([deployment, ..]) = deployments() else {
        return;
    };
    let embedded = Embedded::new("kivu-api");
    metrics::with_local_recorder(&embedded.recorder(), || {
        telemetry::record_response(200, Duration::ZERO);
        record_encoding(1, Duration::ZERO, Duration::ZERO);
        telemetry::record_cold_start(Duration::ZERO);
    });
    let lines = embedded.lines(SystemTime::now());
    let known: BTreeSet<&str> = lines[0]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let mut used = BTreeSet::new();
    for (_, alarm) in deployment.all("AWS::CloudWatch::Alarm") {
        for metric in alarm["Metrics"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|metric| &metric["MetricStat"]["Metric"])
        {
            if metric["Namespace"] == "Kivu" {
                assert_eq!(
                    metric["Dimensions"],
                    json!([{ "Name": "Function", "Value": "kivu-api" }])
                );
                used.insert(metric["MetricName"].as_str().unwrap().to_owned());
            }
        }
    }
    let dashboard: Value = serde_json::from_str(
        deployment.of("Dashboard")["DashboardBody"]
            .as_str()
            .unwrap(),
    )
    .unwrap();
    for widget in dashboard["widgets"].as_array().unwrap() {
        let mut namespace = "";
        for metric in widget["properties"]["metrics"].as_array().unwrap() {
            let part = |at: usize| metric[at].as_str().unwrap_or_default();
            namespace = if part(0) == "." { namespace } else { part(0) };
            if namespace == "Kivu" && part(0) != "..." {
                used.insert(part(1).to_owned());
            }
        }
    }
    assert!(
        used.contains("Tokens") && used.contains("ColdStarts"),
        "{used:?}"
    );
    let unknown: Vec<_> = used
        .iter()
        .filter(|name| !known.contains(name.as_str()))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?} are not among {known:?}");
}

/// Every function has error alarms, and its time is part of the cost; functions behind the API have throttle alarms.
#[test]
fn alarms_cover_all_functions() {
    let large = json!({ "LargeModels": "s3://b/models/m", "Batch": "yes" });
    let instances = json!({ "LargeModels": "s3://b/models/m", "LargeRunsOn": "instances", "LargeMemory": 2048 });
    let stream = json!({ "Streaming": "rest" });
    let Some(deployments) = Deployment::resolve([json!({}), large, instances, stream]) else {
        return;
    };
    for deployment in &deployments {
        let alarms: Vec<_> = deployment.all("AWS::CloudWatch::Alarm").collect();
        let has_alarm = |metric: &str, function: &Value| {
            let dimensions = json!([{ "Name": "FunctionName", "Value": function }]);
            alarms.iter().any(|(_, alarm)| {
                alarm["MetricName"] == metric && alarm["Dimensions"] == dimensions
            })
        };
        let cost = deployment.of("Cost");
        let expression = cost["Metrics"][0]["Expression"].as_str().unwrap();
        for (name, function) in deployment.all("AWS::Lambda::Function") {
            let physical = &function["FunctionName"];
            assert!(has_alarm("Errors", physical), "{name}");
            assert!(
                name == "BatchFunction" || has_alarm("Throttles", physical),
                "{name}"
            );
            let is_billed_by_time = function["CapacityProviderConfig"].is_null();
            let metrics = cost["Metrics"].as_array().unwrap().iter();
            let durations = metrics.filter(|metric| {
                let metric_of = &metric["MetricStat"]["Metric"];
                metric_of["MetricName"] == "Duration"
                    && metric_of["Dimensions"][0]["Value"] == *physical
            });
            let ids: Vec<&str> = durations
                .map(|metric| metric["Id"].as_str().unwrap())
                .collect();
            assert_eq!(ids.len(), usize::from(is_billed_by_time), "{name}");
            assert!(
                ids.iter()
                    .all(|id| expression.contains(&format!("FILL({id}, 0)"))),
                "{name}: {expression}"
            );
        }
        assert!(expression.contains("starts"), "cold starts are billed");
        // The dashboard shows the same cost.
        let dashboard = deployment.of("Dashboard")["DashboardBody"]
            .as_str()
            .unwrap();
        let dashboard: Value = serde_json::from_str(dashboard).unwrap();
        let widgets = dashboard["widgets"].as_array().unwrap();
        let shown = widgets
            .iter()
            .map(|widget| &widget["properties"]["metrics"])
            .find(|metrics| metrics[0][0]["expression"] == expression);
        let shown = shown
            .unwrap_or_else(|| panic!("no widget shows {expression}"))
            .as_array()
            .unwrap();
        let defined: BTreeSet<_> = shown
            .iter()
            .filter_map(|metric| metric.as_array()?.last()?["id"].as_str())
            .collect();
        let used: BTreeSet<_> = cost["Metrics"].as_array().unwrap()[1..]
            .iter()
            .map(|metric| metric["Id"].as_str().unwrap())
            .collect();
        assert_eq!(defined, used, "{shown:?}");
    }
}

#[test]
fn an_empty_fleet_raises_an_alarm() {
    let image = image();
    let always = json!({ "Fleet": "yes", "TritonImage": image });
    let scheduled = json!({
        "Fleet": "yes", "TritonImage": image, "FleetStart": "0 6 * * *", "FleetStop": "0 20 * * *",
    });
    let Some([always, scheduled]) = Deployment::resolve([always, scheduled]) else {
        return;
    };
    assert_eq!(always.of("FleetEmpty")["MetricName"], "HealthyHostCount");
    assert!(!scheduled.resources.contains_key("FleetEmpty"));
}

#[test]
fn access_logs_are_json_without_texts() {
    let Some([deployment, ..]) = deployments() else {
        return;
    };
    let format = deployment.of("ApiStage")["AccessLogSettings"]["Format"]
        .as_str()
        .unwrap();
    for field in ["body", "header", "query", "authorization", "userAgent"] {
        assert!(
            !format.to_lowercase().contains(&field.to_lowercase()),
            "{field}"
        );
    }
    // API Gateway writes `-` for a variable without a value, and `messageString`'s value with quotes.
    for (message, quoted) in [("-", "-"), ("Forbidden", "\"Forbidden\"")] {
        let line = format
            .replace("$context.error.messageString", quoted)
            .replace("$context.error.message", message)
            .replace("$context", "-");
        let fields: BTreeMap<String, String> = serde_json::from_str(&line).expect(&line);
        assert!(fields.contains_key("status"));
        assert_eq!(fields["error"], message);
    }
}

/// CloudFormation writes `SecretString` again when its template changes, which would delete all keys that were added.
#[test]
fn the_initial_keys_never_change() {
    let Some([deployment, ..]) = deployments() else {
        return;
    };
    let text = "# NAME:SHA256 of a key, one a line; `kivu key NAME` makes both\n";
    assert_eq!(
        deployment.of("ApiKeys")["SecretString"],
        text,
        "changing it deletes the keys of all deployments"
    );
    assert!(
        text.lines().all(|line| line.starts_with('#')),
        "it must contain no key"
    );
}
