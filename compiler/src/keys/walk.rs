//! Walks the model files with checked keys, and applies each file's rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    rc::Rc,
};

use serde::de::IgnoredAny;
use serde_json::{Map, Value, value::RawValue};
use sha2::{Digest, Sha256};

use super::rules::{Allowed, Document, Rules};
use crate::{
    encoder::{
        DEFAULT_ENCODER, EMBEDDING_GEMMA2, EMBEDDING_GEMMA2_TEXT, ENCODER_CONFIG, GLINER,
        KnownTemplate, LABELS_ENCODER_CONFIG, LABELS_TOKENIZER, TEXT_CONFIG, asked_fields, jina_of,
        reads_labels,
    },
    files::{
        config::ConfigFile,
        io::read_if_exists,
        model_folder::ModelFolder,
        module_list::{self, Module},
    },
    model_types::{Family, Jina, QUANTIZER, QUANTIZER_FILE, QUANTIZERS},
    plan::{
        Plan,
        label_maps::{LABEL_IDS, contradiction},
        model_card::pipeline_tag,
    },
    sentence_transformers::{MODEL2VEC, TEMPLATE, TRANSFORMER, has_scores},
    seq2seq::{self, t5},
    tokenizers::{classes, tokenizer_config},
};
use kivu::{
    Error, Result, error::quoted, hexadecimal::hex, pipeline::Task, repository::bundle::TOKENIZER,
};

/// The settings of a text generator.
const GENERATION: &str = "generation_config.json";
/// The sentence-transformers model settings.
const SETTINGS: &str = "config_sentence_transformers.json";

/// Model kind, by its files, on whose keys it decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bergamot,
    FastText,
    StaticEmbedding,
    Encoder,
    /// An encoder with its settings inside GLiNER's.
    Gliner,
    /// An encoder with its settings inside GLiClass's.
    Gliclass,
    /// An encoder with its settings in a folder of GLiNER2's.
    Gliner2,
    Seq2Seq,
    /// A graph; it replaces what `config.json` says about a model's layers.
    Export,
}

/// Checks all keys in the model's files; returns warnings about keys that the plan allows.
pub fn check(plan: &Plan, kind: Kind) -> Result<Vec<String>> {
    let kind = match kind {
        // Their files have no keys.
        Kind::Bergamot | Kind::FastText => return Ok(Vec::new()),
        Kind::StaticEmbedding => Kind::Encoder,
        kind => kind,
    };
    let mut walk = Walk {
        root: &plan.folder,
        allowed: Allowed::new(&plan.allow),
        documents: Vec::new(),
    };
    let transformer = plan.transformer()?;
    walk.config(plan, &transformer, kind)?;
    walk.tokenizer(&transformer, kind)?;
    if kind != Kind::Seq2Seq {
        walk.modules()?;
        walk.settings(plan, &transformer)?;
    }
    walk.allowed.finish(&walk.documents)
}

struct Walk<'a> {
    root: &'a ModelFolder,
    allowed: Allowed<'a>,
    documents: Vec<Document>,
}

