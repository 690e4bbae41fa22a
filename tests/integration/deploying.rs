//! The template, as the official checkers, an emulator of AWS and the code itself see it. `make test` names where
//! the checkers and the emulator are; without that the tests say that they skip.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    time::{Duration, SystemTime},
};

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use kivu::{
    api::{BindScope, Guard, make_key, router},
    config::{AuthConfig, AuthMode, Config, Limits},
    telemetry::{self, Embedded},
};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    api::scripted,
    live::{root, succeed, tool},
};

/// What Lambda takes and gives in one answer.
const PAYLOAD_BYTES: usize = 6 * 1024 * 1024;
/// What a number takes in JSON, its comma included, at most.
const NUMBER_BYTES: usize = 13;

/// A script of `tests/deploy`, run by the Python that has what it needs.
fn script(name: &str) -> Option<Command> {
    let mut command = Command::new(tool("TEST_DEPLOY")?.join("python"));
    command.current_dir(root()).args(["-B", "-W", "ignore"]).arg(format!("tests/deploy/{name}.py"));
    Some(command)
}

#[test]
fn the_official_checkers_object_to_nothing() {
    let (Some(mut validate), Some(checkov)) = (script("validate"), tool("TEST_CHECKOV")) else { return };
    succeed(validate.arg(checkov));
}

#[test]
fn the_same_files_make_the_same_archive() {
    let mut command = Command::new("python3");
    succeed(command.current_dir(root()).args(["-B", "tests/lambda/packing.py"]));
}

#[test]
fn the_list_of_parts_names_what_is_in_the_program_and_is_the_same_twice() {
    let Some(checkov) = tool("TEST_CHECKOV") else { return };
    let folder = tempfile::tempdir().unwrap();
    let list = |name: &str| {
        let out = folder.path().join(name);
        let mut command = Command::new(checkov.with_file_name("python"));
        command.current_dir(root()).args(["-B", "-W", "ignore", "functions/parts.py"]).arg(&out);
        succeed(&mut command);
        std::fs::read_to_string(out).unwrap()
    };
    let first = list("first");
    assert_eq!(first, list("second"));
    let list: Value = serde_json::from_str(&first).unwrap();
    let names: BTreeSet<&str> =
        list["components"].as_array().unwrap().iter().filter_map(|part| part["name"].as_str()).collect();
    assert!(["ort", "tokio", "tokenizers", "zstd-sys"].iter().all(|part| names.contains(part)), "{names:?}");
    assert!(["insta", "proptest"].iter().all(|other| !names.contains(other)), "only tests need them");
}

#[test]
fn the_template_can_be_deployed_and_used() {
    let Ok(functions) = std::env::var("TEST_WALK") else {
        eprintln!("skipped: TEST_WALK is not set; `make walk` sets it");
        return;
    };
    let Some(mut walk) = script("walk") else { return };
    if functions == "compiled" {
        walk.args(["--compiled", env!("CARGO_BIN_EXE_api")]);
    }
    succeed(walk.arg(env!("CARGO_BIN_EXE_kivu")));
}

/// What the template comes to with these parameters.
struct Deployment(BTreeMap<String, Value>);

impl Deployment {
    fn resolve<const COUNT: usize>(parameters: [Value; COUNT]) -> Option<[Self; COUNT]> {
        let output = script("resolve")?.args(parameters.map(|given| given.to_string())).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let found: [Value; COUNT] =
            serde_json::from_slice::<Vec<Value>>(&output.stdout).unwrap().try_into().unwrap();
        Some(found.map(|deployment| Self(serde_json::from_value(deployment["resources"].clone()).unwrap())))
    }

    fn of(&self, name: &str) -> &Value {
        &self.0.get(name).unwrap_or_else(|| panic!("no resource `{name}`"))["Properties"]
    }

    fn all<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let is_kind = move |(_, resource): &(&String, &Value)| resource["Type"] == kind;
        self.0.iter().filter(is_kind).map(|(name, resource)| (name.as_str(), &resource["Properties"]))
    }
}

