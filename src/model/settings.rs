//! Configuration settings that results depend on.

use std::path::Path;

use serde::{Serialize, Serializer};

use super::loaded::Placement;
use kivu_base::config::{BatchConfig, Config, FleetConfig, Limits, Policy, Secret};
use kivu_core::backend::Engine;
#[cfg(not(target_family = "wasm"))]
use kivu_onnx::library;

/// Effective settings that change a model's results, apart from its bundle and request parameters. A batch job is
/// resumed only with the same ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelSettings {
    /// Maximum tokens per input, special tokens included.
    pub max_tokens: usize,
    /// Whether longer inputs are truncated, if a request does not specify it.
    pub truncate: bool,
    /// The engine in this process; `None` if all requests run on a fleet.
    pub engine: Option<Engine>,
    /// ONNX Runtime's file name, which contains its version, if a model runs there.
    pub runtime: Option<String>,
    /// The servers that may run the model; `None` without any.
    pub fleet: Option<FleetSettings>,
    /// Key for replacements in jobs, of which a hash identifies a job.
    #[serde(serialize_with = "hashed", skip_serializing_if = "Option::is_none")]
    pub redact_key: Option<Secret>,
}

fn hashed<S: Serializer>(key: &Option<Secret>, serializer: S) -> Result<S::Ok, S::Error> {
    let hash = |key: &Secret| blake3::hash(key.0.as_bytes()).to_hex().to_string();
    key.as_ref().map(hash).serialize(serializer)
}

/// A model's fleet, and when it is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FleetSettings {
    /// Server URLs.
    pub urls: Vec<String>,
    /// The model's name there.
    pub model: String,
    /// The requested version.
    pub version: Option<String>,
    /// Whether all requests run there.
    pub is_required: bool,
}

impl ModelSettings {
    /// Settings for a model that runs at `placement`, in `engine` if it runs in this process.
    pub fn new(config: &Config, placement: &Placement, engine: Engine, max_tokens: usize) -> Self {
        // Every field is named, so that a new one is not forgotten; ignored fields change no result.
        let Config {
            home,
            onnxruntime,
            limits,
            batch,
            // `engine`, `fleet` and `models` are resolved by the caller.
            engine: _,
            fleet: _,
            models: _,
            // All instruction sets have the same results.
            instructions: _,
            listen: _,
            cache: _,
            map_weights: _,
            threads: _,
            log: _,
            prefix: _,
            auth: _,
            page: _,
            aliases: _,
            load: _,
            max_memory: _,
            s3: _,
            hub: _,
            memory_limit: _,
            slow_request_ms: _,
            cors_origins: _,
            redact_key,
        } = config;
        let Limits {
            truncate,
            // Included in `max_tokens`.
            tokens: _,
            texts: _,
            body_bytes: _,
            buffer_bytes: _,
            values: _,
            requests: _,
            timeout_ms: _,
            idle_ms: _,
        } = limits;
        // Rules become job parameters.
        let BatchConfig {
            input: _,
            output: _,
            rules: _,
            save_ms: _,
            margin_ms: _,
            queue: _,
            event_bus: _,
            sink: _,
            id: _,
            metadata: _,
        } = batch;
        let Placement {
            policy,
            fleet,
            remote_name,
            files: _,
        } = placement;
        let FleetConfig {
            urls,
            version,
            policy: _,
            timeout_ms: _,
            ca: _,
            token: _,
        } = fleet;
        let engine = (*policy != Policy::Fleet).then_some(engine);
        let runtime = || runtime(onnxruntime.as_deref(), home);
        Self {
            max_tokens,
            truncate: *truncate,
            engine,
            runtime: engine
                .filter(|engine| *engine == Engine::Onnx)
                .and_then(|_| runtime()),
            fleet: (*policy != Policy::Local).then(|| FleetSettings {
                urls: urls.clone(),
                model: remote_name.clone(),
                version: version.clone(),
                is_required: *policy == Policy::Fleet,
            }),
            redact_key: redact_key.clone(),
        }
    }
}

/// ONNX Runtime's file name.
#[cfg(not(target_family = "wasm"))]
fn runtime(configured: Option<&Path>, home: &Path) -> Option<String> {
    let path = library::locate(configured, home).ok()?;
    let path = path.canonicalize().unwrap_or(path);
    Some(path.file_name()?.to_string_lossy().into_owned())
}

/// WebAssembly has no ONNX Runtime.
#[cfg(target_family = "wasm")]
fn runtime(_: Option<&Path>, _: &Path) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_without_effect_are_left_out() {
        let fleet = FleetConfig {
            urls: vec!["http://a:1".into()],
            ..FleetConfig::default()
        };
        let placed = |policy| Placement {
            files: Vec::new(),
            policy,
            fleet: fleet.clone(),
            remote_name: "remote".into(),
        };
        let of = |config: &Config, policy| {
            ModelSettings::new(config, &placed(policy), Engine::Native, 7)
        };
        let plain = of(&Config::default(), Policy::Local);
        assert_eq!(
            (plain.engine, plain.runtime.as_deref(), &plain.fleet),
            (Some(Engine::Native), None, &None)
        );
        let limits = Limits {
            texts: 1,
            timeout_ms: 1,
            ..Limits::default()
        };
        let other = Config {
            page: false,
            prefix: Some("/a".into()),
            limits,
            ..Config::default()
        };
        assert_eq!(of(&other, Policy::Local), plain);
        let limits = Limits {
            truncate: false,
            ..Limits::default()
        };
        assert!(
            of(
                &Config {
                    limits,
                    ..Config::default()
                },
                Policy::Local
            ) != plain
        );
        let remote = of(&Config::default(), Policy::Fleet);
        assert_eq!(remote.engine, None);
        assert!(remote != of(&Config::default(), Policy::Auto) && remote != plain);
    }
}