impl Walk<'_> {
    /// Checks an object against sets of keys.
    fn check(
        &mut self,
        name: String,
        fields: impl Into<Rc<Map<String, Value>>>,
        sets: &[&str],
    ) -> Result<()> {
        let document = Document {
            name,
            fields: fields.into(),
            asked: BTreeSet::new(),
        };
        self.check_document(document, sets)
    }

    fn check_document(&mut self, document: Document, sets: &[&str]) -> Result<()> {
        document.check(&Rules::of(sets)?, &mut self.allowed)?;
        self.documents.push(document);
        Ok(())
    }

    /// Checks an encoder's settings in `folder`: each key is asked for by its family's reader, or has no effect. Other
    /// families are refused by name.
    fn encoder(&mut self, name: String, config: &ConfigFile, folder: &ModelFolder) -> Result<()> {
        let Some(keys) = encoder_keys(config) else {
            return Ok(());
        };
        let document = Document {
            name,
            fields: config.shared_fields(),
            asked: asked_fields(config, folder)?,
        };
        if config.model_type() == EMBEDDING_GEMMA2 {
            let fields = config.fields();
            self.nested_encoder(
                ConfigFile::NAME,
                fields,
                [TEXT_CONFIG, EMBEDDING_GEMMA2_TEXT],
            )?;
        }
        self.check_document(document, &[&keys])
    }

    /// Checks a file, if it exists.
    fn check_file(&mut self, folder: &ModelFolder, name: &str, sets: &[&str]) -> Result<()> {
        match folder.object(name)? {
            Some(fields) => self.check(self.name(&folder.join(name)), fields, sets),
            None => Ok(()),
        }
    }

    /// A file's path relative to the model's folder.
    fn name(&self, path: &Path) -> String {
        path.strip_prefix(self.root)
            .unwrap_or(path)
            .display()
            .to_string()
    }

    fn config(&mut self, plan: &Plan, transformer: &ModelFolder, kind: Kind) -> Result<()> {
        if kind == Kind::Gliner {
            return self.gliner(plan);
        }
        let described = plan.described()?;
        let Some(config) = ConfigFile::open_if_exists(&described, ConfigFile::NAME)? else {
            return Ok(());
        };
        if matches!(kind, Kind::Encoder | Kind::Export) && reads_labels(plan, &config)? {
            self.labels(&config)?;
        }
        let (model_type, fields) = (config.model_type(), config.shared_fields());
        let sets = match kind {
            Kind::Bergamot | Kind::FastText | Kind::StaticEmbedding | Kind::Gliner => {
                return Ok(());
            }
            Kind::Gliclass => {
                self.nested_encoder(
                    ConfigFile::NAME,
                    &fields,
                    ["encoder_config", DEFAULT_ENCODER],
                )?;
                vec!["config.gliclass"]
            }
            Kind::Gliner2 => {
                let folder = self.root.inner(ENCODER_CONFIG);
                if let Some(config) = ConfigFile::open_if_exists(&folder, ConfigFile::NAME)? {
                    let name = self.name(&folder.join(ConfigFile::NAME));
                    self.encoder(name, &config, &folder)?;
                }
                vec!["config.gliner2"]
            }
            // The export's graph has the layers, so only the head's keys matter.
            Kind::Export => {
                let sets = ["config.score", "config.labels"];
                let rules = Rules::of(&sets)?;
                let of_head = fields.iter().filter(|(key, _)| rules.mentions(key));
                let of_head: Map<String, Value> = of_head
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect();
                return self.check(ConfigFile::NAME.to_owned(), of_head, &sets);
            }
            Kind::Encoder if model_type == MODEL2VEC => vec!["config.static"],
            Kind::Encoder => {
                if encoder_keys(&config).is_some() {
                    self.code(model_type, &fields, &described)?;
                }
                return self.encoder(ConfigFile::NAME.to_owned(), &config, &described);
            }
            Kind::Seq2Seq => {
                self.check_file(transformer, GENERATION, &["generation.options"])?;
                self.tasks(&fields)?;
                let of_generation = match transformer.join(GENERATION).is_file() {
                    true => "generation.ignored",
                    false => "generation.options",
                };
                match model_type {
                    t5::T5 | t5::MT5 => vec!["generator.t5", of_generation],
                    other if seq2seq::MODEL_TYPES.contains(&other) => {
                        vec!["generator.bart", of_generation]
                    }
                    // Other families are refused by name.
                    _ => return Ok(()),
                }
            }
        };
        self.code(model_type, &fields, &described)?;
        self.check(ConfigFile::NAME.to_owned(), fields, &sets)
    }

    /// Refuses a classifier's `label2id` if it contradicts `id2label`.
    fn labels(&mut self, config: &ConfigFile) -> Result<()> {
        match (contradiction(config), config.fields().get(LABEL_IDS)) {
            (Some(expected), Some(found)) => {
                self.allowed
                    .pass(ConfigFile::NAME, LABEL_IDS, found, &expected)
            }
            _ => Ok(()),
        }
    }

    /// Refuses custom model code, unless Kivu implements the family, and the code in `folder` is known if it is compared.
    fn code(
        &mut self,
        model_type: &str,
        config: &Map<String, Value>,
        folder: &ModelFolder,
    ) -> Result<()> {
        let Some(map) = config.get("auto_map").filter(|map| !map.is_null()) else {
            return Ok(());
        };
        let code = Family::named(model_type).and_then(|family| family.code.as_ref());
        let known_files = |map: &Map<String, Value>| -> Option<BTreeSet<String>> {
            let files = map.values().map(|named| {
                let (file, class) = code_path(named.as_str()?)?;
                let mut classes = code.filter(|code| code.has(file))?.classes.iter();
                let is_known = classes.any(|known| class.starts_with(known));
                is_known.then(|| format!("{file}.py"))
            });
            files.collect()
        };
        let Some(files) = map.as_object().and_then(known_files) else {
            let expected = format!("`{model_type}` without code of its own");
            return self
                .allowed
                .pass(ConfigFile::NAME, "auto_map", map, &expected);
        };
        let known = code.map_or(&[][..], |code| &code.known[..]);
        match known.is_empty() {
            true => Ok(()),
            false => files
                .iter()
                .try_for_each(|file| self.known_file(folder, "auto_map", file, known)),
        }
    }

    /// Checks the code of an encoder inside of another model, in families whose layers depend on it.
    fn inner_code(&mut self, config: &ConfigFile, folder: &ModelFolder) -> Result<()> {
        let code = Family::named(config.model_type()).and_then(|family| family.code.as_ref());
        match code.is_some_and(|code| !code.known.is_empty()) {
            true => self.code(config.model_type(), config.fields(), folder),
            false => Ok(()),
        }
    }

    /// Refuses code that `key` names if its SHA-256 is not among the known ones.
    fn known_file(
        &mut self,
        folder: &ModelFolder,
        key: &str,
        file: &str,
        known: &[impl AsRef<str>],
    ) -> Result<()> {
        let found = read_if_exists(&folder.join(file))?.map(|code| hex(&Sha256::digest(&code)));
        if known
            .iter()
            .any(|known| found.as_deref() == Some(known.as_ref()))
        {
            return Ok(());
        }
        let found = found.map_or("no such file".to_owned(), |found| {
            format!("SHA-256 {found}")
        });
        self.allowed.pass_code(key, file, &found)
    }

    /// Checks GLiNER's settings, and its encoder's.
    fn gliner(&mut self, plan: &Plan) -> Result<()> {
        let Some(fields) = self.root.object(GLINER)? else {
            return Ok(());
        };
        let of_labels = self.root.inner(LABELS_TOKENIZER);
        if !self.nested_encoder(GLINER, &fields, [LABELS_ENCODER_CONFIG, DEFAULT_ENCODER])?
            && let Some(config) = ConfigFile::open_if_exists(&of_labels, ConfigFile::NAME)?
        {
            let name = self.name(&of_labels.join(ConfigFile::NAME));
            self.encoder(name, &config, &of_labels)?;
        }
        self.tokenizer(&of_labels, Kind::Gliner)?;
        if !self.nested_encoder(GLINER, &fields, ["encoder_config", DEFAULT_ENCODER])? {
            let folders = [Some(&plan.folder), plan.encoder.as_ref()]
                .into_iter()
                .flatten();
            if let Some(folder) = folders
                .into_iter()
                .find(|folder| folder.join(ConfigFile::NAME).is_file())
            {
                let config = ConfigFile::open(folder)?;
                self.inner_code(&config, folder)?;
                self.encoder(ConfigFile::NAME.to_owned(), &config, folder)?;
            }
        }
        self.check(GLINER.to_owned(), fields, &["config.gliner"])
    }

    /// Checks an encoder's settings inside the file `name`, if they are there.
    fn nested_encoder(
        &mut self,
        name: &'static str,
        fields: &Map<String, Value>,
        [field, default]: [&str; 2],
    ) -> Result<bool> {
        let Some(mut own) = fields.get(field).and_then(Value::as_object).cloned() else {
            return Ok(false);
        };
        own.entry("model_type").or_insert_with(|| default.into());
        let config = ConfigFile::new(name, own);
        self.inner_code(&config, self.root)?;
        self.encoder(format!("{name}: {field}"), &config, self.root)?;
        Ok(true)
    }

    /// Checks task settings in `config.json`.
    fn tasks(&mut self, config: &Map<String, Value>) -> Result<()> {
        let tasks = config
            .get("task_specific_params")
            .and_then(Value::as_object);
        for (task, settings) in tasks.into_iter().flatten() {
            let Some(settings) = settings.as_object() else {
                continue;
            };
            let name = format!("{}: task_specific_params: {task}", ConfigFile::NAME);
            self.check(name, settings.clone(), &["generation.task"])?;
        }
        Ok(())
    }

    fn tokenizer(&mut self, folder: &ModelFolder, kind: Kind) -> Result<()> {
        let class = tokenizer_config::class(folder)?;
        let base = class.trim_end_matches("Fast");
        let is_known = match kind {
            Kind::Gliner => classes::is_known_for_words(base),
            _ => {
                let model = ConfigFile::open_or_empty(folder, ConfigFile::NAME)?;
                classes::is_known(base, model.model_type())
            }
        };
        if !class.is_empty() && !is_known {
            let expected = classes::expected(base);
            let class = Value::String(class.clone());
            self.allowed
                .pass(tokenizer_config::NAME, "tokenizer_class", &class, expected)?;
        }
        let keys = classes::keys(base);
        let of_kind = match kind {
            Kind::Seq2Seq => "tokenizer.generator",
            _ => "tokenizer.encoder",
        };
        let sets = ["tokenizer.shared", keys.as_str(), of_kind];
        self.check_file(folder, tokenizer_config::NAME, &sets)?;
        let special = ["tokenizer.special_tokens"];
        self.check_file(folder, "special_tokens_map.json", &special)?;
        let file = folder.join(TOKENIZER);
        if let Some(json) = read_if_exists(&file)? {
            let parts = tokenizer_parts(&json).map_err(|error| {
                Error::model_because(format!("cannot read `{}`", file.display()), error)
            })?;
            self.check(self.name(&file), parts, &["tokenizer.file"])?;
        }
        Ok(())
    }

    fn modules(&mut self) -> Result<()> {
        let root = self.root;
        for (fields, module) in module_list::described(root)? {
            self.check(module_list::MODULES.to_owned(), fields, &["modules.entry"])?;
            self.module(&module.folder(root)?, &module)?;
            if module.class() == QUANTIZER {
                self.known_file(root, "type", QUANTIZER_FILE, &QUANTIZERS)?;
            }
        }
        for module in module_list::routed(root)? {
            self.module(&module.folder(root)?, &module)?;
        }
        Ok(())
    }

    fn module(&mut self, folder: &ModelFolder, module: &Module) -> Result<()> {
        if module.is_router() {
            return self.check_file(folder, module_list::ROUTER, &["modules.router"]);
        }
        let keys = format!("module.{}", module.class());
        match Rules::exist(&keys)? {
            true => self.check_file(folder, ConfigFile::NAME, &[&keys]),
            // Other classes are refused elsewhere, with an error that names them.
            false => Ok(()),
        }
    }

    /// Checks the settings for the whole model, and for its transformer.
    fn settings(&mut self, plan: &Plan, transformer: &ModelFolder) -> Result<()> {
        self.model_class()?;
        self.check_file(self.root, SETTINGS, &["modules.settings"])?;
        self.check_file(self.root, "artifact.metadata", &["modules.artifact"])?;
        let found = TRANSFORMER
            .into_iter()
            .find(|name| transformer.join(name).is_file());
        if let Some(name) = found {
            self.check_file(transformer, name, &["modules.transformer"])?;
        }
        self.task(transformer, found.unwrap_or(TRANSFORMER[0]))?;
        self.chat_template(plan, transformer)
    }

    /// Refuses a chat template next to an embedder or ranker without a module list: sentence-transformers puts all texts
    /// into it.
    fn chat_template(&mut self, plan: &Plan, transformer: &ModelFolder) -> Result<()> {
        const OTHERS: [&str; 3] = [
            "ForCausalLM",
            "ForSequenceClassification",
            "ForTokenClassification",
        ];
        let config = ConfigFile::open_or_empty(transformer, ConfigFile::NAME)?;
        let task = plan.task.or_else(|| pipeline_tag(&plan.folder));
        // Embedders cannot do these tasks, whatever their class.
        let is_embedder = !OTHERS
            .iter()
            .any(|class| config.architecture().ends_with(class))
            && !matches!(
                plan.task,
                Some(Task::TextClassification | Task::TokenClassification | Task::TextRanking)
            );
        let ranks = config.architecture().ends_with(OTHERS[1])
            && has_one_label(&config)
            && task.is_none_or(|task| task == Task::TextRanking)
            || plan.task == Some(Task::TextRanking);
        if !module_list::modules(self.root)?.is_empty()
            || !is_embedder && (!ranks || KnownTemplate::of(plan, &config)?.is_some())
        {
            return Ok(());
        }
        let expected = if is_embedder {
            "no chat template in a model of vectors without `modules.json`"
        } else {
            "no chat template in a ranker without `modules.json`"
        };
        let settings = ConfigFile::open_or_empty(transformer, tokenizer_config::NAME)?;
        if let Some(template) = settings.get::<Value>("chat_template")? {
            self.allowed
                .pass(tokenizer_config::NAME, "chat_template", &template, expected)?;
        }
        if transformer.join(TEMPLATE).is_file() {
            return Err(
                Error::model(format!("expected {expected}, but found `{TEMPLATE}`"))
                    .with_hint("remove it"),
            );
        }
        Ok(())
    }

    /// Refuses a model saved for a different class, for which sentence-transformers does not use the listed modules.
    /// `ColBERT` is PyLate's.
    fn model_class(&mut self) -> Result<()> {
        let fields = self.root.object(SETTINGS)?.unwrap_or_default();
        let modules = module_list::modules(self.root)?;
        let has = |class: &str| modules.iter().any(|module| module.class() == class);
        // Models saved for another class than `CrossEncoder` get a default `LogitScore`.
        let is_required = has("LogitScore") || has_scores(self.root)?;
        let classes: &[&str] = match has("Pooling") {
            true if is_required => &["CrossEncoder"],
            true => &["SentenceTransformer"],
            false if is_required => &["CrossEncoder"],
            false => &[
                "ColBERT",
                "CrossEncoder",
                "MultiVectorEncoder",
                "SentenceTransformer",
                "SparseEncoder",
            ],
        };
        // A null `model_type` is refused, too.
        let class = fields
            .get("model_type")
            .or(is_required.then_some(&Value::Null));
        match class.filter(|class| !class.as_str().is_some_and(|class| classes.contains(&class))) {
            None => Ok(()),
            Some(found) => {
                let expected = format!("a `model_type` of {}", quoted(classes));
                self.allowed.pass(SETTINGS, "model_type", found, &expected)
            }
        }
    }

    /// Refuses a transformer head, or a head's outputs, that the following modules do not expect.
    fn task(&mut self, folder: &ModelFolder, name: &str) -> Result<()> {
        let fields = folder.object(name)?.unwrap_or_default();
        let modules = module_list::modules(self.root)?;
        let has = |class: &str| modules.iter().any(|module| module.class() == class);
        let (task, output) = match has("Pooling") || has("MultiVectorMask") || has("Dense") {
            true => ("feature-extraction", "last_hidden_state"),
            false if has("SpladePooling") => ("fill-mask", "logits"),
            false if has("LogitScore") => ("text-generation", "logits"),
            false if module_list::has_pooling(self.root) => ("sequence-classification", "logits"),
            false => return Ok(()),
        };
        let own = |value: Option<&Value>, expected: &str| {
            value
                .filter(|value| !value.is_null() && *value != expected)
                .cloned()
        };
        let name = self.name(&folder.join(name));
        let own_task = fields.get("transformer_task").unwrap_or(&Value::Null);
        // By default, a `Transformer` has no head.
        let lacks_head = task == "fill-mask" && own_task.is_null() && has("Transformer");
        if lacks_head || own(Some(own_task), task).is_some() {
            let expected = format!("`transformer_task` `{task}` before these modules");
            self.allowed
                .pass(&name, "transformer_task", own_task, &expected)?;
        }
        let modality = |name: &str| fields.get("modality_config")?.get(name);
        let own_output = modality("text").and_then(|text| text.get("method_output_name"));
        if let Some(found) = own(own_output, output) {
            let expected = format!("`method_output_name` `{output}` before these modules");
            self.allowed
                .pass(&name, "method_output_name", &found, &expected)?;
        }
        // With it, texts are put into the chat template, which is not run; Qwen3-Reranker's is known.
        let message = modality("message").unwrap_or(&Value::Null);
        let format = message
            .get("format")
            .filter(|format| !["auto", "flat"].map(Value::from).contains(format));
        let (key, found, expected) = match (task == "text-generation", message.is_null(), format) {
            (true, true, _) => ("message", message, "`message` in `modality_config`"),
            (false, false, _) => ("message", message, "no `message` in `modality_config`"),
            // The template reads plain texts.
            (.., Some(format)) => ("format", format, "`format` `flat` of a `message`"),
            (.., None) => return Ok(()),
        };
        self.allowed.pass(&name, key, found, expected)
    }
}