/// Every deployment that differs in what its functions are told.
fn deployments() -> Option<[Deployment; 5]> {
    let image = "000000000000.dkr.ecr.eu-west-1.amazonaws.com/triton@sha256:0";
    Deployment::resolve([
        json!({}),
        json!({ "AuthMode": "iam", "Batch": "yes", "Memory": 512 }),
        json!({ "AuthMode": "jwt", "JwtIssuer": "https://a", "LargeModels": "s3://b/models/m", "Architecture": "x86_64" }),
        json!({ "AuthMode": "none", "LargeModels": "s3://b/models/m", "LargeRunsOn": "instances" }),
        json!({ "Fleet": "yes", "TritonImage": image, "Batch": "yes", "WebAclArn": "arn", "DomainName": "a.b" }),
    ])
}

/// A function's configuration, from the file in its archive and the variables that the template gives it.
fn configuration(function: &Value) -> Config {
    let folder = if function["FunctionName"].as_str().unwrap().ends_with("-batch") { "batch" } else { "api" };
    let variables = function["Environment"]["Variables"].as_object().unwrap();
    let mut variables: BTreeMap<String, String> =
        variables.iter().map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect();
    variables.insert("AWS_LAMBDA_FUNCTION_MEMORY_SIZE".into(), function["MemorySize"].to_string());
    let file = root().join("functions").join(folder).join("kivu.toml");
    Config::load(Some(&file), &variables).unwrap_or_else(|error| panic!("{}", error.chain()))
}

fn seconds(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn functions_understand_what_the_template_tells_them() {
    let Some(deployments) = deployments() else { return };
    for deployment in &deployments {
        for (name, function) in deployment.all("AWS::Lambda::Function") {
            let config = configuration(function);
            assert_eq!(
                (&function["Handler"], &function["Runtime"]),
                (&json!("bootstrap"), &json!("provided.al2023"))
            );
            if name == "BatchFunction" {
                continue;
            }
            Guard::new(&config.auth, BindScope::ApiGateway).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(config.auth.front.is_some(), deployment.0.contains_key("Front"), "{name}");
            assert!(config.limits.body_bytes <= PAYLOAD_BYTES);
            assert!(config.limits.values * NUMBER_BYTES <= PAYLOAD_BYTES, "an answer must fit");
            let memory = seconds(&function["MemorySize"]);
            assert_eq!(
                config.threads().get() as u64,
                memory.div_ceil(1769),
                "a thread a CPU that it has a share of"
            );
        }
    }
}

#[test]
fn nobody_gets_in_by_default() {
    let Some([smallest, iam, jwt, none, front]) = deployments() else { return };
    let mode = |deployment: &Deployment| configuration(deployment.of("ApiFunction")).auth.mode.unwrap();
    let modes = [&smallest, &iam, &jwt, &none, &front].map(mode);
    assert_eq!(modes, [AuthMode::Keys, AuthMode::Iam, AuthMode::Jwt, AuthMode::None, AuthMode::Keys]);
    let routes = |deployment: &Deployment| deployment.of("DefaultRoute")["AuthorizationType"].clone();
    assert_eq!([&smallest, &iam, &jwt, &none].map(routes), ["NONE", "AWS_IAM", "JWT", "NONE"]);
    assert_eq!(jwt.of("LargeRoute")["AuthorizationType"], "JWT");
    // Nothing is reachable but through the front door.
    for deployment in [&smallest, &iam, &jwt, &none, &front] {
        for (name, permission) in deployment.all("AWS::Lambda::Permission") {
            let principal = permission["Principal"].as_str().unwrap();
            assert!(permission["SourceArn"].is_string(), "{name} lets in any {principal}");
        }
        assert_eq!(deployment.all("AWS::Lambda::Url").count(), 0);
        for (name, bucket) in deployment.all("AWS::S3::Bucket") {
            let private = bucket["PublicAccessBlockConfiguration"].as_object().unwrap();
            assert!(private.len() == 4 && private.values().all(|value| value == true), "{name}");
        }
    }
}

/// Routes that the gateway leaves open are those that the router leaves open, and no others.
#[tokio::test]
async fn open_routes_are_open_in_both_places() {
    let Some([deployment, ..]) = deployments() else { return };
    let (_, line) = make_key("a").unwrap();
    let guard =
        Guard::new(&AuthConfig { keys: vec![line], ..AuthConfig::default() }, BindScope::ApiGateway).unwrap();
    let router = router(scripted(Limits::default()).with_guard(guard));
    let routes: Vec<&str> = deployment
        .all("AWS::ApiGatewayV2::Route")
        .filter_map(|(_, route)| route["RouteKey"].as_str())
        .collect();
    assert_eq!(routes.len(), 4, "{routes:?}");
    for path in routes.iter().filter_map(|route| route.strip_prefix("GET ")) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        assert_eq!(router.clone().oneshot(request).await.unwrap().status(), StatusCode::OK, "{path}");
    }
}

