//! Configuration: `kivu.toml`, where an environment variable can override every key.
//!
//! A key's variable is `KIVU_` and the key in capitals, with two underscores for each dot: `KIVU_LISTEN`,
//! `KIVU_LIMITS__TEXTS`. Lists are separated by commas, or in JSON. An empty variable is ignored. `KIVU_CONFIG` is the file's path.

mod auth;
mod batch;
mod choice;
mod cors;
mod exact;
mod hub;
mod limits;
mod list;
mod memory;
mod models;
mod otlp;
mod s3;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    net::SocketAddr,
    num::{NonZeroU64, NonZeroUsize},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use config::{File, FileFormat, Value, ValueKind};
pub use kivu_engine::kernel::InstructionSet;
use serde::Deserialize;

use self::exact::Exact;
pub use self::list::{Items, list_text};
pub use self::{
    auth::{AuthConfig, AuthMode, Secret},
    batch::{BatchConfig, BatchRule},
    choice::{EngineChoice, Load, LogFormat, parse_address, parse_bytes, parse_instructions},
    hub::HubConfig,
    limits::{Limits, MAX_TEXTS},
    list::parse_lists,
    memory::{memory_of, resident as resident_memory},
    models::{FleetConfig, ModelConfig, Policy},
    otlp::{OtlpConfig, OtlpReceiver, SpanQueue},
    s3::S3Config,
};
use crate::error::{Error, Result};

/// Default configuration file path.
pub const FILE: &str = "kivu.toml";
const FILE_VARIABLE: &str = "KIVU_CONFIG";
/// Variables that set no key: the file, and what the installer reads, which a shell may export.
const NO_KEYS: [&str; 3] = [FILE_VARIABLE, "KIVU_INSTALL_FROM", "KIVU_INSTALL_PREFIX"];
/// What the names of variables begin with.
const PREFIX: &str = "KIVU_";
/// Keys whose variables are [lists](parse_lists).
const LISTS: [&str; 5] = [
    "models",
    "fleet.urls",
    "auth.keys",
    "batch.metadata",
    "cors_origins",
];
/// The folder in a checkout for downloads and builds.
const HOME: &str = ".kivu";
/// The function's memory in MB, set by Lambda.
const LAMBDA_MEMORY: &str = "AWS_LAMBDA_FUNCTION_MEMORY_SIZE";
/// The memory for which Lambda provides one CPU.
const LAMBDA_MB_PER_CPU: usize = 1769;

/// The most threads that a model may have. Each takes memory, and beyond the CPUs more do not help.
const MAX_THREADS: usize = 1024;

/// Environment variables.
pub type Variables = BTreeMap<String, String>;

/// Configuration for a server, job or command, as documented in `docs/configuration.md`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Config {
    /// The address on which `kivu serve` listens.
    #[serde(deserialize_with = "choice::address")]
    pub listen: SocketAddr,
    /// Folder for downloads and builds. [`Config::load`] defaults to the nearest `.kivu` in the working folder or its
    /// parents, or else to `kivu` in the user's cache folder.
    pub home: PathBuf,
    /// A folder for bundles from S3. Without it, they are loaded into memory and not kept.
    pub cache: Option<PathBuf>,
    /// Whether local bundles' weights are mapped into memory. If not, they are read: this takes more memory, but the
    /// files may change while a model is loaded.
    pub map_weights: bool,
    /// Path to ONNX Runtime's library, if it is not in a default location.
    pub onnxruntime: Option<PathBuf>,
    /// Engine for local models.
    #[serde(deserialize_with = "choice::one_of")]
    pub engine: EngineChoice,
    /// Instructions for the native engine; by default the fastest that this processor has.
    #[serde(deserialize_with = "choice::instructions")]
    pub instructions: Option<InstructionSet>,
    /// Rows that a model runs concurrently, each on its own thread; by default one per CPU.
    pub threads: Option<NonZeroUsize>,
    /// Log format on standard error.
    #[serde(deserialize_with = "choice::one_of")]
    pub log: LogFormat,
    /// Requests that take longer are logged with the durations of their stages, in milliseconds.
    pub slow_request_ms: Option<NonZeroU64>,
    /// Path prefix for all routes, such as `/large`.
    pub prefix: Option<String>,
    /// Origins whose pages may send requests and read responses.
    #[serde(deserialize_with = "cors::origins")]
    pub cors_origins: Vec<String>,
    /// Request authentication.
    pub auth: AuthConfig,
    /// Whether browsers get a page for trying models at `/`.
    pub page: bool,
    /// Served models; the first is the default for requests without a model.
    #[serde(deserialize_with = "models::paths_or_tables")]
    pub models: Vec<ModelConfig>,
    /// When models are loaded.
    #[serde(deserialize_with = "choice::one_of")]
    pub load: Load,
    /// Memory for models that are loaded on demand, in bytes.
    #[serde(deserialize_with = "choice::bytes")]
    pub max_memory: Option<u64>,
    /// Model aliases: maps each alias to a model name.
    pub aliases: BTreeMap<String, String>,
    /// Servers that may run models for this process.
    pub fleet: FleetConfig,
    /// Access to S3.
    pub s3: S3Config,
    /// Access to the Hugging Face Hub, from `huggingface_hub`'s variables.
    #[serde(skip)]
    pub hub: HubConfig,
    /// This process's memory limit in bytes, set by the Lambda function or the control group.
    #[serde(skip)]
    pub memory_limit: Option<u64>,
    /// Key for the styles `hash` and `encrypt` of replacements in jobs and commands: 64 hexadecimal digits.
    pub redact_key: Option<Secret>,
    /// Request limits.
    pub limits: Limits,
    /// Settings for batch jobs in the Lambda function.
    pub batch: BatchConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            home: HOME.into(),
            cache: None,
            map_weights: true,
            onnxruntime: None,
            engine: EngineChoice::default(),
            instructions: None,
            threads: None,
            log: LogFormat::default(),
            slow_request_ms: None,
            prefix: None,
            cors_origins: Vec::new(),
            auth: AuthConfig::default(),
            page: true,
            models: Vec::new(),
            load: Load::default(),
            max_memory: None,
            aliases: BTreeMap::new(),
            fleet: FleetConfig::default(),
            s3: S3Config::default(),
            hub: HubConfig::default(),
            memory_limit: None,
            redact_key: None,
            limits: Limits::default(),
            batch: BatchConfig::default(),
        }
    }
}