/// The set of keys in an encoder's `config.json`, besides those that its reader asks for; `None` for other families.
fn encoder_keys(config: &ConfigFile) -> Option<String> {
    Family::named(config.model_type())?;
    Some(match jina_of(config) {
        Ok(Some(Jina::V2)) => "encoder.jina".to_owned(),
        Ok(Some(Jina::V3)) => "encoder.jina_v3".to_owned(),
        _ => format!("encoder.{}", config.model_type()),
    })
}

/// The file and the class of an `auto_map` entry, such as `ORG/NAME--modeling.NewModel`.
fn code_path(code: &str) -> Option<(&str, &str)> {
    let path = code.rsplit_once("--").map_or(code, |(_, path)| path);
    path.split_once('.')
}

/// A `tokenizer.json`'s parts, without the values of its model, which may be large.
fn tokenizer_parts(json: &[u8]) -> serde_json::Result<Map<String, Value>> {
    let parts: BTreeMap<String, &RawValue> = serde_json::from_slice(json)?;
    let part = |(name, part): (String, &RawValue)| {
        let value = match name.as_str() {
            "model" => {
                let keys: BTreeMap<String, IgnoredAny> = serde_json::from_str(part.get())?;
                keys.into_keys()
                    .map(|key| (key, Value::Bool(true)))
                    .collect()
            }
            _ => serde_json::from_str(part.get())?,
        };
        Ok((name, value))
    };
    parts.into_iter().map(part).collect()
}

