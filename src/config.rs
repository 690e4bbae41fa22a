//! `kivu.toml`, every key of which an environment variable can override.
//!
//! `KIVU_` and the key's path in capitals, two underscores between its parts: `KIVU_LISTEN`,
//! `KIVU_LIMITS__TEXTS`, `KIVU_MODELS` (paths with commas between them). `KIVU_CONFIG` names the file itself.

mod auth;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use config::{Environment, File, FileFormat};
use serde::Deserialize;

pub use self::auth::{AuthConfig, AuthMode};
use crate::error::{Error, Result};

/// The configuration file that is read where no other is named.
pub const FILE: &str = "kivu.toml";
/// The environment variable that names another.
const FILE_VARIABLE: &str = "KIVU_CONFIG";
const PREFIX: &str = "KIVU";
/// The folder of a checkout that holds what the program fetches and builds.
const HOME: &str = ".kivu";
/// Set by Lambda: the function's memory in MB, which its share of the CPUs follows from.
const LAMBDA_MEMORY: &str = "AWS_LAMBDA_FUNCTION_MEMORY_SIZE";
/// The memory that comes with one whole CPU on Lambda.
const LAMBDA_MB_A_CPU: usize = 1769;

/// The environment as it was when the program started, or as a test makes it up.
pub type Variables = BTreeMap<String, String>;

/// What is served, and within which bounds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The address that `kivu serve` listens on.
    pub listen: SocketAddr,
    /// The folder for what the program fetches and builds: packages, ONNX Runtime, bundles without a folder of
    /// their own. [`Config::load`] defaults to the nearest `.kivu` of the working folder and its parents, or else
    /// to `kivu` in the user's cache folder.
    pub home: PathBuf,
    /// A folder for bundles fetched from S3; without one they are loaded into memory and not kept.
    pub cache: Option<PathBuf>,
    /// Whether weights in a folder are mapped into memory; otherwise they are read, which takes more memory, but changes
    /// of the files cannot reach a loaded model.
    pub map_weights: bool,
    /// The path of ONNX Runtime's library, where it is not in one of the usual places.
    pub onnxruntime: Option<PathBuf>,
    /// Texts that a model runs at once, each on a thread of its own; by default one a CPU.
    pub threads: Option<NonZeroUsize>,
    /// How the log is written.
    pub log: LogFormat,
    /// The path below which everything is served, where that is not `/`.
    pub prefix: Option<String>,
    /// Who may ask.
    pub auth: AuthConfig,
    /// Whether browsers that open `/` get the page for trying models.
    pub page: bool,
    /// The models that are served.
    pub models: Vec<ModelConfig>,
    /// The servers that models may run on instead.
    pub fleet: FleetConfig,
    /// The store that `s3://` stands for.
    pub s3: S3Config,
    /// The bounds of a request.
    pub limits: Limits,
    /// Jobs from files.
    pub batch: Batch,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            home: HOME.into(),
            cache: None,
            map_weights: true,
            onnxruntime: None,
            threads: None,
            log: LogFormat::default(),
            prefix: None,
            auth: AuthConfig::default(),
            page: true,
            models: Vec::new(),
            fleet: FleetConfig::default(),
            s3: S3Config::default(),
            limits: Limits::default(),
            batch: Batch::default(),
        }
    }
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: one object a line.
    Json,
}

/// Servers that speak KServe v2, as Triton does.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FleetConfig {
    /// Where they are: `http`, `https`, `grpc` or `grpcs`, host and port. Without any there is no fleet.
    pub urls: Vec<String>,
    /// Where models run that do not say it themselves.
    pub policy: Policy,
    /// The version of the model that is asked for; the servers' choice if nothing is said.
    pub version: Option<String>,
    /// The longest that a request may take there, all tries together.
    pub timeout_ms: u64,
    /// The certificates to trust, as PEM; by default those that the system trusts.
    pub ca: Option<PathBuf>,
    /// What stands behind `Bearer` in the `authorization` of every request.
    pub token: Option<String>,
}

impl Default for FleetConfig {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            policy: Policy::Auto,
            version: None,
            timeout_ms: 10_000,
            ca: None,
            token: None,
        }
    }
}

impl FleetConfig {
    /// The longest that a request may take there.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// In this process.
    Local,
    /// On the fleet.
    Fleet,
    /// Wherever it is done sooner, and here while the fleet does not answer.
    #[default]
    Auto,
}

