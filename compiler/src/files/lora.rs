//! PEFT LoRA adapters, merged into their base model's weights.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use regex::Regex;
use serde_json::Value;

use super::{
    config::{ConfigFile, OneOrMany},
    io::read_json,
    model_folder::ModelFolder,
    weights::{Weight, Weights},
};
use kivu::{Error, Result};

pub const CONFIG: &str = "adapter_config.json";
/// Weight files; the first that exists is used.
pub const WEIGHTS: [&str; 2] = ["adapter_model.safetensors", "adapter_model.bin"];
/// Name prefix that PEFT adds for the wrapped model.
const WRAPPER: &str = "base_model.model.";
/// Name part that PEFT inserts for layers with an adapter.
const WRAPPED_LAYER: &str = ".base_layer.";

/// Fields that [`Adapter::open`] reads.
const READ: [&str; 11] = [
    "exclude_modules",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "modules_to_save",
    "peft_type",
    "r",
    "target_modules",
    "task_type",
    "use_rslora",
];
/// Fields for training. All others must be unset.
const WITHOUT_EFFECT: [&str; 14] = [
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "eva_config",
    "inference_mode",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
];
/// Initializations that do not change the base's weights.
const INITIAL_VALUES: [&str; 3] = ["eva", "gaussian", "orthogonal"];

#[derive(Debug)]
pub struct Adapter {
    weights: PathBuf,
    rank: usize,
    scale: f32,
    targets: Targets,
    /// Whether its head, if it has one, labels tokens instead of texts.
    pub labels_tokens: bool,
}

/// Names of model weights that an adapter refers to.
#[derive(Clone, Copy, Debug)]
pub struct BaseNames<'a> {
    /// Body prefix, which the adapter's names may have and the model's may lack, or the reverse.
    pub prefix: &'a str,
    /// Head modules, which an adapter may add.
    pub head: &'a [&'a str],
}

/// An adapter's low-rank matrices.
#[derive(Debug)]
pub struct Matrices {
    pub rank: usize,
    /// Factor for the products.
    pub scale: f32,
    /// Low-rank weights of linear layers and embedding tables, by the weight's name in the model.
    pub named: BTreeMap<String, Weight>,
    /// SHA-256 over the file.
    pub sha256: String,
}

impl Adapter {
    /// Reads the configuration in `folder`; adapters other than LoRA are refused.
    pub fn open(folder: &Path) -> Result<Self> {
        let config = ConfigFile::new(CONFIG, read_json(&folder.join(CONFIG))?);
        let kind: String = config.require("peft_type")?;
        if kind != "LORA" {
            return Err(Error::model(format!(
                "expected an adapter of `peft_type` `LORA`, but found `{kind}`"
            )));
        }
        check_fields(&config)?;
        let (rank, alpha) = (
            config.require_size("r")?,
            config.require::<f32>("lora_alpha")?,
        );
        let divisor = if config.is_set("use_rslora")? {
            (rank as f32).sqrt()
        } else {
            rank as f32
        };
        let task = config.get::<String>("task_type")?;
        let targets = Targets::read(&config, task.as_deref())?;
        let weights = WEIGHTS.map(|name| folder.join(name));
        let found = weights.iter().find(|path| path.is_file());
        let labels_tokens = task.as_deref() == Some("TOKEN_CLS");
        let weights = found.unwrap_or(&weights[0]).clone();
        Ok(Self {
            weights,
            rank,
            scale: alpha / divisor,
            targets,
            labels_tokens,
        })
    }