/// Whether a classifier has a single label, with which it ranks.
fn has_one_label(config: &ConfigFile) -> bool {
    let names = config.fields().get("id2label").and_then(Value::as_object);
    match (names, config.fields().get("num_labels")) {
        (Some(names), _) => names.len() == 1,
        (None, count) => count.and_then(Value::as_u64) == Some(1),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    type Files = BTreeMap<String, Value>;

    /// A published model's settings.
    #[derive(Deserialize)]
    struct Published {
        kind: String,
        files: Files,
    }

    fn fixture<T: serde::de::DeserializeOwned>(name: &str) -> T {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
        serde_json::from_slice(&fs::read(fixtures.join(name)).unwrap()).unwrap()
    }

    fn published(name: &str) -> BTreeMap<String, Published> {
        fixture(&format!("published/{name}"))
    }

    fn embedder() -> Files {
        let mut models = published("models.json");
        let name = "sentence-transformers/all-MiniLM-L6-v2";
        models.remove(name).unwrap().files
    }

    fn check_files(kind: Kind, files: &Files, allow: &[&str]) -> Result<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = content.as_str().map(str::to_owned);
            fs::write(path, text.unwrap_or_else(|| content.to_string())).unwrap();
        }
        let plan = Plan {
            folder: ModelFolder::new(folder.path()),
            allow: allow.iter().map(|key| (*key).to_owned()).collect(),
            ..Plan::default()
        };
        check(&plan, kind)
    }

    /// The error for an encoder's files, without the hint.
    fn refusal(files: &Files) -> String {
        let refusal = check_files(Kind::Encoder, files, &[]).unwrap_err();
        refusal.to_string().split("; ").next().unwrap().to_owned()
    }

    /// The files with a field set in one of them, or in its first entry.
    fn changed(files: &Files, name: &str, field: &str, value: Value) -> Files {
        let mut files = files.clone();
        match files.get_mut(name).unwrap() {
            Value::Array(list) => list[0][field] = value,
            file => file[field] = value,
        }
        files
    }

    #[test]
    fn settings_of_published_models_are_not_refused() {
        let mut models = published("models.json");
        models.extend(published("newer.json"));
        let refusals = models.iter().filter_map(|(name, model)| {
            let kind = match model.kind.as_str() {
                "encoder" => Kind::Encoder,
                "seq2seq" => Kind::Seq2Seq,
                "gliner" => Kind::Gliner,
                other => panic!("expected a kind of model, but found {other}"),
            };
            let mut files = model.files.clone();
            if name.contains("-Reward-") {
                // They classify texts, and no pairs.
                let card = json!("---\npipeline_tag: text-classification\n---\n");
                files.insert("README.md".to_owned(), card);
            }
            let error = check_files(kind, &files, &[]).err()?;
            Some(format!("{name}: {error}"))
        });
        assert_eq!(refusals.collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn unknown_keys_of_all_files_are_refused() {
        let models = published("models.json");
        for name in [
            "config.json",
            "tokenizer_config.json",
            "modules.json",
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "sentence_bert_config.json",
            "config_sentence_transformers.json",
        ] {
            let embedder = &models["google/embeddinggemma-300m"].files;
            let files = changed(embedder, name, "new_key", json!(1));
            let refusal = refusal(&files);
            let problem = format!("`new_key` 1 in `{name}` is unknown, and may change results");
            assert_eq!(refusal, problem);
            let warnings = check_files(Kind::Encoder, &files, &["new_key"]).unwrap();
            assert!(warnings[0].contains(name), "{warnings:?}");
        }
        let translator = &models["facebook/m2m100_418M"].files;
        let files = changed(translator, GENERATION, "top_h", json!(0.4));
        let refusal = check_files(Kind::Seq2Seq, &files, &[]).unwrap_err();
        let refusal = refusal.to_string();
        assert!(refusal.contains("`top_h` 0.4"), "{refusal}");
    }

    /// Families share readers, but not keys.
    #[test]
    fn keys_that_only_other_families_read_are_refused() {
        for (model, key, value) in [
            ("tiny-bert", "n_positions", json!(64)),
            ("tiny-deberta", "position_buckets", json!(256)),
            ("tiny-eurobert", "is_causal", json!(true)),
            ("tiny-llama", "layer_norm_eps", json!(1e-5)),
            ("tiny-roberta", "dim", json!(32)),
        ] {
            let name = ConfigFile::NAME;
            let config = fixture(&format!("models/{model}/{name}"));
            let files = [(name.to_owned(), config)].into();
            check_files(Kind::Encoder, &files, &[]).unwrap();
            let refusal = refusal(&changed(&files, name, key, value));
            assert!(refusal.starts_with(&format!("`{key}` ")), "{refusal}");
        }
    }

    #[test]
    fn unknown_keys_of_the_parts_of_a_tokenizer_are_refused() {
        let token = json!({
            "id": 0, "content": "a", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true,
        });
        let known = json!({
            "version": "1.0", "padding": {"pad_id": 0}, "added_tokens": [token],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Replace", "pattern": {"Regex": "a"}, "content": "b"},
            ]},
            "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "str_rep": "▁", "add_prefix_space": true},
            "post_processor": null,
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
            "model": {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a"},
        });
        let files = |file| [(TOKENIZER.to_owned(), file)].into();
        check_files(Kind::Encoder, &files(known.clone()), &[]).unwrap();
        let refusals = [
            "/added_tokens/0",
            "/normalizer/normalizers/0",
            "/normalizer/normalizers/0/pattern",
            "/decoder",
            "/model",
        ];
        let refusals = refusals.map(|path| {
            let mut file = known.clone();
            file.pointer_mut(path).unwrap()["new_key"] = json!(true);
            refusal(&files(file))
        });
        insta::assert_snapshot!(refusals.join("\n"), @"
        `new_key` true in `tokenizer.json: added_tokens` is unknown, and may change results
        `new_key` true in `tokenizer.json: normalizer: normalizers` is unknown, and may change results
        `new_key` true in `tokenizer.json: normalizer: normalizers: pattern` is unknown, and may change results
        `new_key` true in `tokenizer.json: decoder` is unknown, and may change results
        `new_key` true in `tokenizer.json: model` is unknown, and may change results
        ");
    }

    #[test]
    fn settings_that_sentence_transformers_infers_are_refused() {
        let template = json!("{{ messages }}");
        let embedder = embedder();
        let mut plain = changed(&embedder, tokenizer_config::NAME, "chat_template", template);
        // Version 5 of `transformers` writes these.
        plain = changed(&plain, tokenizer_config::NAME, "unk_id", json!(3));
        let tokens = json!({"image_token": "[PAD]"});
        plain = changed(
            &plain,
            tokenizer_config::NAME,
            "model_specific_special_tokens",
            tokens,
        );
        check_files(Kind::Encoder, &plain, &[]).unwrap();
        plain.remove(module_list::MODULES);
        let text = json!({"method": "forward", "method_output_name": "last_hidden_state"});
        let both = json!({"text": text, "message": text});
        let message = changed(&embedder, TRANSFORMER[0], "modality_config", both);
        let sparse = &published("models.json")["naver/splade-cocondenser-ensembledistil"].files;
        let class = json!("sentence_transformers.models.Transformer");
        let sparse = changed(sparse, module_list::MODULES, "type", class);
        let mut ranker = Files::from([(
            ConfigFile::NAME.to_owned(),
            fixture("models/tiny-qwen3-rank/config.json"),
        )]);
        for name in [
            SETTINGS,
            module_list::MODULES,
            TRANSFORMER[0],
            "1_LogitScore/config.json",
        ] {
            ranker.insert(name.to_owned(), fixture(&format!("logit-score/{name}")));
        }
        check_files(Kind::Encoder, &ranker, &[]).unwrap();
        let of_ranker = ranker.get_mut(TRANSFORMER[0]).unwrap();
        of_ranker["modality_config"]["message"]["format"] = json!("structured");
        let settings = json!({"chat_template": "{{ messages }}"});
        let head = |name: &str| -> Files {
            let config = fixture(&format!("models/{name}/config.json"));
            let files = [
                (ConfigFile::NAME, config),
                (tokenizer_config::NAME, settings.clone()),
            ];
            files.map(|(name, file)| (name.to_owned(), file)).into()
        };
        check_files(Kind::Encoder, &head("tiny-bert-sentiment"), &[]).unwrap();
        let labelled = head("tiny-bert-rank");
        let refusals = [plain, message, sparse, ranker, labelled].map(|files| refusal(&files));
        insta::assert_snapshot!(refusals.join("\n"), @r#"
        expected no chat template in a model of vectors without `modules.json` in `tokenizer_config.json`, but found `chat_template` "{{ messages }}"
        expected no `message` in `modality_config` in `sentence_bert_config.json`, but found `message` {"method":"forward","method_output_name":"last_hidden_state"}
        expected `transformer_task` `fill-mask` before these modules in `sentence_bert_config.json`, but found `transformer_task` null
        expected `format` `flat` of a `message` in `sentence_bert_config.json`, but found `format` "structured"
        expected no chat template in a ranker without `modules.json` in `tokenizer_config.json`, but found `chat_template` "{{ messages }}"
        "#);
    }

    #[test]
    fn other_classes_tasks_and_code_are_refused() {
        let logits = json!({"text": {"method": "forward", "method_output_name": "logits"}});
        let padding = json!({"text": {"padding": true}});
        let code = json!({"AutoTokenizer": ["a.B", null]});
        let [tokenizer, transformer] = [tokenizer_config::NAME, TRANSFORMER[0]];
        let embedder = embedder();
        let refusals = [
            (
                "config.json",
                "auto_map",
                json!({"AutoModel": "modeling.Mine"}),
            ),
            (tokenizer, "tokenizer_class", json!("BertJapaneseTokenizer")),
            (tokenizer, "tokenizer_class", json!("MBart50TokenizerFast")),
            (SETTINGS, "model_type", json!("SparseEncoder")),
            (SETTINGS, "model_type", json!(null)),
            (tokenizer, "auto_map", code),
            (transformer, "transformer_task", json!("fill-mask")),
            (transformer, "modality_config", logits),
            (transformer, "processing_kwargs", padding),
            (
                transformer,
                "tokenizer_args",
                json!({"do_lower_case": false}),
            ),
        ];
        let refusals =
            refusals.map(|(name, field, value)| refusal(&changed(&embedder, name, field, value)));
        insta::assert_snapshot!(refusals.join("\n"), @r#"
        expected `bert` without code of its own in `config.json`, but found `auto_map` {"AutoModel":"modeling.Mine"}
        expected a `tokenizer_class` that matches `tokenizer.json` in `tokenizer_config.json`, but found `tokenizer_class` "BertJapaneseTokenizer"
        expected a `tokenizer_class` that matches `tokenizer.json` in `tokenizer_config.json`, but found `tokenizer_class` "MBart50TokenizerFast"
        expected a `model_type` of `SentenceTransformer` in `config_sentence_transformers.json`, but found `model_type` "SparseEncoder"
        expected a `model_type` of `SentenceTransformer` in `config_sentence_transformers.json`, but found `model_type` null
        `auto_map` {"AutoTokenizer":["a.B",null]} in `tokenizer_config.json` is not supported
        expected `transformer_task` `feature-extraction` before these modules in `sentence_bert_config.json`, but found `transformer_task` "fill-mask"
        expected `method_output_name` `last_hidden_state` before these modules in `sentence_bert_config.json`, but found `method_output_name` "logits"
        expected `processing_kwargs` `{}` in `sentence_bert_config.json`, but found `processing_kwargs` {"text":{"padding":true}}
        `do_lower_case` false in `sentence_bert_config.json: tokenizer_args` is unknown, and may change results
        "#);
    }
}