/// One model that is served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "WrittenModel")]
pub struct ModelConfig {
    /// The name that requests know it by, where it is not its bundle's.
    pub name: Option<String>,
    /// Its bundle, a folder of bundles, or the `s3://` URL of a bundle.
    pub path: PathBuf,
    /// Where it runs, if not where the others do.
    pub policy: Option<Policy>,
    /// What it is called on the fleet, if not by its name here.
    pub remote: Option<String>,
    /// The servers that it is on, if not those of the others.
    pub urls: Option<Vec<String>>,
    /// Its version there, if not that of the others.
    pub version: Option<String>,
}

/// A model is written as its path alone, or as a table.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenModel {
    Path(PathBuf),
    Table(ModelTable),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelTable {
    name: Option<String>,
    path: PathBuf,
    policy: Option<Policy>,
    remote: Option<String>,
    urls: Option<Vec<String>>,
    version: Option<String>,
}

impl From<WrittenModel> for ModelConfig {
    fn from(written: WrittenModel) -> Self {
        match written {
            WrittenModel::Path(path) => path.into(),
            WrittenModel::Table(ModelTable { name, path, policy, remote, urls, version }) => {
                Self { name, path, policy, remote, urls, version }
            }
        }
    }
}

impl From<PathBuf> for ModelConfig {
    fn from(path: PathBuf) -> Self {
        Self { path, ..Self::default() }
    }
}

impl ModelConfig {
    /// Where this model runs. Without servers that is here.
    pub fn policy(&self, fleet: &FleetConfig) -> Policy {
        let has_servers = !self.urls.as_ref().unwrap_or(&fleet.urls).is_empty();
        if has_servers { self.policy.unwrap_or(fleet.policy) } else { Policy::Local }
    }

    /// The fleet as this model has it.
    pub fn fleet(&self, fleet: &FleetConfig) -> FleetConfig {
        FleetConfig {
            urls: self.urls.clone().unwrap_or_else(|| fleet.urls.clone()),
            version: self.version.clone().or_else(|| fleet.version.clone()),
            ..fleet.clone()
        }
    }
}

/// S3, or what stands for it. Where it is, and who asks, say the usual variables of AWS.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct S3Config {
    /// How long a request is tried again while the store does not answer, in milliseconds.
    pub patience_ms: u64,
}

impl Default for S3Config {
    fn default() -> Self {
        Self { patience_ms: 60_000 }
    }
}

impl S3Config {
    /// How long a request is tried again while the store does not answer.
    pub fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms)
    }
}

/// The bounds of a request, checked before its work begins.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// The most texts in a request.
    pub texts: usize,
    /// The most tokens of a text, where the model would take more.
    pub tokens: Option<usize>,
    /// Whether texts of too many tokens are shortened when the request does not say.
    pub truncate: bool,
    /// The most bytes in a request's body; the default is what Lambda takes.
    pub body_bytes: usize,
    /// The most numbers in an answer: texts, or tokens, times dimensions. A number takes about twelve bytes.
    pub values: usize,
    /// The most requests under way at once.
    pub requests: usize,
    /// The longest that a request may take, in milliseconds.
    pub timeout_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            texts: 1024,
            tokens: None,
            truncate: true,
            body_bytes: 6 * 1024 * 1024,
            values: 1_500_000,
            requests: 512,
            timeout_ms: 60_000,
        }
    }
}

impl Limits {
    /// The longest that a request may take.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

/// Jobs from files that are dropped into a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Batch {
    /// The prefix of the files that are taken, where `rules` say nothing of them.
    pub input: String,
    /// The prefix of their answers: of the same bucket, or `s3://BUCKET/PREFIX`.
    pub output: String,
    /// What is asked of files, by their prefixes; the first that fits counts.
    pub rules: Vec<Rule>,
    /// How often a job is saved, in milliseconds, if not even so much output came together.
    pub save_ms: u64,
    /// How long before a function's time is up it saves and stops, in milliseconds.
    pub margin_ms: u64,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            input: "in/".into(),
            output: "out/".into(),
            rules: Vec::new(),
            save_ms: 60_000,
            margin_ms: 30_000,
        }
    }
}

/// What is asked of the files with a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// The prefix of the files.
    pub input: String,
    /// The prefix of their answers.
    pub output: String,
    /// What is asked of them.
    pub ask: BTreeMap<String, String>,
}