#[test]
fn times_agree() {
    let Some([smallest, batch, large, ..]) = deployments() else { return };
    for (deployment, function, integration) in
        [(&smallest, "ApiFunction", "ApiIntegration"), (&large, "LargeFunction", "LargeIntegration")]
    {
        let gateway = Duration::from_millis(seconds(&deployment.of(integration)["TimeoutInMillis"]));
        let limits = configuration(deployment.of(function)).limits;
        let function = Duration::from_secs(seconds(&deployment.of(function)["Timeout"]));
        assert!(function < gateway && gateway <= Duration::from_secs(30), "the function answers first");
        assert!(limits.timeout() < function, "even if its clock is wrong");
    }
    let timeout = seconds(&batch.of("BatchFunction")["Timeout"]);
    let queue = batch.of("Uploads");
    assert!(seconds(&queue["VisibilityTimeout"]) >= 6 * timeout);
    assert_eq!(
        queue["RedrivePolicy"]["deadLetterTargetArn"],
        "arn:aws:sqs:eu-west-1:000000000000:DeadLetters"
    );
    let mapping = batch.of("BatchFunctionUploads");
    assert_eq!(mapping["FunctionResponseTypes"], json!(["ReportBatchItemFailures"]));
    // What is left in the queue must live as long as it takes to fail.
    let tries = seconds(&queue["RedrivePolicy"]["maxReceiveCount"]);
    assert!(seconds(&queue["MessageRetentionPeriod"]) > tries * seconds(&queue["VisibilityTimeout"]));
}

/// What a role may do an action on.
fn granted(role: &Value, action: &str) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
    let statements = list(&role["Policies"]).into_iter().flat_map(|policy| {
        list(&policy["PolicyDocument"]["Statement"]).into_iter().filter(|one| one["Effect"] == "Allow")
    });
    let granting = statements.filter(|statement| list(&statement["Action"]).contains(&json!(action)));
    let resources = granting.flat_map(|statement| list(&statement["Resource"]));
    resources.map(|resource| resource.as_str().unwrap().to_owned()).collect()
}