impl Config {
    /// [`Self::slow_request_ms`] as a duration.
    pub fn slow_request(&self) -> Option<Duration> {
        self.slow_request_ms
            .map(|ms| Duration::from_millis(ms.get()))
    }

    /// Reads the file (`file`, or else `KIVU_CONFIG`, or else `kivu.toml` if it exists) and the environment.
    ///
    /// # Errors
    /// If the file cannot be read, or a key or a value is invalid.
    pub fn load(file: Option<&Path>, variables: &Variables) -> Result<Self> {
        let variable = |name: &str| variables.get(name).filter(|value| !value.is_empty());
        let named = file
            .map(Path::to_owned)
            .or_else(|| variable(FILE_VARIABLE).map(PathBuf::from));
        let is_required = named.is_some();
        let path = named.unwrap_or_else(|| FILE.into());
        let file = File::from(path.as_path())
            .format(FileFormat::Toml)
            .required(is_required);
        let overrides = overrides(variables).collect::<Result<Vec<_>>>()?;
        let values = overrides
            .into_iter()
            .try_fold(
                config::Config::builder().add_source(file),
                |builder, (key, value)| builder.set_override(key, value),
            )
            .and_then(|builder| builder.build())
            .map_err(|error| {
                Error::config(format!(
                    "cannot read `{}` or the variables `{PREFIX}…`: {}",
                    path.display(),
                    without_lines(error)
                ))
            })?
            .cache;
        let has_home =
            matches!(&values.kind, ValueKind::Table(table) if table.contains_key("home"));
        let mut config: Self = serde_path_to_error::deserialize(Exact(values))
            .map_err(|error| invalid(&path, &error))?;
        if !has_home {
            config.home = default_home(std::env::current_dir().ok().as_deref(), variable);
        }
        config.check()?;
        config.hub = HubConfig::new(variables);
        config.memory_limit = memory::limit(variable(LAMBDA_MEMORY));
        config.threads = config
            .threads
            .or_else(|| lambda_cpus(variable(LAMBDA_MEMORY)?));
        Ok(config)
    }

    /// This process's environment, without other programs' variables that are not UTF-8.
    ///
    /// # Errors
    /// One of Kivu's variables is not UTF-8.
    pub fn variables() -> Result<Variables> {
        utf8(std::env::vars_os())
    }

    /// Refuses more threads than a process can have.
    pub fn check_threads(&self) -> Result<()> {
        match self.threads.map_or(0, NonZeroUsize::get) {
            found if found > MAX_THREADS => Err(Error::config(format!(
                "expected `threads` of at most {MAX_THREADS}, but found {found}"
            ))
            .with_hint("by default there is one for each CPU")),
            _ => Ok(()),
        }
    }