impl Config {
    /// Reads the file (`file`, or what `KIVU_CONFIG` names, or `kivu.toml` if it is there) and the
    /// environment.
    pub fn load(file: Option<&Path>, variables: &Variables) -> Result<Self> {
        let named = file.map(Path::to_owned).or_else(|| variables.get(FILE_VARIABLE).map(PathBuf::from));
        let required = named.is_some();
        let path = named.unwrap_or_else(|| FILE.into());
        let ours = variables.iter().filter(|(name, _)| name.as_str() != FILE_VARIABLE);
        let ours = ours.map(|(name, value)| (name.clone(), value.clone())).collect();
        let environment = Environment::with_prefix(PREFIX)
            .prefix_separator("_")
            .separator("__")
            .try_parsing(true)
            .list_separator(",")
            .with_list_parse_key("models")
            .with_list_parse_key("fleet.urls")
            .with_list_parse_key("auth.keys")
            .source(Some(ours));
        let home = default_home(std::env::current_dir().ok().as_deref(), variables);
        let mut config: Self = config::Config::builder()
            .set_default("home", home.to_string_lossy().as_ref())
            .map_err(|error| Error::Config {
                message: "cannot set the default of `home`".into(),
                source: Some(Box::new(error)),
            })?
            .add_source(File::from(path.as_path()).format(FileFormat::Toml).required(required))
            .add_source(environment)
            .build()
            .and_then(config::Config::try_deserialize)
            .map_err(|error| Error::Config {
                message: format!("expected a usable configuration in `{}` and `{PREFIX}_…`", path.display()),
                source: Some(Box::new(error)),
            })?;
        config.models.retain(|model| !model.path.as_os_str().is_empty());
        config.fleet.urls.retain(|url| !url.is_empty());
        config.check()?;
        config.threads =
            config.threads.or_else(|| variables.get(LAMBDA_MEMORY).and_then(|memory| lambda_cpus(memory)));
        Ok(config)
    }

    /// The environment of this process.
    pub fn variables() -> Variables {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    fn check(&self) -> Result<()> {
        let limits = [
            ("limits.texts", self.limits.texts),
            ("limits.tokens", self.limits.tokens.unwrap_or(1)),
            ("limits.body_bytes", self.limits.body_bytes),
            ("limits.values", self.limits.values),
            ("limits.requests", self.limits.requests),
            ("limits.timeout_ms", self.limits.timeout_ms as usize),
            ("fleet.timeout_ms", self.fleet.timeout_ms as usize),
            ("auth.refresh_s", self.auth.refresh_s as usize),
        ];
        if let Some(prefix) = self.prefix.as_deref().filter(|prefix| !is_prefix(prefix)) {
            return Err(Error::config(format!(
                "expected `prefix` to be like `/large`, but found `{prefix}`"
            )));
        }
        match limits.iter().find(|(_, limit)| *limit == 0) {
            Some((name, _)) => Err(Error::config(format!("expected `{name}` above 0, but found 0"))),
            None => Ok(()),
        }
    }

    /// The folder of bundles that were built without naming one.
    pub fn bundles(&self) -> PathBuf {
        self.home.join("bundles")
    }

    /// The number of texts that a model runs at once: as configured, or one a CPU.
    pub fn threads(&self) -> NonZeroUsize {
        self.threads.or_else(|| thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN)
    }
}

/// The value of `home` where nothing configures it.
///
/// The nearest [`HOME`] of the working folder and its parents, so that a checkout keeps everything to itself;
/// elsewhere `kivu` in the user's cache folder, as the XDG Base Directory Specification defines it.
fn default_home(working_folder: Option<&Path>, variables: &Variables) -> PathBuf {
    let checkout = working_folder.into_iter().flat_map(Path::ancestors).map(|folder| folder.join(HOME));
    let cache = || {
        // The specification has relative paths ignored.
        let absolute = |name: &str| variables.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        absolute("XDG_CACHE_HOME")
            .or_else(|| Some(absolute("HOME")?.join(".cache")))
            .map(|cache| cache.join("kivu"))
    };
    checkout.into_iter().find(|folder| folder.is_dir()).or_else(cache).unwrap_or_else(|| HOME.into())
}

/// Whether every path can go below it: plain segments, each after a slash.
fn is_prefix(prefix: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let mut segments = prefix.split('/');
    segments.next() == Some("")
        && prefix.len() > 1
        && segments.all(|segment| !segment.is_empty() && segment.chars().all(is_plain))
}

/// The CPUs that a function of so many MB has a share of; more are visible than it may use.
fn lambda_cpus(memory: &str) -> Option<NonZeroUsize> {
    let memory: usize = memory.parse().ok()?;
    NonZeroUsize::new(memory.div_ceil(LAMBDA_MB_A_CPU))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    fn load(text: &str, pairs: &[(&str, &str)]) -> Result<Config> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kivu.toml");
        std::fs::write(&path, text).unwrap();
        Config::load(Some(&path), &variables(pairs))
    }