    /// Adds each low-rank matrix product to its weight, and replaces whole modules.
    ///
    /// Returns the number of labels if the adapter has a head.
    pub fn merge(&self, weights: &mut Weights, names: BaseNames<'_>) -> Result<Option<usize>> {
        let adapter = Weights::of_files(std::slice::from_ref(&self.weights))?;
        weights.add_source(&adapter.sha256);
        if let Some(name) = adapter.integers.keys().next() {
            return Err(Error::model(format!(
                "expected an adapter with float weights, but found `{name}`"
            )));
        }
        let mut labels = None;
        for (name, tensor) in &adapter.tensors {
            let inner = name.strip_prefix(WRAPPER).unwrap_or(name);
            if let Some(module) = inner.strip_suffix(".lora_A.weight") {
                let target = weights.find_mut(&format!("{module}.weight"), names.prefix);
                self.add_pair(module, name, &adapter, target)?;
            } else if let Some(module) = inner.strip_suffix(".lora_B.weight") {
                if !adapter.has(&name.replace(".lora_B.weight", ".lora_A.weight")) {
                    return Err(missing("`lora_A`", module));
                }
            } else if inner.contains("lora_") {
                return Err(Error::model(format!(
                    "expected LoRA for linear layers, but found `{inner}`"
                )));
            } else {
                let inner = inner.replace(WRAPPED_LAYER, ".");
                if [
                    "classifier.weight",
                    "classifier.out_proj.weight",
                    "score.weight",
                ]
                .contains(&&*inner)
                {
                    labels = tensor.shape.first().copied();
                }
                replace(weights, &inner, tensor, names)?;
            }
        }
        Ok(labels)
    }

    /// The adapter's matrices, for a model that keeps them apart from its weights. PEFT may store a copy of an embedding
    /// table, too.
    pub fn matrices(&self) -> Result<Matrices> {
        let adapter = Weights::of_files(std::slice::from_ref(&self.weights))?;
        let named = adapter.tensors.into_iter().map(|(name, tensor)| {
            let inner = name.strip_prefix(WRAPPER).unwrap_or(&name);
            match inner.split_once(".lora_") {
                Some((module, _)) => self.check_target(module, &name)?,
                None if inner.contains(WRAPPED_LAYER) => {}
                None => {
                    return Err(Error::model(format!(
                        "expected an adapter with low-rank matrices only for a task, but found `{inner}`"
                    )));
                }
            }
            Ok((inner.trim_end_matches(".weight").to_owned(), tensor))
        });
        let (rank, scale, sha256) = (self.rank, self.scale, adapter.sha256);
        Ok(Matrices {
            rank,
            scale,
            named: named.collect::<Result<_>>()?,
            sha256,
        })
    }

    /// Refuses low-rank matrices called `name` for a module to which PEFT would not apply them.
    fn check_target(&self, module: &str, name: &str) -> Result<()> {
        match self.targets.refusing(module) {
            None => Ok(()),
            Some(field) => Err(Error::model(format!(
                "expected low-rank matrices only for modules that `{field}` in `{CONFIG}` selects, but found `{name}`"
            ))),
        }
    }

    /// Adds the product of a module's two matrices, the first of which has this name.
    fn add_pair(
        &self,
        module: &str,
        name: &str,
        adapter: &Weights,
        target: Option<&mut Weight>,
    ) -> Result<()> {
        self.check_target(module, name)?;
        let up = format!("{}.lora_B.weight", name.trim_end_matches(".lora_A.weight"));
        let down = &adapter.tensors[name];
        let up = adapter
            .tensors
            .get(&up)
            .ok_or_else(|| missing("`lora_B`", module))?;
        let target = target.ok_or_else(|| missing("a weight in the model", module))?;
        self.add(target, up, down, module)
    }

    /// `target += scale × up · down`.
    fn add(&self, target: &mut Weight, up: &Weight, down: &Weight, module: &str) -> Result<()> {
        let (outputs, rank, inputs) = match (&up.shape[..], &down.shape[..]) {
            (&[outputs, rank], &[down_rank, inputs]) if rank == down_rank => {
                (outputs, rank, inputs)
            }
            _ => (0, 0, 0),
        };
        if rank == 0 || inputs == 0 || target.shape != [outputs, inputs] {
            return Err(Error::model(format!(
                "expected matrices that fit `{module}` of shape {:?}, but found {:?} and {:?}",
                target.shape, up.shape, down.shape
            )));
        }
        if rank != self.rank {
            return Err(Error::model(format!(
                "expected low-rank matrices of rank {}, which is `r` in `{CONFIG}`, but found {rank} in `{module}`",
                self.rank
            )));
        }
        for (row, up) in target
            .values
            .chunks_exact_mut(inputs)
            .zip(up.values.chunks_exact(rank))
        {
            for (up, down) in up.iter().zip(down.values.chunks_exact(inputs)) {
                let factor = self.scale * up;
                row.iter_mut()
                    .zip(down)
                    .for_each(|(value, down)| *value += factor * down);
            }
        }
        Ok(())
    }
}