/// A file goes to the queue or to the state machine, never to both, and who works on it may read it.
#[test]
fn each_file_goes_one_way() {
    let Some([_, deployment, ..]) = deployments() else { return };
    let batch = configuration(deployment.of("BatchFunction")).batch;
    let taken = |rule: &str| {
        let detail = &deployment.of(rule)["EventPattern"]["detail"];
        assert_eq!(detail["bucket"]["name"], json!(["databucket"]), "{rule}");
        detail["object"]["key"][0]["prefix"].as_str().unwrap()
    };
    let (queued, large) = (taken("UploadsRule"), taken("LargeUploadsRule"));
    assert!(!queued.starts_with(large) && !large.starts_with(queued), "{queued} and {large}");
    let rules: Vec<(&str, &str)> =
        batch.rules.iter().map(|rule| (rule.input.as_str(), rule.output.as_str())).collect();
    assert_eq!((queued, &rules[..]), (batch.input.as_str(), &[(large, "out/large/")][..]));
    for output in [batch.output.as_str(), rules[0].1] {
        assert!(!output.starts_with(queued) && !output.starts_with(large), "{output} would be taken again");
        let place = format!("arn:aws:s3:::databucket/{}*", batch.output);
        assert!(output.starts_with(&batch.output));
        assert!(granted(deployment.of("BatchRole"), "s3:PutObject").contains(&place));
    }
    for (role, inputs) in [("BatchRole", &[queued, large][..]), ("LargeFilesRole", &[large])] {
        let granted = granted(deployment.of(role), "s3:GetObject");
        for input in inputs {
            assert!(granted.contains(&format!("arn:aws:s3:::databucket/{input}*")), "{role}: {granted:?}");
        }
    }
    let machine = "arn:aws:states:eu-west-1:000000000000:stateMachine:kivu-large-files";
    let target = &deployment.of("LargeUploadsRule")["Targets"][0];
    assert_eq!(target["Arn"], machine);
    assert_eq!(granted(deployment.of("LargeUploadsRole"), "states:StartExecution"), [machine]);
    // What the machine reads is what the rule writes.
    let template =
        target["InputTransformer"]["InputTemplate"].as_str().unwrap().replace("<key>", "\"large/a\"");
    assert_eq!(serde_json::from_str::<Value>(&template).unwrap(), json!({ "key": "large/a" }));
    assert_eq!(target["InputTransformer"]["InputPathsMap"], json!({ "key": "$.detail.object.key" }));
}

#[test]
fn a_prefix_is_the_path_of_its_route() {
    let Some([_, _, large, ..]) = deployments() else { return };
    let prefix = configuration(large.of("LargeFunction")).prefix.unwrap();
    assert_eq!(large.of("LargeRoute")["RouteKey"], format!("ANY {prefix}/{{proxy+}}"));
}

/// The metrics of alarms and dashboard are those that the function writes.
#[test]
fn metrics_are_called_what_the_function_calls_them() {
    let Some([deployment, ..]) = deployments() else { return };
    let embedded = Embedded::new("kivu-api");
    metrics::with_local_recorder(&embedded, || {
        telemetry::answered(200, Duration::ZERO);
        telemetry::encoded(1, Duration::ZERO, Duration::ZERO);
        telemetry::started(Duration::ZERO);
    });
    let lines = embedded.lines(SystemTime::now());
    let known: BTreeSet<&str> = lines[0].as_object().unwrap().keys().map(String::as_str).collect();
    let mut used = BTreeSet::new();
    for (_, alarm) in deployment.all("AWS::CloudWatch::Alarm") {
        for metric in
            alarm["Metrics"].as_array().into_iter().flatten().map(|metric| &metric["MetricStat"]["Metric"])
        {
            if metric["Namespace"] == "Kivu" {
                assert_eq!(metric["Dimensions"], json!([{ "Name": "Function", "Value": "kivu-api" }]));
                used.insert(metric["MetricName"].as_str().unwrap().to_owned());
            }
        }
    }
    let dashboard: Value =
        serde_json::from_str(deployment.of("Dashboard")["DashboardBody"].as_str().unwrap()).unwrap();
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
    assert!(used.contains("Tokens") && used.contains("ColdStarts"), "{used:?}");
    let unknown: Vec<_> = used.iter().filter(|name| !known.contains(name.as_str())).collect();
    assert!(unknown.is_empty(), "{unknown:?} are not among {known:?}");
}

#[test]
fn access_logs_hold_nothing_of_what_was_said() {
    let Some([deployment, ..]) = deployments() else { return };
    let format = deployment.of("ApiStage")["AccessLogSettings"]["Format"].as_str().unwrap();
    let fields: BTreeMap<String, String> = serde_json::from_str(format).unwrap();
    assert!(fields.contains_key("status"));
    for told in ["body", "header", "query", "authorization", "userAgent"] {
        assert!(!format.to_lowercase().contains(&told.to_lowercase()), "{told}");
    }
}