    #[test]
    fn the_environment_wins_over_the_file_and_the_file_over_the_defaults() {
        let config = load(
            "listen = '127.0.0.1:1'\nmodels = ['a', { name = 'b', path = 'c' }]\n[limits]\ntexts = 7",
            &[("KIVU_LISTEN", "127.0.0.1:2"), ("KIVU_LIMITS__REQUESTS", "3"), ("OTHER", "x")],
        )
        .unwrap();
        assert_eq!(config.listen.port(), 2);
        assert_eq!((config.limits.texts, config.limits.requests), (7, 3));
        assert_eq!(config.limits.timeout_ms, Limits::default().timeout_ms);
        assert_eq!(
            config.models[1],
            ModelConfig { name: Some("b".into()), path: "c".into(), ..ModelConfig::default() }
        );
    }

    #[test]
    fn models_can_be_named_in_the_environment() {
        let config = load("", &[("KIVU_MODELS", "/models/a,/models/b")]).unwrap();
        let paths: Vec<_> = config.models.iter().map(|model| model.path.display().to_string()).collect();
        assert_eq!(paths, ["/models/a", "/models/b"]);
    }

    #[test]
    fn a_misspelt_key_and_a_wrong_value_are_named() {
        assert!(load("[limits]\ntext = 7", &[]).unwrap_err().chain().contains("text"));
        assert!(load("", &[("KIVU_LIMITS__TEXTS", "many")]).unwrap_err().chain().contains("many"));
        assert!(load("", &[("KIVU_LIMIT__TEXTS", "1")]).unwrap_err().chain().contains("limit"));
        let zero = load("[limits]\ntexts = 0", &[]).unwrap_err();
        insta::assert_snapshot!(zero, @"expected `limits.texts` above 0, but found 0");
    }

    #[test]
    fn a_prefix_is_a_path() {
        for good in ["/large", "/a/b-c"] {
            assert_eq!(load("", &[("KIVU_PREFIX", good)]).unwrap().prefix.as_deref(), Some(good));
        }
        for bad in ["large", "/", "/a/", "/{a}", "//a"] {
            assert!(load("", &[("KIVU_PREFIX", bad)]).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_can_be_given_in_the_environment_and_secrets_are_not_shown() {
        let keys =
            [("KIVU_AUTH__KEYS", "a:12,b:34"), ("KIVU_AUTH__FRONT", "sesame"), ("KIVU_AUTH__MODE", "keys")];
        let auth = load("", &keys).unwrap().auth;
        assert_eq!((auth.keys.len(), auth.mode), (2, Some(AuthMode::Keys)));
        assert!(!format!("{auth:?}").contains("sesame"));
    }

    #[test]
    fn a_file_that_was_named_must_be_there() {
        assert!(Config::load(Some(Path::new("/nowhere/kivu.toml")), &variables(&[])).is_err());
    }

    #[test]
    fn home_is_that_of_a_checkout_or_in_the_users_cache() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("a/b");
        std::fs::create_dir_all(&below).unwrap();
        let home = |pairs: &[(&str, &str)]| default_home(Some(&below), &variables(pairs));
        let user = ("HOME", "/home/ada");
        assert_eq!(home(&[user]), Path::new("/home/ada/.cache/kivu"));
        assert_eq!(home(&[user, ("XDG_CACHE_HOME", "/cache")]), Path::new("/cache/kivu"));
        assert_eq!(home(&[user, ("XDG_CACHE_HOME", "cache")]), Path::new("/home/ada/.cache/kivu"));
        assert_eq!(home(&[]), Path::new(".kivu"));
        let checkout = folder.path().join(".kivu");
        std::fs::create_dir(&checkout).unwrap();
        assert_eq!(home(&[user]), checkout);
        assert_eq!(load("", &[("KIVU_HOME", "/there")]).unwrap().home, Path::new("/there"));
    }

    #[test]
    fn threads_on_lambda_follow_the_memory() {
        for (memory, expected) in [("128", 1), ("1769", 1), ("1770", 2), ("3008", 2), ("10240", 6)] {
            let config = load("", &[(LAMBDA_MEMORY, memory)]).unwrap();
            assert_eq!(config.threads().get(), expected, "{memory} MB");
        }
        let config = load("threads = 3", &[(LAMBDA_MEMORY, "128")]).unwrap();
        assert_eq!(config.threads().get(), 3, "what is configured wins");
    }
}