/// The modules with low-rank matrices.
#[derive(Debug)]
struct Targets {
    modules: Modules,
    excluded: Option<Modules>,
    /// Modules that are replaced as a whole, with all inside of them.
    saved: Vec<String>,
    /// The layers that have any, and names in front of their numbers.
    layers: Option<(Vec<usize>, Vec<String>)>,
}

/// Modules by their names.
#[derive(Debug)]
enum Modules {
    All,
    /// Suffixes.
    Named(Vec<String>),
    Pattern(Regex),
}

impl Targets {
    fn read(config: &ConfigFile, task: Option<&str>) -> Result<Self> {
        let modules = match config.require::<OneOrMany<String>>("target_modules")? {
            OneOrMany::One(all) if all.eq_ignore_ascii_case("all-linear") => Modules::All,
            modules => Modules::read(modules, "target_modules")?,
        };
        let mut saved: Vec<String> = config.get("modules_to_save")?.unwrap_or_default();
        if task.is_some_and(|task| task.ends_with("_CLS")) {
            saved.extend(["classifier", "score"].map(str::to_owned));
        }
        let numbers: Option<OneOrMany<usize>> = config.get("layers_to_transform")?;
        let names: Option<OneOrMany<String>> = config.get("layers_pattern")?;
        let numbers = numbers
            .map(OneOrMany::into_vec)
            .filter(|numbers| !numbers.is_empty());
        let names = names.map_or_else(Vec::new, OneOrMany::into_vec);
        Ok(Self {
            modules,
            excluded: config
                .get("exclude_modules")?
                .map(|modules| Modules::read(modules, "exclude_modules"))
                .transpose()?,
            saved,
            layers: numbers.map(|numbers| (numbers, names)),
        })
    }

    /// The field that does not select a module, if any.
    fn refusing(&self, module: &str) -> Option<&'static str> {
        let is_inside = |saved: &String| format!(".{module}.").contains(&format!(".{saved}."));
        if !self.modules.has(module) {
            Some("target_modules")
        } else if self
            .excluded
            .as_ref()
            .is_some_and(|excluded| excluded.has(module))
        {
            Some("exclude_modules")
        } else if self.saved.iter().any(is_inside) {
            Some("modules_to_save")
        } else if !self.has_layer(module) {
            Some("layers_to_transform")
        } else {
            None
        }
    }

    /// Whether a module is in one of the layers: the first number in its name, behind two other parts.
    fn has_layer(&self, module: &str) -> bool {
        let Some((numbers, names)) = &self.layers else {
            return true;
        };
        let parts: Vec<&str> = module.split('.').collect();
        let mut layers = parts.windows(2).skip(1);
        let found = layers.find_map(|part| Some((part[0], part[1].parse::<usize>().ok()?)));
        found.is_some_and(|(name, number)| {
            numbers.contains(&number)
                && (names.is_empty() || names.iter().any(|known| known == name))
        })
    }
}

impl Modules {
    fn read(modules: OneOrMany<String>, field: &str) -> Result<Self> {
        match modules {
            OneOrMany::Many(names) => Ok(Self::Named(names)),
            OneOrMany::One(pattern) => Regex::new(&format!(r"\A(?:{pattern})\z"))
                .map(Self::Pattern)
                .map_err(|error| Error::model_because(format!("cannot read `{field}`"), error)),
        }
    }