    fn check(&self) -> Result<()> {
        self.check_threads()?;
        let positive = [
            ("limits.texts", self.limits.texts),
            ("limits.tokens", self.limits.tokens.unwrap_or(1)),
            ("limits.body_bytes", self.limits.body_bytes),
            ("limits.buffer_bytes", self.limits.buffer_bytes),
            ("limits.values", self.limits.values),
            ("limits.requests", self.limits.requests),
            ("limits.timeout_ms", self.limits.timeout_ms as usize),
            ("limits.idle_ms", self.limits.idle_ms as usize),
            ("fleet.timeout_ms", self.fleet.timeout_ms as usize),
            ("auth.refresh_s", self.auth.refresh_s as usize),
        ];
        if let Some(prefix) = self.prefix.as_deref().filter(|prefix| !is_prefix(prefix)) {
            return Err(Error::config(format!(
                "expected `prefix` to be like `/large`, but found `{prefix}`"
            )));
        }
        match positive.iter().find(|(_, value)| *value == 0) {
            Some((name, _)) => Err(Error::config(format!(
                "expected `{name}` above 0, but found 0"
            ))),
            None => Ok(()),
        }
    }

    /// Refuses a memory limit that has no effect.
    pub fn check_load(&self) -> Result<()> {
        match (self.load, self.max_memory) {
            (Load::Start, Some(_)) => Err(Error::config(
                "`max_memory` needs `load = \"on-demand\"`: models that are loaded at start stay loaded",
            )),
            _ => Ok(()),
        }
    }

    /// Memory for models that are loaded on demand, in bytes: as configured, or half of what this process may use.
    pub fn model_memory(&self) -> Result<u64> {
        match self.max_memory.or_else(|| Some(self.memory_limit? / 2)) {
            Some(bytes) => Ok(bytes),
            None => Ok(memory::total()? / 2),
        }
    }

    /// Folder for bundles that were built without `--out`.
    pub fn bundles(&self) -> PathBuf {
        self.home.join("bundles")
    }

    /// The bundle that a command line names: a path or URL, or else a bundle name in [`Config::bundles`].
    pub fn find_bundle(&self, named: PathBuf) -> PathBuf {
        let built = self.bundles().join(&named);
        let is_name = named.components().count() == 1 && !named.exists();
        if is_name && built.is_dir() {
            built
        } else {
            named
        }
    }

    /// Rows that a model runs concurrently: as configured, or one per CPU.
    pub fn threads(&self) -> NonZeroUsize {
        self.threads
            .or_else(|| thread::available_parallelism().ok())
            .unwrap_or(NonZeroUsize::MIN)
    }
}