    fn has(&self, module: &str) -> bool {
        let is_suffix = |name: &String| {
            module
                .strip_suffix(name.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        match self {
            Self::All => true,
            Self::Named(names) => names.iter().any(is_suffix),
            Self::Pattern(pattern) => pattern.is_match(module),
        }
    }
}

/// Refuses unsupported settings that change results.
fn check_fields(config: &ConfigFile) -> Result<()> {
    let is_unset = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Object(members) => members.is_empty(),
        Value::Array(elements) => elements.is_empty(),
        _ => false,
    };
    let is_known = |field: &str| READ.contains(&field) || WITHOUT_EFFECT.contains(&field);
    if let Some((field, _)) = config
        .fields()
        .iter()
        .find(|(field, value)| !is_known(field) && !is_unset(value))
    {
        return Err(Error::model(format!(
            "the adapter has `{field}`, which is not supported"
        )));
    }
    let initial = config
        .fields()
        .get("init_lora_weights")
        .unwrap_or(&Value::Null);
    match initial {
        Value::Null | Value::Bool(_) => Ok(()),
        Value::String(name) if INITIAL_VALUES.contains(&name.to_lowercase().as_str()) => Ok(()),
        _ => Err(Error::model(format!(
            "expected `init_lora_weights` among true, false, `eva`, `gaussian`, `orthogonal`, but \
             found {initial}, which changes the weights of the base"
        ))
        .with_hint("save the adapter with `path_initial_model_for_weight_conversion`")),
    }
}

/// Replaces a weight in the model, or adds one in its head.
fn replace(weights: &mut Weights, name: &str, tensor: &Weight, names: BaseNames<'_>) -> Result<()> {
    let bare = name.strip_prefix(names.prefix).unwrap_or(name);
    let module = bare.rsplit_once('.').map_or(bare, |(module, _)| module);
    let is_head = names.head.contains(&module);
    match weights.find_mut(name, names.prefix) {
        Some(target) if is_head || target.shape == tensor.shape => *target = tensor.clone(),
        Some(target) => {
            return Err(Error::model(format!(
                "expected `{name}` of shape {:?} in the adapter, but found {:?}",
                target.shape, tensor.shape
            )));
        }
        None if is_head => {
            let name = if name == bare {
                bare.to_owned()
            } else {
                format!("{}{bare}", weights.prefix)
            };
            weights.tensors.insert(name, tensor.clone());
        }
        None => return Err(missing("a weight in the model", name)),
    }
    Ok(())
}

/// Error for a folder with an adapter that the build would ignore.
pub fn ignored(folder: &ModelFolder) -> Error {
    let base = ConfigFile::open_or_empty(folder, CONFIG)
        .and_then(|config| config.get("base_model_name_or_path"));
    let base: Option<String> = base.ok().flatten();
    let base = base.map_or_else(
        || "its base".to_owned(),
        |base| format!("its base, `{base}`"),
    );
    let hint = format!(
        "name the folder of {base}, and the adapter's in a recipe: `folder` and `adapter` of `[source]`"
    );
    let name = folder.display();
    match Weights::are_in(folder) {
        true => Error::model(format!(
            "expected a model or an adapter in `{name}`, but found both (`transformers` applies \
             the adapter to {base})"
        ))
        .with_hint(format!("{hint}, or remove `{CONFIG}`")),
        false => Error::model(format!(
            "expected a model in `{name}`, but found an adapter"
        ))
        .with_hint(hint),
    }
}

fn missing(what: &str, module: &str) -> Error {
    Error::model(format!(
        "expected {what} for the adapter of `{module}`, but found none"
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Map, json};

    use super::*;

    const NAMES: BaseNames<'_> = BaseNames {
        prefix: "bert.",
        head: &["classifier"],
    };
    const QUERY: &str = "encoder.layer.0.attention.self.query";

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/fixtures/models")
            .join(name)
    }