/// The variables that are UTF-8, which Kivu's must be.
fn utf8(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<Variables> {
    let is_own = |name: &OsString| name.as_encoded_bytes().starts_with(PREFIX.as_bytes());
    let pair = |(name, value): (OsString, OsString)| match (name.to_str(), value.to_str()) {
        (Some(name), Some(value)) => Some(Ok((name.to_owned(), value.to_owned()))),
        _ if is_own(&name) => Some(Err(Error::config(format!(
            "expected UTF-8 in the variable `{}`, but found other bytes",
            name.display()
        )))),
        _ => None,
    };
    variables.filter_map(pair).collect()
}

/// The keys that variables set, with texts as values; each is read as its key's type. The `config` crate's
/// `Environment` guesses a type from the text instead, and reads the secret `0123` as the number 123.
fn overrides(variables: &Variables) -> impl Iterator<Item = Result<(String, Value)>> {
    let values = variables
        .iter()
        .filter(|(name, value)| !NO_KEYS.contains(&name.as_str()) && !value.is_empty());
    values.filter_map(|(name, value)| {
        let key = name.strip_prefix(PREFIX)?.to_lowercase().replace("__", ".");
        let is_word = |part: &str| part.contains(|c: char| c.is_ascii_alphanumeric());
        if !key.split('.').all(is_word)
            || !key
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_.".contains(c))
        {
            return Some(Err(Error::config(format!("unknown variable `{name}`"))));
        }
        let value = match LISTS.contains(&key.as_str()) {
            true => match parse_lists([value.as_str()]) {
                Ok(items) => items.into(),
                // The value may have keys.
                Err(expected) => {
                    return Some(Err(Error::config(format!(
                        "expected {expected} in `{name}`"
                    ))));
                }
            },
            false => value.as_str().into(),
        };
        Some(Ok((key, value)))
    })
}

/// The message without the lines that a parser quotes, which may have keys.
fn without_lines(error: config::ConfigError) -> String {
    let message = match error {
        config::ConfigError::FileParse { cause, .. } => cause.to_string(),
        other => other.to_string(),
    };
    let is_quoted = |line: &&str| {
        line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ')
            .starts_with('|')
    };
    let lines: Vec<&str> = message.lines().filter(|line| !is_quoted(line)).collect();
    lines.join(": ")
}

/// Error for a key whose value cannot be read.
fn invalid(path: &Path, error: &serde_path_to_error::Error<config::ConfigError>) -> Error {
    let key = error.path().to_string();
    let variable = key.to_uppercase().replace('.', "__");
    let place = match key.as_str() {
        "." | "?" => format!(
            "invalid configuration in `{}` or in variables `{PREFIX}…`",
            path.display()
        ),
        _ => format!(
            "invalid `{key}` in `{}` or in the variable `{PREFIX}{variable}`",
            path.display()
        ),
    };
    // `place` contains the key already.
    let expected = error.inner().to_string();
    Error::config(format!(
        "{place}: {}",
        expected.split(" for key `").next().unwrap_or_default()
    ))
}

/// Default `home`: the nearest [`HOME`] in the working folder or its parents; otherwise `kivu` in the user's cache
/// folder, according to the XDG Base Directory Specification.
fn default_home<'a>(
    working_folder: Option<&Path>,
    variable: impl Fn(&str) -> Option<&'a String>,
) -> PathBuf {
    let checkout = working_folder
        .into_iter()
        .flat_map(Path::ancestors)
        .map(|folder| folder.join(HOME));
    // The specification says to ignore relative paths.
    let absolute = |name: &str| {
        variable(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let cache = || absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let checkout = checkout.into_iter().find(|folder| folder.is_dir());
    checkout
        .or_else(|| Some(cache()?.join("kivu")))
        .unwrap_or_else(|| HOME.into())
}

/// Whether `prefix` consists of segments with plain characters, each after a slash.
fn is_prefix(prefix: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_segment = |segment: &str| !segment.is_empty() && segment.chars().all(is_plain);
    prefix
        .strip_prefix('/')
        .is_some_and(|segments| segments.split('/').all(is_segment))
}

/// The CPUs that a function with this memory has. The system reports more CPUs than the function may use.
fn lambda_cpus(memory_mb: &str) -> Option<NonZeroUsize> {
    NonZeroUsize::new(memory_mb.parse::<usize>().ok()?.div_ceil(LAMBDA_MB_PER_CPU))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        pairs
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect()
    }

    fn load(text: &str, pairs: &[(&str, &str)]) -> Result<Config> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kivu.toml");
        std::fs::write(&path, text).unwrap();
        Config::load(Some(&path), &variables(pairs))
    }

    #[test]
    fn the_environment_wins_over_the_file() {
        let config = load(
            "listen = '127.0.0.1:1'\nmodels = ['a', { name = 'b', path = 'c' }]\n[limits]\ntexts = 7",
            &[("KIVU_LISTEN", "127.0.0.1:2"), ("KIVU_LIMITS__REQUESTS", "3"), ("KIVU_INSTALL_PREFIX", "x"), ("OTHER", "x")],
        )
        .unwrap();
        assert_eq!(config.listen.port(), 2);
        assert_eq!((config.limits.texts, config.limits.requests), (7, 3));
        assert_eq!(config.limits.timeout_ms, Limits::default().timeout_ms);
        assert_eq!(
            config.models[1],
            ModelConfig {
                name: Some("b".into()),
                path: "c".into(),
                ..ModelConfig::default()
            }
        );
    }

    #[test]
    fn the_environment_may_list_models() {
        let config = load("", &[("KIVU_MODELS", "/models/a,/models/b")]).unwrap();
        let paths: Vec<_> = config
            .models
            .iter()
            .map(|model| model.path.display().to_string())
            .collect();
        assert_eq!(paths, ["/models/a", "/models/b"]);
    }

    #[test]
    fn items_in_variables_may_be_quoted() {
        let columns = |value: &str| {
            let config = load("", &[("KIVU_BATCH__METADATA", value)]).unwrap();
            config.batch.metadata
        };
        for value in ["title,\"city, state\"", "[\"title\", \"city, state\"]"] {
            assert_eq!(columns(value), ["title", "city, state"]);
        }
        let keys = "a:1,\"b:2 models=x,y\"";
        let config = load("", &[("KIVU_AUTH__KEYS", keys)]).unwrap();
        assert_eq!(config.auth.keys.len(), 2);
        for (name, value) in [
            ("KIVU_MODELS", "/models/a,"),
            ("KIVU_FLEET__URLS", "http://a,http://a"),
            ("KIVU_AUTH__KEYS", "\"secret"),
        ] {
            let error = load("", &[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn texts_that_look_like_other_types_stay_as_they_are() {
        for secret in [
            "0123",
            "1e5",
            "99999999999999999999",
            "TRUE",
            "nan",
            "+7",
            " 7",
            "a,b",
        ] {
            let config = load(
                "",
                &[
                    ("KIVU_AUTH__PROXY_SECRET", secret),
                    ("KIVU_FLEET__TOKEN", secret),
                ],
            )
            .unwrap();
            assert_eq!(config.auth.proxy_secret.unwrap().0, secret);
            assert_eq!(config.fleet.token.unwrap().0, secret);
        }
        let config = load(
            "",
            &[
                ("KIVU_MODELS", "7"),
                ("KIVU_PAGE", "false"),
                ("KIVU_LIMITS__TEXTS", "7"),
            ],
        )
        .unwrap();
        assert_eq!(
            (
                config.models[0].path.as_path(),
                config.page,
                config.limits.texts
            ),
            (Path::new("7"), false, 7)
        );
        assert!(load("", &[("KIVU_LIMITS__TEXTS", "1.5")]).is_err());
        for name in [
            "KIVU_",
            "KIVU_LIMITS__",
            "KIVU____TEXTS",
            "KIVU_LIMITS-TEXTS",
            "KIVU_ÜBER",
            "KIVU_MODELS[0]",
        ] {
            let error = load("", &[(name, "1")]).unwrap_err().to_string();
            assert_eq!(error, format!("unknown variable `{name}`"));
        }
    }

    #[test]
    fn memory_is_a_number_of_bytes() {
        let memory = |value: &str| {
            let config = load("load = 'on-demand'", &[("KIVU_MAX_MEMORY", value)]);
            config.map(|config| config.model_memory().unwrap()).ok()
        };
        assert_eq!(memory("2GB"), Some(2_000_000_000));
        assert_eq!(memory("1.5 GiB"), Some(3 << 29));
        assert_eq!(memory("500mb"), Some(500_000_000));
        assert_eq!(memory("123456"), Some(123_456));
        assert_eq!(
            load("max_memory = 100000", &[]).unwrap().max_memory,
            Some(100_000)
        );
        for wrong in [
            "0",
            "2",
            "99999",
            "99 kB",
            "-1GB",
            "GB",
            "2XB",
            "1e999",
            "nan",
            "2 GB of memory",
        ] {
            assert_eq!(memory(wrong), None, "{wrong}");
        }
        let half = Config {
            memory_limit: Some(4000),
            ..Config::default()
        };
        assert_eq!(half.model_memory().unwrap(), 2000);
        assert!(
            Config::default().model_memory().unwrap() > 1 << 20,
            "half of the machine's memory"
        );
    }

    #[test]
    fn empty_variables_are_ignored() {
        let names = [
            "MODELS",
            "LISTEN",
            "LIMITS__TEXTS",
            "CACHE",
            "PREFIX",
            "FLEET__URLS",
            "AUTH__MODE",
            "CONFIG",
        ];
        let names = names.map(|name| format!("KIVU_{name}"));
        let empty: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
        let config = load("models = ['a']", &empty).unwrap();
        assert_eq!(
            (config.models.len(), config.limits.texts),
            (1, Limits::default().texts)
        );
        assert_eq!(
            (config.cache, config.prefix, config.auth.mode),
            (None, None, None)
        );
        assert!(config.fleet.urls.is_empty());
    }

    #[test]
    fn unknown_keys_and_invalid_values_are_reported() {
        let refused = |name: &str, value: &str| {
            let error = load("", &[(name, value)]).unwrap_err().to_string();
            error
                .split_once(" in the variable ")
                .map_or(error.clone(), |(_, error)| error.to_owned())
        };
        insta::assert_snapshot!(refused("KIVU_LOG", "warn"), @"`KIVU_LOG`: expected `text`, `json`, but found `warn`");
        insta::assert_snapshot!(refused("KIVU_ENGINE", "gpu"), @"`KIVU_ENGINE`: expected `auto`, `native`, `onnx`, but found `gpu`");
        insta::assert_snapshot!(refused("KIVU_AUTH__MODE", "key"), @"`KIVU_AUTH__MODE`: expected `keys`, `iam`, `jwt`, `none`, but found `key`");
        insta::assert_snapshot!(refused("KIVU_FLEET__POLICY", "remote"), @"`KIVU_FLEET__POLICY`: expected `local`, `fleet`, `auto`, but found `remote`");
        // All keys whose values are not strings.
        let keys = [
            "LISTEN",
            "MAP_WEIGHTS",
            "THREADS",
            "PAGE",
            "AUTH__REFRESH_S",
            "FLEET__TIMEOUT_MS",
            "S3__TIMEOUT_MS",
            "LIMITS__TEXTS",
            "LIMITS__TOKENS",
            "LIMITS__TRUNCATE",
            "LIMITS__BODY_BYTES",
            "LIMITS__VALUES",
            "LIMITS__REQUESTS",
            "LIMITS__TIMEOUT_MS",
            "LIMITS__IDLE_MS",
            "BATCH__SAVE_MS",
            "BATCH__MARGIN_MS",
            "ALIASES",
            "BATCH__RULES",
            "MAX_MEMORY",
        ];
        let errors: Vec<_> = keys
            .iter()
            .map(|key| refused(&format!("KIVU_{key}"), "x y"))
            .collect();
        insta::assert_snapshot!(errors.join("\n"), @r#"
        `KIVU_LISTEN`: expected an address such as `127.0.0.1:8080`, but found `x y`
        `KIVU_MAP_WEIGHTS`: invalid type: string "x y", expected a boolean
        `KIVU_THREADS`: invalid type: string "x y", expected an integer
        `KIVU_PAGE`: invalid type: string "x y", expected a boolean
        `KIVU_AUTH__REFRESH_S`: invalid type: string "x y", expected an integer
        `KIVU_FLEET__TIMEOUT_MS`: invalid type: string "x y", expected an integer
        `KIVU_S3__TIMEOUT_MS`: invalid type: string "x y", expected an integer
        `KIVU_LIMITS__TEXTS`: invalid type: string "x y", expected an integer
        `KIVU_LIMITS__TOKENS`: invalid type: string "x y", expected an integer
        `KIVU_LIMITS__TRUNCATE`: invalid type: string "x y", expected a boolean
        `KIVU_LIMITS__BODY_BYTES`: invalid type: string "x y", expected an integer
        `KIVU_LIMITS__VALUES`: invalid type: string "x y", expected an integer
        `KIVU_LIMITS__REQUESTS`: invalid type: string "x y", expected an integer
        `KIVU_LIMITS__TIMEOUT_MS`: invalid type: string "x y", expected an integer
        `KIVU_LIMITS__IDLE_MS`: invalid type: string "x y", expected an integer
        `KIVU_BATCH__SAVE_MS`: invalid type: string "x y", expected an integer
        `KIVU_BATCH__MARGIN_MS`: invalid type: string "x y", expected an integer
        `KIVU_ALIASES`: invalid type: string "x y", expected a map
        `KIVU_BATCH__RULES`: invalid type: string "x y", expected a sequence
        `KIVU_MAX_MEMORY`: expected at least 100 kB of memory, such as `2GB` or a number of bytes, but found `x y`
        "#);
        insta::assert_snapshot!(refused("KIVU_LOAD", "later"), @"`KIVU_LOAD`: expected `start`, `on-demand`, but found `later`");
        let table = |text: &str| {
            load(text, &[])
                .unwrap_err()
                .to_string()
                .split_once(": ")
                .unwrap()
                .1
                .to_owned()
        };
        insta::assert_snapshot!(table("models = [{ path = 'a', polcy = 'auto' }]"), @"unknown field `polcy`, expected one of `name`, `path`, `policy`, `remote`, `urls`, `version`");
        insta::assert_snapshot!(table("models = [{ path = 'a', policy = 'remote' }]"), @"expected `local`, `fleet`, `auto`, but found `remote`");
        insta::assert_snapshot!(table("models = [7]"), @"invalid type: integer `7`, expected the path of a model, or a table with `path`");
        insta::assert_snapshot!(table("models = 7"), @"invalid type: integer `7`, expected a sequence");
        assert!(
            load("[limits]\ntext = 7", &[])
                .unwrap_err()
                .chain()
                .contains("text")
        );
        assert!(
            load("", &[("KIVU_LIMITS__TEXTS", "many")])
                .unwrap_err()
                .chain()
                .contains("many")
        );
        assert!(
            load("", &[("KIVU_LIMIT__TEXTS", "1")])
                .unwrap_err()
                .chain()
                .contains("limit")
        );
        let zero = load("[limits]\ntexts = 0", &[]).unwrap_err();
        insta::assert_snapshot!(zero, @"expected `limits.texts` above 0, but found 0");
    }

    #[test]
    fn numbers_and_booleans_are_not_converted() {
        let refused = |text: &str, variables: &[(&str, &str)]| {
            let error = load(text, variables).unwrap_err().to_string();
            let (key, expected) = error.split_once(": ").unwrap();
            format!("{}: {expected}", key.split('`').nth(1).unwrap())
        };
        let mut found = [
            "limits.texts = 1.5",
            "limits.texts = true",
            "limits.tokens = 'on'",
            "threads = 2.7",
            "slow_request_ms = 0.5",
            "page = 2",
            "limits.truncate = 0.0",
            "limits = 5",
            "limits = [5]",
            "models = [{ name = 'a' }]",
        ]
        .map(|text| refused(text, &[]))
        .to_vec();
        found.push(refused("", &[("KIVU_THREADS", "yes")]));
        insta::assert_snapshot!(found.join("\n"), @r#"
        limits.texts: invalid type: floating point `1.5`, expected an integer
        limits.texts: invalid type: boolean `true`, expected an integer
        limits.tokens: invalid type: string "on", expected an integer
        threads: invalid type: floating point `2.7`, expected an integer
        slow_request_ms: invalid type: floating point `0.5`, expected an integer
        page: invalid type: integer `2`, expected a boolean
        limits.truncate: invalid type: floating point `0.0`, expected a boolean
        limits: invalid type: integer `5`, expected a table
        limits: invalid type: sequence, expected a table
        models[0]: missing configuration field "path"
        threads: invalid type: string "yes", expected an integer
        "#);
        let config = load(
            "limits.texts = '7'\npage = 'off'",
            &[("KIVU_THREADS", "+2")],
        )
        .unwrap();
        assert_eq!((config.limits.texts, config.page), (7, false));
        assert_eq!(config.threads, NonZeroUsize::new(2));
    }

    #[test]
    fn variables_are_utf_8() {
        use std::os::unix::ffi::OsStringExt;

        let other = || OsString::from_vec(b"/srv/\xff".to_vec());
        let read = |name: &str| utf8([(name.into(), other())].into_iter());
        assert_eq!(read("PATH").unwrap(), Variables::new());
        let error = read("KIVU_HOME").unwrap_err().to_string();
        insta::assert_snapshot!(error, @"expected UTF-8 in the variable `KIVU_HOME`, but found other bytes");
    }

    #[test]
    fn choices_of_another_type_and_origins_name_their_key() {
        let refused = |text: &str| {
            let error = load(text, &[]).unwrap_err().to_string();
            let (key, expected) = error.split_once(": ").unwrap();
            let key = key.split('`').nth(1).unwrap();
            format!("`{key}`: {expected}")
        };
        let found = [
            "load = 5",
            "load = []",
            "log = { json = true }",
            "engine = true",
            "auth.mode = ['keys']",
            "fleet.policy = 1.5",
            "models = [{ path = 'a' }, { path = 'a', policy = [] }]",
            "cors_origins = ['https://a.example', 'https://b.example/']",
            "cors_origins = ['*']",
            "cors_origins = [7]",
        ]
        .map(refused);
        insta::assert_snapshot!(found.join("\n"), @r"
        `load`: expected `start`, `on-demand`, but found `5`
        `load`: expected `start`, `on-demand`, but found a list or a table
        `log`: expected `text`, `json`, but found a list or a table
        `engine`: expected `auto`, `native`, `onnx`, but found `true`
        `auth.mode`: expected `keys`, `iam`, `jwt`, `none`, but found a list or a table
        `fleet.policy`: expected `local`, `fleet`, `auto`, but found `1.5`
        `models[1].policy`: expected `local`, `fleet`, `auto`, but found a list or a table
        `cors_origins`: expected an origin such as `https://example.com` or `app://obsidian.md`, but found `https://b.example/`; leave out what follows the host and the port, also a slash
        `cors_origins`: expected an origin such as `https://example.com` or `app://obsidian.md`, but found `*`; list the origins: with `*`, every page could use the models
        `cors_origins`: expected an origin such as `https://example.com` or `app://obsidian.md`, but found `7`; begin it with its scheme
        ");
        let config = load(
            "",
            &[("KIVU_CORS_ORIGINS", "app://obsidian.md,https://a.example")],
        )
        .unwrap();
        assert_eq!(
            config.cors_origins,
            ["app://obsidian.md", "https://a.example"]
        );
        assert!(load("", &[("KIVU_CORS_ORIGINS", "null")]).is_err());
    }

    #[test]
    fn instructions_are_those_of_this_processor() {
        let all: Vec<_> = InstructionSet::available().collect();
        for set in &all {
            let config = load("", &[("KIVU_INSTRUCTIONS", set.name())]).unwrap();
            assert_eq!(config.instructions, Some(*set));
        }
        assert_eq!(load("", &[]).unwrap().instructions, None);
        let other = if cfg!(target_arch = "x86_64") {
            "neon-dotprod"
        } else {
            "avx2"
        };
        let error = load(&format!("instructions = '{other}'"), &[])
            .unwrap_err()
            .to_string();
        let names: Vec<_> = all.iter().map(|set| format!("`{}`", set.name())).collect();
        let expected = format!(
            "expected instructions of this processor, {}, but found `{other}`",
            names.join(", ")
        );
        assert!(
            error.starts_with("invalid `instructions` in ") && error.ends_with(&expected),
            "{error}"
        );
    }

    #[test]
    fn a_prefix_is_a_path() {
        for good in ["/large", "/a/b-c"] {
            assert_eq!(
                load("", &[("KIVU_PREFIX", good)])
                    .unwrap()
                    .prefix
                    .as_deref(),
                Some(good)
            );
        }
        for bad in ["large", "/", "/a/", "/{a}", "//a"] {
            assert!(load("", &[("KIVU_PREFIX", bad)]).is_err(), "{bad}");
        }
    }

    #[test]
    fn debug_output_hides_secrets() {
        let keys = [
            ("KIVU_AUTH__KEYS", "a:12,b:34"),
            ("KIVU_AUTH__PROXY_SECRET", "sesame"),
            ("KIVU_AUTH__MODE", "keys"),
        ];
        let config = load(
            "",
            &[&keys[..], &[("KIVU_FLEET__TOKEN", "sesame")]].concat(),
        )
        .unwrap();
        assert!(!format!("{config:?}").contains("sesame"));
        let auth = config.auth;
        assert_eq!((auth.keys.len(), auth.mode), (2, Some(AuthMode::Keys)));
    }

    #[test]
    fn a_file_named_explicitly_has_to_exist() {
        assert!(Config::load(Some(Path::new("/nowhere/kivu.toml")), &variables(&[])).is_err());
    }

    #[test]
    fn malformed_files_are_not_quoted() {
        let error = load("log = \"text\"\nredact_key = \"0f", &[])
            .unwrap_err()
            .chain();
        let (_, parser) = error.split_once(": TOML ").unwrap();
        insta::assert_snapshot!(parser, @r#"parse error at line 2, column 17: invalid basic string, expected `"`"#);
    }

    #[test]
    fn home_is_in_the_checkout_or_in_the_users_cache() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("a/b");
        std::fs::create_dir_all(&below).unwrap();
        let home = |pairs: &[(&str, &str)]| {
            let variables = variables(pairs);
            default_home(Some(&below), |name| variables.get(name))
        };
        let user = ("HOME", "/home/ada");
        assert_eq!(home(&[user]), Path::new("/home/ada/.cache/kivu"));
        assert_eq!(
            home(&[user, ("XDG_CACHE_HOME", "/cache")]),
            Path::new("/cache/kivu")
        );
        assert_eq!(
            home(&[user, ("XDG_CACHE_HOME", "cache")]),
            Path::new("/home/ada/.cache/kivu")
        );
        assert_eq!(home(&[]), Path::new(".kivu"));
        let checkout = folder.path().join(".kivu");
        std::fs::create_dir(&checkout).unwrap();
        assert_eq!(home(&[user]), checkout);
        assert_eq!(
            load("", &[("KIVU_HOME", "/there")]).unwrap().home,
            Path::new("/there")
        );
    }

    #[test]
    fn threads_on_lambda_follow_the_memory() {
        for (memory, expected) in [
            ("128", 1),
            ("1769", 1),
            ("1770", 2),
            ("3008", 2),
            ("10240", 6),
        ] {
            let config = load("", &[(LAMBDA_MEMORY, memory)]).unwrap();
            assert_eq!(config.threads().get(), expected, "{memory} MB");
        }
        let config = load("threads = 3", &[(LAMBDA_MEMORY, "128")]).unwrap();
        assert_eq!(config.threads().get(), 3, "the configured value wins");
        assert_eq!(
            load("", &[("KIVU_THREADS", "1024")])
                .unwrap()
                .threads()
                .get(),
            1024
        );
        let error = load("", &[("KIVU_THREADS", "20000")]).unwrap_err();
        insta::assert_snapshot!(error, @"expected `threads` of at most 1024, but found 20000; by default there is one for each CPU");
    }
}