    /// A folder with a fixture's configuration, one field changed, and tensors with the given shapes.
    fn folder(field: &str, value: Value, tensors: &[(&str, &[usize])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let config = fs::read(fixture("tiny-bert-lora").join(CONFIG)).unwrap();
        let mut config: Map<String, Value> = serde_json::from_slice(&config).unwrap();
        config.insert(field.to_owned(), value);
        fs::write(
            folder.path().join(CONFIG),
            serde_json::to_vec(&config).unwrap(),
        )
        .unwrap();
        // The safetensors format: header length, header, zeros.
        let (mut header, mut end) = (Map::new(), 0);
        for (name, shape) in tensors {
            let start = end;
            end += shape.iter().product::<usize>() * 4;
            let tensor = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]});
            header.insert(format!("{WRAPPER}{name}"), tensor);
        }
        let header = serde_json::to_vec(&header).unwrap();
        let file = [
            &(header.len() as u64).to_le_bytes()[..],
            &header,
            &vec![0; end],
        ]
        .concat();
        fs::write(folder.path().join(WEIGHTS[0]), file).unwrap();
        folder
    }

    fn read(field: &str, value: Value) -> Result<Adapter> {
        Adapter::open(folder(field, value, &[]).path())
    }

    /// Merges tensors with these shapes into `tiny-bert-sentiment`.
    fn merge(tensors: &[(&str, &[usize])]) -> Result<Option<usize>> {
        let folder = folder("r", json!(4), tensors);
        let mut weights = Weights::open(&fixture("tiny-bert-sentiment"))?;
        Adapter::open(folder.path())?.merge(&mut weights, NAMES)
    }

    #[test]
    fn settings_that_change_results_are_refused_by_name() {
        for (field, value) in [
            ("r", json!(0)),
            ("layer_replication", json!([[0, 1], [0, 2]])),
            ("trainable_token_indices", json!([7])),
            ("target_parameters", json!(["a"])),
            ("alora_invocation_tokens", json!([1, 2])),
            ("rank_pattern", json!({"query": 2})),
            ("alpha_pattern", json!({"query": 2})),
            ("init_lora_weights", json!("pissa")),
            ("init_lora_weights", json!("olora")),
            ("lora_bias", json!(true)),
            ("use_dora", json!(true)),
            ("use_qalora", json!(true)),
            ("fan_in_fan_out", json!(true)),
            ("megatron_config", json!({"a": 1})),
            ("of_a_later_version", json!(1)),
        ] {
            let refusal = read(field, value).unwrap_err().to_string();
            assert!(
                refusal.contains(&format!("`{field}`")),
                "{field}: {refusal}"
            );
        }
    }

    #[test]
    fn settings_of_training_are_accepted() {
        for (field, value) in [
            ("lora_dropout", json!(0.5)),
            ("bias", json!("all")),
            ("init_lora_weights", json!("gaussian")),
            ("of_a_later_version", json!(null)),
            ("of_a_later_version", json!(false)),
        ] {
            read(field, value).unwrap();
        }
    }

    /// PEFT ignores matrices of modules that the configuration does not select.
    #[test]
    fn matrices_that_peft_would_ignore_are_refused() {
        let refusing = |field: &str, value: Value| {
            let adapter = read(field, value).unwrap();
            adapter.targets.refusing(&format!("bert.{QUERY}"))
        };
        for (field, value) in [
            ("target_modules", json!("all-linear")),
            ("target_modules", json!(r".*\.(query|value)")),
            ("target_modules", json!(["self.query"])),
            ("exclude_modules", json!(["uery", "key"])),
            ("exclude_modules", json!([])),
            ("modules_to_save", json!(["classifier", "uery"])),
            ("layers_to_transform", json!([0, 2])),
            ("layers_to_transform", json!([])),
            ("layers_to_transform", json!(0)),
            ("layers_pattern", json!("layers")),
        ] {
            assert_eq!(refusing(field, value.clone()), None, "{field} {value}");
        }
        for (field, value) in [
            ("target_modules", json!("query")),
            ("target_modules", json!(["uery"])),
            ("exclude_modules", json!(["query"])),
            ("exclude_modules", json!(".*query")),
            ("modules_to_save", json!(["attention"])),
            ("layers_to_transform", json!([1])),
            ("layers_to_transform", json!(1)),
        ] {
            assert_eq!(
                refusing(field, value.clone()),
                Some(field),
                "{field} {value}"
            );
        }
        // Layers without a name in front of their list.
        let targets = read("layers_to_transform", json!([0])).unwrap().targets;
        assert!(!targets.has_layer("layer.0.query"));
        let refusal = read("target_modules", json!("(?=a)")).unwrap_err();
        assert!(
            refusal.to_string().contains("`target_modules`"),
            "{refusal}"
        );
        assert!(read("target_modules", Value::Null).is_err());
    }

    #[test]
    fn the_rank_is_compared_with_the_matrices() {
        let mut weights = Weights::open(&fixture("tiny-bert-sentiment")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for (file, text) in [(CONFIG, Some(("\"r\": 4", "\"r\": 8"))), (WEIGHTS[0], None)] {
            let bytes = fs::read(fixture("tiny-bert-lora").join(file)).unwrap();
            let bytes = match text {
                Some((from, to)) => String::from_utf8(bytes)
                    .unwrap()
                    .replace(from, to)
                    .into_bytes(),
                None => bytes,
            };
            fs::write(folder.path().join(file), bytes).unwrap();
        }
        let refusal = Adapter::open(folder.path())
            .unwrap()
            .merge(&mut weights, NAMES)
            .unwrap_err();
        assert!(
            refusal.to_string().contains("of rank 8, which is `r`"),
            "{refusal}"
        );
    }

    #[test]
    fn every_tensor_is_merged_or_refused() {
        let [down, up] = ["A", "B"].map(|side| format!("bert.{QUERY}.lora_{side}.weight"));
        let pair: [(&str, &[usize]); 2] = [(&down, &[4, 32]), (&up, &[32, 4])];
        assert_eq!(merge(&pair).unwrap(), None);
        // Without the base's prefix, and with the name part for layers with an adapter.
        let bare = pair.map(|(name, shape)| (name.trim_start_matches("bert."), shape));
        let bias = format!("bert.{QUERY}.base_layer.bias");
        merge(&[bare[0], bare[1], (&bias, &[32])]).unwrap();
        let head = merge(&[("classifier.weight", &[5, 32]), ("classifier.bias", &[5])]).unwrap();
        assert_eq!(head, Some(5));
        let key = format!("bert.{QUERY}.lora_B.weight").replace("query", "key");
        let table = "bert.embeddings.word_embeddings";
        let refusals = [
            merge(&pair[..1]),
            merge(&pair[1..]),
            merge(&[(&key.replace("_B", "_A"), &[4, 32]), (&key, &[32, 4])]),
            merge(&[(&bias, &[31])]),
            merge(&[("bert.nothing.weight", &[4])]),
            merge(&[(
                &format!("{table}.token_adapter.trainable_tokens_delta"),
                &[1, 32],
            )]),
            merge(&[(&format!("{table}.lora_embedding_A"), &[4, 32])]),
        ];
        let refusals: Vec<String> = refusals
            .into_iter()
            .map(|found| found.unwrap_err().to_string())
            .collect();
        insta::assert_snapshot!(refusals.join("\n"), @"
        expected `lora_B` for the adapter of `bert.encoder.layer.0.attention.self.query`, but found none
        expected `lora_A` for the adapter of `bert.encoder.layer.0.attention.self.query`, but found none
        expected low-rank matrices only for modules that `target_modules` in `adapter_config.json` selects, but found `base_model.model.bert.encoder.layer.0.attention.self.key.lora_A.weight`
        expected `bert.encoder.layer.0.attention.self.query.bias` of shape [32] in the adapter, but found [31]
        expected a weight in the model for the adapter of `bert.nothing.weight`, but found none
        expected a weight in the model for the adapter of `bert.embeddings.word_embeddings.token_adapter.trainable_tokens_delta`, but found none
        expected LoRA for linear layers, but found `bert.embeddings.word_embeddings.lora_embedding_A`
        ");
    }
}
